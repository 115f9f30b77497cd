"""Converts a SampleSet for a pod: its cache levels become volumes of the pod, and their paths are ignored. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import yaml

from prefeed.errors import SpecError
from prefeed.kubernetes.layout import DISK_TIER, DOCUMENT, JOBS, MEMORY_TIER, PREFIX
from prefeed.kubernetes.without_effect import options_without_effect
from prefeed.sampleset.documents import Document, decode
from prefeed.sampleset.locations import locate
from prefeed.sampleset.spec import API_VERSION, KIND, NO_PLACE, SampleSetDocument, SampleSetSpec

DEFAULT_MEMORY_MIB: Final = 1024
LEAST_MEMORY_MIB: Final = 256
"""Same as ``store.capacity.MIN_STORE_BYTES``: the server keeps no stage caches in a smaller tmpfs."""

_LEAST_MARGIN_MIB: Final = 16
_MARGIN: Final = 32
"""A volume exceeds its tier by 1/32 of the tier, because kubelet evicts a pod that exceeds the limit of a volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Sample set with the volumes and secrets that its pods need.

    Attributes:
        name: Name of the set.
        namespace: Namespace of the set and its pods. If empty, the client chooses.
        document: Document for the sidecar, with the paths of the pod's volumes.
        memory_mib: Budget of the memory tier, in MiB.
        has_disk: Whether there is a disk tier.
        disk_mib: Budget of the disk tier in MiB, or None for all available space.
        secrets: Names of its secrets.
        directory: Directory with the data, or an empty text for an object store.
        notes: Sentences about defaults that were chosen.
        without_effect: Sentences about options that have no effect.
        warmups: Documents of the jobs that its sidecars run.
        is_patched: Whether ``patch`` prints its ConfigMap. The operator creates one with another name.
    """

    name: str
    namespace: str
    document: Document = field(repr=False)
    memory_mib: int
    has_disk: bool
    disk_mib: int | None
    secrets: tuple[str, ...]
    directory: str
    notes: tuple[str, ...]
    without_effect: tuple[str, ...]
    warmups: tuple[Document, ...] = field(default=(), repr=False)
    is_patched: bool = False

    @property
    def config_map(self) -> str:
        """Name of the ConfigMap."""
        return f"{PREFIX}{self.name}{'-patched' if self.is_patched else ''}"

    @property
    def texts(self) -> dict[str, str]:
        """Contents of the ConfigMap, by key."""
        return {DOCUMENT: yaml_text(self.document), **({JOBS: yaml_text(*self.warmups)} if self.warmups else {})}

    @property
    def volume_mib(self) -> int:
        """Limit of the memory volume, in MiB."""
        return _with_margin(self.memory_mib)

    @property
    def disk_volume_mib(self) -> int | None:
        """Limit of the disk volume in MiB, or None for no limit."""
        return None if self.disk_mib is None else _with_margin(self.disk_mib)


def yaml_text(*documents: Document) -> str:
    """Format documents as a YAML stream."""
    try:
        return _yaml_text(json.dumps(documents))
    except TypeError:  # a date, which JSON does not have
        return _dumped(documents)


@lru_cache(maxsize=4096)
def _yaml_text(documents: str) -> str:
    """Format documents, given as JSON. Cached, because the operator formats each set at every reconciliation."""
    return _dumped(json.loads(documents))


def _dumped(documents: Iterable[Document]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, width=120)


def pod_set(document: Document, *, is_shared: bool = False) -> PodSet:
    """Convert a SampleSet for its pods.

    Levels of the same medium are merged and their sizes added.

    Args:
        document: The SampleSet.
        is_shared: Whether the pods of a node share one cache. Otherwise each pod has its own.

    Raises:
        SpecError: The document is invalid, or requires something that a pod cannot have.
    """
    said = decode(document, SampleSetDocument)
    if (said.kind, said.api_version) != (KIND, API_VERSION):
        raise SpecError(f"a sample set has kind {KIND} and apiVersion {API_VERSION}, not {said.kind!r:.60}")
    name, spec = said.metadata.name, said.spec
    if not spec.uri and not spec.secret:
        raise SpecError(f"spec{NO_PLACE.path}{NO_PLACE.said}")
    memory, notes = _memory_mib(spec)
    disks = [level for level in spec.levels if level.medium != "MEM"]
    sizes = [level.cache_mib for level in disks]
    disk = None if None in sizes else sum(size for size in sizes if size)
    location = locate(spec.uri, "spec.source.uri") if spec.uri else None
    levels = [{"mediumType": "MEM", "path": str(MEMORY_TIER), "cacheSize": memory}]
    if disks:
        levels.append({"mediumType": "SSD", "path": str(DISK_TIER), **({} if disk is None else {"cacheSize": disk})})
    return PodSet(
        name=name,
        namespace=str((document["metadata"] or {}).get("namespace") or ""),
        document=_for_sidecar(document, name, levels),
        memory_mib=memory,
        has_disk=bool(disks),
        disk_mib=disk if disks else None,
        secrets=tuple(dict.fromkeys(_secrets(spec))),
        directory=location.url if location is not None and location.is_directory else "",
        notes=tuple(notes),
        without_effect=tuple(options_without_effect(document, spec, is_shared=is_shared)),
    )


def _memory_mib(spec: SampleSetSpec) -> tuple[int, list[str]]:
    levels = [level for level in spec.levels if level.medium == "MEM"]
    given = sum(level.cache_mib or 0 for level in levels)
    if not spec.levels and (spec.options.cache_dir or "memory").startswith(("memory", "/dev/shm")):
        given = spec.options.cache_size or 0
    if not given:
        return DEFAULT_MEMORY_MIB, [
            f"the memory tier has {DEFAULT_MEMORY_MIB} MiB: set cacheSize of the level MEM to change it"
        ]
    if given < LEAST_MEMORY_MIB:
        raise SpecError(
            f"spec.cache.levels: {given} MiB in memory are too few for a pod; cacheSize of the level MEM must be at least "
            f"{LEAST_MEMORY_MIB}"
        )
    return given, []


def _secrets(spec: SampleSetSpec) -> Iterable[str]:
    return (name for name in (spec.secret, spec.source_secret) if name)


def _for_sidecar(document: Document, name: str, levels: list[dict[str, object]]) -> Document:
    kept = ("source", "secretRef", "noSync")
    written = document["spec"]
    spec = {"partitions": 1, **{field: written[field] for field in kept if written.get(field) is not None}}
    options = dict((written.get("csi") or {}).get("juiceFSMountOptions") or {})
    options = {option: value for option, value in options.items() if option not in ("cache-dir", "cache-size")}
    if options:
        spec["csi"] = {"juiceFSMountOptions": options}
    spec["cache"] = {"levels": levels}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def _with_margin(mib: int) -> int:
    return mib + max(_LEAST_MARGIN_MIB, mib // _MARGIN)
