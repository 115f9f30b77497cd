"""Apply documents of kind SampleSet and Secret to the records of the home.

``apply_documents`` checks all documents before it writes the first record. A secret contains the credentials of a bucket. Secrets are
stored in ``<home>/secrets`` with mode 0600 and never printed. A value is a text, or ``env: NAME`` for an environment variable, of
which only the name is stored.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, field

from prefeed.config import Config
from prefeed.errors import CannotChangeError, SampleSetNotFoundError, SpecError
from prefeed.sampleset.documents import Document, Envelope, Fields, Unused, decode, kind_of, require_name
from prefeed.sampleset.locations import Location, locate, locate_bucket
from prefeed.sampleset.records import SampleSet, directory_of, find, lock_sets, names, write_record
from prefeed.sampleset.spec import API_VERSION, CHANGEABLE, KIND, NO_PLACE, SampleSetDocument, SampleSetSpec
from prefeed.sampleset.tiers import plan_tiers
from prefeed.sources.credentials import ACCESS_KEY, SECRET_KEY, Value, write_credentials
from prefeed.system.files import read_private, write_private
from prefeed.system.paths import is_in

SECRET: Final = "Secret"
KINDS: Final = {KIND: API_VERSION, SECRET: "v1"}
_SECRETS: Final = "secrets"
REDIS: Final = "redis"
"""Value of JuiceFS's ``storage`` that prefeed cannot read from."""

_HINTS: Final = {
    "SampleJob": "; jobs are applied with `prefeed job apply`",
    "PaddleJob": "; a PaddleJob is for a cluster: `kubectl apply` takes it",
}

CREATED, CONFIGURED, UNCHANGED = "created", "configured", "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Credentials of a bucket.

    Attributes:
        name: Name of the secret.
        values: Values by field. Never printed.
        bucket: Bucket that the data is copied to; None if the secret names none.
    """

    name: str
    values: Mapping[str, Value] = dataclass_field(repr=False)
    bucket: Location | None

    @property
    def is_redis(self) -> bool:
        """True if JuiceFS would store its blocks in Redis, which prefeed does not read."""
        return str(self.values.get("storage", "")).lower() == REDIS

    @property
    def has_metaurl(self) -> bool:
        """True if the secret names JuiceFS's metadata server, which prefeed does not need."""
        return "metaurl" in self.values

    def entry_for(self, location: Location) -> dict[str, Value]:
        """Return the entry of ``credentials.json`` for a location read with this secret."""
        entry = _entry(location)
        keys = (ACCESS_KEY, SECRET_KEY, "session-token", "endpoint", "region")
        entry.update({key: self.values[key] for key in keys if key in self.values})
        return entry


def entry_without_secret(location: Location) -> dict[str, Value]:
    """Return the entry for a location that is public or uses the credentials of the environment."""
    entry = _entry(location)
    if location.endpoint:
        # Do not send the keys of the environment, which are for Amazon, to another server.
        entry["anonymous"] = True
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


FindSecret = Callable[[str], Secret]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """Result of applying one document.

    Attributes:
        kind: ``SampleSet`` or ``Secret``.
        name: Name in the document's metadata.
        action: ``created``, ``configured`` or ``unchanged``.
        sample_set: The set as recorded now; None for a secret.
    """

    kind: str
    name: str
    action: str
    sample_set: SampleSet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLocations:
    """Source and origin of a set's data.

    Attributes:
        source: Location that the data is copied from.
        origin: Location that the data is read from.
        entries: Entries of ``credentials.json`` for both.
    """

    source: Location
    origin: Location
    entries: Sequence[dict[str, Value]] = dataclass_field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSet:
    parsed: SampleSetDocument
    document: Document
    places: DataLocations

    @property
    def name(self) -> str:
        return self.parsed.metadata.name


