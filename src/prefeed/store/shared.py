"""A store that any process of the user reads and writes: the entries of one cache, in memory or on disk."""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import lmdb
from xxhash import xxh3_64_digest

from prefeed.store import shared_files
from prefeed.store.batches import Batch, StoreReader, held, read_transaction
from prefeed.store.environment import (
    DAMAGE,
    SharedEnvironment,
    attach_to_write,
    identity_and_size,
    identity_of,
    is_open_here,
    lock,
    process_id,
    remap_when_idle,
    try_adopt_size,
)
from prefeed.store.layout import SHARED_LAYOUT, data_path
from prefeed.store.namespaces import is_foreign, namespace_of
from prefeed.store.shared_files import remove_store
from prefeed.store.shared_writer import (
    Checksum,
    Put,
    SharedTierStatistics,
    SharedWriter,
    get_checksum,
    read_ahead,
    statistics_of,
)
from prefeed.system.locks import FORGIVING_SECONDS, PATIENCE_SECONDS
from prefeed.types import ENTRY_KEY_BYTES

__all__ = ["SharedTier", "SharedTierStatistics", "remove_store"]

T = TypeVar("T")
_log = logging.getLogger("prefeed")

_NONSENSE: Final = (ArithmeticError, LookupError, TypeError, ValueError, struct.error)
"""Raised by code that computes with what a damaged store returned, for example totals below zero."""


