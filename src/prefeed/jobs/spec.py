"""A job as YAML of kind SampleJob, with the fields of the original, and what it comes to: resolved once, and used so to its end.

::

    document ── parse_job ─→ JobDocument: as it was asked for ── resolve_job ─→ Job: its set, its places, its options
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
from prefeed.jobs.places import Place, locate_place, place_in, require_root
from prefeed.jobs.warming import WarmupOptions
from prefeed.sampleset.documents import (
    Condition,
    Document,
    Envelope,
    Fields,
    Name,
    Positive,
    Reference,
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
_NO_SECRET: Final = (
    "secretRef: credentials are looked up by URL, in credentials.json of the set's home, which Secrets fill"
)


_MUST_BE_ABSOLUTE: Final = " must be an absolute path"
_ABSOLUTE_URL: Final = Condition(
    ".url",
    _MUST_BE_ABSOLUTE,
    "!has(self.url) || self.url == '' || self.url.contains('://') || self.url.startsWith('/')",
)
_ABSOLUTE_FILE: Final = Condition(
    ".file", _MUST_BE_ABSOLUTE, "!has(self.file) || self.file == '' || self.file.startsWith('/')"
)
_COUNTED_FROM_0: Final = Condition(
    ".partition",
    " must be below partitions: partitions are counted from 0",
    "(has(self.partition) ? self.partition : 0) < (has(self.partitions) ? self.partitions : 1)",
)


class _Rooted(Fields, frozen=True, kw_only=True):
    """Options of a job on one place. A detached job runs in a directory of its own: its paths are absolute."""

    requires: ClassVar[tuple[Condition, ...]] = (_ABSOLUTE_URL,)

    url: str = ""
    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_no_credentials(self.url, ".url")
        if "://" not in self.url:
            _require_absolute(self.url, _ABSOLUTE_URL)


class WarmupFields(_Rooted, frozen=True, kw_only=True):
    """Options of a warm-up."""

    requires: ClassVar[tuple[Condition, ...]] = (_ABSOLUTE_URL, _ABSOLUTE_FILE, _COUNTED_FROM_0)

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
    relative: bool = True  # both kinds of paths are taken for what they are


class ClearFields(_Rooted, frozen=True, kw_only=True):
    """Options of a clear."""


_Patterns = Annotated[
    tuple[str, ...] | str,
    schema(description="A list of patterns, or one text.", **{"x-kubernetes-preserve-unknown-fields": True}),
]


class SyncFields(Fields, frozen=True, kw_only=True, rename="kebab"):
    """Options of a sync; those that ``SyncOptions`` has too have the same names."""

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
        # Records and lists show them.
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


def _only_of(kind: str) -> Condition:
    """Return the condition that options are those of the job's type."""
    return Condition(
        f".{kind}Options",
        f": only jobs of type {kind} have {kind}Options",
        f"!has(self.{kind}Options) || self.type == '{kind}'",
    )


def _has_option(kind: str, name: str) -> str:
    options = f"self.{kind}Options"
    return f"(has({options}) && has({options}.{name}) && {options}.{name} != '')"


_HAS_URL: Final = " || ".join(_has_option(kind, "url") for kind in (WARMUP, RMR, CLEAR))
_OWN_OPTIONS: Final = {kind: _only_of(kind) for kind in TYPES}
_BOTH_ENDS: Final = Condition(
    ".syncOptions",
    ": without a sampleSetRef a sync needs source and destination",
    f"self.type != '{SYNC}' || has(self.sampleSetRef) || ({_has_option(SYNC, 'source')} && {_has_option(SYNC, 'destination')})",
)
_NAMED_PATHS: Final = Condition(
    ".rmrOptions.paths",
    " must name at least one path: rmr removes data at its origin",
    f"self.type != '{RMR}' || (has(self.rmrOptions) && has(self.rmrOptions.paths) && size(self.rmrOptions.paths) > 0)",
)
_ONE_PLACE: Final = Condition("", ": give either sampleSetRef or a url", f"!has(self.sampleSetRef) || !({_HAS_URL})")
_A_PLACE: Final = Condition(
    ".sampleSetRef",
    " is missing: name the sample set, or give the options a url",
    f"self.type == '{SYNC}' || has(self.sampleSetRef) || {_HAS_URL}",
)


