"""Pages of a store's data file that go back to the kernel while they belong to LMDB: how a store becomes smaller.

LMDB keeps the pages of what was deleted for what is put next, and its file never shrinks. So what it has free is put into
entries of the store's own, the ballast. LMDB touches no byte of them until they are deleted, so their pages can be punched out of
the file::

    data.mdb   | value | ballast: header page | hole ............. | value | value | ballast | hole ... | value |

Before ballast is deleted its pages are made again. Where that cannot be, it stays: never does LMDB write to a page that
the file system has not given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import lmdb
import numpy as np

from prefeed.store.batches import read_transaction
from prefeed.store.environment import SharedEnvironment
from prefeed.store.layout import PAGE_BYTES, PAGE_HEADER_BYTES
from prefeed.store.reservation import Reservation

_PREFIX: Final = b"ballast"
_RUNS: Final = (1024, 256, 64, 32, 20, 14, 10, 7, 5, 3)
"""Pages of one entry, the largest first: free pages lie in runs, as long as the values that were there."""

_GROUP: Final = 16
"""Entries in one commit."""


class Ballast:
    """The ballast of one store.

    Args:
        shared: The store, open for writing.
        reservation: Of its data file.
        write: Begins a write transaction.

    Attributes:
        bytes: What is punched out of the file.
        is_scattered: All that is free lay in runs that are too short, when it was looked for last.

    **Threads**: the writer's.
    """

    def __init__(
        self, shared: SharedEnvironment, reservation: Reservation, write: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._shared = shared
        self._reservation = reservation
        self._write = write
        self._entries: dict[bytes, tuple[int, int]] = {}  # where each hole is
        self._next = 0
        self._run = 0
        self._has_worked = False
        self.is_scattered: bool = False
        self.bytes: int = 0
        self._find()

    @property
    def held_bytes(self) -> int:
        """What LMDB cannot use for values: the holes, and the first page of each entry."""
        return self.bytes + PAGE_BYTES * len(self._entries)

    def take(self, wanted_bytes: int, *, within_seconds: float) -> int:
        """Give about that many bytes of free pages back to the kernel; returns how many.

        Fewer where there are no runs of them, and when the time is over: LMDB looks long for a run that is not there.

        The store's map must end where its data do: else LMDB would take pages there.
        """
        if not self._reservation.can_punch:
            return 0
        before, until = self.bytes, time.monotonic() + within_seconds
        if self._has_worked:  # else it resumes with shorter runs where it ended
            self._run = max(0, self._run - 1)
        self._has_worked = self.is_scattered = False
        count = 1
        while self._run < len(_RUNS) and time.monotonic() < until:
            missing = wanted_bytes - (self.bytes - before)
            hole = (_RUNS[self._run] - 1) * PAGE_BYTES
            most = missing // hole or int(missing > 0 and self._run == len(_RUNS) - 1)
            if missing <= 0:
                break
            if most and self._try_put(_RUNS[self._run], min(count, most)):
                count = min(2 * count, _GROUP)
                self._has_worked = True
            elif most and count > 1:
                count = 1
            else:
                self._run += 1
        if self._run == len(_RUNS):
            self._run = 0
            self.is_scattered = not self._has_worked
        return self.bytes - before

    def give(self, wanted_bytes: int) -> int:
        """Make about that many bytes of pages again, for values; returns how many, fewer when the file system has no more."""
        before = self.bytes
        while self._entries and before - self.bytes < wanted_bytes:
            key, (start, size) = next(iter(self._entries.items()))
            if not self._reservation.try_fill(start, size):
                break
            try:
                with self._write() as txn:
                    txn.delete(key)
            except lmdb.MapFullError:
                self._reservation.punch(start, size)
                break
            del self._entries[key]
            self.bytes -= size
        return before - self.bytes

    def _try_put(self, num_pages: int, count: int) -> bool:
        value = bytes(num_pages * PAGE_BYTES - PAGE_HEADER_BYTES)
        keys = [b"%s%016x" % (_PREFIX, self._next + index) for index in range(count)]
        try:
            with self._write() as txn:
                for key in keys:
                    txn.put(key, value)
        except lmdb.MapFullError:
            return False
        self._next += count
        self._punch(keys)
        return True

    def _find(self) -> None:
        """Ballast of an earlier life: some of it may not have been punched yet."""
        with read_transaction(self._shared) as txn:
            cursor = txn.cursor()
            keys = []
            found = cursor.set_range(_PREFIX)
            while found and bytes(cursor.key()).startswith(_PREFIX):
                keys.append(bytes(cursor.key()))
                found = cursor.next()
            cursor.close()
        if keys:
            self._next = int(keys[-1][len(_PREFIX) :], 16) + 1
            self._punch(keys)

    def _punch(self, keys: list[bytes]) -> None:
        with read_transaction(self._shared) as txn:
            for key in keys:
                view = txn.get(key)
                size = len(view) + PAGE_HEADER_BYTES - PAGE_BYTES
                start = self._reservation.offset_of(_address(view)) - PAGE_HEADER_BYTES + PAGE_BYTES
                del view
                if self._reservation.punch(start, size):
                    self._entries[key] = (start, size)
                    self.bytes += size
                else:
                    self._entries[key] = (start, 0)


def _address(view: memoryview) -> int:
    """Return where in this process the bytes of a view lie."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)