class VerifiedBatch(Batch):
    """A snapshot of a store on disk, in which views are valid: a value that does not fit its sum is not held, and deleted."""

    __slots__ = ("_wrong",)

    _reader: SharedTier

    def __init__(self, tier: SharedTier) -> None:
        super().__init__(tier)
        self._wrong: list[bytes] = []

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, err, trace)
        if self._wrong and self._process_id == process_id():
            self._reader._delete_corrupt(self._wrong)

    def _look_up(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        # Verified each time, not once: what was read from the disk yesterday may be read from it again today.
        checksums = [get_checksum(self._shared, self._txn, key) for key in keys]
        read_ahead(self._shared, checksums)
        views = super()._look_up(keys)
        for index, (view, checksum) in enumerate(zip(views, checksums, strict=True)):
            if view is not None and not _is_right(view, checksum):
                self._wrong.append(keys[index])
                view.release()
                views[index] = None
        return views


class SharedTier(StoreReader):
    """A store that any process of the user may read and write: the entries of one cache, in memory or on disk.

    Nothing that the store or its file system may do is an error here: one that is missing, removed, full, damaged or
    out of reader slots holds nothing and takes nothing.

    **Ownership.** The directory is made, and removed with ``remove_store``, by somebody else; the first put makes the
    store in it. Values stay until they are replaced or deleted, even if processes end or are killed: every commit is whole or
    absent. On disk they survive the loss of power, and every value is checked against its sum when it is read.

    **Threads and processes.** Any thread of any process; a batch belongs to the thread that entered it. Opened at first
    use, again in each process, for reading until the first put; so it may be made before a fork or pickled to a spawned
    worker. A child forked while another thread was inside a batch finds the store empty.

    **Invariants.** The files together never take more than ``limit_bytes``, and the file system keeps
    ``min_free_bytes``. Nothing is written to a page that the file system has not given, hence no SIGBUS.

    **Blocking.** Reading never waits for a writer. Putting waits for a commit of another process, a second at most (a process that
    is stopped keeps the turn), then stores nothing, and for some seconds does not wait again. The first put of a process
    waits for its other threads to leave their batches; inside a batch of its own thread it stores nothing. Opening waits
    while another process opens the store or grows it, ``patience_seconds`` at most.

    **PID namespaces.** The processes of one at a time have it open: that of who came first, until all of them have closed
    it. To the others it is empty and takes nothing, which is said once. With ``adopts=False`` it stays that of who had it
    last: for those who only look into it now and then.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        limit_bytes: int,
        on_disk: bool = False,
        min_free_bytes: int = 0,
        patience_seconds: float = PATIENCE_SECONDS,
        adopts: bool = True,
    ) -> None:
        super().__init__(directory, SHARED_LAYOUT, patience_seconds=patience_seconds, adopts=adopts)
        self._limit_bytes = limit_bytes
        self._on_disk = on_disk
        self._min_free_bytes = min_free_bytes
        self._kept_until = 0.0
        self._writer = SharedWriter(self._directory, on_disk=on_disk, min_free_bytes=min_free_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(
            SharedTier, self._directory, limit_bytes=self._limit_bytes, on_disk=self._on_disk,
            min_free_bytes=self._min_free_bytes, patience_seconds=self._patience_seconds, adopts=self._adopts,
        )  # fmt: skip
        return made, ()

    @property
    def limit_bytes(self) -> int:
        """The most that the store's files may take together, as far as this object was told."""
        return self._limit_bytes

    # ------------------------------------------------------------ reading

    def batch(self) -> Batch:
        """Return a context manager, as ``StoreReader.batch`` does."""
        return VerifiedBatch(self) if self._on_disk else Batch(self)

    def keys(self) -> list[bytes]:
        """Return the keys of all values, sorted, as of one moment."""
        return self._read(_keys, [])

    def statistics(self) -> SharedTierStatistics:
        """Return a snapshot; takes as long for many entries as for few."""
        limit_bytes = max(self._limit_bytes, shared_files.limit_of(self._directory))
        nothing = SharedTierStatistics(entries=0, value_bytes=0, stored_bytes=0, limit_bytes=limit_bytes, corrupt=0)
        return self._read(lambda shared, txn: statistics_of(shared, txn, limit_bytes), nothing)

    def file_bytes(self) -> int:
        """Return what the store's files take of the file system, about: up to where they are in use; 0 without one."""
        return self._read(lambda shared, _: shared_files.used_bytes(shared), 0)

    # ------------------------------------------------------------ writing

    def put_many(self, items: Sequence[Put]) -> int:
        """Store values in one commit, replacing those that exist; returns how many from the front were stored.

        Fewer than all when there is no room for more; 0 when the store was removed or cannot be written.

        Raises:
            ValueError: A key is not 16 bytes long.
        """
        for key, _ in items:
            if len(key) != ENTRY_KEY_BYTES:
                raise ValueError(f"a key has {ENTRY_KEY_BYTES} bytes, not {len(key)}: {key!r}")
        return self._write(lambda shared: self._writer.put(shared, items), 0) if items else 0

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete values; keys that do not exist are passed over, and so is everything when the store cannot be written.

        Readers inside a batch keep their views; the room is free once they have left it.
        """
        if keys:
            self._write(lambda shared: self._writer.delete(shared, keys), None)

    def grow(self, limit_bytes: int) -> None:
        """Let the store take more from now on, in whatever process; a smaller limit changes nothing.

        Nothing is done, and ``limit_bytes`` is as before, when another process does not let go of the directory.
        """
        if shared_files.try_grow(self._directory, limit_bytes):
            self._limit_bytes = max(self._limit_bytes, limit_bytes)

    def shrink(self, limit_bytes: int) -> None:
        """Let the store take less from now on, but no less than its data take already.

        Only where no other process has the store open. Waits for other threads to leave their batches.
        """
        self._limit_bytes = limit_bytes
        shared = self._attach()
        if shared is not None:
            remap_when_idle(shared, lambda: shared_files.shrink(shared, limit_bytes))

    # ------------------------------------------------------------ opening and letting go

    def is_current(self) -> bool:
        """Return False when the directory was removed, or holds another store than the one that is open here."""
        shared = self._current()
        if shared is None:
            return self._directory.is_dir()
        return identity_of(self._directory) == shared.identity

    def is_kept_busy(self) -> bool:
        """Return True for a while after something was not written because another process kept the turn to write."""
        return time.monotonic() < self._kept_until

    def is_in_use_elsewhere(self) -> bool:
        """Return True while the store takes nothing from this process, because those of another PID namespace have it."""
        return (
            self._current() is None
            and data_path(self._directory).exists()
            and is_foreign(namespace_of(self._directory))
        )

    def _attach(self) -> SharedEnvironment | None:
        self._look_through()
        return super()._attach()

    def _look_through(self) -> None:
        """Empty a damaged store on disk before this process opens it as the only one: LMDB may crash in a damaged tree."""
        if self._on_disk and self._adopts and self._current() is None:
            with lock:
                if not is_open_here(self._directory) and (
                    why := shared_files.empty_if_damaged(self._directory, on_disk=True, is_suspect=False)
                ):
                    _say_damaged(self._directory, why)

    def _attach_to_write(self) -> SharedEnvironment | None:
        self._look_through()
        shared = self._current()
        identity, size_bytes = identity_and_size(self._directory)
        if shared is not None and identity != shared.identity:
            self._let_go(shared)
            shared = None
        if shared is None or not shared.written:
            shared = attach_to_write(self._directory, self._open)
            if shared is None:
                return None
            self._keep(shared)
            identity, size_bytes = identity_and_size(self._directory)
        if identity is None:  # removed meanwhile
            self._let_go(shared)
            return None
        try:
            if size_bytes > shared.env.info()["map_size"]:
                try_adopt_size(shared)
        except BlockingIOError:
            pass  # it is put where there is room in what is mapped, and adopted the next time
        except OSError:
            self._let_go(shared)
            return None
        return shared

    def _open(self, held: Path) -> SharedEnvironment:
        return shared_files.open_to_write(self._directory, held, self._limit_bytes, on_disk=self._on_disk)

    def _read(self, look: Callable[[SharedEnvironment, Any], T], otherwise: T) -> T:
        """Let a function look into the store; return something else when there is none, or it is damaged."""
        shared = self._attach()
        if shared is None:
            return otherwise
        try:
            with read_transaction(shared) as txn:
                return look(shared, txn)
        except (lmdb.Error, *_NONSENSE) as err:
            self._failed(shared, err)
        except OSError:
            self._let_go(shared)
        return otherwise

    def _write(self, act: Callable[[SharedEnvironment], T], otherwise: T) -> T:
        """Let a function write to the store; return something else when it cannot be written."""
        shared = None
        try:
            shared = self._attach_to_write()
            if shared is None:
                return otherwise
            with held(shared):
                return act(shared)
        except (lmdb.Error, *_NONSENSE) as err:
            if shared is not None:
                self._failed(shared, err)
        except BlockingIOError:  # another process keeps the turn, or the directory: it may have been stopped
            self._kept_until = time.monotonic() + FORGIVING_SECONDS
        except OSError:
            if shared is not None:
                self._let_go(shared)
        return otherwise

    def _failed(self, shared: SharedEnvironment, err: Exception) -> None:
        """Let go of a store that LMDB has refused; one that is damaged is emptied."""
        if isinstance(err, (*DAMAGE, *_NONSENSE)):
            _say_damaged(self._directory, str(err))
            shared_files.empty(self._directory, shared.identity)
        self._let_go(shared)

    def _delete_corrupt(self, keys: Sequence[bytes]) -> None:
        self._write(lambda shared: self._writer.delete(shared, keys, corrupt=True), None)


def _say_damaged(directory: Path, why: str) -> None:
    _log.warning("prefeed: the store in %s is damaged (%s) and is emptied", directory, why)


def _is_right(view: memoryview, checksum: Checksum | None) -> bool:
    return checksum is not None and len(view) == checksum.size_bytes and xxh3_64_digest(view) == checksum.digest


def _keys(shared: SharedEnvironment, txn: Any) -> list[bytes]:
    with txn.cursor(db=shared.tables[0]) as cursor:
        return [bytes(key) for key in cursor.iternext(keys=True, values=False)]
