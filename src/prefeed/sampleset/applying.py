"""Documents become records: checked as a whole first, written then, one set after the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from prefeed.config import Config
from prefeed.errors import CannotChangeError, SampleSetNotFoundError, SpecError
from prefeed.sampleset import secrets
from prefeed.sampleset.locations import Location, locate
from prefeed.sampleset.records import SampleSet, applying, directory_of, find, names, write_record
from prefeed.sampleset.secrets import Secret, entry_without_secret, find_secret, parse_secret, store_secret
from prefeed.sampleset.spec import API_VERSION, KIND, Metadata, SampleSetSpec, parse_spec, take_kind, take_metadata
from prefeed.sampleset.tiers import plan_tiers
from prefeed.sampleset.yaml_fields import Section
from prefeed.sources.credentials import Value, write_credentials
from prefeed.system.paths import is_in

KINDS = {KIND: API_VERSION, secrets.KIND: secrets.API_VERSION}

CREATED, CONFIGURED, UNCHANGED = "created", "configured", "unchanged"

FindSecret = Callable[[str], Secret]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a document.

    Attributes:
        kind: ``SampleSet`` or ``Secret``.
        name: Its name.
        action: ``created``, ``configured`` or ``unchanged``.
        sample_set: The set as it is recorded now; None: it was a secret.
    """

    kind: str
    name: str
    action: str
    sample_set: SampleSet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the data of a set is.

    Attributes:
        source: Where it comes from.
        origin: Where it is read.
        entries: Who speaks to them, for ``credentials.json``.
    """

    source: Location
    origin: Location
    entries: Sequence[dict[str, Value]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    metadata: Metadata
    spec: SampleSetSpec
    places: Places


def apply_documents(documents: Iterable[Section], base: Config) -> list[Applied]:
    """The home has what the documents ask for; nothing is written when one of them cannot be.

    Args:
        documents: Of the kinds SampleSet and Secret; a set may name a secret that stands beside it.
        base: Settings; their home has the sets.

    Raises:
        SpecError: One is not understood, or asks for what there is not.
        CannotChangeError: A set is there already and differs in what it keeps for its life.
    """
    new_secrets: dict[str, Secret] = {}
    specs: list[tuple[Metadata, SampleSetSpec]] = []
    for document in documents:
        if take_kind(document, KINDS) == KIND:
            specs.append(_parsed(document))
        else:
            secret = parse_secret(document)
            new_secrets[secret.name] = secret
    if not specs and not new_secrets:
        raise SpecError("there is no document of kind SampleSet or Secret in it")

    def secret_of(name: str) -> Secret:
        return new_secrets[name] if name in new_secrets else find_secret(name, base)

    with applying(base):
        wanted = [
            _Wanted(metadata=metadata, spec=spec, places=plan_places(spec, metadata.name, secret_of))
            for metadata, spec in specs
        ]
        for each in wanted:
            _require_same(each, base)
        others = _sets_with(set(new_secrets), {each.metadata.name for each in wanted}, base)
        renewed = [(found, plan_places(found.spec, found.name, secret_of)) for found in others]
        for found, places in renewed:
            _require_same_places(found, places)
        # From here on it is written: secrets before those who have them.
        applied = [_apply_secret(secret, base) for secret in new_secrets.values()]
        applied += [_renew(found, places) for found, places in renewed]
        return applied + [_apply_set(each, base) for each in wanted]


def _parsed(document: Section) -> tuple[Metadata, SampleSetSpec]:
    metadata = take_metadata(document)
    section = document.section("spec")
    if section is None:
        document.missing("spec")
    document.ignore("status")  # a document that a cluster wrote out has one; kubectl passes it over, too
    document.end()
    spec = parse_spec(section)
    plan_tiers(spec)
    return metadata, spec


# ---------------------------------------------------------------- places


def plan_places(spec: SampleSetSpec, name: str, secret_of: FindSecret) -> Places:
    """Return where the data of a set comes from and where it is read.

    Data is copied to the bucket of ``secretRef``, into a directory of the set's name, unless it names none or ``noSync``
    is true.

    Raises:
        SpecError: There is no place, a secret is missing, or one place lies in the other.
    """
    secret = secret_of(spec.secret) if spec.secret else None
    bucket = None if secret is None else secret.bucket
    if not spec.uri:
        if secret is None or bucket is None:
            raise SpecError(
                "spec.source.uri is missing, and there is no bucket in the secret of spec.secretRef: say where the data is"
            )
        return Places(source=bucket, origin=bucket, entries=_entries([(bucket, secret)]))
    source = locate(spec.uri, "spec.source.uri")
    speaker = secret_of(spec.source_secret) if spec.source_secret else secret if bucket is None else None
    if spec.no_sync or bucket is None:
        return Places(source=source, origin=source, entries=_entries([(source, speaker)]))
    origin = replace(bucket, url=f"{bucket.url.rstrip('/')}/{name}")
    if is_in(source.url, origin.url) or is_in(origin.url, source.url):
        raise SpecError(
            f"the data would be copied from {source.url} to {origin.url}, and one of them lies in the other; write noSync: true "
            "to read it where it is, or name another bucket in the secret"
        )
    return Places(source=source, origin=origin, entries=_entries([(source, speaker), (bucket, secret)]))


def _entries(pairs: Iterable[tuple[Location, Secret | None]]) -> list[dict[str, Value]]:
    entries = []
    for location, secret in pairs:
        entry = entry_without_secret(location) if secret is None else secret.entry_for(location)
        if not location.is_directory and len(entry) > 1:
            entries.append(entry)
    return entries


# ---------------------------------------------------------------- writing


def _apply_secret(secret: Secret, base: Config) -> Applied:
    is_new = secret.name not in _stored(base)
    is_changed = store_secret(secret, base)
    return Applied(
        kind=secrets.KIND, name=secret.name, action=CREATED if is_new else CONFIGURED if is_changed else UNCHANGED
    )


def _stored(base: Config) -> set[str]:
    return {path.stem for path in (base.home / "secrets").glob("*.json")}


def _apply_set(wanted: _Wanted, base: Config) -> Applied:
    before = _before(wanted.metadata.name, base)
    now = SampleSet(
        name=wanted.metadata.name,
        namespace=wanted.metadata.namespace,
        spec=wanted.spec,
        source_url=wanted.places.source.url,
        origin_url=wanted.places.origin.url,
        directory=directory_of(wanted.metadata.name, base),
        created=time.time() if before is None else before.created,
    )
    now.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Credentials first: whoever finds the record can use it.
    is_changed = write_credentials(now.home, wanted.places.entries)
    action = CREATED if before is None else CONFIGURED if is_changed or before != now else UNCHANGED
    if before != now:
        write_record(now)
    return Applied(kind=KIND, name=now.name, action=action, sample_set=now)


def _before(name: str, base: Config) -> SampleSet | None:
    with contextlib.suppress(SampleSetNotFoundError):
        return find(name, base)
    return None


def _sets_with(changed: set[str], applied: set[str], base: Config) -> list[SampleSet]:
    """Return the sets that have one of these secrets, but for those that are applied anyway."""
    others = [find(name, base) for name in names(base) if changed and name not in applied]
    return [found for found in others if not changed.isdisjoint((found.spec.secret, found.spec.source_secret))]


def _renew(found: SampleSet, places: Places) -> Applied:
    is_changed = write_credentials(found.home, places.entries)
    return Applied(kind=KIND, name=found.name, action=CONFIGURED if is_changed else UNCHANGED, sample_set=found)


def _require_same(wanted: _Wanted, base: Config) -> None:
    before = _before(wanted.metadata.name, base)
    if before is None:
        return
    if before.namespace != wanted.metadata.namespace:
        raise CannotChangeError(
            f"the sample set {before.name} is in the namespace {before.namespace}, and names are unique over all of them; "
            f"delete it first, or give this one another name"
        )
    _require_same_places(before, wanted.places)
    changes = {
        "spec.noSync": before.spec.no_sync != wanted.spec.no_sync,
        "spec.secretRef": before.spec.secret != wanted.spec.secret,
        "a level's mediumType or path": _where(before.spec) != _where(wanted.spec),
        "sub-dir": before.read_url != replace(before, spec=wanted.spec).read_url,
    }
    changed = [name for name, is_changed in changes.items() if is_changed]
    if changed:
        raise _cannot_change(before, changed[0])


def _require_same_places(before: SampleSet, places: Places) -> None:
    if before.source_url != places.source.url:
        raise _cannot_change(before, f"spec.source, which was {before.source_url} and is {places.source.url},")
    if before.origin_url != places.origin.url:
        raise _cannot_change(before, f"the secret's bucket, which was {before.origin_url} and is {places.origin.url},")


def _cannot_change(before: SampleSet, what: str) -> CannotChangeError:
    return CannotChangeError(
        f"{what} of the sample set {before.name} cannot change: only partitions, cacheSize and mount options can. Run "
        f"`prefeed sampleset delete {before.name}` and apply it anew; its data stays",
        name=before.name,
    )


def _where(spec: SampleSetSpec) -> tuple[tuple[str, str], ...]:
    tiers = plan_tiers(spec)
    return tuple((level.medium, level.path) for level in (tiers.memory, tiers.disk) if level is not None)