SAME_SET: Final = Condition(
    ".sampleSetRef",
    " cannot change: what was made for the first set would stay behind; give the new job another name",
    "(has(self.sampleSetRef) ? self.sampleSetRef.name : '') == "
    "(has(oldSelf.sampleSetRef) ? oldSelf.sampleSetRef.name : '')",
)
"""Of a change in a cluster; true of a PaddleJob, too."""


class JobFields(Fields, frozen=True, kw_only=True):
    """The ``spec`` of a document."""

    requires: ClassVar[tuple[Condition, ...]] = (
        *_OWN_OPTIONS.values(), _BOTH_ENDS, _NAMED_PATHS, _ONE_PLACE, _A_PLACE, SAME_SET,
    )  # fmt: skip

    type: Annotated[Literal["sync", "warmup", "rmr", "clear"], Meta(description=f"one of {', '.join(TYPES)}")]
    sample_set_ref: Name | Reference = ""
    secret_ref: Name | Reference = ""
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
        """The options of its type."""
        given: SyncFields | WarmupFields | RmrFields | ClearFields | None = getattr(self, f"{self.type}_options")
        return given or _OPTIONS[self.type]()

    @property
    def sample_set(self) -> str:
        """Name of the set that it is done for; empty: none."""
        return self.sample_set_ref if isinstance(self.sample_set_ref, str) else self.sample_set_ref.name

    @property
    def notes(self) -> list[str]:
        """Sentences on fields that have no effect."""
        own = self.own
        if not isinstance(own, SyncFields):
            return [_NO_SECRET] if self.secret_ref else []
        given = {"http-port": own.http_port, "manager": own.manager, "worker": own.worker}
        return ([_NO_SECRET] if self.secret_ref else []) + [
            f"spec.syncOptions.{name} has no effect: a sync runs in one process, on this machine"
            for name, value in given.items()
            if value is not None
        ]


class JobDocument(Envelope, frozen=True, kw_only=True):
    """The whole document."""

    spec: JobFields
    status: Unused | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that is ready to be done: nothing of it is looked up again.

    Attributes:
        name: Of the job, and of its record.
        type: ``sync``, ``warmup``, ``rmr`` or ``clear``.
        terminate: Jobs of the set that are queued or running are ended first.
        sample_set: The set that it is done for; None: none.
        settings: Of the node of the set, but for the home; without a set those in force.
        places: The place that it is done to; of a sync the source and the target.
        fills_origin: It is a sync that gives the set's origin all that its source has.
        sync: Options of a sync.
        warmup: Options of a warm-up.
        paths: Of rmr and clear.
        one_file_system: Of rmr: what is mounted below stays.
        document: The ``spec`` as it was written.
    """

    name: str
    type: str
    terminate: bool
    sample_set: SampleSet | None
    settings: Config
    places: tuple[Place, ...]
    fills_origin: bool = False
    sync: SyncOptions = field(default_factory=SyncOptions)
    warmup: WarmupOptions = field(default_factory=WarmupOptions)
    paths: tuple[str, ...] = ()
    one_file_system: bool = True
    document: Document = field(compare=False, repr=False)

    @property
    def set_name(self) -> str:
        """Name of the set; empty: none."""
        return "" if self.sample_set is None else self.sample_set.name


# ---------------------------------------------------------------- as it was written


def parse_job(document: Document) -> JobDocument:
    """Return what a document asks for.

    Raises:
        SpecError: A field is unknown, missing or of another type; the message has its path.
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


def _require_absolute(path: str, condition: Condition) -> None:
    if path and not path.startswith("/"):
        raise condition.refusal(f", not {path!r:.60}")


