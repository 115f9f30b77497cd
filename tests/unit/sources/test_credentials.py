from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import servers
from prefeed.config import resolve
from prefeed.errors import AccessDeniedError, CredentialsError
from prefeed.sources.credentials import options_for, write_credentials
from prefeed.sources.urls import open_source
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

HUSH = "hush/hush+hush=="


@pytest.fixture
def home(sandbox: Sandbox) -> Path:
    return sandbox.home


def written(home: Path, *entries: dict[str, Any]) -> Path:
    write_credentials(home, entries)
    return home / "credentials.json"


def test_without_a_file_the_environment_speaks(home: Path) -> None:
    assert options_for("s3://photos", resolve()) == {}
    write_credentials(home, [])
    assert not (home / "credentials.json").exists()


def test_the_longest_url_counts_and_not_its_neighbour(home: Path) -> None:
    written(home, {"url": "s3://photos", "region": "a"}, {"url": "s3://photos/train/", "region": "b"})
    found = {
        url: options_for(url, resolve())
        for url in ("s3://photos", "s3://photos/train/x", "s3://photos2", "gs://photos")
    }
    assert found == {
        "s3://photos": {"region": "a"}, "s3://photos/train/x": {"region": "b"}, "s3://photos2": {}, "gs://photos": {},
    }  # fmt: skip


def test_names_of_each_store(home: Path) -> None:
    entry = {"access-key": "a", "secret-key": "b", "endpoint": "http://x", "region": "r", "session-token": "t"}
    written(home, *({**entry, "url": url} for url in ("s3://p", "az://p", "https://p")))
    assert options_for("s3://p", resolve()) == {
        "access_key_id": "a", "secret_access_key": "b", "endpoint": "http://x", "region": "r", "session_token": "t",
    }  # fmt: skip
    assert options_for("az://p", resolve()) == {"account_name": "a", "account_key": "b", "endpoint": "http://x"}
    assert options_for("https://p", resolve()) == {"username": "a", "password": "b"}


def test_a_value_of_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(home, {"url": "s3://p", "secret-key": {"env": "PHOTOS_SECRET"}, "anonymous": True})
    monkeypatch.setenv("PHOTOS_SECRET", HUSH)
    assert options_for("s3://p", resolve()) == {"secret_access_key": HUSH, "skip_signature": "true"}
    monkeypatch.delenv("PHOTOS_SECRET")
    with pytest.raises(CredentialsError, match=r"takes secret-key from the environment, and PHOTOS_SECRET is not set"):
        options_for("s3://p", resolve())


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(home: Path, mode: int) -> None:
    path = written(home, {"url": "s3://p", "secret-key": HUSH})
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(mode)
    with pytest.raises(CredentialsError, match=rf"no other user can read.*mode 0{mode:o}\. Run chmod 600"):
        options_for("s3://p", resolve())


def test_a_link_and_a_directory_are_no_such_file(home: Path) -> None:
    path = written(home, {"url": "s3://p"})
    os.rename(path, home / "elsewhere")
    path.symlink_to(home / "elsewhere")
    with pytest.raises(CredentialsError, match="cannot read"):
        options_for("s3://p", resolve())
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(CredentialsError, match="must be a file"):
        options_for("s3://p", resolve())


@pytest.mark.parametrize(
    "text",
    [
        HUSH,
        json.dumps({"format": 2, "stores": []}),
        json.dumps({"format": 1, "stores": [{"secret-key": HUSH}]}),
        json.dumps({"format": 1, "stores": [{"url": "s3://p", "secret_key": HUSH}]}),
        json.dumps({"format": 1, "stores": [{"url": "s3://p", "secret-key": [HUSH]}]}),
    ],
)
def test_what_is_not_understood_is_said_without_a_piece_of_it(home: Path, text: str) -> None:
    path = written(home, {"url": "s3://p"})
    path.write_text(text)
    with pytest.raises(CredentialsError, match=r"is not valid|must be a text") as caught:
        options_for("s3://p", resolve())
    assert "hush" not in f"{caught.value!r}{caught.value.__cause__!r}"


def test_an_older_file_stays_when_a_new_one_cannot_be_written(home: Path) -> None:
    written(home, {"url": "s3://p", "region": "old"})
    with pytest.raises(TypeError):
        write_credentials(home, [{"url": "s3://p", "region": object()}])  # type: ignore[dict-item]
    assert options_for("s3://p", resolve()) == {"region": "old"}
    assert [path.name for path in home.iterdir()] == ["credentials.json"]


# ---------------------------------------------------------------- at a store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.moto_server() as url:
        client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
        )
        client.create_bucket(Bucket="kept")
        client.put_object(Bucket="kept", Key="a/1", Body=b"one")
        client.close()
        yield url


def test_a_source_speaks_as_the_file_says(home: Path, endpoint: str) -> None:
    written(home, {"url": "s3://kept", "access-key": "k", "secret-key": "s", "endpoint": endpoint})
    source = open_source("s3://kept/a", resolve())
    assert [info.path for batch in source.list_objects() for info in batch] == ["1"]
    assert bytes(source.fetch("1").data) == b"one"
    source.close()


def test_a_forked_child_speaks_as_the_file_says(home: Path, endpoint: str) -> None:
    written(home, {"url": "s3://kept", "access-key": "k", "secret-key": "s", "endpoint": endpoint})
    source = open_source("s3://kept/a", resolve())
    source.fetch("1")  # from here on the native library belongs to this process
    child = os.fork()
    if child == 0:
        os._exit(0 if bytes(source.fetch("1").data) == b"one" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    source.close()


def test_a_file_that_others_can_read_is_the_error_of_a_fetch(home: Path, endpoint: str) -> None:
    written(home, {"url": "s3://kept", "endpoint": endpoint}).chmod(0o644)
    source = open_source("s3://kept/a", resolve())
    with pytest.raises(AccessDeniedError, match="chmod 600"):
        source.fetch("1")
    with pytest.raises(AccessDeniedError, match="chmod 600"):
        list(source.list_objects())
    source.close()


def test_a_web_server_gets_name_and_password(home: Path, tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"one")
    with servers.http_server(tmp_path) as server:
        written(home, {"url": server.url, "access-key": "ann", "secret-key": HUSH})
        source = open_source(server.url, resolve())
        assert bytes(source.fetch("1").data) == b"one"
        source.close()
        ((_, _, headers),) = server.requests
    found = {name.lower(): value for name, value in headers.items()}
    assert found["authorization"] == "Basic YW5uOmh1c2gvaHVzaCtodXNoPT0="


def test_a_token_of_the_environment_does_not_go_with_keys_of_the_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is Amazon's, and the server of these keys somebody else's, who would refuse it, and has not to know it."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", HUSH)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/1").write_bytes(b"one")
    with servers.http_server(tmp_path) as server:
        written(home, {"url": "s3://kept", "access-key": "k", "secret-key": "s", "endpoint": server.url})
        source = open_source("s3://kept", resolve())
        assert bytes(source.fetch("1").data) == b"one"
        source.close()
        ((_, _, headers),) = server.requests
    found = {name.lower(): value for name, value in headers.items()}
    assert "Credential=k/" in found["authorization"]
    assert "x-amz-security-token" not in found