def apply_documents(documents: Iterable[Document], base: Config) -> list[ApplyResult]:
    """Record the sets and secrets of documents. If one document is invalid, write nothing.

    Args:
        documents: Documents of kind SampleSet and Secret. A set may refer to a secret among them.
        base: Settings, whose home contains the sets.

    Raises:
        SpecError: A document is invalid or refers to something that does not exist.
        CannotChangeError: An existing set differs from its document in an immutable field.
    """
    new_secrets: dict[str, Secret] = {}
    sets: list[tuple[SampleSetDocument, Document]] = []
    for document in documents:
        if _require_kind(document) == KIND:
            parsed = decode(document, SampleSetDocument)
            plan_tiers(parsed.spec)
            sets.append((parsed, document["spec"]))
        else:
            secret = _parse_secret(document)
            new_secrets[secret.name] = secret
    if not sets and not new_secrets:
        raise SpecError("the file has no document of kind SampleSet or Secret: add one")

    def secret_of(name: str) -> Secret:
        return new_secrets[name] if name in new_secrets else find_secret(name, base)

    with lock_sets(base):
        planned = [
            _PlannedSet(
                parsed=parsed, document=document, places=plan_places(parsed.spec, parsed.metadata.name, secret_of)
            )
            for parsed, document in sets
        ]
        for each in planned:
            _require_same(each, base)
        others = _sets_with(set(new_secrets), {each.name for each in planned}, base)
        renewed = [(found, plan_places(found.spec, found.name, secret_of)) for found in others]
        for found, places in renewed:
            _require_same_places(found, places)
        # Write secrets before the sets that refer to them.
        applied = [_apply_secret(secret, base) for secret in new_secrets.values()]
        applied += [_renew(found, places) for found, places in renewed]
        return applied + [_apply_set(each, base) for each in planned]


def _require_kind(document: Document) -> str:
    """Return the document's kind.

    Raises:
        SpecError: The kind is not one of ``KINDS``, or has another version.
    """
    kind, version = kind_of(document, KINDS)
    if kind not in KINDS:
        hint = _HINTS.get(kind, "")
        raise SpecError(f"kind: {kind!r:.60} is not supported; choose one of {', '.join(KINDS)}{hint}")
    if version != KINDS[kind]:
        raise SpecError(f"apiVersion: a {kind} has {KINDS[kind]}, not {version!r:.60}")
    return kind


# ---------------------------------------------------------------- places


def plan_places(spec: SampleSetSpec, name: str, secret_of: FindSecret) -> DataLocations:
    """Return the source and the origin of a set's data.

    Data is copied to the bucket of ``secretRef``, into a directory with the set's name, unless the secret names no bucket or
    ``noSync`` is true.

    Raises:
        SpecError: The spec names no location, a secret is missing, or one location contains the other.
    """
    secret = secret_of(spec.secret) if spec.secret else None
    bucket = None if secret is None else secret.bucket
    if not spec.uri:
        if secret is None or bucket is None:
            raise SpecError(f"spec{NO_PLACE.path}{NO_PLACE.said}")
        return DataLocations(source=bucket, origin=bucket, entries=_entries([(bucket, secret)]))
    source = locate(spec.uri, "spec.source.uri")
    speaker = secret_of(spec.source_secret) if spec.source_secret else secret if bucket is None else None
    if spec.no_sync or bucket is None:
        return DataLocations(source=source, origin=source, entries=_entries([(source, speaker)]))
    origin = replace(bucket, url=f"{bucket.url.rstrip('/')}/{name}")
    if is_in(source.url, origin.url) or is_in(origin.url, source.url):
        raise SpecError(
            f"the data would be copied from {source.url} to {origin.url}, and one of them contains the other; write noSync: true "
            "to read it where it is, or name another bucket in the secret"
        )
    return DataLocations(source=source, origin=origin, entries=_entries([(source, speaker), (bucket, secret)]))


def _entries(pairs: Iterable[tuple[Location, Secret | None]]) -> list[dict[str, Value]]:
    entries = []
    for location, secret in pairs:
        entry = entry_without_secret(location) if secret is None else secret.entry_for(location)
        if not location.is_directory and len(entry) > 1:
            entries.append(entry)
    return entries