def _patterns(given: tuple[str, ...] | str) -> tuple[str, ...]:
    return tuple(shlex.split(given)) if isinstance(given, str) else given


def _rules(own: SyncFields, written: Document) -> tuple[Rule, ...]:
    """Return patterns in the order in which ``exclude`` and ``include`` were written."""
    order = [name for name in written if name in ("exclude", "include")]
    return tuple(Rule(pattern, name == "exclude") for name in order for pattern in _patterns(getattr(own, name)))


# ---------------------------------------------------------------- resolved


def parse_spec(document: Document) -> JobFields:
    """Return what the fields of a ``spec`` ask for; raises as ``parse_job``."""
    return decode(document, JobFields, "spec")


def resolve_job(name: str, spec: JobFields, document: Document, config: Config) -> Job:
    """Return the job that is asked for, with its set and its places as they are now.

    Args:
        name: Of the job.
        spec: What its document asks for.
        document: The ``spec`` as it was written.
        config: Settings; their home has the sets.

    Raises:
        SpecError: A pattern is none.
        SampleSetNotFoundError: There is no such set.
        JobSpecError, UnknownSchemeError, ConfigError: It has a schedule, or a place cannot be one of this job.
    """
    if spec.schedule is not None:
        raise JobSpecError(_NO_SCHEDULE)
    found = find(spec.sample_set, config) if spec.sample_set else None
    settings = config if found is None else found.settings(config)  # with its credentials
    own = spec.own
    options: dict[str, Any]
    if isinstance(own, SyncFields):
        options = _sync_options(own, _rules(own, document.get("syncOptions") or {}), found, settings, config)
    else:
        place = locate_place(own.url, config) if found is None else place_in(found, settings)
        options = {"places": (place,), "paths": own.paths}
        if isinstance(own, WarmupFields):
            options["warmup"] = _warmup_options(own)
        elif isinstance(own, RmrFields):
            options["one_file_system"] = own.one_file_system
    return Job(
        name=name,
        type=spec.type,
        terminate=spec.terminate,
        sample_set=found,
        settings=replace(settings, home=config.home),  # it remembers what was mounted, for all syncs
        document=document,
        **options,
    )


def _sync_options(
    own: SyncFields, rules: tuple[Rule, ...], found: SampleSet | None, settings: Config, config: Config
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
            locate_place(end, config) if is_named(end) else _locate_end(end, settings, found)
            for end in (source, target)
        ),
        "fills_origin": found is not None and (source, target) == (found.source_url, found.origin_url) and not own.dry,
        "sync": SyncOptions(**shared, bwlimit_mbit=own.bwlimit, rules=rules),
    }


def _warmup_options(own: WarmupFields) -> WarmupOptions:
    shared = _same_named(own, WarmupOptions) | {"threads": own.threads or None}
    return WarmupOptions(**{**shared, "strategy": own.strategy_name, "file": Path(own.file) if own.file else None})


def _same_named(own: Fields, kind: type) -> dict[str, Any]:
    """Return the values of fields that a structure of options has under the same name."""
    return {one.name: getattr(own, one.name) for one in fields(kind) if hasattr(own, one.name)}


def _locate_end(uri: str, settings: Config, found: SampleSet | None) -> Place:
    """Return an end of a sync: documents have the original's spellings, too.

    Raises:
        JobSpecError: They say which server it is on, and the settings name another: buckets of the same name are many.
    """
    place = locate(uri, "the place of a sync")
    if place.endpoint and endpoint_of(place.url, settings).rstrip("/") != place.endpoint.rstrip("/"):
        raise JobSpecError(
            f"{uri} is {place.url} at {place.endpoint}, which is not where {place.url} would be looked for: say so with "
            f'"endpoint": "{place.endpoint}" for it in {settings.home / FILE}, or with AWS_ENDPOINT_URL'
        )
    return Place(url=require_root(place.url), settings=settings, sample_set=found)
