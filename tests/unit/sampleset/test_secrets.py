from __future__ import annotations

import base64
from typing import Any

import pytest

from prefeed.config import resolve
from prefeed.errors import CredentialsError, SpecError
from prefeed.sampleset.applying import find_secret
from sandbox import Sandbox
from unit.sampleset.documents import ACCESS, SECRET, apply, files_below, keys, secret


def test_a_secret_is_kept_where_no_other_user_can_read_it(sandbox: Sandbox) -> None:
    assert [(a.kind, a.name, a.action) for a in apply(keys(bucket="s3://photos"))] == [("Secret", "keys", "created")]
    path = sandbox.home / "secrets" / "keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    found = find_secret("keys", resolve())
    assert found.values == {"access-key": ACCESS, "secret-key": SECRET, "bucket": "s3://photos"}
    assert found.bucket is not None
    assert found.bucket.url == "s3://photos"
    assert SECRET not in repr(found)


def test_applied_again() -> None:
    apply(keys())
    assert apply(keys())[0].action == "unchanged"
    assert apply(keys(region="eu"))[0].action == "configured"


def test_base64_and_plain_text() -> None:
    encoded = {
        name: base64.b64encode(value.encode()).decode()
        for name, value in {"access-key": "a", "secret-key": "b"}.items()
    }
    document = {**secret("keys", **{"secret-key": "plain"}), "data": encoded, "type": "Opaque"}
    apply(document)
    assert find_secret("keys", resolve()).values == {"access-key": "a", "secret-key": "plain"}


def test_a_value_from_the_environment_is_not_kept(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOTOS_SECRET", SECRET)
    apply(secret("keys", **{"access-key": {"env": "PHOTOS_KEY"}, "secret-key": {"env": "PHOTOS_SECRET"}}))
    assert SECRET.encode() not in b"".join(files_below(sandbox.home).values())


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (secret("keys", **{"access-key": SECRET}), "must have both access-key and secret-key"),
        (secret("keys", accesskey=SECRET), r"stringData\.accesskey is not known\. Did you mean access-key\?"),
        (secret("keys", **{"secret-key": 12345}), r"stringData\.secret-key must be a text in quotes, or env: NAME$"),
        (secret("keys", **{"secret-key": {"env": "A", "b": SECRET}}), r"stringData\.secret-key\.b is not known"),
        ({**secret("keys"), "data": {"secret-key": "hush!"}}, r"data\.secret-key must be base64"),
        (secret("keys", bucket={"env": "A"}), "is not secret; write it as a text"),
        (secret("keys", storage="s3", bucket=f"s3://{ACCESS}:{SECRET}@photos"), "document of kind Secret"),
        (secret("../keys"), r"metadata\.name must be made of"),
    ],
)
def test_what_is_no_secret_is_said_without_a_value(document: dict[str, Any], said: str, sandbox: Sandbox) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        apply(document)
    shown = f"{caught.value!r}{caught.value.__cause__!r}"
    assert not any(hidden in shown for hidden in (SECRET, ACCESS, "12345", "hush"))
    assert not (sandbox.home / "secrets").exists()


def test_one_that_is_not_there_or_that_others_can_read(sandbox: Sandbox) -> None:
    with pytest.raises(SpecError, match="there is no secret other"):
        find_secret("other", resolve())
    apply(keys())
    (sandbox.home / "secrets" / "keys.json").chmod(0o644)
    with pytest.raises(CredentialsError, match="chmod 600"):
        find_secret("keys", resolve())
