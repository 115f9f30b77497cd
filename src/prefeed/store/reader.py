"""The reading end of a tier: values seen in place, by any number of processes, without a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import lmdb

from prefeed.store.batches import Batch, StoreReader, owned
from prefeed.store.environment import DAMAGE, Identity, SharedEnvironment, attach_reader_or_raise
from prefeed.store.values import copy_split, size_of_split
from prefeed.types import ENTRY_KEY_BYTES


class ReadBatch(Batch):
    """A snapshot of the tier, in which views are valid; made by ``TierReader.batch``."""

    __slots__ = ()

    _reader: TierReader

    def lend(self, key: bytes, from_bytes: int) -> bytes | int | None:
        """Return a copy of a value that is smaller than this, of a larger one its size; None: the tier does not hold it."""
        found = self._found(key)
        if found is None:
            return None
        view, table = found
        try:
            size = len(view) or size_of_split(self._txn, key, table)
            if size >= from_bytes:
                return size
            return bytes(view) if len(view) == size else owned(self._join(key, table))
        except lmdb.Error as err:
            self._reader._failed(self._shared, err)
            return None

    def read_into(self, key: bytes, start: int, target: memoryview) -> int | None:
        """Copy a part of a value; return how many bytes, fewer at its end, None: the tier does not hold it.

        Args:
            key: Of the value.
            start: First byte.
            target: Bytes that are written over.
        """
        found = self._found(key)
        if found is None:
            return None
        view, table = found
        try:
            if not view:
                return copy_split(self._txn, key, table, start, target)
            part = view[start : start + len(target)]
            target[: len(part)] = part
            return len(part)
        except lmdb.Error as err:
            self._reader._failed(self._shared, err)
            return None

    def read(self, key: bytes, start: int, size: int) -> bytes | None:
        """Return a part of a value, shorter at its end; None: the tier does not hold it."""
        found = self._found(key)
        if found is None:
            return None
        if found[0]:
            return bytes(found[0][start : start + size])
        part = bytearray(size)
        copied = self.read_into(key, start, memoryview(part))
        return None if copied is None else bytes(memoryview(part)[:copied])

    def _found(self, key: bytes) -> tuple[memoryview, Any] | None:
        """Return a value, empty if it was split, and the table that it is in."""
        if self._txn is None:
            return None
        tables, is_first = self._shared.tables, self._reader._transient_first
        try:
            for is_transient in (is_first, not is_first):
                view = self._txn.get(key, None, tables[is_transient])
                if view is not None:
                    self._reader._transient_first = is_transient  # where the next one probably is, too
                    self._views.append(view)
                    return view, tables[is_transient]
        except lmdb.Error as err:
            self._reader._failed(self._shared, err)
        return None

    def _look_up(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        get, first = self._txn.get, self._shared.tables[self._reader._transient_first]
        views: list[memoryview | None] = [get(key, None, first) for key in keys]
        if not all(views):
            self._complete(keys, views, first)
        return views

    def _complete(self, keys: Sequence[bytes], views: list[memoryview | None], first: Any) -> None:
        """Look up in the other table what was not in the first, and join values that were split."""
        resident, transient = self._shared.tables
        get, second, in_second = self._txn.get, transient if first is resident else resident, 0
        for index, view in enumerate(views):
            if view:
                continue
            table = first
            if view is None:
                view, table = get(keys[index], None, second), second
                in_second += view is not None
            if view is not None and not view:
                view = self._join(keys[index], table)
            views[index] = view
        if in_second > len(keys) // 2:
            self._reader._transient_first = second is transient

    def _join(self, key: bytes, table: Any) -> memoryview:
        pieces = []
        with self._txn.cursor(db=table) as cursor:
            found = cursor.set_range(key) and cursor.next()
            while found and bytes(cursor.key()[:ENTRY_KEY_BYTES]) == key:
                pieces.append(cursor.value())
                found = cursor.next()
        return memoryview(b"".join(pieces))


class TierReader(StoreReader):
    """Reads a store that another process writes, or this one; may be pickled to a spawned worker.

    **Blocking.** Never waits, neither for the writer nor for other readers, but while another process opens the store,
    a second at most.

    Attributes:
        damaged: The store in which damage was met last; None when none was, or after ``leave_damaged``.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(directory)
        self._transient_first = False
        self.damaged: Identity | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (TierReader, (self._directory,))

    def batch(self) -> ReadBatch:
        """Return a context manager, as ``StoreReader.batch`` does."""
        return ReadBatch(self)

    def lend(self, key: bytes, from_bytes: int) -> bytes | StoredValue | None:
        """Return a copy of a value that is smaller than this, a larger one where it is; None: the tier does not hold it."""
        with self.batch() as batch:
            found = batch.lend(key, from_bytes)
        return StoredValue(self, key, found) if type(found) is int else found  # type: ignore[return-value]

    def try_open(self) -> str:
        """Open the store unless it is; return why it cannot be, empty also if there is none, or another process keeps it for now."""
        if self._current() is not None:
            return ""
        try:
            shared = attach_reader_or_raise(self._directory, self._layout, within_seconds=self._patience_seconds)
        except BlockingIOError:
            return ""
        except lmdb.MemoryError as err:
            return f"{err}. The limit of its address space (`ulimit -v`) is too low for the tier: raise it, or lower PREFEED_MEMORY"
        except (lmdb.Error, OSError) as err:
            return str(err)
        if shared is not None:
            self._keep(shared)
        return ""

    def leave_damaged(self) -> Identity | None:
        """Let go of a store in which damage was met, and return which it is; None when none was."""
        damaged, self.damaged = self.damaged, None
        if damaged is not None:
            self.close()
        return damaged

    def _failed(self, shared: SharedEnvironment, err: lmdb.Error) -> None:
        if isinstance(err, DAMAGE):
            self.damaged = shared.identity


class StoredValue:
    """A value of the tier that stays where it is: what is read of it is copied then, and costs what it is long.

    Nothing is held between two reads: no snapshot, no slot, no pages. So it may outlive the reader that asked for it.

    **Threads and processes.** Any thread, and a forked child. **Blocking.** As the tier's reader: never.
    """

    __slots__ = ("_key", "_reader", "_size_bytes")

    def __init__(self, reader: TierReader, key: bytes, size_bytes: int) -> None:
        self._reader = reader
        self._key = key
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        """Return its size in bytes."""
        return self._size_bytes

    @property
    def key(self) -> bytes:
        """Under which the tier has it."""
        return self._key

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at its end, None: the tier holds it no more."""
        with self._reader.batch() as batch:
            return batch.read_into(self._key, start, target)

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at its end; None: the tier holds it no more."""
        with self._reader.batch() as batch:
            return batch.read(self._key, start, min(size, max(0, self._size_bytes - start)))
