"""How many bytes a copy may still write: what is free, less what must stay free and what the node cache counts on.

Reading the machine and deciding are kept apart: ``plan_room`` is pure.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.config import Config
from prefeed.errors import TargetFullError
from prefeed.store.capacity import MAX_MEMORY_SHARE, CgroupMemory, cgroup_memory, is_tmpfs, plan_disk_floor
from prefeed.trust import is_mine

BLOCK_BYTES: Final = 4096
INODE_BYTES: Final = 1024
"""What a file takes beside its blocks, in a tmpfs as on a disk: inode and directory entry."""

_LOOK_EVERY_BYTES: Final = 64 * 1024**2
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_USAGE_FILES: Final = ("memory.current", "memory.usage_in_bytes")


def room_of(size_bytes: int) -> int:
    """Return what a file of this size takes of a file system; one of unknown size (-1) counts as small."""
    return -(-max(1, size_bytes) // BLOCK_BYTES) * BLOCK_BYTES + INODE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRoom:
    """What bounds a copy in one place; None: does not.

    Attributes:
        free_bytes: Free on the file system.
        floor_bytes: Of it must stay free.
        free_files: Files that the file system can still take; None where it does not count them.
        memory_bytes: Memory that programs can still have, when the place is in memory.
        ram_bytes: All memory of the machine.
        cgroup_bytes: What the control group that leaves least still allows, when the place is in memory.
        cache_bytes: What the node cache may still take of the same place.
    """

    free_bytes: int
    floor_bytes: int
    free_files: int | None = None
    memory_bytes: int | None = None
    ram_bytes: int = 0
    cgroup_bytes: int | None = None
    cache_bytes: int = 0


def plan_room(found: MachineRoom) -> tuple[int, str]:
    """Return how many bytes may still be written there, and what it is that leaves no more. Pure."""
    floor = f"{_gib(found.floor_bytes)} of the file system stay free"
    bounds = [(found.free_bytes - found.floor_bytes, floor)]
    if found.memory_bytes is not None:
        spared = int(found.ram_bytes * (1 - MAX_MEMORY_SHARE))
        bounds.append((found.memory_bytes - spared, f"{_gib(spared)} of memory stay free for programs"))
    if found.cgroup_bytes is not None:
        bounds.append((found.cgroup_bytes, "the control group allows no more memory"))
    least, why = min(bounds)
    if found.cache_bytes:
        least, why = least - found.cache_bytes, f"{why}, and the node cache counts on {_gib(found.cache_bytes)}"
    return max(0, least), why


class Ledger:
    """The bytes that a copy may still write: taken before they are written.

    **Threads**: any.

    Args:
        left_bytes: Those planned.
        look: Returns what the machine allows now: another program may be filling the same place.
    """

    def __init__(self, left_bytes: int, look: Callable[[], tuple[int, str]]) -> None:
        self._left_bytes = left_bytes
        self._look = look
        self._lock = threading.Lock()
        self._unseen_bytes = 0

    def take(self, size_bytes: int) -> int:
        """Return what a file of this size was given of the room.

        Raises:
            TargetFullError: There is not as much left.
        """
        wanted = room_of(size_bytes)
        with self._lock:
            if wanted > self._left_bytes:
                raise TargetFullError(
                    f"{wanted:,} bytes are needed and {self._left_bytes:,} are left of the room for it"
                )
            self._unseen_bytes += wanted
            if self._unseen_bytes >= _LOOK_EVERY_BYTES:
                self._unseen_bytes = 0
                allowed, why = self._look()
                if allowed < wanted:
                    raise TargetFullError(f"something else takes the same room meanwhile: {why}")
            self._left_bytes -= wanted
        return wanted

    def give_back(self, taken_bytes: int) -> None:
        """What was taken was not written."""
        with self._lock:
            self._left_bytes += taken_bytes


# ---------------------------------------------------------------- the machine


def machine_room(place: Path, config: Config) -> MachineRoom:
    """Read what bounds a copy in a directory, which exists."""
    status = os.statvfs(place)
    total = status.f_blocks * status.f_frsize
    in_memory = is_tmpfs(place)
    floor = plan_disk_floor(None if in_memory else config.disk_free, total_bytes=total)
    memory = _read_meminfo()
    return MachineRoom(
        free_bytes=status.f_bavail * status.f_frsize,
        floor_bytes=min(floor, total),
        free_files=status.f_favail if status.f_files else None,
        memory_bytes=memory.get("MemAvailable") if in_memory else None,
        ram_bytes=memory.get("MemTotal", 0),
        cgroup_bytes=_cgroup_bytes() if in_memory else None,
        cache_bytes=_cache_bytes(place, config),
    )


def look_at(place: Path, config: Config) -> tuple[int, str]:
    """Return how many bytes may be written to a directory now, and what leaves no more."""
    return plan_room(machine_room(place, config))


def _cache_bytes(place: Path, config: Config) -> int:
    """Return what memory tiers on the same file system were promised and have not taken yet.

    A store's file is as long as it may become; what of it takes no blocks yet is what its server will still fill.
    """
    total = 0
    for data in config.memory_dir.glob(f"prefeed-{os.getuid()}-*/data.mdb"):
        try:
            status = data.stat()
            if is_mine(os.lstat(data.parent)) and status.st_dev == place.stat().st_dev:
                total += max(0, status.st_size - status.st_blocks * 512)
        except OSError:  # removed meanwhile
            continue
    return total


def _cgroup_bytes() -> int | None:
    groups = cgroup_memory(_read_text(Path("/proc/self/cgroup")) or "", _CGROUP_ROOT, read_without_cache)
    return min(map(_allowed_bytes, groups), default=None)


def _allowed_bytes(group: CgroupMemory) -> int:
    return int(group.limit_bytes * MAX_MEMORY_SHARE) - group.usage_bytes


def read_without_cache(path: Path, read_text: Callable[[Path], str | None] | None = None) -> str | None:
    """Return the text of a control group's file; what it says is in use is without the cached files, which can go.

    A group that has read a data set once is always near its limit otherwise.
    """
    read_text = read_text or _read_text
    text = read_text(path)
    if text is None or path.name not in _USAGE_FILES or not text.strip().isdigit():
        return text
    prefix = "" if path.name == "memory.current" else "total_"
    cached = sum(
        value
        for name, value in _numbers(read_text(path.with_name("memory.stat")) or "")
        if name in (f"{prefix}inactive_file", f"{prefix}active_file")
    )
    return str(max(0, int(text) - cached))


def _numbers(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            yield name, int(value)


def _read_meminfo() -> dict[str, int]:
    """Return sizes in bytes by name."""
    found = {}
    for line in (_read_text(Path("/proc/meminfo")) or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0]) * 1024
    return found


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.2f} GiB"
