from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefeed.client.node import access_told
from prefeed.config import Config
from prefeed.errors import CredentialsError
from prefeed.sources import store_access
from prefeed.sources.credentials import kept_variables, options_for, write_credentials
from prefeed.sources.store_access import (
    StoreAccess,
    access_as_made,
    forget_store_environment,
    is_of_one_network,
    mark_of,
    native_options,
    own_access,
)
from prefeed.sources.urls import open_source

HUSH = "hush/hush+hush=="
TEMPORARY = {"access_key_id": "ASIAIOSFODNN7EXAMPLE", "session_token": "t"}


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    monkeypatch.setattr(store_access.os, "environ", {"HOME": str(tmp_path)})
    monkeypatch.setenv("HOME", str(tmp_path))
    yield Config(home=tmp_path / "home")
    kept_variables.clear()


def marks(url: str, *kinds: dict[str, str]) -> list[str]:
    return [mark_of(url, StoreAccess(options=options)) for options in kinds]


@pytest.mark.parametrize(
    ("url", "one", "other"),
    [
        ("s3://b", {}, {"region": "eu-central-1"}),
        ("s3://b", {}, {"access_key_id": "a"}),
        ("s3://b", {"access_key_id": "a"}, {"endpoint": "https://s3.eu-west-1.amazonaws.com/"}),
        ("s3://b", {"region": "cn-north-1"}, {"endpoint": "https://s3.cn-north-1.amazonaws.com.cn"}),
        ("s3://b", {"endpoint": "http://x", "region": "a"}, {"endpoint": "http://X/", "region": "b"}),
        ("s3://b", {"endpoint": "http://x", **TEMPORARY}, {"endpoint": "http://x", **TEMPORARY, "session_token": "u"}),
        (
            "s3://b", {"endpoint": "http://x", **TEMPORARY},
            {"endpoint": "http://x", **TEMPORARY, "access_key_id": "ASIAIOSFODNN7EAAAAAA"},
        ),
        (
            "s3://b", {"endpoint": "http://x", "access_key_id": "1", "session_token": "t", "role_arn": "r"},
            {"endpoint": "http://x", "access_key_id": "2", "session_token": "u", "role_arn": "r"},
        ),
        ("gs://b", {"service_account": "a"}, {"service_account": "b"}),
        ("az://b", {"account_name": "a", "account_key": "1"}, {"account_name": "a", "sas_key": "2"}),
        ("https://h", {"username": "a", "password": "1"}, {"username": "a", "password": "2"}),
    ],
)  # fmt: skip
def test_ways_to_one_store(url: str, one: dict[str, str], other: dict[str, str]) -> None:
    first, second = marks(url, one, other)
    assert first == second


@pytest.mark.parametrize(
    ("url", "one", "other"),
    [
        ("s3://b", {}, {"endpoint": "http://x"}),
        ("s3://b", {}, {"region": "cn-north-1"}),
        ("s3://b", {}, {"region": "us-gov-west-1"}),
        ("s3://b", {}, {"endpoint": "https://bucket.vpce-1.s3.us-gov-west-1.vpce.amazonaws.com"}),
        ("s3://b", {"endpoint": "http://x"}, {"endpoint": "http://y"}),
        ("s3://b", {"endpoint": "http://x"}, {"endpoint": "http://x:81"}),
        ("s3://b", {"endpoint": "http://x"}, {"aws_endpoint_url_s3": "http://y", "endpoint": "http://x"}),
        ("s3://b", {"endpoint": "http://x", "access_key_id": "a"}, {"endpoint": "http://x", "access_key_id": "b"}),
        ("s3://b", {"endpoint": "http://x", "skip_signature": "1"}, {"endpoint": "http://x", "access_key_id": "b"}),
        ("s3://b", {"endpoint": "http://amazonaws.com.example.org"}, {}),
        (
            "s3://b", {"endpoint": "http://x", **TEMPORARY},
            {"endpoint": "http://x", **TEMPORARY, "access_key_id": "ASIAQQSFODNN7EXAMPLE"},
        ),
        ("gs://b", {}, {"base_url": "http://x"}),
        ("az://b", {"account_name": "a"}, {"account_name": "b"}),
        ("az://b", {"account_name": "a"}, {"account_name": "a", "endpoint": "http://x"}),
        ("https://h", {}, {"username": "a"}),
        ("https://h", {"username": "b"}, {"username": "a"}),
    ],
)  # fmt: skip
def test_stores_that_share_a_name(url: str, one: dict[str, str], other: dict[str, str]) -> None:
    first, second = marks(url, one, other)
    assert first != second