# ---------------------------------------------------------------- writing


def _apply_secret(secret: Secret, base: Config) -> ApplyResult:
    is_new = secret.name not in _stored_secrets(base)
    is_changed = _store_secret(secret, base)
    return ApplyResult(
        kind=SECRET, name=secret.name, action=CREATED if is_new else CONFIGURED if is_changed else UNCHANGED
    )


def _stored_secrets(base: Config) -> set[str]:
    return {path.stem for path in (base.home / _SECRETS).glob("*.json")}


def _apply_set(planned: _PlannedSet, base: Config) -> ApplyResult:
    before = _find_or_none(planned.name, base)
    now = SampleSet(
        name=planned.name,
        namespace=planned.parsed.metadata.namespace,
        spec=planned.parsed.spec,
        source_url=planned.places.source.url,
        origin_url=planned.places.origin.url,
        directory=directory_of(planned.name, base),
        created=time.time() if before is None else before.created,
        document=planned.document,
    )
    now.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Credentials first: a reader that finds the record can use it.
    is_changed = write_credentials(now.home, planned.places.entries)
    action = CREATED if before is None else CONFIGURED if is_changed or before != now else UNCHANGED
    if before != now:
        write_record(now)
    return ApplyResult(kind=KIND, name=now.name, action=action, sample_set=now)


def _find_or_none(name: str, base: Config) -> SampleSet | None:
    with contextlib.suppress(SampleSetNotFoundError):
        return find(name, base)
    return None


def _sets_with(changed: set[str], applied: set[str], base: Config) -> list[SampleSet]:
    """Return the sets that refer to a changed secret and are not applied themselves."""
    others = [find(name, base) for name in names(base) if changed and name not in applied]
    return [found for found in others if not changed.isdisjoint((found.spec.secret, found.spec.source_secret))]


def _renew(found: SampleSet, places: DataLocations) -> ApplyResult:
    is_changed = write_credentials(found.home, places.entries)
    return ApplyResult(kind=KIND, name=found.name, action=CONFIGURED if is_changed else UNCHANGED, sample_set=found)


def _require_same(planned: _PlannedSet, base: Config) -> None:
    before = _find_or_none(planned.name, base)
    if before is None:
        return
    if before.namespace != planned.parsed.metadata.namespace:
        raise CannotChangeError(
            f"the sample set {before.name} is in the namespace {before.namespace}, and names are unique over all of them; "
            f"delete it first, or give this one another name"
        )
    _require_same_places(before, planned.places)
    changes = {
        "spec.noSync": before.spec.no_sync != planned.parsed.spec.no_sync,
        "spec.secretRef": before.spec.secret != planned.parsed.spec.secret,
        "a level's mediumType or path": _tier_paths(before.spec) != _tier_paths(planned.parsed.spec),
        "sub-dir": before.read_url != replace(before, spec=planned.parsed.spec).read_url,
    }
    changed = [name for name, is_changed in changes.items() if is_changed]
    if changed:
        raise _cannot_change(before, changed[0])


def _require_same_places(before: SampleSet, places: DataLocations) -> None:
    if before.source_url != places.source.url:
        raise _cannot_change(before, f"spec.source, which was {before.source_url} and is {places.source.url},")
    if before.origin_url != places.origin.url:
        raise _cannot_change(before, f"the secret's bucket, which was {before.origin_url} and is {places.origin.url},")


def _cannot_change(before: SampleSet, what: str) -> CannotChangeError:
    return CannotChangeError(
        f"{what} of the sample set {before.name} {CHANGEABLE}. Run "
        f"`prefeed sampleset delete {before.name}` and apply it again; its data stays",
        name=before.name,
    )


def _tier_paths(spec: SampleSetSpec) -> tuple[tuple[str, str], ...]:
    tiers = plan_tiers(spec)
    return tuple((level.medium, level.path) for level in (tiers.memory, tiers.disk) if level is not None)


# ---------------------------------------------------------------- secrets


