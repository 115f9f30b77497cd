"""A SampleSet as a pod has it: its levels become the volumes of the pod, wherever the document puts them. Pure."""

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
"""``store.capacity.MIN_STORE_BYTES``: a tmpfs with less room is not worth a tier."""

_LEAST_MARGIN_MIB: Final = 16
_MARGIN: Final = 32
"""A volume is larger than its tier by the tier's size divided by this: kubelet evicts a pod that exceeds the limit of a volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """A set, and what its pods need for it.

    Attributes:
        name: Of the set.
        namespace: Of the set and its pods; empty: as the client says.
        document: For the sidecar, with the paths of the pod's volumes.
        memory_mib: Budget of the memory tier.
        has_disk: There is a disk tier.
        disk_mib: Its budget; None: as much as there is.
        secrets: Names of its secrets.
        directory: Where the data lies, if that is a directory; empty: in an object store.
        notes: Sentences for the user on what was chosen.
        without_effect: Sentences on options that change nothing.
        warmups: Documents of the jobs that its sidecars run.
        is_patched: Its ConfigMap is printed by ``patch``, and not created by the operator, which has one of its own.
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
        """Limit of the memory volume."""
        return _with_margin(self.memory_mib)

    @property
    def disk_volume_mib(self) -> int | None:
        """Limit of the disk volume; None: none."""
        return None if self.disk_mib is None else _with_margin(self.disk_mib)


def yaml_text(*documents: Document) -> str:
    """Return documents as a YAML stream."""
    try:
        return _yaml_text(json.dumps(documents))
    except TypeError:  # a date, which YAML has and JSON has not
        return _dumped(documents)


@lru_cache(maxsize=4096)
def _yaml_text(documents: str) -> str:
    """Return documents, which are JSON here: the operator makes the text of each set again whenever it looks at it."""
    return _dumped(json.loads(documents))


def _dumped(documents: Iterable[Document]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, width=120)


def pod_set(document: Document, *, is_shared: bool = False) -> PodSet:
    """Return a set as a pod has it.

    Several levels of a medium become one with the sum of their sizes; their paths do not count.

    Args:
        document: Of kind SampleSet.
        is_shared: Its nodes have caches that their pods share; else each pod has its own.

    Raises:
        SpecError: It is not understood, or asks for what a pod cannot have.
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
