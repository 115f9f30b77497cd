"""Sums of what a tier keeps, beside the store: what the next server finds there it compares with them (ADR 21).

::

    sums    u64 …    one for each resident that was stored, in the order of storing; when the file is full, over the oldest

A sum is of a key and its value together, so that a value under another's key fits none. A hit looks at none of this.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import numpy as np
from numpy.typing import NDArray

from prefeed.store.entry_sums import sum_of
from prefeed.store.layout import PAGE_BYTES, RESIDENT_TABLE, TRANSIENT_TABLE, data_path, sums_path
from prefeed.store.tree import Leaf, Walk
from prefeed.types import ENTRY_KEY_BYTES

_SUM: Final = struct.Struct("<Q")
_GROUP: Final = 256
_MOST_THREADS: Final = 8
_MOST_WAITING: Final = 64

_Value = tuple[bytes, list[tuple[int, int]]]
"""Key, and where the parts of its value lie in the file: start and size."""


class Sums:
    """The file of sums in the hands of the store's writer.

    What cannot be written is left out: its value will be fetched again after a crash.

    Args:
        directory: Of the store.
        limit_bytes: The most that the file may take.
        known: Sums of what is there.
    """

    def __init__(self, directory: Path, limit_bytes: int, known: NDArray[np.uint64]) -> None:
        self._limit_bytes = limit_bytes
        self._pending = bytearray()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(sums_path(directory), flags, 0o600)
        self._end = self._most = 0
        self._pending += known.tobytes()[-limit_bytes:]
        self.write()

    @property
    def limit_bytes(self) -> int:
        """The most that the file may take."""
        return self._limit_bytes

    @property
    def file_bytes(self) -> int:
        """What the file has of its file system."""
        return -(-self._most // PAGE_BYTES) * PAGE_BYTES

    def add(self, value_sums: Iterable[int]) -> None:
        """Values with these sums are about to be stored."""
        self._pending += b"".join(map(_SUM.pack, value_sums))

    def write(self) -> None:
        """What was added is in the file: before the commit of what it is of."""
        pending, self._pending = memoryview(self._pending), bytearray()
        with contextlib.suppress(OSError):
            while pending:
                if self._end + _SUM.size > self._limit_bytes:
                    self._end = 0
                part = pending[: (self._limit_bytes - self._end) // _SUM.size * _SUM.size]
                self._end += os.pwrite(self._file, part, self._end)
                self._most = max(self._most, self._end)
                pending = pending[len(part) :]

    def resize(self, limit_bytes: int) -> None:
        """The file may take so much from now on."""
        with contextlib.suppress(OSError):
            if limit_bytes < self._limit_bytes and os.fstat(self._file).st_size > limit_bytes:
                os.ftruncate(self._file, limit_bytes)
        self._limit_bytes = limit_bytes
        self._end, self._most = min(self._end, limit_bytes), min(self._most, limit_bytes)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class Found(NamedTuple):
    """What lies in a store that another server left.

    Attributes:
        sums: Of the residents that are as they were stored.
        wrong: Keys of the others.
    """

    sums: NDArray[np.uint64]
    wrong: list[bytes]


NOTHING: Final = Found(np.zeros(0, np.uint64), [])


def examine(directory: Path) -> Found:
    """Look through the store in a directory, which no process writes meanwhile: at its trees, and at each resident.

    Reads all of it, with system calls: what a disk cannot deliver, or what is not in the file, is an error here and no signal.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
        lmdb.CorruptedError: It is damaged, so that nothing in it can be told.
    """
    file = os.open(data_path(directory), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not os.fstat(file).st_size:
            return NOTHING
        walk = Walk(file)
        if set(walk.tables) - {RESIDENT_TABLE, TRANSIENT_TABLE}:
            raise lmdb.CorruptedError(f"its tables are {walk.tables}")
        keys, sums = _sums_in(file, _values_of(walk))
        if TRANSIENT_TABLE in walk.tables:
            for _ in walk.leaves(TRANSIENT_TABLE):  # they are dropped: their pages have to be in order, and no more
                pass
    finally:
        os.close(file)
    is_right = np.isin(sums, _known_in(directory))
    return Found(sums[is_right], [keys[at] for at in np.flatnonzero(~is_right).tolist()])


def _known_in(directory: Path) -> NDArray[np.uint64]:
    try:
        content = sums_path(directory).read_bytes()
    except OSError:
        content = b""
    return np.frombuffer(content[: len(content) // _SUM.size * _SUM.size], np.uint64)


def _values_of(walk: Walk) -> Iterator[_Value]:
    """Yield the residents; pieces of a value follow its key."""
    leaves: Iterable[Leaf] = walk.leaves(RESIDENT_TABLE) if RESIDENT_TABLE in walk.tables else ()
    last: _Value | None = None
    for leaf in leaves:
        for key, start, size in zip(leaf.keys, leaf.starts, leaf.sizes, strict=True):
            if len(key) == ENTRY_KEY_BYTES:
                if last is not None:
                    yield last
                last = (key, [(start, size)])
            elif last is None or key[:ENTRY_KEY_BYTES] != last[0]:
                raise lmdb.CorruptedError("a piece without its value")
            else:
                last[1].append((start, size))
    if last is not None:
        yield last


def _sums_in(file: int, values: Iterator[_Value]) -> tuple[list[bytes], NDArray[np.uint64]]:
    """Return keys and sums of values; the sums are made by threads, which hold no interpreter lock meanwhile."""
    keys: list[bytes] = []
    waiting: list[Future[NDArray[np.uint64]]] = []
    found: list[NDArray[np.uint64]] = []
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "prefeed-sums") as pool:
        group: list[_Value] = []
        for value in values:
            keys.append(value[0])
            group.append(value)
            if len(group) == _GROUP:
                waiting.append(pool.submit(_sums_of, file, group))
                group = []
            if len(waiting) > _MOST_WAITING:
                found.append(waiting.pop(0).result())
        waiting.append(pool.submit(_sums_of, file, group))
        found += [future.result() for future in waiting]
    return keys, np.concatenate(found)


def _sums_of(file: int, values: Sequence[_Value]) -> NDArray[np.uint64]:
    sums = np.zeros(len(values), np.uint64)
    room = memoryview(bytearray(max((sum(size for _, size in parts) for _, parts in values), default=0)))
    for at, (key, parts) in enumerate(values):
        end = 0
        for start, size in parts:
            if os.preadv(file, [room[end : end + size]], start) != size:
                raise lmdb.CorruptedError("the file ends before its data")
            end += size
        sums[at] = sum_of(key, room[:end])
    return sums
