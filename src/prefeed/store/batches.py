"""Inside a store: batches and transactions, which keep a handle open and its map where it is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import lmdb

from prefeed.store.environment import (
    SharedEnvironment,
    batch_left,
    is_inside,
    keep_inherited,
    lock,
    process_id,
    release_locked,
    try_adopt_size,
)


def enter_batch(shared: SharedEnvironment) -> None:
    """Keep the environment open, whoever lets go of it, until ``leave_batch``."""
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
    stopped. Here nobody waits for it: who has the turn finds it free.

    Raises:
        BlockingIOError: Another process keeps the turn.
        OSError: The store was removed.
    """
    with held(shared), shared.turn.taken(), shared.env.begin(write=True, buffers=True) as txn:
        yield txn


@contextlib.contextmanager
def read_transaction(shared: SharedEnvironment) -> Iterator[Any]:
    """A snapshot; values are seen as views inside."""
    with held(shared), shared.env.begin(buffers=True) as txn:
        yield txn
