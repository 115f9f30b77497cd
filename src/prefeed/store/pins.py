"""Snapshots in which a writer stays for the sake of readers that are not in LMDB's table; see ``foreign.py``."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from prefeed.store.foreign import FIRST_SNAPSHOT_BYTE, OPEN_BYTE, WRITER_BYTE, Locks
from prefeed.store.layout import readers_path
from prefeed.system.byte_locks import ByteLocks


class Pins:
    """The writer's side of foreign readers: lets them in, and keeps what they may be reading.

    **Ownership.** The writer's; ``close`` before the environment.
    **Invariants.** Without pins no foreign reader has the store open. With pins the oldest is no newer than any snapshot
    that one is in. There are two at most, and all but the newest end once every foreign reader has left, at least once, the batch
    that it was in.
    **Threads and processes.** The writer's thread; not inside a write transaction.
    **Blocking.** Never waits.
    """

    def __init__(self, locks: Locks, begin: Callable[[], Any], last_transaction: Callable[[], int]) -> None:
        """Begin with none where no foreign reader has the store open, else with one; call it before anything is written.

        Args:
            locks: Of the file that foreign readers lock.
            begin: Returns a read transaction of the last snapshot.
            last_transaction: Returns that snapshot's number.
        """
        self._locks = locks
        self._begin = begin
        self._last_transaction = last_transaction
        self._pins: list[Any] = []
        self._are_expected = False
        if not locks.try_own(WRITER_BYTE):
            raise OSError(errno.EBUSY, "another process writes the store")
        self._are_in = not locks.try_own(OPEN_BYTE)
        if self._are_in:
            self._pins.append(begin())

    @classmethod
    def of(cls, directory: Path, begin: Callable[[], Any], last_transaction: Callable[[], int]) -> Pins:
        """Return those of a store.

        Raises:
            OSError: It has no file for foreign readers, or another writer.
        """
        locks = ByteLocks(readers_path(directory), writable=True)
        try:
            return cls(locks, begin, last_transaction)
        except BaseException:
            locks.close()
            raise

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The snapshots that are kept, the oldest first."""
        return tuple(pin.id() for pin in self._pins)

    def expect(self, are_expected: bool) -> None:
        """Let foreign readers in; or, once those that are in have closed the store, no more."""
        self._are_expected = are_expected
        if are_expected and not self._are_in:
            self._try_begin()
            if self._pins:
                self._are_in = True
                self._locks.unlock(OPEN_BYTE)
        elif not are_expected:
            self.move_on()

    def move_on(self) -> None:
        """Keep no more than is needed; before each write transaction.

        Raises:
            lmdb.ReadersFullError: LMDB has no slot for the only pin: nothing must be written.
        """
        if not self._are_in:
            return
        if not self._are_expected and self._locks.try_own(OPEN_BYTE):
            self._are_in = False
            self._end(len(self._pins))
            return
        if not self._pins:
            self._pins.append(self._begin())
        self._drop_oldest()
        if self._pins[-1].id() != self._last_transaction():
            if len(self._pins) == 1:
                self._try_begin()
            self._drop_oldest()

    def try_anew(self, act: Callable[[], bool]) -> bool:
        """Let a function act that ends the read transactions of this process, and return what it returns.

        False, and nothing was done, while a foreign reader is in a snapshot before the last: no pin could be begun for it.
        """
        if self._pins and self._locks.are_locked_elsewhere(FIRST_SNAPSHOT_BYTE, self._last_transaction()):
            return False
        self._end(len(self._pins))
        try:
            return act()
        finally:
            if self._are_in:
                self._try_begin()

    def close(self) -> None:
        """Keep nothing, and let the next writer in."""
        self._end(len(self._pins))
        self._locks.close()

    def _try_begin(self) -> None:
        with contextlib.suppress(lmdb.Error):  # no slot is free: the next time
            self._pins.append(self._begin())

    def _drop_oldest(self) -> None:
        if len(self._pins) > 1 and not self._locks.are_locked_elsewhere(FIRST_SNAPSHOT_BYTE, self._pins[1].id()):
            self._end(1)

    def _end(self, count: int) -> None:
        ended, self._pins = self._pins[:count], self._pins[count:]
        for pin in ended:
            pin.abort()


def make_readers_file(directory: Path) -> None:
    """There is a file for foreign readers to lock; one that is there stays.

    Raises:
        OSError: It cannot be made.
    """
    os.close(os.open(readers_path(directory), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def older_snapshots_are_read(directory: Path, last_transaction: int) -> bool:
    """Return True while a foreign reader is in a snapshot before this one; call it while nobody writes the store.

    Raises:
        OSError: There is no file for foreign readers: nobody can tell.
    """
    locks = ByteLocks(readers_path(directory), writable=True)
    with contextlib.closing(locks):
        return locks.are_locked_elsewhere(FIRST_SNAPSHOT_BYTE, last_transaction)
