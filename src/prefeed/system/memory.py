"""Measures the memory of this machine and of this process's control groups.

``read_memory`` reads the kernel's files; the other functions are pure. The usage of a control group includes cached files, which the kernel
frees before it kills a process, and pages of a tmpfs, which it does not free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from prefeed.system.machine import read_text
from prefeed.system.units import in_gib

RESERVE_SHARE: Final = 0.1
"""Share of the machine's and of each control group's memory that prefeed leaves to programs."""

_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_OWN_SIZE: Final = Path("/proc/self/statm")
_UNLIMITED_BYTES: Final = 1 << 60

ReadText = Callable[[Path], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """Memory of a control group with a limit, in bytes.

    Attributes:
        limit_bytes: The smaller one of ``memory.max`` and ``memory.high``.
        usage_bytes: Usage of its processes, including cached files and pages of a tmpfs.
        idle_files_bytes: Part of the usage: cached files that were not used recently.
        used_files_bytes: Part of the usage: cached files in use.
    """

    limit_bytes: int
    usage_bytes: int = 0
    idle_files_bytes: int = 0
    used_files_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        """Memory that programs can allocate without evicting cached files in use."""
        return max(0, self.limit_bytes - max(0, self.usage_bytes - self.idle_files_bytes))

    @property
    def reclaimable_left_bytes(self) -> int:
        """Memory that programs can allocate before the kernel kills one. It evicts all cached files first."""
        return max(0, self.limit_bytes - max(0, self.usage_bytes - self.idle_files_bytes - self.used_files_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Snapshot of the memory of the machine and of the control groups of a process.

    Attributes:
        total_bytes: RAM in bytes.
        available_bytes: Memory available to programs according to the kernel, in bytes.
        groups: Control groups with a limit, the process's own first.
    """

    total_bytes: int
    available_bytes: int
    groups: tuple[MemoryGroup, ...] = ()

    @property
    def limit_bytes(self) -> int:
        """Smallest limit of the machine and all groups, in bytes."""
        return min([self.total_bytes, *(group.limit_bytes for group in self.groups)])

    @property
    def left_bytes(self) -> int:
        """Smallest amount that is left in the machine and all groups, in bytes."""
        return min([self.available_bytes, *(group.left_bytes for group in self.groups)])

    def spare_bytes(self, *, before_a_kill: bool = False) -> tuple[int, str]:
        """Return how many bytes can be used without touching the reserve, and the limit that decides. May be negative.

        Args:
            before_a_kill: True to count cached files in use as free.
        """
        bounds = [
            (self.available_bytes - reserve_bytes(self.total_bytes), self._describe("this machine", self.total_bytes))
        ]
        for group in self.groups:
            left = group.reclaimable_left_bytes if before_a_kill else group.left_bytes
            words = self._describe("the control group", group.limit_bytes)
            bounds.append((left - reserve_bytes(group.limit_bytes), words))
        return min(bounds)

    def _describe(self, what: str, limit_bytes: int) -> str:
        return (
            f"{what} has {in_gib(limit_bytes)}, and {in_gib(reserve_bytes(limit_bytes))} of it stay free for programs"
        )


def reserve_bytes(limit_bytes: int) -> int:
    """Return the part of a memory limit that is reserved for programs."""
    return int(limit_bytes * RESERVE_SHARE)


def read_memory(read: ReadText = read_text) -> Memory:
    """Read the current memory. Takes some tenths of a millisecond."""
    sizes = parse_meminfo(read(_MEMINFO) or "")
    total = sizes.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = tuple(memory_groups(read(_OWN_GROUPS) or "", _CGROUP_ROOT, read))
    return Memory(total_bytes=total, available_bytes=sizes.get("MemAvailable", total), groups=groups)


def fits_in_memory(num_bytes: int, read: ReadText = read_text) -> bool:
    """Return whether a program may allocate so much at once, leaving half of the reserve.

    The other half is for concurrent allocations. The memory tier then shrinks until the reserve is complete again.
    """
    memory = read_memory(read)
    spare, _ = memory.spare_bytes(before_a_kill=True)
    return spare + reserve_bytes(memory.limit_bytes) // 2 >= num_bytes


# ---------------------------------------------------------------- kernel file formats


def memory_groups(own_cgroups: str, root: Path, read: ReadText) -> Iterator[MemoryGroup]:
    """Yield the control groups that limit this process's memory, from its own up to the root.

    Args:
        own_cgroups: Text of ``/proc/self/cgroup`` of version 2, version 1, or both.
        root: Mount point of the control groups.
        read: Returns the text of a file; None if it does not exist.
    """
    for line in own_cgroups.splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        limits: tuple[str, ...]
        if controllers == "":
            mounts, limits = [root, root / "unified"], ("memory.max", "memory.high")
            usage, prefix = "memory.current", ""
        elif "memory" in controllers.split(","):
            mounts, limits = [root / "memory"], ("memory.limit_in_bytes",)
            usage, prefix = "memory.usage_in_bytes", "total_"
        else:
            continue
        for mount in mounts:
            for directory in _ancestors(mount, group):
                found = [limit for name in limits if (limit := parse_limit(read(directory / name))) is not None]
                if found:
                    files = parse_numbers(read(directory / "memory.stat") or "")
                    yield MemoryGroup(
                        limit_bytes=min(found),
                        usage_bytes=parse_limit(read(directory / usage)) or 0,
                        idle_files_bytes=files.get(f"{prefix}inactive_file", 0),
                        used_files_bytes=files.get(f"{prefix}active_file", 0),
                    )


def parse_limit(text: str | None) -> int | None:
    """Parse a limit in bytes. Return None for a missing file, ``max``, and the huge default of version 1."""
    if text is None or not text.strip().isdigit():
        return None
    value = int(text)
    return value if value < _UNLIMITED_BYTES else None


def parse_meminfo(text: str) -> dict[str, int]:
    """Parse ``/proc/meminfo`` into sizes in bytes by name."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0]) * 1024
    return found


def parse_numbers(text: str) -> dict[str, int]:
    """Parse ``memory.stat`` into numbers by name."""
    pairs = (line.partition(" ")[::2] for line in text.splitlines())
    return {name: int(value) for name, value in pairs if value.strip().isdigit()}


def _ancestors(mount: Path, group: str) -> Iterator[Path]:
    # In a container the path may lead above the mount ("/../.."), whose root is then this group.
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])
