"""Map the cache levels of a sample set to the memory and disk tier of a node. Start with ``tier_settings``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from prefeed.config import EVERYTHING, MIB, Config, DiskBudget
from prefeed.errors import SpecError
from prefeed.sampleset.spec import Level, MountOptions, SampleSetSpec
from prefeed.store.capacity import is_tmpfs

_MEMORY: Final = "MEM"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """Tiers of a node.

    Attributes:
        memory: Level in memory; None if not given.
        disk: Level on disk; None without a disk tier.
        are_given: False if the spec contains no levels, so that the node uses the tiers of the settings.
    """

    memory: Level | None
    disk: Level | None
    are_given: bool


def plan_tiers(spec: SampleSetSpec) -> TierPlan:
    """Return the tiers for a spec.

    A node has one tier of each kind, in one directory. Several levels of a kind are merged into one with the sum of their sizes, in
    the first directory that they name.

    Raises:
        SpecError: A path is not absolute, or a memory level is on a disk.
    """
    levels = spec.levels or _level_of_options(spec.options)
    for level in levels:
        _require_absolute(level)
    memory = _merge_levels([level for level in levels if level.medium == _MEMORY])
    disk = _merge_levels([level for level in levels if level.medium != _MEMORY])
    if memory is not None and memory.path and not is_tmpfs(memory.path):
        raise SpecError(
            f"spec.cache.levels: {memory.path} is on a disk, and mediumType MEM asks for a tmpfs such as /dev/shm; "
            "write mediumType SSD or HDD for it"
        )
    return TierPlan(memory=memory, disk=disk, are_given=bool(levels))


def _merge_levels(levels: Sequence[Level]) -> Level | None:
    """Merge levels of one kind; return None for an empty list."""
    if not levels:
        return None
    paths = [path for level in levels for path in directories_of(level)]
    sizes = [level.cache_mib for level in levels]
    return Level(
        medium=levels[0].medium,
        path=next(iter(paths), ""),
        cache_mib=None if None in sizes else sum(size for size in sizes if size is not None),
    )


def directories_of(level: Level) -> list[str]:
    """Return the directories of a level, which are separated by ``:``."""
    return [path for path in level.path.split(":") if path]


def _level_of_options(options: MountOptions) -> tuple[Level, ...]:
    path = options.cache_dir or ""
    if not path and options.cache_size is None:
        return ()
    in_memory = path in ("", "memory") or (path.startswith("/") and is_tmpfs(path))
    return (
        Level(
            medium=_MEMORY if in_memory else "SSD",
            path="" if path == "memory" else path,
            cache_mib=options.cache_size or None,
        ),
    )


def _require_absolute(level: Level) -> None:
    for path in directories_of(level):
        if not path.startswith("/") or ".." in path.split("/"):
            raise SpecError(f"spec.cache.levels: {path!r:.200} must be an absolute path without ..")


def tier_settings(spec: SampleSetSpec, base: Config, home: Path) -> dict[str, Any]:
    """Return the settings of the tiers for a node with this home.

    Directories are named after the home, so that several sample sets can use the same path.
    """
    tiers = plan_tiers(spec)
    own = f"prefeed-{os.getuid()}-{replace(base, home=home).home_id}"
    settings: dict[str, Any] = {}
    disk = base.disk
    if not tiers.are_given:
        if disk.directory is not None:
            disk = replace(disk, directory=disk.directory / own)  # Each server needs its own directory.
    else:
        settings.update(_memory_settings(tiers.memory))
        disk = _disk_budget(tiers.disk, own)
    settings["disk"] = disk
    ratio = spec.options.free_ratio
    if ratio and disk.size_bytes:
        free_bytes = int(ratio * _file_system_bytes(disk.directory or home))
        settings["limits"] = replace(base.limits, disk_free_bytes=free_bytes)
    return settings


def _memory_settings(level: Level | None) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if level is not None and level.cache_mib is not None:
        settings["memory"] = level.cache_mib * MIB
    if level is not None and level.path:
        settings["memory_dir"] = nearest_directory(Path(level.path))
    return settings


def _disk_budget(level: Level | None, own: str) -> DiskBudget:
    if level is None:
        return DiskBudget()
    size = EVERYTHING if level.cache_mib is None else level.cache_mib * MIB
    return DiskBudget(size, Path(level.path) / own if level.path else None)


def nearest_directory(path: Path) -> Path:
    """Return a directory or its nearest existing parent, because tmpfs directories vanish at a reboot."""
    return next(candidate for candidate in (path, *path.parents) if candidate.is_dir())


def _file_system_bytes(path: Path) -> int:
    found = os.statvfs(nearest_directory(path))
    return found.f_blocks * found.f_frsize
