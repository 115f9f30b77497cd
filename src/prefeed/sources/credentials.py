"""Who speaks to an object store, and where it is: ``credentials.json`` in the home.

::

    {"format": 1, "stores": [
        {"url": "s3://photos", "access-key": "AKIA…", "secret-key": {"env": "PHOTOS_SECRET"},
         "endpoint": "https://s3.example.org", "region": "eu-1"},
        {"url": "s3://public/train", "anonymous": true}]}

An entry is for its URL and all below it; the longest one counts. A value is a text, or names a variable of the
environment. The file must be the user's own and readable by no other user (0600). What is in it goes to the native client
and nowhere else: not into messages, logs, process lists or manifests. Without an entry the environment says who speaks.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prefeed.config import Config
from prefeed.errors import CredentialsError
from prefeed.system.files import read_private, write_private

FILE: Final = "credentials.json"
FORMAT: Final = 1
ENV: Final = "env"
ACCESS_KEY: Final = "access-key"
SECRET_KEY: Final = "secret-key"

_S3: Final = {
    ACCESS_KEY: "access_key_id",
    SECRET_KEY: "secret_access_key",
    "session-token": "session_token",
    "endpoint": "endpoint",
    "region": "region",
    "virtual-hosted": "virtual_hosted_style_request",
    "anonymous": "skip_signature",
}
_GS: Final = {"service-account-file": "service_account_path", "anonymous": "skip_signature"}
_AZ: Final = {
    ACCESS_KEY: "account_name",
    SECRET_KEY: "account_key",
    "endpoint": "endpoint",
    "anonymous": "skip_signature",
}
_HTTP: Final = {ACCESS_KEY: "username", SECRET_KEY: "password"}
_NAMES: Final = {"s3": _S3, "gs": _GS, "az": _AZ, "http": _HTTP, "https": _HTTP}
FIELDS: Final = frozenset({"url"}.union(*_NAMES.values()))
"""Fields that an entry may have."""

kept_variables: Final[dict[str, str]] = {}
"""What a server was started with, and speaks by no more, but where the file names it."""

Value = str | bool | Mapping[str, str]


def options_for(url: str, config: Config) -> dict[str, str]:
    """Return obstore's options for a canonical URL; for HTTP ``username`` and ``password``; empty without an entry.

    Raises:
        CredentialsError: The file is not private, not understood, or names a variable that is not set.
    """
    path = config.home / FILE
    entry = _entry_for(url, _read(path))
    names = _NAMES.get(url.partition("://")[0], {})
    options: dict[str, str] = {}
    for field, value in entry.items():
        if field in names:
            options[names[field]] = _text(value, field, path)
    return options


def write_credentials(home: Path, entries: Sequence[Mapping[str, Value]]) -> bool:
    """The home has these entries and no others; without any there is no file. Whole or not at all, 0600.

    Returns:
        True when it had others.

    Raises:
        OSError: It cannot be written.
    """
    path = home / FILE
    if not entries:
        had_some = path.exists()
        path.unlink(missing_ok=True)
        return had_some
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = json.dumps({"format": FORMAT, "stores": [dict(entry) for entry in entries]}, indent=1).encode()
    with contextlib.suppress(CredentialsError):  # one that others can read is replaced
        if read_private(path) == data:
            return False
    write_private(path, data)
    return True


def _read(path: Path) -> list[dict[str, Any]]:
    data = read_private(path)
    if data is None:
        return []
    try:
        document = json.loads(data)
        entries = document["stores"] if document["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError):
        entries = None  # what json says of it would show a part of it
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise CredentialsError(
            f'{path} is not valid; write it as {{"format": {FORMAT}, "stores": [{{"url": "s3://name", …}}]}} '
            f"with the fields {', '.join(sorted(FIELDS))}",
            path=str(path),
        )
    return entries


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("url"), str) and FIELDS.issuperset(entry)


def _entry_for(url: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def covers(entry: dict[str, Any]) -> bool:
        root = entry["url"].rstrip("/")
        return bool(url == root or url.startswith(f"{root}/"))

    return max(filter(covers, entries), key=lambda entry: len(entry["url"]), default={})


def _text(value: object, field: str, path: Path) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    name = value.get(ENV) if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(name, str):
        raise CredentialsError(
            f'{path}: {field} must be a text, or {{"env": "NAME"}} for a variable of the environment', path=str(path)
        )
    found = os.environ.get(name) or kept_variables.get(name)
    if not found:
        raise CredentialsError(
            f"{path} takes {field} from the environment, and {name} is not set: set it, and apply again or, if a server was "
            f"started without it, run `prefeed server stop --home {path.parent}`",
            path=str(path),
        )
    return found
