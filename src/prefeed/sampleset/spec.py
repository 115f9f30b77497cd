"""What a document of kind SampleSet says, as the original's fields have it, and what each of JuiceFS's mount options means here.

docs/guide/sample-sets.md has the table of the options; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, field

from prefeed.config import SETTINGS
from prefeed.sampleset.documents import (
    Condition,
    Document,
    Envelope,
    Fields,
    Number,
    Positive,
    Ratio,
    Reference,
    Unused,
    Whole,
    decode,
    schema,
)

API_VERSION: Final = "batch.paddlepaddle.org/v1alpha1"
KIND: Final = "SampleSet"
MAPPED, NO_EFFECT, REFUSED = "mapped", "no effect", "refused"


def _mapped(meaning: str) -> Meta:
    return Meta(extra={"effect": MAPPED, "meaning": meaning})


def _ignored(meaning: str) -> Meta:
    return Meta(extra={"effect": NO_EFFECT, "meaning": meaning})


_NO_KERNEL: Final = _ignored(
    "nothing is mounted: each dataset lists the source when it is made, unless `listing_age` allows an older listing"
)
_READ_ONLY: Final = "the source is only read; write to it with `prefeed sync`"
_NO_WRITEBACK: Final = Condition(".writeback", f": {_READ_ONLY}", "!has(self.writeback) || !self.writeback")
_BELOW_ONE: Final = Condition(
    ".free-space-ratio",
    " must be less than 1: it is the share that stays free",
    "!has(self.free__dash__space__dash__ratio) || double(self.free__dash__space__dash__ratio) < 1.0",
)
_BELOW_THE_SOURCE: Final = Condition(
    ".sub-dir",
    " must name a directory below the source, without ..",
    "!has(self.sub__dash__dir) || !self.sub__dash__dir.matches('(^|/)[.][.](/|$)')",
)
_Seconds = Annotated[int, Meta(ge=1, description="a whole number of seconds, at least 1")]


class MountOptions(Fields, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """JuiceFS's options: None: not given."""

    requires: ClassVar[tuple[Condition, ...]] = (_NO_WRITEBACK, _BELOW_ONE, _BELOW_THE_SOURCE)

    metrics: Annotated[str, _mapped("address at which the node server shows its own metrics: `metrics`")] | None = None
    attr_cache: Annotated[Number, _NO_KERNEL] | None = None
    entry_cache: Annotated[Number, _NO_KERNEL] | None = None
    dir_entry_cache: Annotated[Number, _NO_KERNEL] | None = None
    enable_xattr: Annotated[bool, _ignored("extended attributes are not read: samples are made of bytes")] | None = None
    get_timeout: Annotated[_Seconds, _mapped("seconds that one request may take")] | None = None
    put_timeout: Annotated[Whole, _ignored("the node server writes nothing to the source")] | None = None
    io_retries: (
        Annotated[
            Whole,
            _ignored("a failing request is retried for 120 seconds, not a fixed number of times"),
        ]
        | None
    ) = None
    max_uploads: Annotated[Whole, _ignored("the node server writes nothing to the source")] | None = None
    buffer_size: Annotated[Whole, _mapped("MiB that may be fetched ahead of each loader")] | None = None
    prefetch: (
        Annotated[
            Whole,
            _ignored("the sampler gives the order, and the number of requests adapts to the source"),
        ]
        | None
    ) = None
    writeback: Annotated[bool, Meta(extra={"effect": REFUSED, "meaning": _READ_ONLY})] | None = None
    cache_dir: (
        Annotated[
            str, _mapped("without `cache.levels`: path of the one level, memory if it lies on a tmpfs, else disk")
        ]
        | None
    ) = None
    cache_size: Annotated[Whole, _mapped("without `cache.levels`: MiB of the one level")] | None = None
    free_space_ratio: Annotated[Ratio, _mapped("share of the disk that stays free")] | None = None
    cache_partial_only: (
        Annotated[bool, _ignored("whole objects are cached; an object larger than the tier is read without it")] | None
    ) = None
    open_cache: (
        Annotated[Number, _ignored("files opened by path are checked for changes once per epoch: `revalidate`")] | None
    ) = None
    sub_dir: Annotated[str, _mapped("directory below the source to read instead of the whole source")] | None = None

    def __post_init__(self) -> None:
        if self.writeback:
            raise _NO_WRITEBACK.refusal()
        if self.free_ratio >= 1:
            raise _BELOW_ONE.refusal()
        if ".." in self.below.split("/") or "\0" in self.below:
            raise _BELOW_THE_SOURCE.refusal(f": {self.below!r:.100}")
        try:
            SETTINGS["metrics"].metadata["parse"](self.metrics or "")
        except ValueError as err:
            raise ValueError(f".metrics: {err}") from err

    @property
    def below(self) -> str:
        """Directory below the source; empty: all of it."""
        return self.sub_dir or ""

    @property
    def free_ratio(self) -> float:
        """Share of the disk that stays free; 0: not said."""
        return float(self.free_space_ratio or 0)

    def given(self) -> dict[str, Any]:
        """Return those that were given, by name."""
        return dict(msgspec.to_builtins(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOption:
    """What an option means.

    Attributes:
        effect: ``mapped``, ``no effect`` or ``refused``; a flag that is refused may be false.
        meaning: A sentence: to what it is mapped, or why it has no effect.
    """

    effect: str
    meaning: str


@cache
def mount_options() -> Mapping[str, MountOption]:
    """Return what each option means, by name."""
    options = {}
    for one in msgspec.inspect.type_info(MountOptions).fields:  # type: ignore[attr-defined]
        [extra] = [extra for kind in one.type.types if (extra := getattr(kind, "extra", None))]
        options[one.encode_name] = MountOption(**extra)
    return options


class Csi(Fields, frozen=True, kw_only=True):
    """How the original mounts it."""

    driver: Literal["juicefs"] = "juicefs"
    options: MountOptions = field(name="juiceFSMountOptions", default_factory=MountOptions)


class Source(Fields, frozen=True, kw_only=True):
    """Where the data comes from, and the secret for it."""

    uri: str
    secret_ref: Reference | None = None


class Level(Fields, frozen=True, kw_only=True):
    """A level of the cache.

    Attributes:
        medium: In memory or on a disk.
        path: Directory, or several with ``:`` between them.
        cache_mib: The most that it may take, MiB; None: not said.
    """

    medium: Annotated[Literal["MEM", "SSD", "HDD"], Meta(description="one of MEM, SSD, HDD")] = field(name="mediumType")
    path: str = ""
    cache_mib: Annotated[int, Meta(ge=1, description="a whole number of MiB, at least 1")] | None = field(
        name="cacheSize", default=None
    )


class Cache(Fields, frozen=True, kw_only=True):
    """The levels of the cache, in the order in which they were written."""

    levels: tuple[Level, ...] = ()


_NODE_AFFINITY: Final = schema(type="object", **{"x-kubernetes-preserve-unknown-fields": True})
_TOLERATIONS: Final = schema(
    type="array",
    maxItems=64,
    items={
        "type": "object",
        "properties": {
            **{name: {"type": "string", "maxLength": 253} for name in ("key", "operator", "value", "effect")},
            "tolerationSeconds": {"type": "integer", "format": "int64"},
        },
    },
)

NO_PLACE: Final = Condition(
    ".source.uri",
    " is missing, and there is no bucket in the secret of spec.secretRef: say where the data is",
    "has(self.source) || has(self.secretRef)",
)
CHANGEABLE: Final = "cannot change: only partitions, cacheSize and mount options can"


def _immutable(path: str, value: str) -> Condition:
    """Return the condition that a part of a spec stays; ``value`` is an expression, with ``{of}`` for the spec."""
    return Condition(f".{path}", f" {CHANGEABLE}", f"{value.format(of='self')} == {value.format(of='oldSelf')}")


_OPTIONS: Final = "{of}.csi.juiceFSMountOptions"
_IMMUTABLE: Final = (
    _immutable("source", "(has({of}.source) ? {of}.source.uri : '')"),
    _immutable("secretRef", "(has({of}.secretRef) ? {of}.secretRef.name : '')"),
    _immutable("noSync", "(has({of}.noSync) ? {of}.noSync : false)"),
    _immutable(
        "csi.juiceFSMountOptions.sub-dir",
        f"(has({{of}}.csi) && has({_OPTIONS}) && has({_OPTIONS}.sub__dash__dir) ? {_OPTIONS}.sub__dash__dir : '')",
    ),
    _immutable(
        "cache.levels: mediumType and path",
        "(has({of}.cache) && has({of}.cache.levels) "
        "? {of}.cache.levels.map(l, l.mediumType + ' ' + (has(l.path) ? l.path : '')) : [])",
    ),
)


class SampleSetSpec(Fields, frozen=True, kw_only=True):
    """What was asked for.

    Attributes:
        partitions: Nodes that cache it.
        source: None: the data is in the secret's bucket already.
        secret_ref: The secret for the bucket.
        no_sync: Nothing is to be copied into the bucket.
    """

    requires: ClassVar[tuple[Condition, ...]] = (NO_PLACE, *_IMMUTABLE)

    partitions: Positive
    source: Source | None = None
    secret_ref: Reference | None = None
    no_sync: bool = False
    csi: Csi = field(default_factory=Csi)
    cache: Cache = field(default_factory=Cache)
    node_affinity: Annotated[Unused, _NODE_AFFINITY] | None = None
    tolerations: Annotated[Unused, _TOLERATIONS] | None = None

    @property
    def uri(self) -> str:
        """Where the data is, as it was written; empty when it is in the secret's bucket already."""
        return self.source.uri if self.source else ""

    @property
    def source_secret(self) -> str:
        """Name of the secret for ``uri``; empty: none."""
        return self.source.secret_ref.name if self.source and self.source.secret_ref else ""

    @property
    def secret(self) -> str:
        """Name of the secret for the bucket; empty: none."""
        return self.secret_ref.name if self.secret_ref else ""

    @property
    def options(self) -> MountOptions:
        """JuiceFS's mount options."""
        return self.csi.options

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels of the cache."""
        return self.cache.levels

    @property
    def for_kubernetes(self) -> tuple[str, ...]:
        """Fields that were given and only Kubernetes has a use for."""
        given = {"nodeAffinity": self.node_affinity, "tolerations": self.tolerations}
        return tuple(name for name, value in given.items() if value is not None)


class SampleSetDocument(Envelope, frozen=True, kw_only=True):
    """The whole document; a cluster that wrote it out has put its status there, which kubectl passes over, too."""

    spec: SampleSetSpec
    status: Unused | None = None


def parse_spec(document: Document) -> SampleSetSpec:
    """Return what the fields of a ``spec`` say; raises as ``documents.decode``."""
    return decode(document, SampleSetSpec, "spec")
