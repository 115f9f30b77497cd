"""Status of a sample set, and the settings that its document is mapped to.

``observe`` queries the server, the records and the tiers on each call, and starts no server. ``phase_of`` derives the phase from
these observations without I/O::

    "" ─→ Bound ─→ Mount ─→ Syncing ─→ PartialReady ─→ Ready
                               └─────→ SyncFailed
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prefeed.client.node import NodeClient
from prefeed.client.tiers import tier_of
from prefeed.config import EVERYTHING, MIB, Config
from prefeed.errors import ServerUnavailableError
from prefeed.sampleset.records import SampleSet, is_being_set_up, read_progress
from prefeed.sampleset.spec import MAPPED, mount_options
from prefeed.sampleset.tiers import TierPlan, directories_of, nearest_directory, plan_tiers
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.sources.manifest import Manifest
from prefeed.store.files import stored_keys
from prefeed.store.memory import MemoryReader
from prefeed.store.node_directory import NODES, of_this_kernel
from prefeed.types import ENTRY_KEY_BYTES, ServerStatus, Statistics

NONE: Final = ""
BOUND: Final = "Bound"
MOUNT: Final = "Mount"
SYNCING: Final = "Syncing"
SYNC_FAILED: Final = "SyncFailed"
PARTIAL_READY: Final = "PartialReady"
READY: Final = "Ready"

INTERRUPTED: Final = "the process that set up the sample set was killed; `prefeed sampleset apply` resumes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseInputs:
    """Observations that determine the phase of a set.

    Attributes:
        is_recorded: True if the set was applied and not deleted.
        is_being_set_up: True if a process brings up the set.
        has_server: True if the node server responds.
        has_begun: True if copying or listing has begun.
        is_complete: True if the data was copied and listed.
        error: Error of the last attempt; empty if it succeeded or is still running.
        num_ready: Nodes known to this one that serve the set.
        partitions: Number of nodes requested.
    """

    is_recorded: bool = True
    is_being_set_up: bool = False
    has_server: bool = False
    has_begun: bool = False
    is_complete: bool = False
    error: str = ""
    num_ready: int = 0
    partitions: int = 1


def phase_of(facts: PhaseInputs) -> str:
    """Return the phase, as named by PaddlePaddle's operator."""
    if not facts.is_recorded:
        return NONE
    if facts.has_begun and not facts.is_being_set_up and (facts.error or not facts.is_complete):
        return SYNC_FAILED
    if not facts.has_server:
        return BOUND
    if facts.is_being_set_up and facts.has_begun and not facts.is_complete:
        return SYNCING
    if not facts.is_complete:
        return MOUNT
    return READY if facts.num_ready >= facts.partitions else PARTIAL_READY


def failure_of(facts: PhaseInputs) -> str:
    """Return the error of the last attempt, or that it was interrupted; empty without a failure."""
    if facts.error or facts.is_being_set_up or not facts.has_begun or facts.is_complete:
        return facts.error
    return INTERRUPTED


# ---------------------------------------------------------------- status


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """Usage of a tier.

    Attributes:
        kind: ``memory`` or ``disk``.
        path: Directory.
        budget_bytes: Maximum size, in bytes.
        used_bytes: Used space, in bytes.
        free_bytes: Free space in bytes, limited by the budget and, on disk, by the file system.
    """

    kind: str
    path: str
    budget_bytes: int
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSetState:
    """Status of a sample set.

    Attributes:
        phase: Phase, see ``phase_of``.
        error: Reason why the set is not ready; empty without a failure.
        total_bytes: Size of all objects; None if not known yet.
        total_files: Number of objects; None if not known yet.
        has_unknown_sizes: True if the listing lacks the size of some objects, which ``total_bytes`` excludes.
        cached_bytes: Size of the objects that are in a tier, each counted once.
        cached_files: Number of these objects.
        tiers: Tiers of the node; empty if its server does not run.
        num_ready: Nodes known to this one that serve the set.
        partitions: Number of nodes requested.
        sync_job: Id of the job that copies the data, or empty.
        warmup_job: Id of the last job that filled the tiers, or empty.
        pid: Process id of the node server; 0 if none runs.
    """

    phase: str
    error: str
    total_bytes: int | None
    total_files: int | None
    has_unknown_sizes: bool
    cached_bytes: int
    cached_files: int
    tiers: tuple[TierStatus, ...]
    num_ready: int
    partitions: int
    sync_job: str
    warmup_job: str
    pid: int

    @property
    def disk_bytes(self) -> int:
        """Used and free space of all tiers, in bytes."""
        return sum(tier.used_bytes + tier.free_bytes for tier in self.tiers)

    @property
    def used_bytes(self) -> int:
        """Used space of all tiers, in bytes."""
        return sum(tier.used_bytes for tier in self.tiers)

    @property
    def free_bytes(self) -> int:
        """Free space of all tiers, in bytes."""
        return sum(tier.free_bytes for tier in self.tiers)


