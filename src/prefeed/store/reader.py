"""The reading end of a tier: values seen in place, by any number of processes, without a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb

from prefeed.store.batches import begin_batch, end_batch
from prefeed.store.environment import (
    DAMAGE,
    Identity,
    SharedEnvironment,
    attach_reader,
    identity_of,
    lock,
    process_id,
    release,
)
from prefeed.store.values import copy_split, size_of_split
from prefeed.types import ENTRY_KEY_BYTES


class ReadBatch:
    """A snapshot of the tier, in which views are valid; made by ``TierReader.batch``.

    On leaving it the views are released: using one later is a ValueError. An array made from a view outlives it and
    must not be used either: its bytes may change.
    """

    __slots__ = ("_first", "_process_id", "_reader", "_second", "_shared", "_txn", "_views")

    def __init__(self, reader: TierReader) -> None:
        self._reader = reader
        self._txn: Any = None
        self._views: list[memoryview | None] = []

    def __enter__(self) -> ReadBatch:
        self._process_id = process_id()
        shared = self._reader._attach()
        if shared is not None:
            self._txn = begin_batch(shared)
            if self._txn is None:
                self._reader._detach()
            else:
                self._shared = shared
                self._first, self._second = shared.resident, shared.transient
                if self._reader._transient_first:
                    self._first, self._second = self._second, self._first
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        txn, self._txn = self._txn, None
        if txn is None:
            return
        end_batch(self._shared, txn, self._views, began_in=self._process_id)

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return a view of each value, None for those that the tier does not hold; valid inside this batch only."""
        if self._txn is None:
            return [None] * len(keys)
        get, first = self._txn.get, self._first
        try:
            views: list[memoryview | None] = [get(key, None, first) for key in keys]
            if not all(views):
                self._complete(keys, views)
        except lmdb.Error as err:
            self._note_damage(err)
            return [None] * len(keys)
        self._views += views
        return list(views)

    def get_view(self, key: bytes) -> memoryview | None:
        """Return a view of one value, None if the tier does not hold it; valid inside this batch only."""
        return self.get_views((key,))[0]

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
            return bytes(view) if len(view) == size else _owned(self._join(key, table))
        except lmdb.Error as err:
            self._note_damage(err)
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
            self._note_damage(err)
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
        try:
            view, table = self._txn.get(key, None, self._first), self._first
            if view is None:
                view, table = self._txn.get(key, None, self._second), self._second
                if view is not None:  # where the next one probably is, too
                    self._reader._transient_first = table is self._shared.transient
            if view is not None:
                self._views.append(view)
                return view, table
        except lmdb.Error as err:
            self._note_damage(err)
        return None

    def _note_damage(self, err: lmdb.Error) -> None:
        if isinstance(err, DAMAGE):
            self._reader.damaged = self._shared.identity

    def _complete(self, keys: Sequence[bytes], views: list[memoryview | None]) -> None:
        """Look up in the other table what was not in the first, and join values that were split."""
        get, second, in_second = self._txn.get, self._second, 0
        for index, view in enumerate(views):
            if view:
                continue
            table = self._first
            if view is None:
                view, table = get(keys[index], None, second), second
                in_second += view is not None
            if view is not None and not view:
                view = self._join(keys[index], table)
            views[index] = view
        if in_second > len(keys) // 2:
            self._first, self._second = second, self._first
            self._reader._transient_first = self._first is self._shared.transient

    def _join(self, key: bytes, table: Any) -> memoryview:
        pieces = []
        with self._txn.cursor(db=table) as cursor:
            found = cursor.set_range(key) and cursor.next()
            while found and bytes(cursor.key()[:ENTRY_KEY_BYTES]) == key:
                pieces.append(cursor.value())
                found = cursor.next()
        return memoryview(b"".join(pieces))


class TierReader:
    """Reads a store that another process writes, or this one.

    Nothing that the store may do is an error here: a store that is missing, of another layout, damaged, or out of
    reader slots holds nothing.

    **Threads and processes.** Any thread; a batch belongs to the thread that entered it. Opened at first use, anew in
    each process, so that it may be made before a fork or pickled to a spawned worker.

    **Blocking.** Never waits, neither for the writer nor for other readers, but while another process opens the store,
    a second at most.

    Attributes:
        damaged: The store in which damage was met last; None when none was, or after ``leave_damaged``.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory).absolute()
        self._shared: SharedEnvironment | None = None
        self._process_id = process_id()
        self._transient_first = False
        self.damaged: Identity | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (TierReader, (self._directory,))

    @property
    def directory(self) -> Path:
        """Where the store lies."""
        return self._directory

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of a value, None if the tier does not hold it."""
        with self.batch() as batch:
            view = batch.get_view(key)
            return None if view is None else _owned(view)

    def lend(self, key: bytes, from_bytes: int) -> bytes | StoredValue | None:
        """Return a copy of a value that is smaller than this, a larger one where it is; None: the tier does not hold it."""
        with self.batch() as batch:
            found = batch.lend(key, from_bytes)
        return StoredValue(self, key, found) if type(found) is int else found  # type: ignore[return-value]

    def batch(self) -> ReadBatch:
        """Return a context manager: inside it, ``get_views`` gives views that stay valid whatever the writer does.

        The writer cannot reuse pages freed while a batch is open: keep it short.
        """
        return ReadBatch(self)

    @property
    def is_open(self) -> bool:
        """Whether the last read found a store, whatever it held."""
        return self._current() is not None

    def reopen_if_replaced(self) -> bool:
        """Let go of a store whose files are no longer those at its path; True if they were not.

        The next read opens what is there. Call it when keys are missed that ought to be there.
        """
        shared = self._current()
        if shared is None or identity_of(self._directory) == shared.identity:
            return False
        self._detach()
        return True

    def leave_damaged(self) -> Identity | None:
        """Let go of a store in which damage was met, and return which it is; None when none was."""
        damaged, self.damaged = self.damaged, None
        if damaged is not None:
            self._detach()
        return damaged

    def close(self) -> None:
        """Let go of the store; a later read opens it again."""
        self._detach()

    def _current(self) -> SharedEnvironment | None:
        if self._process_id != process_id():
            self._process_id = process_id()
            self._shared = None  # the parent's; kept alive by the registry
        return self._shared

    def _attach(self) -> SharedEnvironment | None:
        shared = self._current()
        if shared is None:
            shared = attach_reader(self._directory)
            if shared is not None:
                with lock:
                    before, self._shared = self._shared, shared
                if before is not None:
                    release(before)  # another thread was quicker
        return shared

    def _detach(self) -> None:
        shared, self._shared = self._current(), None
        if shared is not None:
            release(shared)


def _owned(view: memoryview) -> bytes:
    """Return a copy of a value, unless it was joined: that is one already."""
    return view.obj if type(view.obj) is bytes else bytes(view)


class StoredValue:
    """A value of the tier that stays where it is: what is read of it is copied then, and costs what it is long.

    Nothing is held between two reads: no snapshot, no slot, no pages. So it may outlive whoever asked for it.

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
