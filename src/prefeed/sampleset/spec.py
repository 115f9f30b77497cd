"""Fields of a document of kind SampleSet, and the effect of each of JuiceFS's mount options.

The fields are those of PaddlePaddle's operator. The table of mount options in docs/guide/sample-sets.md is compared with this module
by a test. Start with ``SampleSetSpec``.
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
    Document,
    DocumentReference,
    Envelope,
    FieldRule,
    Fields,
    Number,
    Positive,
    Ratio,
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
_NO_WRITEBACK: Final = FieldRule(".writeback", f": {_READ_ONLY}", "!has(self.writeback) || !self.writeback")
_BELOW_ONE: Final = FieldRule(
    ".free-space-ratio",
    " must be less than 1: it is the share that stays free",
    "!has(self.free__dash__space__dash__ratio) || double(self.free__dash__space__dash__ratio) < 1.0",
)
_BELOW_THE_SOURCE: Final = FieldRule(
    ".sub-dir",
    " must name a directory below the source, without ..",
    "!has(self.sub__dash__dir) || !self.sub__dash__dir.matches('(^|/)[.][.](/|$)')",
)
_Seconds = Annotated[int, Meta(ge=1, description="a whole number of seconds, at least 1")]


class MountOptions(Fields, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Mount options of JuiceFS. A field that is not given is None."""

    requires: ClassVar[tuple[FieldRule, ...]] = (_NO_WRITEBACK, _BELOW_ONE, _BELOW_THE_SOURCE)

    metrics: Annotated[str, _mapped("address at which the node server serves its metrics: `metrics`")] | None = None
    attr_cache: Annotated[Number, _NO_KERNEL] | None = None
    entry_cache: Annotated[Number, _NO_KERNEL] | None = None
    dir_entry_cache: Annotated[Number, _NO_KERNEL] | None = None
    enable_xattr: Annotated[bool, _ignored("extended attributes are not read")] | None = None
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
            _ignored("the sampler determines the order, and the number of requests adapts to the source"),
        ]
        | None
    ) = None
    writeback: Annotated[bool, Meta(extra={"effect": REFUSED, "meaning": _READ_ONLY})] | None = None
    cache_dir: (
        Annotated[str, _mapped("without `cache.levels`: path of the one level, memory on a tmpfs, otherwise disk")]
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
        """Directory below the source; empty for the whole source."""
        return self.sub_dir or ""

    @property
    def free_ratio(self) -> float:
        """Share of the disk that stays free; 0 if not given."""
        return float(self.free_space_ratio or 0)

    def given(self) -> dict[str, Any]:
        """Return the given options, by name."""
        return dict(msgspec.to_builtins(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOption:
    """Effect of a mount option.

    Attributes:
        effect: ``mapped``, ``no effect`` or ``refused``. A refused flag may be given as false.
        meaning: Sentence about the setting that the option is mapped to, or the reason why it has no effect.
    """

    effect: str
    meaning: str


@cache
def mount_options() -> Mapping[str, MountOption]:
    """Return the effect of each mount option, by name."""
    options = {}
    for one in msgspec.inspect.type_info(MountOptions).fields:  # type: ignore[attr-defined]
        [extra] = [extra for kind in one.type.types if (extra := getattr(kind, "extra", None))]
        options[one.encode_name] = MountOption(**extra)
    return options


class Csi(Fields, frozen=True, kw_only=True):
    """CSI driver and mount options of PaddlePaddle's operator."""

    driver: Literal["juicefs"] = "juicefs"
    options: MountOptions = field(name="juiceFSMountOptions", default_factory=MountOptions)


class SourceSpec(Fields, frozen=True, kw_only=True):
    """URI of the data's source, and the secret for it."""

    uri: str
    secret_ref: DocumentReference | None = None


class Level(Fields, frozen=True, kw_only=True):
    """Level of the cache.

    Attributes:
        medium: Memory or a kind of disk.
        path: Directory, or several separated by ``:``.
        cache_mib: Maximum size, in MiB; None if not given.
    """

    medium: Annotated[Literal["MEM", "SSD", "HDD"], Meta(description="one of MEM, SSD, HDD")] = field(name="mediumType")
    path: str = ""
    cache_mib: Annotated[int, Meta(ge=1, description="a whole number of MiB, at least 1")] | None = field(
        name="cacheSize", default=None
    )


class Cache(Fields, frozen=True, kw_only=True):
    """Levels of the cache, in the order of the document."""

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

NO_PLACE: Final = FieldRule(
    ".source.uri",
    " is missing, and there is no bucket in the secret of spec.secretRef: say where the data is",
    "has(self.source) || has(self.secretRef)",
)
CHANGEABLE: Final = "cannot change: only partitions, cacheSize and mount options can"


def _immutable(path: str, value: str) -> FieldRule:
    """Return the condition that a field is immutable. ``value`` is its CEL expression, with ``{of}`` for the spec."""
    return FieldRule(f".{path}", f" {CHANGEABLE}", f"{value.format(of='self')} == {value.format(of='oldSelf')}")


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
    """Requested state of a sample set.

    Attributes:
        partitions: Number of nodes that cache the set.
        source: Source of the data; None if the data is already in the secret's bucket.
        secret_ref: Secret for the bucket.
        no_sync: True if no data is copied into the bucket.
    """

    requires: ClassVar[tuple[FieldRule, ...]] = (NO_PLACE, *_IMMUTABLE)

    partitions: Positive
    source: SourceSpec | None = None
    secret_ref: DocumentReference | None = None
    no_sync: bool = False
    csi: Csi = field(default_factory=Csi)
    cache: Cache = field(default_factory=Cache)
    node_affinity: Annotated[Unused, _NODE_AFFINITY] | None = None
    tolerations: Annotated[Unused, _TOLERATIONS] | None = None

    @property
    def uri(self) -> str:
        """URI of the source as written; empty if the data is already in the secret's bucket."""
        return self.source.uri if self.source else ""

    @property
    def source_secret(self) -> str:
        """Name of the secret for ``uri``, or empty."""
        return self.source.secret_ref.name if self.source and self.source.secret_ref else ""

    @property
    def secret(self) -> str:
        """Name of the secret for the bucket, or empty."""
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
        """Given fields that only Kubernetes uses."""
        given = {"nodeAffinity": self.node_affinity, "tolerations": self.tolerations}
        return tuple(name for name, value in given.items() if value is not None)


class SampleSetDocument(Envelope, frozen=True, kw_only=True):
    """Document of kind SampleSet. ``status`` is ignored, because documents printed by a cluster contain it."""

    spec: SampleSetSpec
    status: Unused | None = None


def parse_spec(document: Document) -> SampleSetSpec:
    """Decode the ``spec`` of a SampleSet. Raises as ``documents.decode``."""
    return decode(document, SampleSetSpec, "spec")
