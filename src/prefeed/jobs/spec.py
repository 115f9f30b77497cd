"""Parse documents of kind SampleJob, whose fields are those of PaddlePaddle's operator, and resolve them.

::

    document ── parse_job ─→ JobDocument: the fields ── resolve_job ─→ ResolvedJob: its set, places and options
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from prefeed.config import Config
from prefeed.errors import JobSpecError, SpecError
from prefeed.jobs.options import SyncOptions
from prefeed.jobs.places import JobLocation, locate_place, place_in, require_root
from prefeed.jobs.warming import WarmupOptions
from prefeed.sampleset.applying import Secret, find_secret, settings_with
from prefeed.sampleset.documents import (
    Document,
    DocumentReference,
    Envelope,
    FieldRule,
    Fields,
    Name,
    Positive,
    Unused,
    Whole,
    decode,
    kind_of,
    schema,
)
from prefeed.sampleset.locations import locate, require_no_credentials
from prefeed.sampleset.names import is_named
from prefeed.sampleset.records import SampleSet, find
from prefeed.sampleset.spec import API_VERSION
from prefeed.sources.credentials import FILE
from prefeed.sources.store_access import endpoint_of
from prefeed.system.paths import is_in
from prefeed.transfer.patterns import Rule, Rules

KIND: Final = "SampleJob"
SYNC, WARMUP, RMR, CLEAR = "sync", "warmup", "rmr", "clear"
TYPES: Final = (SYNC, WARMUP, RMR, CLEAR)

_NO_SCHEDULE: Final = (
    "spec.schedule: jobs have no schedule here: run `prefeed job apply -f FILE` from cron or a systemd timer; in a cluster, "
    "`prefeed operator` has schedules"
)
_Schedule = Annotated[
    str,
    Meta(
        pattern=r"^(@[a-z]+|[^ ]+( [^ ]+){4})\Z",
        max_length=100,
        description="five fields of cron, or a word such as @daily",
    ),
]
_NO_SECRET: Final = "spec.secretRef has no effect: it names the Secret of a sync's other place; a set names its own"


_MUST_BE_ABSOLUTE: Final = " must be an absolute path"
_ABSOLUTE_URL: Final = FieldRule(
    ".url",
    _MUST_BE_ABSOLUTE,
    "!has(self.url) || self.url == '' || self.url.contains('://') || self.url.startsWith('/')",
)
_ABSOLUTE_FILE: Final = FieldRule(
    ".file", _MUST_BE_ABSOLUTE, "!has(self.file) || self.file == '' || self.file.startsWith('/')"
)
_COUNTED_FROM_0: Final = FieldRule(
    ".partition",
    " must be below partitions: partitions are counted from 0",
    "(has(self.partition) ? self.partition : 0) < (has(self.partitions) ? self.partitions : 1)",
)


class _Rooted(Fields, frozen=True, kw_only=True):
    """Options of a job on one place. Paths are absolute, because a detached job runs in another directory."""

    requires: ClassVar[tuple[FieldRule, ...]] = (_ABSOLUTE_URL,)

    url: str = ""
    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_no_credentials(self.url, ".url")
        if "://" not in self.url:
            _require_absolute(self.url, _ABSOLUTE_URL)


class WarmupFields(_Rooted, frozen=True, kw_only=True):
    """Options of a warm-up."""

    requires: ClassVar[tuple[FieldRule, ...]] = (_ABSOLUTE_URL, _ABSOLUTE_FILE, _COUNTED_FROM_0)

    strategy_name: Annotated[Literal["sequence", "random"], Meta(description="sequence or random")] = "sequence"
    seed: Whole = 0
    partitions: Positive = 1
    partition: Whole = 0
    file: str = ""
    threads: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partition >= self.partitions:
            raise _COUNTED_FROM_0.refusal(f", which are {self.partitions}")
        _require_absolute(self.file, _ABSOLUTE_FILE)


class RmrFields(_Rooted, frozen=True, kw_only=True):
    """Options of an rmr."""

    one_file_system: bool = msgspec.field(name="one-file-system", default=True)
    relative: bool = True  # Ignored: absolute and relative paths are distinguished by their first character.


class ClearFields(_Rooted, frozen=True, kw_only=True):
    """Options of a clear."""


_Patterns = Annotated[
    tuple[str, ...] | str,
    schema(description="A list of patterns, or one text.", **{"x-kubernetes-preserve-unknown-fields": True}),
]


class SyncFields(Fields, frozen=True, kw_only=True, rename="kebab"):
    """Options of a sync, named as those of ``SyncOptions`` if both exist."""

    source: str = ""
    destination: str = ""
    threads: Whole = 0
    exclude: _Patterns = ()
    include: _Patterns = ()
    start: str = ""
    end: str = ""
    bwlimit: Whole = 0
    update: bool = False
    force_update: bool = False
    perms: bool = False
    dirs: bool = False
    dry: bool = False
    delete_src: bool = False
    delete_dst: bool = False
    no_https: bool = False
    one_file_system: bool | None = None
    http_port: Annotated[Unused, schema(type="integer")] | None = None
    manager: Annotated[Unused, schema(type="string", maxLength=4096)] | None = None
    worker: Annotated[Unused, schema(type="string", maxLength=4096)] | None = None

    def __post_init__(self) -> None:
        # Records and lists show the places.
        require_no_credentials(self.source, ".source")
        require_no_credentials(self.destination, ".destination")
        for name in ("exclude", "include"):
            try:
                Rules([Rule(pattern, True) for pattern in _patterns(getattr(self, name))])
            except JobSpecError as err:
                raise ValueError(f".{name}: {err}") from err
            except ValueError as err:
                raise ValueError(f".{name}: {err}; patterns with quotes in them are written as a list") from err


_OPTIONS: Final[Mapping[str, Any]] = {SYNC: SyncFields, WARMUP: WarmupFields, RMR: RmrFields, CLEAR: ClearFields}


def _only_of(kind: str) -> FieldRule:
    """Return the condition that only jobs of a type have its options."""
    return FieldRule(
        f".{kind}Options",
        f": only jobs of type {kind} have {kind}Options",
        f"!has(self.{kind}Options) || self.type == '{kind}'",
    )


def _has_option(kind: str, name: str) -> str:
    options = f"self.{kind}Options"
    return f"(has({options}) && has({options}.{name}) && {options}.{name} != '')"


_HAS_URL: Final = " || ".join(_has_option(kind, "url") for kind in (WARMUP, RMR, CLEAR))
_OWN_OPTIONS: Final = {kind: _only_of(kind) for kind in TYPES}
_BOTH_ENDS: Final = FieldRule(
    ".syncOptions",
    ": without a sampleSetRef a sync needs source and destination",
    f"self.type != '{SYNC}' || has(self.sampleSetRef) || ({_has_option(SYNC, 'source')} && {_has_option(SYNC, 'destination')})",
)
_NAMED_PATHS: Final = FieldRule(
    ".rmrOptions.paths",
    " must name at least one path: rmr removes data at its origin",
    f"self.type != '{RMR}' || (has(self.rmrOptions) && has(self.rmrOptions.paths) && size(self.rmrOptions.paths) > 0)",
)
_ONE_PLACE: Final = FieldRule("", ": give either sampleSetRef or a url", f"!has(self.sampleSetRef) || !({_HAS_URL})")
_A_PLACE: Final = FieldRule(
    ".sampleSetRef",
    " is missing: name the sample set, or give the options a url",
    f"self.type == '{SYNC}' || has(self.sampleSetRef) || {_HAS_URL}",
)


SAME_SET: Final = FieldRule(
    ".sampleSetRef",
    " cannot change: what was made for the first set would stay behind; give the new job another name",
    "(has(self.sampleSetRef) ? self.sampleSetRef.name : '') == "
    "(has(oldSelf.sampleSetRef) ? oldSelf.sampleSetRef.name : '')",
)
"""Condition for updates in a cluster. Applies to PaddleJobs too."""


class JobFields(Fields, frozen=True, kw_only=True):
    """The ``spec`` of a document."""

    requires: ClassVar[tuple[FieldRule, ...]] = (
        *_OWN_OPTIONS.values(), _BOTH_ENDS, _NAMED_PATHS, _ONE_PLACE, _A_PLACE, SAME_SET,
    )  # fmt: skip

    type: Annotated[Literal["sync", "warmup", "rmr", "clear"], Meta(description=f"one of {', '.join(TYPES)}")]
    sample_set_ref: Name | DocumentReference = ""
    secret_ref: Name | DocumentReference = ""
    terminate: bool = False
    sync_options: SyncFields | None = None
    warmup_options: WarmupFields | None = None
    rmr_options: RmrFields | None = None
    clear_options: ClearFields | None = None
    schedule: _Schedule | None = None

    def __post_init__(self) -> None:
        for kind in TYPES:
            if kind != self.type and getattr(self, f"{kind}_options") is not None:
                raise _OWN_OPTIONS[kind].refusal(f"; this job is a {self.type}")
        own = self.own
        if isinstance(own, SyncFields):
            if not self.sample_set and not (own.source and own.destination):
                raise _BOTH_ENDS.refusal()
            return
        if isinstance(own, RmrFields) and not own.paths:
            raise _NAMED_PATHS.refusal()
        if self.sample_set and own.url:
            raise _ONE_PLACE.refusal()
        if not self.sample_set and not own.url:
            raise _A_PLACE.refusal()

    @property
    def own(self) -> SyncFields | WarmupFields | RmrFields | ClearFields:
        """Options for the job's type."""
        given: SyncFields | WarmupFields | RmrFields | ClearFields | None = getattr(self, f"{self.type}_options")
        return given or _OPTIONS[self.type]()

    @property
    def sample_set(self) -> str:
        """Name of the sample set, or empty."""
        return self.sample_set_ref if isinstance(self.sample_set_ref, str) else self.sample_set_ref.name

    @property
    def secret(self) -> str:
        """Name of the secret for the places of a sync that are not the set's, or empty."""
        if self.type != SYNC:
            return ""
        return self.secret_ref if isinstance(self.secret_ref, str) else self.secret_ref.name

    @property
    def notes(self) -> list[str]:
        """Sentences on fields that have no effect."""
        own = self.own
        if not isinstance(own, SyncFields):
            return [_NO_SECRET] if self.secret_ref else []
        given = {"http-port": own.http_port, "manager": own.manager, "worker": own.worker}
        return [
            f"spec.syncOptions.{name} has no effect: a sync runs in one process, on this machine"
            for name, value in given.items()
            if value is not None
        ]


