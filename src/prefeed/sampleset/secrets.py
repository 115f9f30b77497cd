"""Documents of kind Secret: who may speak to a bucket. Kept in ``<home>/secrets``, 0600; shown nowhere.

A value is a text, or ``env: NAME`` for a variable of the environment, of which then only the name is kept.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefeed.config import Config
from prefeed.errors import SpecError
from prefeed.sampleset.locations import Location, locate_bucket
from prefeed.sampleset.spec import take_metadata
from prefeed.sampleset.yaml_fields import Section, require_name
from prefeed.sources.credentials import ACCESS_KEY, ENV, SECRET_KEY, Value
from prefeed.system.files import read_private, write_private

KIND: Final = "Secret"
API_VERSION: Final = "v1"
FIELDS: Final = ("name", "storage", "bucket", "metaurl", ACCESS_KEY, SECRET_KEY, "session-token", "endpoint", "region")
"""JuiceFS's six, and three for stores that need more."""

_DIRECTORY: Final = "secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What a secret holds.

    Attributes:
        name: Its name.
        values: By field. Never printed.
        bucket: Where a copy of the data is to lie; None: it names none.
    """

    name: str
    values: Mapping[str, Value] = field(repr=False)
    bucket: Location | None

    @property
    def has_metaurl(self) -> bool:
        """True when it names JuiceFS's server of metadata, of which there is none here."""
        return "metaurl" in self.values

    def entry_for(self, location: Location) -> dict[str, Value]:
        """Return the entry of ``credentials.json`` with which this secret speaks to a place."""
        entry = _entry(location)
        keys = (ACCESS_KEY, SECRET_KEY, "session-token", "endpoint", "region")
        entry.update({key: self.values[key] for key in keys if key in self.values})
        return entry


def entry_without_secret(location: Location) -> dict[str, Value]:
    """Return the entry for a place that is public, or for which the environment speaks."""
    entry = _entry(location)
    if location.endpoint:
        entry["anonymous"] = True  # keys of the environment are Amazon's, and nobody else's business
    return entry


def _entry(location: Location) -> dict[str, Value]:
    entry: dict[str, Value] = {"url": location.url}
    if location.endpoint:
        entry["endpoint"] = location.endpoint
    if location.region:
        entry["region"] = location.region
    if location.is_virtual_hosted:
        entry["virtual-hosted"] = True
    return entry


def parse_secret(document: Section) -> Secret:
    """Return the secret of a document.

    Raises:
        SpecError: A field is unknown or of another type; no value is in the message.
    """
    metadata = take_metadata(document)
    document.ignore("kind", "apiVersion", "type", "immutable")
    values: dict[str, Value] = {}
    for name, decode in (("data", True), ("stringData", False)):  # as Kubernetes has it: stringData wins
        section = document.section(name)
        if section is not None:
            values.update(_take_values(Section(section.fields, section.path, secret=True), decode=decode))
    document.end()
    return _secret(metadata.name, values)


def _take_values(section: Section, *, decode: bool) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name in FIELDS:
        value = section.take(name)
        if isinstance(value, dict):
            reference = Section(value, section.at(name), secret=True)
            values[name] = {ENV: reference.text(ENV)}
            reference.end()
        elif value is not None and not isinstance(value, str):
            section.wrong(name, "a text in quotes, or env: NAME")
        elif value:
            values[name] = _decoded(value, section.at(name)) if decode else value
    section.end()
    return values


def _decoded(value: str, what: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode().rstrip("\n")
    except (binascii.Error, ValueError):
        raise SpecError(f"{what} must be base64; a text as it is belongs into stringData") from None


def _secret(name: str, values: Mapping[str, Value]) -> Secret:
    if (ACCESS_KEY in values) != (SECRET_KEY in values):
        raise SpecError(f"the secret {name} must have both access-key and secret-key, or neither")
    for plain in ("storage", "bucket", "name"):
        if not isinstance(values.get(plain, ""), str):
            raise SpecError(f"the {plain} of the secret {name} is nothing secret; write it as a text")
    storage, bucket = str(values.get("storage", "")), str(values.get("bucket", ""))
    location = locate_bucket(storage, bucket, f"the bucket of the secret {name}") if bucket else None
    return Secret(name=name, values=values, bucket=location)


# ---------------------------------------------------------------- on disk


def store_secret(secret: Secret, config: Config) -> bool:
    """The home has this secret; return True when it is another than it had.

    Raises:
        OSError: It cannot be written.
    """
    path = _path(secret.name, config)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = json.dumps({"format": 1, "values": secret.values}, indent=1, sort_keys=True).encode()
    if read_private(path) == data:
        return False
    write_private(path, data)
    return True


def find_secret(name: str, config: Config) -> Secret:
    """Return a secret that was applied.

    Raises:
        SpecError: There is none of this name.
        CredentialsError: Others may read it.
    """
    require_name(name, "secretRef.name")
    path = _path(name, config)
    data = read_private(path)
    if data is None:
        raise SpecError(
            f"there is no secret {name}: apply a document of kind Secret with this name, in the same file or before"
        )
    try:
        values = json.loads(data)["values"]
        return _secret(name, values)
    except (ValueError, KeyError, TypeError) as err:
        if isinstance(err, SpecError):
            raise
        raise SpecError(f"{path} is damaged; apply the secret {name} again") from None


def _path(name: str, config: Config) -> Path:
    return config.home / _DIRECTORY / f"{name}.json"
