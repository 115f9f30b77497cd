"""Limits the size of a copy, and selects the objects to copy if not all fit.

The limit is the free space less a reserve. In memory, the cache of the node server counts as free, because it shrinks when other programs
need memory. ``compute_space`` and ``select_copies`` are pure; ``measure_limits`` reads the machine.

Small files are selected first. Each epoch reads every sample once, so that a copied file saves one open of slow storage, whatever its
size: 1 GiB of 84 KB files saves 12,800 opens per epoch, 1 GiB of 1 MiB files saves 1,024. Users can give another order, for example if
some files are read more often.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prefeed.config import Config
from prefeed.errors import DoesNotFitError, TargetFullError
from prefeed.store.capacity import is_tmpfs, plan_disk_floor
from prefeed.system.memory import Memory, read_memory
from prefeed.system.units import in_gib
from prefeed.transfer.directory import DirectorySink
from prefeed.transfer.engine import Body
from prefeed.transfer.entries import Entry

BLOCK_BYTES: Final = 4096
INODE_BYTES: Final = 1024
"""Space of a file in addition to its blocks, for the inode and directory entry, on tmpfs and on disk."""

_MEASURE_EVERY_BYTES: Final = 64 * 1024**2
_LAST: Final = np.iinfo(np.int64).max


def footprint(size_bytes: int) -> int:
    """Return the space of a file in a file system, in bytes. An unknown size (-1) counts as small."""
    return -(-max(1, size_bytes) // BLOCK_BYTES) * BLOCK_BYTES + INODE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceLimits:
    """Limits for a copy in one place.

    Attributes:
        free_bytes: Free space of the file system.
        floor_bytes: Part of it that must stay free.
        free_files: Number of files that can still be created; None if the file system does not limit it.
        memory: Memory of the machine and the control groups; None for a place on disk.
    """

    free_bytes: int
    floor_bytes: int
    free_files: int | None = None
    memory: Memory | None = None


def compute_space(found: SpaceLimits) -> tuple[int, str]:
    """Return how many bytes may still be written, and the reason for this limit. Pure."""
    floor = f"{in_gib(found.floor_bytes)} of the file system stay free"
    bounds = [(found.free_bytes - found.floor_bytes, floor)]
    if found.memory is not None:
        bounds.append(found.memory.spare_bytes(before_a_kill=True))
    least, why = min(bounds)
    return max(0, least), why


class SpaceBudget:
    """Space that a copy may still use. It is reserved before a file is written.

    **Threads**: any.

    Args:
        left_bytes: Planned space in bytes.
        measure: Returns the currently allowed bytes and the reason, because another program may fill the same place.
    """

    def __init__(self, left_bytes: int, measure: Callable[[], tuple[int, str]]) -> None:
        self._left_bytes = left_bytes
        self._measure = measure
        self._lock = threading.Lock()
        self._unmeasured_bytes = 0

    def take(self, size_bytes: int) -> int:
        """Reserve the space of a file and return its size in bytes.

        Raises:
            TargetFullError: Not enough space is left.
        """
        wanted = footprint(size_bytes)
        with self._lock:
            if wanted > self._left_bytes:
                raise TargetFullError(
                    f"the file needs {wanted:,} bytes, and {self._left_bytes:,} are left; free space, or raise --size"
                )
            self._unmeasured_bytes += wanted
            if self._unmeasured_bytes >= _MEASURE_EVERY_BYTES:
                self._unmeasured_bytes = 0
                allowed, why = self._measure()
                if allowed < wanted:
                    raise TargetFullError(f"another program has taken the space: {why}")
            self._left_bytes -= wanted
        return wanted

    def release(self, taken_bytes: int) -> None:
        """Return reserved space that was not used."""
        with self._lock:
            self._left_bytes += taken_bytes


class BoundedSink:
    """Sink that reserves space for each file."""

    def __init__(self, sink: DirectorySink, ledger: SpaceBudget) -> None:
        self._sink, self._ledger = sink, ledger

    def write(self, entry: Entry, body: Body) -> None:
        """See ``Sink.write``."""
        taken = self._ledger.take(body.size_bytes)
        try:
            self._sink.write(entry, body)
        except BaseException:
            self._ledger.release(taken)
            raise


# ---------------------------------------------------------------- the machine


def measure_limits(place: Path, config: Config) -> SpaceLimits:
    """Measure the limits for a copy in an existing directory."""
    status = os.statvfs(place)
    total = status.f_blocks * status.f_frsize
    in_memory = is_tmpfs(place)
    floor = plan_disk_floor(None if in_memory else config.limits.disk_free_bytes, total_bytes=total)
    memory = read_memory()
    return SpaceLimits(
        free_bytes=status.f_bavail * status.f_frsize,
        floor_bytes=min(floor, total),
        free_files=status.f_favail if status.f_files else None,
        memory=memory if in_memory else None,
    )


def measure_space(place: Path, config: Config) -> tuple[int, str]:
    """Return how many bytes may be written to a directory now, and the reason for this limit."""
    return compute_space(measure_limits(place, config))


# ---------------------------------------------------------------- selection


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySelection:
    """Objects that were selected for copying.

    Attributes:
        chosen: True for selected objects, shape (num_objects,).
        order: Indices of the selected objects, first to last.
        room_bytes: Space of their copies in bytes.
    """

    chosen: NDArray[np.bool_]
    order: NDArray[np.int64]
    room_bytes: int


def select_copies(
    entries: Sequence[Entry], *, budget_bytes: int, is_there: NDArray[np.bool_], positions: Mapping[str, int] | None
) -> CopySelection:
    """Select the objects whose copies fit into the budget.

    Args:
        entries: All objects.
        budget_bytes: Maximum space of all copies, in bytes.
        is_there: True for existing copies, shape (num_objects,). Without ``positions`` they are kept before others are copied.
        positions: Position of each path in the user's order. Other paths follow, small ones first.
    """
    rooms = np.fromiter((footprint(entry.size_bytes) for entry in entries), np.int64, len(entries))
    if positions is None:
        order_keys = (~is_there).astype(np.int64)
    else:
        order_keys = np.fromiter((positions.get(entry.path, _LAST) for entry in entries), np.int64, len(entries))
    sizes = np.fromiter(
        (entry.size_bytes if entry.size_bytes >= 0 else _LAST for entry in entries), np.int64, len(entries)
    )
    order = np.lexsort((sizes, order_keys))  # stable, so equal sizes stay in order
    taken = _select_fitting(rooms[order], budget_bytes)
    chosen = np.zeros(len(entries), np.bool_)
    chosen[order[taken]] = True
    return CopySelection(chosen=chosen, order=order[taken], room_bytes=int(rooms[chosen].sum()))


def require_any_fit(left: Sequence[Entry], num_copies: int, room_bytes: int, why: str, place: Path) -> None:
    """Raise ``DoesNotFitError`` if no object at all fits."""
    if left and not num_copies:
        smallest = min(footprint(entry.size_bytes) for entry in left)
        raise DoesNotFitError(
            f"none of {len(left):,} files fits in {place}: the smallest needs {smallest:,} bytes, and there is space for "
            f"{room_bytes:,}: {why}. Free space there, or name another place with --to",
            needed_bytes=smallest,
            room_bytes=room_bytes,
        )


def _select_fitting(rooms: NDArray[np.int64], budget_bytes: int) -> NDArray[np.bool_]:
    """Select each object in turn if it still fits."""
    taken = np.cumsum(rooms) <= budget_bytes
    if taken.all():
        return taken
    left = budget_bytes - int(rooms[taken].sum())
    for index in np.flatnonzero(~taken):
        if rooms[index] <= left:
            taken[index] = True
            left -= int(rooms[index])
    return taken


def parse_order(lines: Sequence[str], *, root: str) -> dict[str, int]:
    """Parse the user's order: one path per line, relative to the root or absolute below it. Return positions by path."""
    prefix = root.rstrip("/") + "/"
    positions: dict[str, int] = {}
    for line in lines:
        path = line.removeprefix(prefix).removeprefix("./")
        if path:
            positions.setdefault(path, len(positions))
    return positions
