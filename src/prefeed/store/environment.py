"""The LMDB handles of this process: one a store, shared by its writer and all its readers, never used after a fork."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from prefeed.errors import StoreError
from prefeed.store.layout import (
    LAYOUT_KEY,
    LAYOUT_VERSION,
    MAX_READERS,
    RESIDENT_TABLE,
    TRANSIENT_TABLE,
    data_path,
    lock_path,
)

Identity = tuple[int, int, int, int]
"""Device and inode of the data file and of the lock file: another store at the same path differs in it."""

_MAX_TABLES: Final = 4


class SharedEnvironment:
    """One open LMDB environment and its tables.

    **Ownership.** Made by ``attach``; closed when the last holder has called ``release``.

    **Threads and processes.** Belongs to the process that opened it; a child made by fork closes its copy and opens
    the store anew. A child forked while a batch is open, in any thread, cannot do so: to it the store is empty.
    """

    def __init__(self, path: str, identity: Identity, env: lmdb.Environment, *, readonly: bool) -> None:
        self.path = path
        self.identity = identity
        self.env = env
        self.resident: Any = None
        self.transient: Any = None
        self.written = not readonly
        self.holders = 1
        self.open_batches = 0

    def open_tables(self, *, create: bool) -> None:
        """Open the two tables of values.

        Raises:
            lmdb.Error: They do not exist and are not to be created.
        """
        self.resident = self.env.open_db(RESIDENT_TABLE, create=create)
        self.transient = self.env.open_db(TRANSIENT_TABLE, create=create)

    def layout(self) -> bytes | None:
        """Return the layout version that the store was written with; None for an LMDB file of somebody else."""
        with self.env.begin() as txn:
            return txn.get(LAYOUT_KEY)


_lock = threading.Lock()
_open: dict[Identity, SharedEnvironment] = {}
_inherited: list[object] = []
_process_id = os.getpid()


def process_id() -> int:
    """Return this process's id without a system call."""
    return _process_id


def keep_inherited(handle: object) -> None:
    """Keep an LMDB object that belongs to the parent process from ever being closed here."""
    _inherited.append(handle)


def _hold_for_fork() -> None:
    _lock.acquire()


def _release_after_fork() -> None:
    _lock.release()


def _forget_after_fork() -> None:
    """Close what was inherited, without which LMDB opens none of these files here again.

    Closing touches neither the parent's locks nor its reader slots, as long as no transaction is inherited: one that
    is open would free the slot that it has in the parent. Such a handle is kept, and this process finds nothing in
    that store.
    """
    global _lock, _process_id
    _lock = threading.Lock()
    _process_id = os.getpid()
    for shared in _open.values():
        if shared.open_batches:
            _inherited.append(shared)
        else:
            shared.env.close()
    _open.clear()


os.register_at_fork(
    before=_hold_for_fork, after_in_parent=_release_after_fork, after_in_child=_forget_after_fork
)  # fmt: skip


def identity_of(directory: Path) -> Identity | None:
    """Return which store lies in a directory; None when none does."""
    try:
        data, lock = os.stat(data_path(directory)), os.stat(lock_path(directory))
    except OSError:
        return None
    return (data.st_dev, data.st_ino, lock.st_dev, lock.st_ino)


def attach_reader(directory: Path) -> SharedEnvironment | None:
    """Return this process's handle of a store, opened for reading if it was not open; None when there is no store.

    A store that is being replaced, has another layout or cannot be opened counts as none.
    """
    with _lock:
        identity = identity_of(directory)
        if identity is None:
            return None
        shared = _open.get(identity)
        if shared is not None:
            shared.holders += 1
            return shared
        try:
            shared = _open_readonly(directory, identity)
        except (lmdb.Error, OSError):
            return None
        if shared is not None:
            _open[identity] = shared
        return shared


def _open_readonly(directory: Path, identity: Identity) -> SharedEnvironment | None:
    # A map size of 0 means: as large as the writer said. No transactions are kept (max_spare_txns): after a fork the
    # child, closing its copy of the handle, would free their slots under the parent.
    env = lmdb.open(
        os.fspath(directory), map_size=0, readonly=True, create=False, max_dbs=_MAX_TABLES, max_readers=MAX_READERS,
        readahead=False,
    )  # fmt: skip
    shared = SharedEnvironment(os.fspath(directory), identity, env, readonly=True)
    try:
        # Between the look and the opening the files may have been replaced one by one: a reader registered in the
        # lock file of one store that reads the data of another would be invisible to its writer.
        if identity_of(directory) != identity or shared.layout() != LAYOUT_VERSION:
            env.close()
            return None
        shared.open_tables(create=False)
    except BaseException:
        env.close()
        raise
    return shared


def attach_writer(directory: Path, open_env: Callable[[], lmdb.Environment]) -> SharedEnvironment:
    """Return this process's handle of a store, opened for writing; readers of this process share it from then on.

    Args:
        directory: Where the store lies, or will lie.
        open_env: Opens it for writing.

    Raises:
        StoreError: A reader of this process is inside a batch.
    """
    with _lock:
        identity = identity_of(directory)
        shared = None if identity is None else _open.get(identity)
        if shared is None:
            env = open_env()
            created = identity_of(directory)
            assert created is not None
            shared = _open[created] = SharedEnvironment(os.fspath(directory), created, env, readonly=False)
            return shared
        if shared.open_batches:
            raise StoreError(f"a reader of this process is inside a batch of {directory}; open the writer before it")
        shared.env.close()
        shared.env = open_env()
        shared.written = True
        shared.holders += 1
        return shared


def is_written_here(directory: Path) -> bool:
    """Return whether a writer of this process has the store open."""
    with _lock:
        return any(shared.written and shared.path == os.fspath(directory) for shared in _open.values())


def release_writer(shared: SharedEnvironment) -> None:
    """Give the writer's hold back; readers of this process keep the environment."""
    shared.written = False
    release(shared)


def try_resize(shared: SharedEnvironment, map_bytes: int) -> bool:
    """Map the file anew with another size; False while a reader of this process is inside a batch, whose views it holds."""
    with _lock:
        if shared.open_batches:
            return False
        shared.env.set_mapsize(map_bytes)
        return True


def release(shared: SharedEnvironment) -> None:
    """Give one hold back; the last one closes the environment."""
    with _lock:
        shared.holders -= 1
        if shared.holders == 0:
            _open.pop(shared.identity, None)
            shared.env.close()


def enter_batch(shared: SharedEnvironment) -> None:
    """Keep the environment open, whoever lets go of it, until ``leave_batch``."""
    with _lock:
        shared.holders += 1
        shared.open_batches += 1


def leave_batch(shared: SharedEnvironment) -> None:
    """Undo one ``enter_batch``."""
    with _lock:
        shared.open_batches -= 1
    release(shared)


@contextlib.contextmanager
def write_transaction(shared: SharedEnvironment) -> Iterator[Any]:
    """Commit on leaving, unless by an exception; values are seen as views inside."""
    enter_batch(shared)
    try:
        with shared.env.begin(write=True, buffers=True) as txn:
            yield txn
    finally:
        leave_batch(shared)


@contextlib.contextmanager
def read_transaction(shared: SharedEnvironment) -> Iterator[Any]:
    """A snapshot; values are seen as views inside."""
    enter_batch(shared)
    try:
        with shared.env.begin(buffers=True) as txn:
            yield txn
    finally:
        leave_batch(shared)