class JobDocument(Envelope, frozen=True, kw_only=True):
    """Document of kind SampleJob."""

    spec: JobFields
    status: Unused | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """Resolved job.

    Attributes:
        name: Name of the job and of its record.
        type: ``sync``, ``warmup``, ``rmr`` or ``clear``.
        terminate: True to end pending and running jobs of the set first.
        sample_set: The set, or None.
        settings: Settings of the set's node except for the home; without a set, those in force.
        places: The place of the job; for a sync, source and target.
        fills_origin: True for a sync from the set's source to its origin.
        sync: Options of a sync.
        warmup: Options of a warm-up.
        paths: Paths for rmr and clear.
        one_file_system: For rmr, True to keep the contents of mounts.
        document: The ``spec`` as written.
    """

    name: str
    type: str
    terminate: bool
    sample_set: SampleSet | None
    settings: Config
    places: tuple[JobLocation, ...]
    fills_origin: bool = False
    sync: SyncOptions = field(default_factory=SyncOptions)
    warmup: WarmupOptions = field(default_factory=WarmupOptions)
    paths: tuple[str, ...] = ()
    one_file_system: bool = True
    document: Document = field(compare=False, repr=False)

    @property
    def set_name(self) -> str:
        """Name of the set, or empty."""
        return "" if self.sample_set is None else self.sample_set.name