@pytest.mark.parametrize(
    ("url", "options", "is_told_by_its_network"),
    [
        ("http://localhost:9000/d", {}, True),
        ("http://minio/d", {}, True),
        ("http://[::1]/d", {}, True),
        ("http://[2001:db8::1]/d", {}, False),
        ("https://data.example.org/d", {}, False),
        ("s3://b", {}, False),
        ("s3://b", {"endpoint": "http://127.8.8.8:9000"}, True),
        ("s3://b", {"endpoint": "https://LocalHost."}, True),
        ("s3://b", {"aws_endpoint_url_s3": "http://minio:9000", "endpoint": "https://s3.example.org"}, True),
        ("s3://b", {"endpoint": "http://10.1.2.3:9000"}, False),
        ("s3://b", {"endpoint": "http://minio.data.svc.cluster.local:9000"}, False),
        ("s3://b", {"endpoint": "no url at all"}, True),
        ("gs://b", {"base_url": "http://fake-gcs:4443"}, True),
        ("az://b", {"account_name": "a", "use_emulator": "true"}, True),
        ("az://b", {"account_name": "a"}, False),
    ],
)  # fmt: skip
def test_addresses_that_mean_another_server_elsewhere(
    url: str, options: dict[str, str], is_told_by_its_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = StoreAccess(options=options)
    assert is_of_one_network(url, access) == is_told_by_its_network
    here = mark_of(url, access)
    monkeypatch.setattr(store_access, "network_namespace", lambda: "net:[another]")
    assert (mark_of(url, access) != here) == is_told_by_its_network


def test_users_of_a_url_are_users(config: Config) -> None:
    found = {open_source(url, config).mark for url in ("http://h/d", "http://ann:x@h/d", "http://bob:x@h/d")}
    assert len(found) == 3
    assert open_source("http://ann:y@h/d", config).mark in found


def test_what_the_environment_says(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": HUSH, "AWS_TOKEN": "t", "AWS_ENDPOINT": "http://x",
        "AWS_ENDPOINT_URL_S3": "http://y", "AWS_DEFAULT_REGION": "r", "AWS_EMPTY": "", "AWS_PAGER": "less",
        "HTTPS_PROXY": "http://p", "no_proxy": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    access = own_access("s3://b", config)
    assert access.options == {
        "access_key_id": "a", "secret_access_key": HUSH, "session_token": "t", "endpoint": "http://y",
        "default_region": "r",
    }  # fmt: skip
    assert access.proxies == {"https_proxy": "http://p", "no_proxy": "x"}
    assert own_access("gs://b", config).options == {}
    assert HUSH not in repr(access) + str(access)
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "true")
    assert own_access("s3://b", config).options == {
        "skip_signature": "true", "endpoint": "http://y", "default_region": "r",
    }  # fmt: skip


def test_the_file_of_the_home_speaks_alone(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that the environment has is another's."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", HUSH)
    monkeypatch.setenv("AWS_REGION", "r")
    write_credentials(config.home, [{"url": "s3://b", "access-key": "k", "secret-key": "s"}])
    assert own_access("s3://b/c", config).options == {"access_key_id": "k", "secret_access_key": "s", "region": "r"}


def test_a_server_forgets_who_started_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what the home's own file names."""
    write_credentials(
        config.home, [{"url": "s3://b", "access-key": "k", "secret-key": {"env": "AWS_SECRET_ACCESS_KEY"}}]
    )
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "GOOGLE_BEARER_TOKEN", "https_proxy", "AZURE_CLIENT_ID"):
        monkeypatch.setenv(name, name)
    monkeypatch.setenv("AWSOME", "stays")
    forget_store_environment()
    assert set(store_access.os.environ) - {"PYTEST_CURRENT_TEST"} == {"HOME", "AWSOME"}
    assert own_access("s3://other", config) == StoreAccess()
    assert options_for("s3://b", config)["secret_access_key"] == "AWS_SECRET_ACCESS_KEY"


def test_who_cannot_read_the_file_of_the_home_leaves_it_to_the_server(config: Config) -> None:
    write_credentials(config.home, [{"url": "s3://b", "secret-key": {"env": "NOT_SET"}}])
    assert access_told("s3://b/x", config) == (None, {})
    assert access_told("pack+s3://b/x", config) == (None, {})
    assert access_told("s3://c", config) == ({}, {})
    assert (
        access_told("/data", config)
        == access_told("pack+file:///data", config)
        == access_told("", config)
        == (None, {})
    )


def test_files_that_are_named_travel_by_what_is_in_them(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"type": "service_account", "private_key": HUSH}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    (options, _) = access_told("gs://b", config)
    assert options == {"service_account_key": key.read_text()}
    key.write_text(json.dumps({"type": "authorized_user"}))
    assert access_told("gs://b", config)[0] == {"application_credentials": str(key)}


@pytest.mark.usefixtures("sandbox")
def test_a_profile_counts_where_the_environment_does_not_speak(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[default]\naws_access_key_id = d\naws_secret_access_key = s\n")
    (tmp_path / ".aws/config").write_text(
        "[default]\nregion = r\n[profile team]\nregion = t\nservices = here\nsource_profile = default\n"
        "[services here]\ns3 =\n  endpoint_url = http://y\n"
    )
    found = own_access("s3://b", config)
    assert native_options("s3://b", found) == {"access_key_id": "d", "secret_access_key": "s", "region": "r"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "e")
    assert own_access("s3://b", config).options == {"access_key_id": "e"}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert native_options("s3://b", own_access("s3://b", config))["endpoint"] == "http://y"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CredentialsError, match="nobody"):
        own_access("s3://b", config)


def test_a_profile_without_its_reader_is_an_error_and_files_alone_are_none(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(store_access.importlib.sys.modules, "botocore.session", None)  # type: ignore[attr-defined]
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").touch()
    assert own_access("s3://b", config).options == {}
    monkeypatch.setenv("AWS_PROFILE", "team")
    with pytest.raises(CredentialsError, match=r"profile team.*pip install 'prefeed\[aws\]'"):
        own_access("s3://b", config)


@pytest.mark.parametrize(
    ("url", "told", "environment", "expected"),
    [
        ("s3://b", {"endpoint": "http://a"}, {"AWS_ENDPOINT_URL": "http://z"}, {"endpoint": "http://a"}),
        (
            "s3://b", {"endpoint": "http://a"}, {"AWS_ENDPOINT_URL_S3": "http://z"},
            {"endpoint": "http://a", "aws_endpoint_url_s3": "http://a"},
        ),
        (
            "s3://b", {"region": "eu-west-1"}, {"AWS_ENDPOINT": "http://z"},
            {"region": "eu-west-1", "endpoint": "https://s3.eu-west-1.amazonaws.com"},
        ),
        ("s3://b", {"region": "eu-west-1"}, {}, {"region": "eu-west-1"}),
        ("gs://b", {}, {"GOOGLE_BASE_URL": "http://z"}, {"base_url": "https://storage.googleapis.com"}),
        (
            "az://b", {"account_name": "a"}, {"AZURE_ENDPOINT": "http://z", "AZURE_STORAGE_USE_EMULATOR": "true"},
            {"account_name": "a", "use_emulator": "false", "endpoint": "https://a.blob.core.windows.net"},
        ),
    ],
)  # fmt: skip
def test_the_environment_moves_no_store_that_was_told(
    url: str,
    told: dict[str, str],
    environment: dict[str, str],
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The native client reads it, too, and for S3 one of its variables before what it is told."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert native_options(url, StoreAccess(options=told)) == expected


def test_what_is_pickled_for_a_disk_holds_no_secret() -> None:
    access = StoreAccess(
        options={"endpoint": "http://a", "access_key_id": "KEY", "secret_access_key": "SECRET", "username": "USER"},
        proxies={"http_proxy": "http://me:SECRET@proxy"},
        mark="m",
    )
    pickled = pickle.dumps(access)
    assert not any(word in pickled for word in (b"KEY", b"SECRET", b"USER"))
    left = pickle.loads(pickled)
    assert (left.options, left.mark, left.is_whole) == ({"endpoint": "http://a"}, "m", False)
    assert copy.deepcopy(access) is access


@pytest.mark.parametrize(
    ("before", "now", "is_now"),
    [
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "1"}, {"AWS_SECRET_ACCESS_KEY": "2"}, True),
        ({"AWS_ACCESS_KEY_ID": "a"}, {"AWS_ACCESS_KEY_ID": "b"}, False),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "t"}, {"AWS_ACCESS_KEY_ID": "b", "AWS_SESSION_TOKEN": "u"}, True),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "t"}, {"AWS_ENDPOINT_URL": "http://z"}, False),
    ],
)  # fmt: skip
def test_what_was_made_is_read_with_credentials_of_now_where_they_lead_there(
    before: dict[str, str], now: dict[str, str], is_now: bool, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "http://minio.example.org", **before}.items():
        monkeypatch.setenv(name, value)
    made_with = access_as_made("s3://b", config, None)
    for name, value in now.items():
        monkeypatch.setenv(name, value)
    found = access_as_made("s3://b", config, made_with)
    assert found.options == (own_access("s3://b", config) if is_now else made_with).options
