"""What each field of a sample set was mapped to, or why it has no effect: what `describe` shows. Pure but for the tiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prefeed.config import EVERYTHING, MIB, Config
from prefeed.sampleset.options import MAPPED, MOUNT_OPTIONS
from prefeed.sampleset.records import SampleSet
from prefeed.sampleset.tiers import Tiers, plan_tiers

_KUBERNETES = "no effect: it tells Kubernetes where to start pods, and here the node is the one that you are on"
_METAURL = "no effect: it is JuiceFS's server of metadata, and prefeed needs none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A field that was given.

    Attributes:
        field: Its path.
        value: As it was written; never a credential.
        meaning: To what it is mapped, or why it has no effect.
        has_effect: False in the latter case.
    """

    field: str
    value: str
    meaning: str
    has_effect: bool = True


def explain(found: SampleSet, base: Config, *, has_metaurl: bool = False) -> list[Explained]:
    """Return what the fields of a set mean, in the order of its document.

    Args:
        found: The set.
        base: Settings in force.
        has_metaurl: Its secret names a server of metadata.
    """
    settings = found.settings(base)
    lines = [_partitions(found, settings), *_places(found)]
    if has_metaurl:
        lines.append(Explained(field="metaurl", value="(in the secret)", meaning=_METAURL, has_effect=False))
    lines += _options(found)
    lines += _levels(found, settings)
    lines += [
        Explained(field=f"spec.{name}", value="(given)", meaning=_KUBERNETES, has_effect=False)
        for name in found.spec.for_kubernetes
    ]
    return lines


def _partitions(found: SampleSet, settings: Config) -> Explained:
    count = found.spec.partitions
    if count == 1:
        meaning = "this node caches the set"
    elif getattr(settings, "pool", None):
        meaning = f"this node is one of {count}; what any of them fetched, the others get from the pool (PREFEED_POOL)"
    else:
        meaning = (
            f"this node is one of {count}, and each caches for itself: nodes do not know of each other, so the set stays "
            "PartialReady here. Set PREFEED_POOL on all of them, and one fetches for all"
        )
    return Explained(field="spec.partitions", value=str(count), meaning=meaning)


def _places(found: SampleSet) -> Iterator[Explained]:
    spec = found.spec
    if spec.uri:
        yield Explained(field="spec.source.uri", value=spec.uri, meaning=f"the data comes from {found.source_url}")
    if spec.source_secret:
        meaning = "who reads the source"
        yield Explained(field="spec.source.secretRef", value=spec.source_secret, meaning=meaning)
    if spec.secret:
        meaning = "who speaks to its bucket, and to the source where it names none"
        yield Explained(field="spec.secretRef", value=spec.secret, meaning=meaning)
    if found.needs_sync:
        meaning = f"the data is copied to {found.origin_url}, and read there"
    else:
        meaning = f"nothing is copied: the data is read at {found.origin_url}"
    yield Explained(field="spec.noSync", value=_text(spec.no_sync), meaning=meaning)


def _options(found: SampleSet) -> Iterator[Explained]:
    unused = ("cache-dir", "cache-size") if found.spec.levels else ()
    for name, value in found.spec.options.items():
        option = MOUNT_OPTIONS[name]
        meaning, has_effect = option.meaning, option.effect == MAPPED
        if name in unused:
            meaning, has_effect = "spec.cache.levels says it", False
        field = f"spec.csi.juiceFSMountOptions.{name}"
        prefix = "" if has_effect else "no effect: "
        yield Explained(field=field, value=_text(value), meaning=prefix + meaning, has_effect=has_effect)


def _levels(found: SampleSet, settings: Config) -> Iterator[Explained]:
    tiers: Tiers = plan_tiers(found.spec)
    for index, level in enumerate(found.spec.levels):
        in_memory = level is tiers.memory
        place = settings.memory_dir if in_memory else settings.disk_path
        kind = "the memory tier" if in_memory else "the disk tier"
        size = settings.memory if in_memory else settings.disk
        most = "as much as may be" if size is None or size == EVERYTHING else f"{size // MIB} MiB at most"
        value = f"{level.medium} {level.path} {level.cache_mib or ''}".strip()
        yield Explained(field=f"spec.cache.levels[{index}]", value=value, meaning=f"{kind}, below {place}, {most}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
