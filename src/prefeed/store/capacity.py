"""How much memory a tier may take, and where. Reading the machine and deciding are kept apart: what decides is pure."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from prefeed.machine import filesystem_of
from prefeed.store.directory import allocated_bytes
from prefeed.trust import is_mine, why_not_shared

DEFAULT_SHARE: Final = 0.5
"""Share of the smallest limit that a tier takes when nobody said how much: the training needs the rest."""

MAX_MEMORY_SHARE: Final = 0.9
"""Share of RAM, or of the control group's limit, that a tier may be given at most."""

MIN_STORE_BYTES: Final = 256 * 1024**2
"""A tmpfs with less room than this is not worth a tier: Docker's default /dev/shm has 64 MiB."""

FREE_DISK_SHARE: Final = 0.1
"""Share of a file system that a disk tier leaves free when nobody said how much."""

_UNLIMITED_BYTES: Final = 1 << 60
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """What bounds a tier in one directory.

    Attributes:
        ram_bytes: RAM of the machine.
        cgroup_limit_bytes: Smallest memory limit of this process's control group and those above it; None without.
        cgroup_usage_bytes: What is used in the group that has it; None without.
        free_bytes: What the directory's file system has free, what the store there takes already included.
    """

    ram_bytes: int
    cgroup_limit_bytes: int | None
    cgroup_usage_bytes: int | None
    free_bytes: int

    @property
    def smallest_bytes(self) -> int:
        """The smallest of RAM, control-group limit and free space."""
        return min(self.ram_bytes, self.free_bytes, self.cgroup_limit_bytes or self.ram_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupMemory:
    """Memory limit and use of one control group, in bytes."""

    limit_bytes: int
    usage_bytes: int


# ---------------------------------------------------------------- decisions


def default_budget_bytes(limits: MemoryLimits) -> int:
    """Return the budget when nobody asked for one: half of the smallest limit."""
    return int(limits.smallest_bytes * DEFAULT_SHARE)


def clamp_budget(asked_bytes: int, limits: MemoryLimits) -> tuple[int, str | None]:
    """Return what can be had of a budget, and, when that is less, a sentence saying to what it was cut and why."""
    ceilings = [
        (limits.free_bytes, "is free on the file system of the memory tier; raise it with --shm-size in a container"),
        (int(limits.ram_bytes * MAX_MEMORY_SHARE), f"is {MAX_MEMORY_SHARE:.0%} of this machine's RAM"),
    ]
    if limits.cgroup_limit_bytes is not None:
        ceiling = int(limits.cgroup_limit_bytes * MAX_MEMORY_SHARE)
        ceilings.append((ceiling, f"is {MAX_MEMORY_SHARE:.0%} of the control group's memory limit"))
    most_bytes, why = min(ceilings)
    if asked_bytes <= most_bytes:
        return asked_bytes, None
    return most_bytes, f"memory cut from {_gib(asked_bytes)} to {_gib(most_bytes)}, which {why}"


def plan_store_dir(
    memory_dir: Path,
    fallback_dir: Path,
    *,
    on_tmpfs: bool,
    free_bytes: int | None,
    min_bytes: int = MIN_STORE_BYTES,
    distrusted: str = "",
    is_there: bool = True,
) -> tuple[Path, bool, str | None]:
    """Choose where the memory tier lies; returns the directory, whether it is on tmpfs, and a warning or None. Pure.

    Args:
        memory_dir: Where it should lie.
        fallback_dir: A directory on disk.
        on_tmpfs: Whether ``memory_dir`` is on a tmpfs.
        free_bytes: What it has free; None when it cannot be written.
        min_bytes: The least that is worth a tier in memory.
        distrusted: Why others could replace what is in ``memory_dir``; empty when they cannot.
        is_there: Whether ``memory_dir`` is a directory.
    """
    if not is_there:
        warning = (
            f"{memory_dir} is no directory that is there: the memory tier goes to {fallback_dir} on disk, which is slower; "
            "make the directory, on a tmpfs, or correct PREFEED_MEMORY_DIR"
        )
        return fallback_dir, False, warning
    if distrusted:
        warning = f"{memory_dir} {distrusted}: the memory tier goes to {fallback_dir} on disk, which is slower"
        return fallback_dir, False, warning
    if free_bytes is None or free_bytes < min_bytes:
        has = "cannot be written" if free_bytes is None else f"has only {_mib(free_bytes)} free"
        warning = (
            f"{memory_dir} {has}, at least {_mib(min_bytes)} are needed: the memory tier goes to {fallback_dir} on disk, "
            "which is slower; start the container with a larger --shm-size, or set PREFEED_MEMORY_DIR"
        )
        return fallback_dir, False, warning
    if not on_tmpfs:
        return memory_dir, False, f"{memory_dir} is not a tmpfs: the memory tier lies on disk, which is slower"
    return memory_dir, True, None


def plan_disk_floor(asked_bytes: int | None, *, total_bytes: int) -> int:
    """Return what a file system must keep free: as asked, else a tenth of it. Pure."""
    return int(total_bytes * FREE_DISK_SHARE) if asked_bytes is None else asked_bytes


# ---------------------------------------------------------------- the machine


def disk_limits(
    directory: str | os.PathLike[str], *, asked_bytes: int, floor_bytes: int | None
) -> tuple[int, int]:  # fmt: skip
    """Return what a disk tier may take, and what its file system must keep free, both in bytes.

    Args:
        directory: Of the tier; need not exist. What it takes already counts as free.
        asked_bytes: The most that it may take.
        floor_bytes: What must stay free; None = a tenth of the file system.
    """
    path = Path(directory).absolute()
    status = os.statvfs(_existing(path))
    floor = plan_disk_floor(floor_bytes, total_bytes=status.f_blocks * status.f_frsize)
    free = status.f_bavail * status.f_frsize + allocated_bytes(path)
    return max(0, min(asked_bytes, free - floor)), floor


def memory_limits(directory: str | os.PathLike[str]) -> MemoryLimits:
    """Read what bounds a tier in this directory, which need not exist yet."""
    path = Path(directory).absolute()
    group = smallest_cgroup(_read_cgroups())
    free = _free_bytes(_existing(path)) or 0
    return MemoryLimits(
        ram_bytes=_ram_bytes(),
        cgroup_limit_bytes=None if group is None else group.limit_bytes,
        cgroup_usage_bytes=None if group is None else group.usage_bytes,
        free_bytes=free + allocated_bytes(path),
    )


def is_tmpfs(directory: str | os.PathLike[str]) -> bool:
    """Return whether a directory, or the nearest one above it that exists, is on a tmpfs."""
    return filesystem_of(_existing(Path(directory).absolute())) == "tmpfs"


def choose_store_dir(
    memory_dir: str | os.PathLike[str],
    fallback_dir: str | os.PathLike[str],
    min_bytes: int = MIN_STORE_BYTES,
    *,
    store_name: str | None = None,
) -> tuple[Path, bool, str | None]:
    """Choose between a tmpfs and a directory on disk; returns the directory, whether it is on tmpfs, a warning or None.

    Args:
        memory_dir: Where the memory tier should lie, ``/dev/shm``.
        fallback_dir: Used when there is not enough room; need not exist.
        min_bytes: The least that is worth a tier in memory.
        store_name: Name of the store's own directory in ``memory_dir``: what it takes already counts as free.
    """
    path = Path(memory_dir).absolute()
    distrusted = _why_distrusted(path)
    free = _free_bytes(path) if os.access(path, os.W_OK | os.X_OK) else None
    if free is not None and store_name is not None:
        free += allocated_bytes(path / store_name)
    on_tmpfs = free is not None and is_tmpfs(path)
    return plan_store_dir(
        path, Path(fallback_dir).absolute(), on_tmpfs=on_tmpfs, free_bytes=free, min_bytes=min_bytes,
        distrusted=distrusted, is_there=path.is_dir(),
    )  # fmt: skip


def _why_distrusted(directory: Path) -> str:
    """Return why others could replace what is in a directory; one of this user's is made like /tmp if it was open to all."""
    try:
        found = os.stat(directory)
        if is_mine(found) and why_not_shared(found):
            os.chmod(directory, stat.S_IMODE(found.st_mode) | stat.S_ISVTX)
            found = os.stat(directory)
    except OSError:
        return ""  # nothing can be put there either
    return why_not_shared(found)


def _existing(path: Path) -> Path:
    return next((p for p in (path, *path.parents) if p.exists()), Path("/"))


def _free_bytes(directory: Path) -> int | None:
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _ram_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def _read_cgroups() -> Iterator[CgroupMemory]:
    return cgroup_memory(_read_text(Path("/proc/self/cgroup")) or "", _CGROUP_ROOT, _read_text)


# ---------------------------------------------------------------- what the kernel's texts mean


def cgroup_memory(
    own_cgroups: str, root: Path, read_text: Callable[[Path], str | None]
) -> Iterator[CgroupMemory]:  # fmt: skip
    """Yield limit and use of every control group that bounds this process's memory, from its own up to the root.

    Args:
        own_cgroups: Text of ``/proc/self/cgroup``: version 2, version 1, or both.
        root: Where control groups are mounted.
        read_text: Returns a file's text, None if there is no such file.
    """
    for line in own_cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            mounts, names = [root, root / "unified"], ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            mounts, names = [root / "memory"], ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        for mount in mounts:
            for directory in _up_to(mount, group):
                limit = parse_limit(read_text(directory / names[0]))
                if limit is not None:
                    yield CgroupMemory(limit_bytes=limit, usage_bytes=parse_limit(read_text(directory / names[1])) or 0)


def smallest_cgroup(groups: Iterator[CgroupMemory]) -> CgroupMemory | None:
    """Return the group with the smallest limit; None when there is no limit."""
    return min(groups, key=lambda group: group.limit_bytes, default=None)


def parse_limit(text: str | None) -> int | None:
    """Return a number of bytes from a control group's file; None for no file, ``max``, and version 1's "no limit"."""
    if text is None or not text.strip().isdigit():
        return None
    value = int(text)
    return value if value < _UNLIMITED_BYTES else None


def _up_to(mount: Path, group: str) -> Iterator[Path]:
    # In a container the path may lie above what is mounted ("/../.."): then the mount's root is this group.
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.2f} GiB"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**2:.0f} MiB"
