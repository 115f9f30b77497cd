"""How many bytes a copy may still write, and which objects get one when there is no room for all.

The room is what is free, less what must stay free. A node cache counts with what it has taken: of memory that others take, it
gives back its own. Reading the machine and deciding are kept apart: ``compute_space`` and ``choose`` are pure.

Every sample is read once per epoch, in any order: a byte of one file saves as much as a byte of another, but each
file saves an open, which is what slow storage charges for. So small files first: 1 GiB of files of 84 KB saves 12,800
opens per epoch, 1 GiB of files of 1 MiB saves 1,024. A user who knows better (only a part of the files is read, some are
read often) gives an order.
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
"""What a file takes beside its blocks, in a tmpfs as on a disk: inode and directory entry."""

_MEASURE_EVERY_BYTES: Final = 64 * 1024**2
_LAST: Final = np.iinfo(np.int64).max


def footprint(size_bytes: int) -> int:
    """Return what a file of this size takes of a file system; one of unknown size (-1) counts as small."""
    return -(-max(1, size_bytes) // BLOCK_BYTES) * BLOCK_BYTES + INODE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceLimits:
    """What bounds a copy in one place; None: does not.

    Attributes:
        free_bytes: Free on the file system.
        floor_bytes: Of it must stay free.
        free_files: Files that the file system can still take; None where it does not count them.
        memory: Of the machine and the control groups, when the place is in memory.
    """

    free_bytes: int
    floor_bytes: int
    free_files: int | None = None
    memory: Memory | None = None


def compute_space(found: SpaceLimits) -> tuple[int, str]:
    """Return how many bytes may still be written there, and what it is that leaves no more. Pure."""
    floor = f"{in_gib(found.floor_bytes)} of the file system stay free"
    bounds = [(found.free_bytes - found.floor_bytes, floor)]
    if found.memory is not None:
        bounds.append(found.memory.spare_bytes(before_a_kill=True))
    least, why = min(bounds)
    return max(0, least), why


class SpaceBudget:
    """The bytes that a copy may still write: taken before they are written.

    **Threads**: any.

    Args:
        left_bytes: Those planned.
        measure: Returns what the machine allows now: another program may be filling the same place.
    """

    def __init__(self, left_bytes: int, measure: Callable[[], tuple[int, str]]) -> None:
        self._left_bytes = left_bytes
        self._measure = measure
        self._lock = threading.Lock()
        self._unmeasured_bytes = 0

    def take(self, size_bytes: int) -> int:
        """Return what a file of this size was given of the room.

        Raises:
            TargetFullError: There is not as much left.
        """
        wanted = footprint(size_bytes)
        with self._lock:
            if wanted > self._left_bytes:
                raise TargetFullError(f"{wanted:,} bytes are needed and {self._left_bytes:,} are left")
            self._unmeasured_bytes += wanted
            if self._unmeasured_bytes >= _MEASURE_EVERY_BYTES:
                self._unmeasured_bytes = 0
                allowed, why = self._measure()
                if allowed < wanted:
                    raise TargetFullError(f"another program has taken the space: {why}")
            self._left_bytes -= wanted
        return wanted

    def release(self, taken_bytes: int) -> None:
        """What was taken was not written."""
        with self._lock:
            self._left_bytes += taken_bytes


class BoundedSink:
    """A sink that takes no more than there is room for."""

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
    """Read what bounds a copy in a directory, which exists."""
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
    """Return how many bytes may be written to a directory now, and what leaves no more."""
    return compute_space(measure_limits(place, config))


# ---------------------------------------------------------------- what is copied


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySelection:
    """What is to be copied.

    Attributes:
        chosen: Whether each object gets a copy, shape (num_objects,).
        order: Indices of the chosen ones, first to last.
        room_bytes: What their copies take.
    """

    chosen: NDArray[np.bool_]
    order: NDArray[np.int64]
    room_bytes: int


def select_copies(
    entries: Sequence[Entry], *, budget_bytes: int, is_there: NDArray[np.bool_], positions: Mapping[str, int] | None
) -> CopySelection:
    """Return which objects fit into the budget.

    Args:
        entries: All objects.
        budget_bytes: The most that their copies may take together.
        is_there: Which of them have a copy already, shape (num_objects,): without ``positions`` those are kept before
            others are copied.
        positions: Place of paths in an order; what is not in it comes after it, small ones first.
    """
    rooms = np.fromiter((footprint(entry.size_bytes) for entry in entries), np.int64, len(entries))
    if positions is None:
        order_keys = (~is_there).astype(np.int64)
    else:
        order_keys = np.fromiter((positions.get(entry.path, _LAST) for entry in entries), np.int64, len(entries))
    sizes = np.fromiter(
        (entry.size_bytes if entry.size_bytes >= 0 else _LAST for entry in entries), np.int64, len(entries)
    )
    order = np.lexsort((sizes, order_keys))  # stable: of equal sizes, those that come first
    taken = _select_fitting(rooms[order], budget_bytes)
    chosen = np.zeros(len(entries), np.bool_)
    chosen[order[taken]] = True
    return CopySelection(chosen=chosen, order=order[taken], room_bytes=int(rooms[chosen].sum()))


def require_any_fit(left: Sequence[Entry], num_copies: int, room_bytes: int, why: str, place: Path) -> None:
    """Raise ``DoesNotFitError`` if there is no copy at all, because each object is left out."""
    if left and not num_copies:
        smallest = min(footprint(entry.size_bytes) for entry in left)
        raise DoesNotFitError(
            f"none of {len(left):,} files fits in {place}: the smallest needs {smallest:,} bytes, and there is room for "
            f"{room_bytes:,}: {why}. Free space there, or name another place with --to",
            needed_bytes=smallest,
            room_bytes=room_bytes,
        )


def _select_fitting(rooms: NDArray[np.int64], budget_bytes: int) -> NDArray[np.bool_]:
    """Return which are taken when each in turn is taken if it still fits."""
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
    """Return the place of each path in an order: one per line, relative to the root or absolute below it."""
    prefix = root.rstrip("/") + "/"
    positions: dict[str, int] = {}
    for line in lines:
        path = line.removeprefix(prefix).removeprefix("./")
        if path:
            positions.setdefault(path, len(positions))
    return positions
