"""How much memory there is, and how much of it is left: of this machine, and of the control groups that this process is in.

What reads is ``read_memory``; the rest is pure. A control group's use holds cached files, which the kernel gives up for memory
before it kills anybody, and the pages of a tmpfs, which it does not.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from prefeed.system.machine import read_text
from prefeed.system.units import in_gib

RESERVE_SHARE: Final = 0.1
"""Of the machine's memory, and of each control group's, this part is left to programs: prefeed takes nothing of it."""

_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_OWN_SIZE: Final = Path("/proc/self/statm")
_UNLIMITED_BYTES: Final = 1 << 60

ReadText = Callable[[Path], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """One control group with a limit, in bytes.

    Attributes:
        limit_bytes: The most that its processes may take; of ``memory.max`` and ``memory.high`` the smaller.
        usage_bytes: What they take, cached files and pages of a tmpfs included.
        idle_files_bytes: Of it: cached files that were not used lately.
        used_files_bytes: Of it: cached files that somebody has.
    """

    limit_bytes: int
    usage_bytes: int = 0
    idle_files_bytes: int = 0
    used_files_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        """What programs can take without that files are read again."""
        return max(0, self.limit_bytes - max(0, self.usage_bytes - self.idle_files_bytes))

    @property
    def reclaimable_left_bytes(self) -> int:
        """What programs can take before the kernel kills one: it gives up all cached files first."""
        return max(0, self.limit_bytes - max(0, self.usage_bytes - self.idle_files_bytes - self.used_files_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The machine and the control groups above a process at one moment.

    Attributes:
        total_bytes: RAM.
        available_bytes: What programs can still have, as the kernel estimates it.
        groups: Control groups with a limit, the process's own first.
    """

    total_bytes: int
    available_bytes: int
    groups: tuple[MemoryGroup, ...] = ()

    @property
    def limit_bytes(self) -> int:
        """The smallest limit."""
        return min([self.total_bytes, *(group.limit_bytes for group in self.groups)])

    @property
    def left_bytes(self) -> int:
        """The least that the machine and every control group have left."""
        return min([self.available_bytes, *(group.left_bytes for group in self.groups)])

    def spare_bytes(self, *, before_a_kill: bool = False) -> tuple[int, str]:
        """Return what may still be taken so that the reserve stays, negative where it is touched, and what leaves no more.

        Args:
            before_a_kill: Count on cached files in use as well.
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
    """Return what is left to programs of memory of this size."""
    return int(limit_bytes * RESERVE_SHARE)


def read_memory(read: ReadText = read_text) -> Memory:
    """Read it; some tenths of a millisecond."""
    sizes = parse_meminfo(read(_MEMINFO) or "")
    total = sizes.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = tuple(memory_groups(read(_OWN_GROUPS) or "", _CGROUP_ROOT, read))
    return Memory(total_bytes=total, available_bytes=sizes.get("MemAvailable", total), groups=groups)


def address_space() -> tuple[int, int] | None:
    """Return the limit of this process's address space and what it takes of it, in bytes; None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int((read_text(_OWN_SIZE) or "0").split()[0])
    return limit, pages * os.sysconf("SC_PAGE_SIZE")


def fits_in_memory(num_bytes: int, read: ReadText = read_text) -> bool:
    """Return whether a program may take that many bytes at once: half of the reserve is left then.

    The other half is for others that take at the same moment; the memory tier gives back what makes it whole again.
    """
    memory = read_memory(read)
    spare, _ = memory.spare_bytes(before_a_kill=True)
    return spare + reserve_bytes(memory.limit_bytes) // 2 >= num_bytes


# ---------------------------------------------------------------- what the kernel's texts mean


def memory_groups(own_cgroups: str, root: Path, read: ReadText) -> Iterator[MemoryGroup]:
    """Yield every control group that bounds this process's memory, from its own up to the root.

    Args:
        own_cgroups: Text of ``/proc/self/cgroup``: version 2, version 1, or both.
        root: Where control groups are mounted.
        read: Returns a file's text, None if there is no such file.
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
    """Return a number of bytes from a control group's file; None for no file, ``max``, and version 1's "no limit"."""
    if text is None or not text.strip().isdigit():
        return None
    value = int(text)
    return value if value < _UNLIMITED_BYTES else None


def parse_meminfo(text: str) -> dict[str, int]:
    """Return sizes in bytes by name."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0]) * 1024
    return found


def parse_numbers(text: str) -> dict[str, int]:
    """Return the numbers of a ``memory.stat`` by name."""
    pairs = (line.partition(" ")[::2] for line in text.splitlines())
    return {name: int(value) for name, value in pairs if value.strip().isdigit()}


def _ancestors(mount: Path, group: str) -> Iterator[Path]:
    # In a container the path may lie above what is mounted ("/../.."): then the mount's root is this group.
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])
