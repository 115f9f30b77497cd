"""How much memory the tier and the stage caches may take. Reading the machine and deciding are kept apart: what decides is pure."""

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
"""Minimum free space of a tmpfs for stage caches: Docker's default /dev/shm has 64 MiB."""

FREE_DISK_SHARE: Final = 0.1
"""Share of a file system that a disk tier leaves free when no setting says how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Limits of the memory tier and of the stage caches in memory together.

    Attributes:
        memory: Memory of the machine and the control groups.
        taken_bytes: Size of what the tier and the caches hold already, which can stay.
    """

    memory: Memory
    taken_bytes: int = 0

    def most_bytes(self, *, before_a_kill: bool = False) -> tuple[int, str]:
        """Return what may be taken in all, and what leaves no more."""
        spare, why = self.memory.spare_bytes(before_a_kill=before_a_kill)
        return max(0, self.taken_bytes + spare), why


# ---------------------------------------------------------------- decisions


def default_budget_bytes(memory: Memory) -> int:
    """Return the budget when no setting names one: half of the smallest limit."""
    return int(memory.limit_bytes * DEFAULT_SHARE)


def clamp_budget(asked_bytes: int, limits: MemoryLimits) -> tuple[int, str | None]:
    """Return what can be had of a budget, and, when that is less, a sentence saying to what it was cut and why."""
    most_bytes, why = limits.most_bytes()
    if asked_bytes <= most_bytes:
        return asked_bytes, None
    return most_bytes, f"memory cut from {in_gib(asked_bytes)} to {in_gib(most_bytes)}: {why}"


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
    """Choose the directory of stage caches in memory; return it, whether it is on tmpfs, and a warning or None. Pure.

    Args:
        memory_dir: The preferred directory.
        fallback_dir: A directory on disk.
        on_tmpfs: Whether ``memory_dir`` is on a tmpfs.
        free_bytes: What it has free; None when it cannot be written.
        min_bytes: Minimum free space of a tmpfs for stage caches.
        distrusted: Why others could replace what is in ``memory_dir``; empty when they cannot.
        is_there: Whether ``memory_dir`` is a directory.
    """
    if not is_there:
        warning = (
            f"{memory_dir} is not a directory: stage caches go to {fallback_dir} on disk, which is slower; "
            "make the directory on a tmpfs, or correct PREFEED_MEMORY_DIR"
        )
        return fallback_dir, False, warning
    if distrusted:
        warning = f"{memory_dir} {distrusted}: stage caches go to {fallback_dir} on disk, which is slower"
        return fallback_dir, False, warning
    if free_bytes is None or free_bytes < min_bytes:
        has = "cannot be written" if free_bytes is None else f"has only {in_mib(free_bytes)} free"
        warning = (
            f"{memory_dir} {has}, at least {in_mib(min_bytes)} are needed: stage caches go to {fallback_dir} on disk, "
            "which is slower; set PREFEED_MEMORY_DIR, or in a container --shm-size"
        )
        return fallback_dir, False, warning
    if not on_tmpfs:
        return memory_dir, False, f"{memory_dir} is not a tmpfs: stage caches are on disk, which is slower"
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


def memory_floor(directory: str | os.PathLike[str]) -> int:
    """Return the bytes of a tmpfs that stage caches leave free for torch's shared tensors; 0 if its size is unknown."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    return plan_disk_floor(None, total_bytes=status.f_blocks * status.f_frsize)


def memory_limits(directory: str | os.PathLike[str]) -> MemoryLimits:
    """Read the limits of a tier whose stage caches are in this directory, which need not exist yet."""
    return MemoryLimits(memory=read_memory(), taken_bytes=allocated_bytes(Path(directory).absolute()))


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
        memory_dir: The preferred directory, ``/dev/shm``.
        fallback_dir: Used when there is not enough room; need not exist.
        min_bytes: Minimum free space of a tmpfs for stage caches.
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