# ---------------------------------------------------------------- parsing


def parse_job(document: Document) -> JobDocument:
    """Decode a document of kind SampleJob.

    Raises:
        SpecError: A field is unknown, missing or of another type. The message contains its path.
    """
    kind, version = kind_of(document, {KIND: API_VERSION, "SampleSet": API_VERSION})
    if kind != KIND or version != API_VERSION:
        hint = (
            "; sets and secrets are applied with `prefeed sampleset apply`" if kind in ("SampleSet", "Secret") else ""
        )
        raise SpecError(
            f"a job has kind {KIND} and apiVersion {API_VERSION}, not {kind!r:.60} and {version!r:.60}{hint}"
        )
    return decode(document, JobDocument)


def _require_absolute(path: str, condition: FieldRule) -> None:
    if path and not path.startswith("/"):
        raise condition.refusal(f", not {path!r:.60}")


def _patterns(given: tuple[str, ...] | str) -> tuple[str, ...]:
    return tuple(shlex.split(given)) if isinstance(given, str) else given


def _rules(own: SyncFields, written: Document) -> tuple[Rule, ...]:
    """Return the patterns of ``exclude`` and ``include`` in the order of the document."""
    order = [name for name in written if name in ("exclude", "include")]
    return tuple(Rule(pattern, name == "exclude") for name in order for pattern in _patterns(getattr(own, name)))


