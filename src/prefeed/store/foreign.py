"""Readers that are not in LMDB's table, because that is another PID namespace's: they say by locks where they are.

The file ``readers`` beside a store has no content; its bytes are locked (ADR 15)::

    0            by the writer, while there is one
    1            shared by each foreign reader while it has the store open; by the writer alone while it has no pin
    2 + n        shared by foreign readers that are inside a batch, in snapshot n or a later one

A *pin* is a read transaction of the writer's own (``Pins``): LMDB uses no page again that its snapshot needs, nor one
that a later one needs. While a foreign reader has the store open, one pin is no newer than any snapshot such a reader is in::

    reader                                       writer, before each write transaction
    n = last transaction                         q = a new pin
    lock byte 2 + n                              is a byte from 2 to 2 + q - 1 locked?
    begin; try again unless it is in n           no:  end the pin before q
    ... read ...                                 yes: keep both, look again the next time
    end; unlock byte 2 + n

Both go through the kernel's lock over the locks of that file. Who locked before the writer looked is seen. Who locked after it begins
after it, and the writer had committed q before: its snapshot is q or later. No other order of memory is relied on.

LMDB copies what it needs of a meta page when a transaction begins; the second commit after it writes over that page. Hence the
snapshot counts only if the last transaction was n before and after.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import lmdb

from prefeed.store.layout import readers_path
from prefeed.store.namespaces import is_of_other_machine
from prefeed.store.tree import MetaPages
from prefeed.system.byte_locks import ByteLocks

WRITER_BYTE: Final = 0
OPEN_BYTE: Final = 1
FIRST_SNAPSHOT_BYTE: Final = 2

_TRIES: Final = 64
"""A commit in the microseconds in which a batch begins makes it begin again."""


class SnapshotLocks:
    """Where the batches of one process are, for the writer to see.

    **Threads and processes.** Any thread; a forked child has none of the locks.
    """

    def __init__(self, locks: ByteLocks) -> None:
        """Have the store open, as the writer sees it.

        Args:
            locks: Of the file that foreign readers lock.

        Raises:
            OSError: The writer does not know yet that there are any.
        """
        self._locks = locks
        self._inside: dict[int, int] = {}
        self._mutex = threading.Lock()
        if not locks.try_share(OPEN_BYTE):
            raise OSError(errno.EBUSY, "the store's writer has let no reader of another PID namespace in")

    @classmethod
    def of(cls, directory: Path) -> SnapshotLocks:
        """Return those of a store.

        Raises:
            OSError: It has no file for foreign readers, or lets none in.
        """
        locks = ByteLocks(readers_path(directory), writable=False)
        try:
            return cls(locks)
        except BaseException:
            locks.close()
            raise

    def enter(self, snapshot: int) -> None:
        """From now on no page is used again that this snapshot needs, or a later one.

        Raises:
            OSError: The system has no lock to give.
        """
        with self._mutex:
            inside = self._inside.get(snapshot, 0)
            if not inside and not self._locks.try_share(FIRST_SNAPSHOT_BYTE + snapshot):
                raise OSError(errno.EBUSY, f"snapshot {snapshot} is locked")
            self._inside[snapshot] = inside + 1

    def leave(self, snapshot: int) -> None:
        """Undo one ``enter``."""
        with self._mutex:
            inside = self._inside[snapshot] - 1
            if inside:
                self._inside[snapshot] = inside
                return
            del self._inside[snapshot]
            if self._inside:
                self._locks.unlock(FIRST_SNAPSHOT_BYTE + snapshot)
            else:  # also what an interrupted ``enter`` may have left
                self._locks.unlock(FIRST_SNAPSHOT_BYTE, 0)

    def after(self, look: Callable[[], int]) -> int:
        """Return what a function sees in memory, after all that this thread has read before."""
        with self._mutex:
            return look()

    def close(self) -> None:
        """Have the store open no more."""
        self._locks.close()


class ForeignEnvironment:
    """An LMDB environment for reading, without a place in its table of readers; used as ``lmdb.Environment`` is.

    **Threads and processes.** As LMDB's own: not used after a fork, where closing it touches nothing of the parent's.
    """

    def __init__(self, env: Any, metas: MetaPages, locks: SnapshotLocks) -> None:
        self._env = env
        self._metas = metas
        self._locks = locks

    @classmethod
    def open(cls, directory: Path, open_env: Callable[[], Any]) -> ForeignEnvironment:
        """Return the environment of a store.

        Args:
            directory: Where the store lies.
            open_env: Opens it without locks.

        Raises:
            OSError: There is no such store, its writer lets no foreign reader in, or it is another machine's.
            lmdb.Error: LMDB cannot open it.
        """
        if is_of_other_machine(directory):
            raise OSError(errno.EXDEV, f"the store in {directory} is another machine's")
        locks = SnapshotLocks.of(directory)
        try:
            metas = MetaPages(directory)
            try:
                return cls(open_env(), metas, locks)
            except BaseException:
                metas.close()
                raise
        except BaseException:
            locks.close()
            raise

    def begin(self, *, buffers: bool = False) -> ForeignTransaction:
        """Return a transaction that reads the last snapshot.

        Raises:
            lmdb.Error: LMDB refuses, or the writer commits again and again meanwhile.
        """
        for _ in range(_TRIES):
            snapshot = self._metas.last_transaction()
            self._enter(snapshot)
            try:
                txn = self._env.begin(buffers=buffers)
                if self._is_in(txn, snapshot):
                    return ForeignTransaction(txn, self, snapshot)
                txn.abort()
            except BaseException:
                self._leave(snapshot)
                raise
            self._leave(snapshot)
        raise _never_still()

    def _enter(self, snapshot: int) -> None:
        try:
            self._locks.enter(snapshot)
        except OSError as err:
            raise lmdb.Error(f"no batch of the store can begin: {err}") from err

    def _is_in(self, txn: Any, snapshot: int) -> bool:
        return bool(txn.id() == snapshot) and self._is_last(snapshot)

    def _is_last(self, snapshot: int) -> bool:
        return self._locks.after(self._metas.last_transaction) == snapshot

    def _leave(self, snapshot: int) -> None:
        self._locks.leave(snapshot)

    def open_db(self, name: bytes, *, create: bool = False) -> Any:
        """Return a table.

        Raises:
            lmdb.Error: There is none, or it is to be created.
        """
        if create:
            raise lmdb.ReadonlyError("a foreign reader creates no table")
        for _ in range(_TRIES):
            with self.begin() as txn:
                table = self._env.open_db(
                    name, create=False
                )  # in a transaction of its own, of this snapshot or a later one
                if txn.is_last():
                    return table
        raise _never_still()

    def info(self) -> dict[str, int]:
        """Return what LMDB says of the environment."""
        found: dict[str, int] = self._env.info()
        return found

    def set_mapsize(self, size_bytes: int) -> None:
        """Remap the file."""
        self._env.set_mapsize(size_bytes)

    def reader_check(self) -> int:
        """Return 0: who dies leaves nothing behind that is to be cleared."""
        return 0

    def close(self) -> None:
        """Close it, and then have the store open no more."""
        self._env.close()
        self._metas.close()
        self._locks.close()


class ForeignTransaction:
    """A read transaction of a ``ForeignEnvironment``; used as ``lmdb.Transaction`` is."""

    __slots__ = ("_environment", "_snapshot", "_txn", "cursor", "get", "stat")

    def __init__(self, txn: Any, environment: ForeignEnvironment, snapshot: int) -> None:
        self._txn = txn
        self._environment = environment
        self._snapshot = snapshot
        self.get: Any = txn.get
        self.cursor: Any = txn.cursor
        self.stat: Any = txn.stat

    def __enter__(self) -> ForeignTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def is_last(self) -> bool:
        """Return whether nothing was committed since it began."""
        return self._environment._is_last(self._snapshot)

    def abort(self) -> None:
        """End it, and only then let its pages go. A second call does nothing."""
        txn, self._txn = self._txn, None
        if txn is not None:
            txn.abort()
            self._environment._leave(self._snapshot)


def _never_still() -> lmdb.Error:
    return lmdb.Error(f"no batch of the store could begin in {_TRIES} tries: its writer commits all the time")


class Pins:
    """The writer's side of foreign readers: lets them in, and keeps what they may be reading.

    **Ownership.** The writer's; ``close`` before the environment.
    **Invariants.** Without pins no foreign reader has the store open. With pins the oldest is no newer than any snapshot
    that one is in. There are two at most, and all but the newest end once every foreign reader has left, at least once, the batch
    that it was in.
    **Threads and processes.** The writer's thread; not inside a write transaction.
    **Blocking.** Never waits.
    """

    def __init__(self, locks: ByteLocks, begin: Callable[[], Any], last_transaction: Callable[[], int]) -> None:
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
    """Return True while a foreign reader is in a snapshot before this one; call it while no process writes the store.

    Raises:
        OSError: There is no file for foreign readers: it cannot be told.
    """
    locks = ByteLocks(readers_path(directory), writable=True)
    with contextlib.closing(locks):
        return locks.are_locked_elsewhere(FIRST_SNAPSHOT_BYTE, last_transaction)
