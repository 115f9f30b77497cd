"""How much memory a tier may take, and where. Reading the machine and deciding are kept apart: what decides is pure."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.store.directory import allocated_bytes
from prefeed.system.files import free_bytes
from prefeed.system.machine import filesystem_of
from prefeed.system.memory import Memory, read_memory
from prefeed.system.trust import is_mine, why_not_shared
from prefeed.system.units import in_gib, in_mib

DEFAULT_SHARE: Final = 0.5
"""Share of the smallest limit that a tier takes when no setting says how much: the training needs the rest."""

MIN_STEP_BYTES: Final = 16 * 1024**2
"""A tier is not granted less than this more at a time..."""

_STEPS: Final = 16
"""... nor less than it divided by this."""

MIN_STORE_BYTES: Final = 256 * 1024**2
"""A tmpfs with less room than this is not worth a tier: Docker's default /dev/shm has 64 MiB."""

FREE_DISK_SHARE: Final = 0.1
"""Share of a file system that a disk tier leaves free when no setting says how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """What bounds a tier in one directory.

    Attributes:
        memory: Of the machine and the control groups.
        free_bytes: What the directory's file system has free.
        taken_bytes: What the store there takes already: it is neither free nor left, and can stay.
    """

    memory: Memory
    free_bytes: int
    taken_bytes: int = 0

    @property
    def smallest_bytes(self) -> int:
        """The smallest of RAM, control-group limit and free space."""
        return min(self.memory.limit_bytes, self.free_bytes + self.taken_bytes)

    def most_bytes(self, *, before_a_kill: bool = False) -> tuple[int, str]:
        """Return what may be taken in all, and what leaves no more."""
        free_words = "no more is free on the file system of the memory tier; raise it with --shm-size in a container"
        spare, words = self.memory.spare_bytes(before_a_kill=before_a_kill)
        most, why = min((self.free_bytes, free_words), (spare, words))
        return max(0, self.taken_bytes + most), why


# ---------------------------------------------------------------- decisions


def default_budget_bytes(limits: MemoryLimits) -> int:
    """Return the budget when no setting names one: half of the smallest limit."""
    return int(limits.smallest_bytes * DEFAULT_SHARE)


def clamp_budget(asked_bytes: int, limits: MemoryLimits) -> tuple[int, str | None]:
    """Return what can be had of a budget, and, when that is less, a sentence saying to what it was cut and why."""
    most_bytes, why = limits.most_bytes()
    if asked_bytes <= most_bytes:
        return asked_bytes, None
    return most_bytes, f"memory cut from {in_gib(asked_bytes)} to {in_gib(most_bytes)}: {why}"


def within_address_space(what: str, asked_bytes: int, space: tuple[int, int] | None) -> tuple[int, str | None]:
    """Return what a tier may map of what it was asked for, and, when that is less, a sentence that names the limit. Pure.

    A quarter of what is left: there are two tiers, and each reader maps them beside more libraries than the server has.

    Args:
        what: Names the tier.
        asked_bytes: Its size.
        space: Limit of the address space, and what is taken of it; None: there is no limit.
    """
    if space is None:
        return asked_bytes, None
    limit, taken = space
    most = max(0, limit - taken) // 4
    if asked_bytes <= most:
        return asked_bytes, None
    return most, (
        f"{what} cut from {in_gib(asked_bytes)} to {in_gib(most)}: the address space of processes is limited to {in_gib(limit)} "
        "(`ulimit -v`), and a tier is mapped; raise that limit and restart the server (`prefeed server stop`)"
    )


def plan_budget(granted_bytes: int, asked_bytes: int, limits: MemoryLimits) -> tuple[int, str | None]:
    """Return what a tier may take from now on, given what it was granted, and, if that is less than was asked for, why. Pure.

    It is granted less as soon as the reserve is touched, cached files not counted; and more, in steps, once there is more
    with cached files in use counted as taken. What lies between changes nothing.
    """
    least, why = limits.most_bytes(before_a_kill=True)
    if granted_bytes > least:
        budget = least
    else:
        most, why_not_more = limits.most_bytes()
        step = max(MIN_STEP_BYTES, granted_bytes // _STEPS)
        wanted = min(asked_bytes, most)
        if wanted < granted_bytes + min(step, max(1, asked_bytes - granted_bytes)):
            return granted_bytes, _cut(granted_bytes, asked_bytes, why_not_more)
        budget, why = wanted, why_not_more
    return budget, _cut(budget, asked_bytes, why)


def _cut(budget_bytes: int, asked_bytes: int, why: str) -> str | None:
    if budget_bytes >= asked_bytes:
        return None
    return f"memory is {in_gib(budget_bytes)} of {in_gib(asked_bytes)} now: {why}"


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
            f"{memory_dir} is not a directory: the memory tier goes to {fallback_dir} on disk, which is slower; "
            "make the directory on a tmpfs, or correct PREFEED_MEMORY_DIR"
        )
        return fallback_dir, False, warning
    if distrusted:
        warning = f"{memory_dir} {distrusted}: the memory tier goes to {fallback_dir} on disk, which is slower"
        return fallback_dir, False, warning
    if free_bytes is None or free_bytes < min_bytes:
        has = "cannot be written" if free_bytes is None else f"has only {in_mib(free_bytes)} free"
        warning = (
            f"{memory_dir} {has}, at least {in_mib(min_bytes)} are needed: the memory tier goes to {fallback_dir} on disk, "
            "which is slower; set PREFEED_MEMORY_DIR, or in a container --shm-size"
        )
        return fallback_dir, False, warning
    if not on_tmpfs:
        return memory_dir, False, f"{memory_dir} is not a tmpfs: the memory tier is on disk, which is slower"
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
    return MemoryLimits(
        memory=read_memory(), free_bytes=_free_bytes(_existing(path)) or 0, taken_bytes=allocated_bytes(path)
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
        return free_bytes(directory)
    except OSError:
        return None