def observe(found: SampleSet, base: Config) -> SampleSetState:
    """Return the status of a sample set.

    **Blocking**: reads the keys of all cached objects, which takes about a second per million.
    """
    settings = found.settings(base)
    server = _query_server(settings)
    progress = read_progress(found)
    manifest = manifest_of(found)
    facts = PhaseInputs(
        is_being_set_up=is_being_set_up(found),
        has_server=server is not None,
        has_begun=bool(progress.begun),
        is_complete=bool(progress.listed),  # If a job dropped the listing, the next reader lists again.
        error=progress.error,
        num_ready=0 if server is None else 1,
        partitions=found.spec.partitions,
    )
    cached = (0, 0) if manifest is None else _count_cached(manifest, settings, server)
    nothing = 0 if progress.emptied else None
    return SampleSetState(
        phase=phase_of(facts),
        error=failure_of(facts),
        total_bytes=nothing if manifest is None else manifest.total_bytes,
        total_files=nothing if manifest is None else manifest.num_objects,
        has_unknown_sizes=manifest is not None and manifest.header.num_unknown_sizes > 0,
        cached_files=cached[0],
        cached_bytes=cached[1],
        tiers=() if server is None else tuple(_tiers(settings, *server[:2])),
        num_ready=facts.num_ready,
        partitions=facts.partitions,
        sync_job=progress.sync_job,
        warmup_job=progress.warmup_job,
        pid=0 if server is None else server[0].pid,
    )


def manifest_of(found: SampleSet) -> Manifest | None:
    """Return the newest listing of a set, or None."""
    return ManifestLibrary(found.home).newest(found.read_url)


def _query_server(settings: Config) -> tuple[ServerStatus, Statistics, MemoryReader | None] | None:
    try:
        with NodeClient.connect(settings, autostart=False) as node:
            return node.status(), node.statistics(), tier_of(node.connection.instance)
    except (ServerUnavailableError, OSError):
        return None


# ---------------------------------------------------------------- tiers


def _tiers(settings: Config, status: ServerStatus, counts: Statistics) -> Iterator[TierStatus]:
    used = counts.resident_bytes + counts.transient_bytes
    yield _tier("memory", Path(status.store), counts.budget_bytes, used, keep_free=0)
    if counts.disk.budget_bytes:
        path = settings.disk_path
        keep = settings.limits.disk_free_bytes
        yield _tier("disk", path, min(counts.disk.budget_bytes, EVERYTHING), counts.disk.bytes, keep_free=keep)


def _tier(kind: str, path: Path, budget: int, used: int, *, keep_free: int | None) -> TierStatus:
    system = os.statvfs(nearest_directory(path))
    keep = system.f_blocks * system.f_frsize // 10 if keep_free is None else keep_free
    available = max(0, system.f_bavail * system.f_frsize - keep)
    # The file of a memory tier is allocated at its full size, so the free space of the tmpfs does not limit it.
    free = max(0, budget - used)
    return TierStatus(
        kind=kind, path=str(path), budget_bytes=budget, used_bytes=used,
        free_bytes=free if kind == "memory" else min(free, available),
    )  # fmt: skip


# ---------------------------------------------------------------- cached objects


def _count_cached(
    manifest: Manifest, settings: Config, server: tuple[ServerStatus, Statistics, MemoryReader | None] | None
) -> tuple[int, int]:  # fmt: skip
    """Return the number and the size of the listed objects that are in a tier."""
    is_held = _on_disk(manifest, settings)
    if server is not None:
        is_held |= _are_in(manifest, b"" if server[2] is None else server[2].keys())
    sizes = np.where(manifest.sizes == UNKNOWN_SIZE, 0, manifest.sizes)
    return int(is_held.sum()), int(sizes[is_held].sum())


def _are_in(manifest: Manifest, held: bytes) -> NDArray[np.bool_]:
    """Return which objects of a listing have one of these keys, shape (num_objects,)."""
    key = f"V{ENTRY_KEY_BYTES}"
    return np.isin(_as_numbers(np.frombuffer(manifest.keys, key)), _as_numbers(np.frombuffer(held, key)))


def _on_disk(manifest: Manifest, settings: Config) -> NDArray[np.bool_]:
    # Include all servers on this kernel, because each container has its own.
    found = settings.disk_path.parent if settings.disk.directory else settings.home / NODES
    below = "objects" if settings.disk.directory else "disk/objects"
    directories = [path / below for path in of_this_kernel(found) if (path / below).is_dir()]
    if not settings.disk.size_bytes or not directories:
        return np.zeros(manifest.num_objects, dtype=np.bool_)
    held = b""
    for directory in directories:
        with contextlib.suppress(OSError):
            held += stored_keys(directory)
    return _are_in(manifest, held)


