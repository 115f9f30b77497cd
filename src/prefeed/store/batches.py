"""The read half of every store, and what keeps a handle open and its map where it is: batches and transactions.

A memory tier adds its second table and values that were split (``reader``); a store that many processes write adds sums of what
it has on disk, and writing (``shared``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import lmdb

from prefeed.store.environment import (
    SharedEnvironment,
    attach_reader,
    batch_left,
    identity_of,
    is_inside,
    keep_inherited,
    lock,
    process_id,
    release,
    release_locked,
    try_adopt_size,
)
from prefeed.store.layout import TIER_LAYOUT, Layout
from prefeed.system.locks import PATIENCE_SECONDS


class Batch:
    """A snapshot of a store, in which views are valid; made by ``StoreReader.batch``.

    On leaving it the views are released: using one later is a ValueError. An array made from a view outlives it and
    must not be used either: its bytes may change, or its memory be gone.
    """

    __slots__ = ("_process_id", "_reader", "_shared", "_txn", "_views")

    _shared: SharedEnvironment

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._txn: Any = None
        self._views: list[memoryview | None] = []

    def __enter__(self) -> Self:
        self._process_id = process_id()
        shared = self._reader._attach()
        if shared is not None:
            self._txn = begin_batch(shared)
            if self._txn is None:
                self._reader._let_go(shared)
            else:
                self._shared = shared
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        txn, self._txn = self._txn, None
        if txn is not None:
            end_batch(self._shared, txn, self._views, began_in=self._process_id)

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return a view of each value, None for those that the store does not hold; valid inside this batch only.

        In a store that many write, a view of more than ``layout.INLINE_MAX_BYTES`` bytes begins 16 bytes behind the start of
        a page: its address is 16 modulo 4,096.
        """
        if self._txn is None:
            return [None] * len(keys)
        try:
            views = self._look_up(keys)
        except lmdb.Error as err:
            self._reader._failed(self._shared, err)
            return [None] * len(keys)
        self._views += views
        return list(views)

    def get_view(self, key: bytes) -> memoryview | None:
        """Return a view of one value, None if the store does not hold it; valid inside this batch only."""
        return self.get_views((key,))[0]

    def _look_up(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        get, table = self._txn.get, self._shared.tables[0]
        return [get(key, None, table) for key in keys]


class StoreReader:
    """Reads one store; opened at first use, again in each process, so that it may be made before a fork.

    Nothing that the store may do is an error here: a store that is missing, of another layout, damaged, or out of reader
    slots holds nothing.

    **Threads and processes.** Any thread; a batch belongs to the thread that entered it.

    Args:
        directory: Where the store lies.
        layout: What it holds.
        patience_seconds: How long to wait for a process that opens the store.
        adopts: As for ``open_to_read``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        layout: Layout = TIER_LAYOUT,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        adopts: bool = True,
    ) -> None:
        self._directory = Path(directory).absolute()
        self._layout = layout
        self._patience_seconds = patience_seconds
        self._adopts = adopts
        self._shared: SharedEnvironment | None = None
        self._process_id = process_id()

    @property
    def directory(self) -> Path:
        """Where the store lies."""
        return self._directory

    @property
    def is_open(self) -> bool:
        """Whether the last read found a store, whatever it held."""
        return self._current() is not None

    @property
    def is_there(self) -> bool:
        """Whether the files of a store are in the directory."""
        return identity_of(self._directory) is not None

    def batch(self) -> Batch:
        """Return a context manager: inside it, ``get_views`` gives views that stay valid whatever writers do.

        Writers cannot reuse pages freed while a batch is open: keep it short.
        """
        return Batch(self)

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of a value, None if the store does not hold it."""
        with self.batch() as batch:
            view = batch.get_view(key)
            return None if view is None else owned(view)

    def reopen_if_replaced(self) -> bool:
        """Let go of a store whose files are no longer those at its path; True if they were not.

        The next read opens what is there. The memory of a removed store is free when the last process has let go of it.
        """
        shared = self._current()
        if shared is None or identity_of(self._directory) == shared.identity:
            return False
        self._let_go(shared)
        return True

    def close(self) -> None:
        """Let go of the store; a later use opens it again."""
        shared = self._current()
        if shared is not None:
            self._let_go(shared)

    def _current(self) -> SharedEnvironment | None:
        if self._process_id != process_id():
            self._process_id = process_id()
            self._shared = None  # the parent's; kept alive by the registry
        return self._shared

    def _attach(self) -> SharedEnvironment | None:
        shared = self._current()
        if shared is None:
            shared = attach_reader(
                self._directory, self._layout, within_seconds=self._patience_seconds, adopts=self._adopts
            )
            if shared is not None:
                self._keep(shared)
        return shared

    def _keep(self, shared: SharedEnvironment) -> None:
        """Hold this store from now on, and what was held no more: another thread may have attached meanwhile."""
        with lock:
            before, self._shared = self._shared, shared
        if before is not None:
            release(before)

    def _let_go(self, shared: SharedEnvironment) -> None:
        """Hold this store no more, unless another thread has let go of it already."""
        with lock:
            if self._current() is not shared:
                return
            self._shared = None
        release(shared)

    def _failed(self, shared: SharedEnvironment, err: lmdb.Error) -> None:
        """LMDB has refused the store."""


def owned(view: memoryview) -> bytes:
    """Return a copy of a value, unless it was joined: that is one already."""
    return view.obj if type(view.obj) is bytes else bytes(view)


def enter_batch(shared: SharedEnvironment) -> None:
    """Keep the environment open, even if others let go of it, until ``leave_batch``."""
    thread, batches = threading.get_ident(), shared.batches_by_thread
    with lock:
        while shared.reopening and not is_inside(shared):
            batch_left.wait()
        batches[thread] = batches.get(thread, 0) + 1
        shared.holders += 1
        shared.open_batches += 1


def leave_batch(shared: SharedEnvironment) -> None:
    """Undo one ``enter_batch``."""
    thread, batches = threading.get_ident(), shared.batches_by_thread
    with lock:
        left = batches.get(thread, 0) - 1
        if left:
            batches[thread] = left
        else:
            batches.pop(thread, None)
        shared.open_batches -= 1
        if shared.reopening:
            batch_left.notify_all()
        release_locked(shared)


@contextlib.contextmanager
def held(shared: SharedEnvironment) -> Iterator[None]:
    """Keep the environment open and its map where it is."""
    enter_batch(shared)
    try:
        yield
    finally:
        leave_batch(shared)


def begin_batch(shared: SharedEnvironment) -> Any:
    """Begin a transaction, inside ``enter_batch``; None when that cannot be: the origin has the value too."""
    for _ in range(2):
        enter_batch(shared)
        try:
            return shared.env.begin(buffers=True)
        except lmdb.Error as err:
            leave_batch(shared)
            if not _try_again(shared, err):
                return None
    return None


def _try_again(shared: SharedEnvironment, err: lmdb.Error) -> bool:
    with contextlib.suppress(lmdb.Error, OSError):
        if isinstance(err, lmdb.MapResizedError):
            return try_adopt_size(shared)  # a writer has made the store larger
        if isinstance(err, lmdb.ReadersFullError):
            return bool(shared.env.reader_check())
    return False


def end_batch(shared: SharedEnvironment, txn: Any, views: list[memoryview | None], *, began_in: int) -> None:
    """Release the views and end the transaction that the process ``began_in`` began."""
    if began_in != process_id():
        # Forked inside the batch: the transaction is the parent's, and ending it would free the parent's slot.
        keep_inherited((txn, views))
        return
    for view in views:
        if view is not None:
            try:
                view.release()
            except BufferError:
                pass  # an array is over it, which must not be used any more
    txn.abort()
    leave_batch(shared)


@contextlib.contextmanager
def write_transaction(shared: SharedEnvironment) -> Iterator[Any]:
    """Commit on leaving, unless by an exception; values are seen as views inside."""
    with held(shared), shared.env.begin(write=True, buffers=True) as txn:
        yield txn


@contextlib.contextmanager
def write_in_turn(shared: SharedEnvironment) -> Iterator[Any]:
    """Do what ``write_transaction`` does, where other processes write too.

    LMDB would let one write at a time as well. But of those who wait for its mutex one is woken when the holder is
    killed; if he is killed at the same moment, the others sleep on. Nor can it be told how long to wait for one that is
    stopped. Here no one waits for it: who has the turn finds it free.

    Raises:
        BlockingIOError: Another process keeps the turn.
        OSError: The store was removed.
    """
    with held(shared), shared.turn.hold(), shared.env.begin(write=True, buffers=True) as txn:
        yield txn


@contextlib.contextmanager
def read_transaction(shared: SharedEnvironment) -> Iterator[Any]:
    """A snapshot; values are seen as views inside."""
    with held(shared), shared.env.begin(buffers=True) as txn:
        yield txn