_Value = Annotated[str, Meta(description="a text in quotes, or env: NAME")]


class _Variable(Fields, frozen=True, kw_only=True):
    env: str


class _Values(Fields, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The six fields of JuiceFS's secrets, and three that some object stores need."""

    name: _Value | _Variable = ""
    storage: _Value | _Variable = ""
    bucket: _Value | _Variable = ""
    metaurl: _Value | _Variable = ""
    access_key: _Value | _Variable = ""
    secret_key: _Value | _Variable = ""
    session_token: _Value | _Variable = ""
    endpoint: _Value | _Variable = ""
    region: _Value | _Variable = ""


SECRET_KEYS: Final = tuple(each.encode_name for each in msgspec.structs.fields(_Values))
"""Supported fields of a secret."""


class _SecretDocument(Envelope, frozen=True, kw_only=True):
    data: _Values = field(default_factory=_Values)
    string_data: _Values = field(default_factory=_Values)
    type: Unused | None = None
    immutable: Unused | None = None


def _parse_secret(document: Document) -> Secret:
    """Parse a secret. ``stringData`` overrides ``data``, as in Kubernetes. Errors contain no values."""
    parsed = decode(document, _SecretDocument, is_secret=True)
    values = {name: _decode_base64(value, f"data.{name}") for name, value in msgspec.to_builtins(parsed.data).items()}
    return _create_secret(parsed.metadata.name, values | msgspec.to_builtins(parsed.string_data))


def _decode_base64(value: Value, what: str) -> Value:
    try:
        return base64.b64decode(value, validate=True).decode().rstrip("\n") if isinstance(value, str) else value
    except (binascii.Error, ValueError):
        raise SpecError(f"{what} must be base64; put plain text into stringData") from None


def _create_secret(name: str, values: Mapping[str, Value]) -> Secret:
    if (ACCESS_KEY in values) != (SECRET_KEY in values):
        raise SpecError(f"the secret {name} must have both access-key and secret-key, or neither")
    for plain in ("storage", "bucket", "name"):
        if not isinstance(values.get(plain, ""), str):
            raise SpecError(f"the {plain} of the secret {name} is not secret; write it as a text")
    storage, bucket = str(values.get("storage", "")), str(values.get("bucket", ""))
    is_place = bucket and storage.lower() != REDIS
    location = locate_bucket(storage, bucket, f"the bucket of the secret {name}") if is_place else None
    return Secret(name=name, values=values, bucket=location)


def _store_secret(secret: Secret, config: Config) -> bool:
    """Write a secret into the home. Return True if its values changed.

    Raises:
        OSError: The file cannot be written.
    """
    path = _path(secret.name, config)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = json.dumps({"format": 1, "values": secret.values}, indent=1, sort_keys=True).encode()
    if read_private(path) == data:
        return False
    write_private(path, data)
    return True


def find_secret(name: str, config: Config) -> Secret:
    """Return an applied secret.

    Raises:
        SpecError: No secret has this name, or its file is damaged.
        CredentialsError: Other users can read the file.
    """
    require_name(name, "secretRef.name")
    path = _path(name, config)
    data = read_private(path)
    if data is None:
        raise SpecError(
            f"there is no secret {name}: apply a document of kind Secret with this name, in the same file or earlier"
        )
    try:
        values = msgspec.convert(json.loads(data)["values"], dict[str, str | dict[str, str]])
    except (ValueError, KeyError, TypeError, msgspec.ValidationError):
        raise SpecError(f"{path} is damaged; apply the secret {name} again") from None
    return _create_secret(name, values)


def settings_with(secret: Secret, location: Location, config: Config) -> Config:
    """Return settings with another home, whose credentials are a secret's for one location."""
    place = hashlib.sha256(location.url.encode()).hexdigest()[:16]
    home = config.home / _SECRETS / f"{secret.name}-{place}"
    write_credentials(home, _entries([(location, secret)]))
    return replace(config, home=home)


def _path(name: str, config: Config) -> Path:
    return config.home / _SECRETS / f"{name}.json"