def _as_numbers(keys: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return the first half of each key, shape (n,). Half a hash suffices to compare keys."""
    halves = keys.view(np.uint64).reshape(-1, 2)  # halves: (n, 2)
    return np.ascontiguousarray(halves[:, 0])


# ---------------------------------------------------------------- explanation of a document

_KUBERNETES = "no effect: it tells Kubernetes where to start pods; prefeed uses the current node"
METAURL: Final = "no effect: it is JuiceFS's metadata server, and prefeed needs none"
STORAGE: Final = (
    "no effect: nothing is copied into Redis; the source is read, and the tiers of the nodes take its place"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMeaning:
    """Explanation of a field of a document.

    Attributes:
        field: Path of the field.
        value: Value as written; never a credential.
        meaning: Setting that the field is mapped to, or the reason why it has no effect.
        has_effect: False if the field has no effect.
    """

    field: str
    value: str
    meaning: str
    has_effect: bool = True


def explain(found: SampleSet, base: Config, *, has_metaurl: bool = False, is_redis: bool = False) -> list[FieldMeaning]:
    """Explain the fields of a set, in the order of its document.

    Args:
        found: The set.
        base: Settings in force.
        has_metaurl: True if the secret names a metadata server.
        is_redis: True if the secret names Redis as its storage.
    """
    settings = found.settings(base)
    lines = [_explain_partitions(found, settings), *_explain_places(found)]
    if has_metaurl:
        lines.append(FieldMeaning(field="metaurl", value="(in the secret)", meaning=METAURL, has_effect=False))
    if is_redis:
        lines.append(FieldMeaning(field="storage", value="redis", meaning=STORAGE, has_effect=False))
    lines += _explain_options(found)
    lines += _explain_levels(found, settings)
    lines += [
        FieldMeaning(field=f"spec.{name}", value="(given)", meaning=_KUBERNETES, has_effect=False)
        for name in found.spec.for_kubernetes
    ]
    return lines


def _explain_partitions(found: SampleSet, settings: Config) -> FieldMeaning:
    count = found.spec.partitions
    if count == 1:
        meaning = "this node caches the set"
    elif getattr(settings, "pool", None):
        meaning = f"this node is one of {count}; objects that one node fetched come to the others from the pool (PREFEED_POOL)"
    else:
        meaning = (
            f"this node is one of {count}, and each node has its own cache: nodes do not know each other, so the set "
            "stays PartialReady here. Set PREFEED_POOL on all nodes to share fetched objects"
        )
    return FieldMeaning(field="spec.partitions", value=str(count), meaning=meaning)


def _explain_places(found: SampleSet) -> Iterator[FieldMeaning]:
    spec = found.spec
    if spec.uri:
        yield FieldMeaning(field="spec.source.uri", value=spec.uri, meaning=f"the data comes from {found.source_url}")
    if spec.source_secret:
        meaning = "the account that reads the source"
        yield FieldMeaning(field="spec.source.secretRef", value=spec.source_secret, meaning=meaning)
    if spec.secret:
        meaning = "the account for its bucket, and for the source if that has no secret"
        yield FieldMeaning(field="spec.secretRef", value=spec.secret, meaning=meaning)
    if found.needs_sync:
        meaning = f"the data is copied to {found.origin_url}, and read there"
    else:
        meaning = f"nothing is copied: the data is read at {found.origin_url}"
    yield FieldMeaning(field="spec.noSync", value=_text(spec.no_sync), meaning=meaning)


def _explain_options(found: SampleSet) -> Iterator[FieldMeaning]:
    unused = ("cache-dir", "cache-size") if found.spec.levels else ()
    for name, value in found.spec.options.given().items():
        option = mount_options()[name]
        meaning, has_effect = option.meaning, option.effect == MAPPED
        if name in unused:
            meaning, has_effect = "spec.cache.levels sets it", False
        field = f"spec.csi.juiceFSMountOptions.{name}"
        prefix = "" if has_effect else "no effect: "
        yield FieldMeaning(field=field, value=_text(value), meaning=prefix + meaning, has_effect=has_effect)


def _explain_levels(found: SampleSet, settings: Config) -> Iterator[FieldMeaning]:
    tiers: TierPlan = plan_tiers(found.spec)
    is_joined = {True: False, False: False}
    for index, level in enumerate(found.spec.levels):
        in_memory = level.medium == "MEM"
        size = settings.memory if in_memory else settings.disk.size_bytes
        most = "as much as fits" if size is None or size == EVERYTHING else f"{size // MIB} MiB at most"
        meaning = f"{'the memory tier' if in_memory else 'the disk tier'}, below "
        meaning += f"{settings.memory_dir if in_memory else settings.disk_path}, {most}"
        chosen = tiers.memory if in_memory else tiers.disk
        if is_joined[in_memory] or chosen is None or [chosen.path] != (directories_of(level) or [""]):
            meaning += (
                "; a node has one tier of each kind: the sizes of its levels are added, and the first directory is used"
            )
        is_joined[in_memory] = True
        value = f"{level.medium} {level.path} {level.cache_mib or ''}".strip()
        yield FieldMeaning(field=f"spec.cache.levels[{index}]", value=value, meaning=meaning)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