# ---------------------------------------------------------------- resolving


def parse_spec(document: Document) -> JobFields:
    """Decode the ``spec`` of a job. Raises as ``parse_job``."""
    return decode(document, JobFields, "spec")


def resolve_job(name: str, spec: JobFields, document: Document, config: Config) -> ResolvedJob:
    """Resolve the set, the places and the options of a job.

    Args:
        name: Name of the job.
        spec: The decoded ``spec``.
        document: The ``spec`` as written.
        config: Settings, whose home contains the sets.

    Raises:
        SpecError: The place of a sync is invalid, or there is no such secret.
        SampleSetNotFoundError: No such set exists.
        JobSpecError, UnknownSchemeError, ConfigError: The job has a schedule, or a place is not possible for its type.
    """
    if spec.schedule is not None:
        raise JobSpecError(_NO_SCHEDULE)
    found = find(spec.sample_set, config) if spec.sample_set else None
    settings = config if found is None else found.settings(config)
    own = spec.own
    options: dict[str, Any]
    if isinstance(own, SyncFields):
        secret = find_secret(spec.secret, config) if spec.secret else None
        options = _sync_options(own, _rules(own, document.get("syncOptions") or {}), found, settings, config, secret)
    else:
        place = locate_place(own.url, config) if found is None else place_in(found, settings)
        options = {"places": (place,), "paths": own.paths}
        if isinstance(own, WarmupFields):
            options["warmup"] = _warmup_options(own)
        elif isinstance(own, RmrFields):
            options["one_file_system"] = own.one_file_system
    return ResolvedJob(
        name=name,
        type=spec.type,
        terminate=spec.terminate,
        sample_set=found,
        settings=replace(settings, home=config.home),  # All syncs share one record of mounts.
        document=document,
        **options,
    )


def _sync_options(
    own: SyncFields,
    rules: tuple[Rule, ...],
    found: SampleSet | None,
    settings: Config,
    config: Config,
    secret: Secret | None,
) -> dict[str, Any]:
    source, target = own.source, own.destination
    if found is not None:
        if not found.needs_sync and not (source or target):
            raise JobSpecError(
                f"the sample set {found.name} is read at its source, and nothing is copied: give syncOptions a destination"
            )
        source, target = source or found.source_url, target or found.origin_url
    shared = _same_named(own, SyncOptions) | {"threads": own.threads or None}
    return {
        "places": tuple(
            locate_place(end, config) if is_named(end) else _locate_end(end, settings, found, secret)
            for end in (source, target)
        ),
        "fills_origin": found is not None and (source, target) == (found.source_url, found.origin_url) and not own.dry,
        "sync": SyncOptions(**shared, bwlimit_mbit=own.bwlimit, rules=rules),
    }


def _warmup_options(own: WarmupFields) -> WarmupOptions:
    shared = _same_named(own, WarmupOptions) | {"threads": own.threads or None}
    return WarmupOptions(**{**shared, "strategy": own.strategy_name, "file": Path(own.file) if own.file else None})


def _same_named(own: Fields, kind: type) -> dict[str, Any]:
    """Return the values of the fields that ``kind`` has too, by name."""
    return {one.name: getattr(own, one.name) for one in fields(kind) if hasattr(own, one.name)}


def _locate_end(uri: str, settings: Config, found: SampleSet | None, secret: Secret | None) -> JobLocation:
    """Resolve a place of a sync, also in PaddlePaddle's notation. The secret is for a place that is not the set's.

    Raises:
        JobSpecError: The URI contains an endpoint that differs from the settings, which could name another bucket.
    """
    place = locate(uri, "the place of a sync")
    of_set = () if found is None else (found.source_url, found.origin_url)
    if secret is not None and not place.is_directory and not any(is_in(place.url, url) for url in of_set):
        settings = settings_with(secret, place, settings)
    if place.endpoint and endpoint_of(place.url, settings).rstrip("/") != place.endpoint.rstrip("/"):
        raise JobSpecError(
            f"{uri} is {place.url} at {place.endpoint}, but the settings use another endpoint for {place.url}: set "
            f'"endpoint": "{place.endpoint}" for it in {settings.home / FILE}, or set AWS_ENDPOINT_URL'
        )
    return JobLocation(url=require_root(place.url), settings=settings, sample_set=found)
