"""The index of a tier: a table from keys to places in segments, in a file that one process at a time writes and any process reads.

::

    header   table: offset (8), buckets (8), checksum of both (8)
    table    buckets of 8 records, 256 bytes each
    record   key (16), offset (8), length (4), segment (2), flags (2)

A key has two buckets, which its two halves name, and is in one of them. A lookup reads a bucket with one ``pread`` and searches
it. There is no lock: a record that is read while it is written, or before its entry is freed, names a place where the
entry's trailer is not found, and that is a miss. A new key goes to the first of its buckets until that is half full, and
then to the emptier one: so most lookups read one bucket, and a table is about two thirds full before it is doubled.

A key that finds both buckets full doubles the table. The new table is written whole before the header names it, and the
old one is punched out afterwards. A reader that still uses the old one finds nothing there and reads the header again. A
header that is damaged, or read while it is written, does not fit its checksum and names no table.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from prefeed.system.files import punch

_RECORD: Final = struct.Struct("<QIHH")
_HEADER: Final = struct.Struct("<QQ8s")
_PAIR: Final = struct.Struct("<QQ")
"""Halves of a key; start and buckets of a table."""

_KEY_BYTES: Final = 16
_RECORD_BYTES: Final = 32
_BUCKET_RECORDS: Final = 8
_BUCKET_BYTES: Final = _BUCKET_RECORDS * _RECORD_BYTES
_ROWS: Final = range(0, _BUCKET_BYTES, _RECORD_BYTES)
_HEADER_BYTES: Final = 4096
_FIRST_BUCKETS: Final = 16
_HALVES: Final = struct.Struct("<" + _BUCKET_RECORDS * "Q24x")
"""First halves of the keys of a bucket."""

_EMPTY: Final = bytes(_RECORD_BYTES)
_NO_KEY: Final = bytes(_KEY_BYTES)
_NO_TABLE: Final = (0, -1)
"""Before the first entry of a file."""

_LEAST_FULL: Final = 0.25
"""A table is doubled only if this share of it is in use: keys that are no hashes would double it for ever."""

_NEARLY_FULL: Final = 0.625
_FEW_FREE: Final = 4
"""A bucket with fewer free records takes a new key only if the key's other bucket has no more."""


_RECORDS: Final = np.dtype(
    [("low", "<u8"), ("high", "<u8"), ("offset", "<u8"), ("length", "<u4"), ("segment", "<u2"), ("flags", "<u2")]
)


class Place(NamedTuple):
    """Where the value of an entry lies."""

    offset: int
    length: int
    segment: int
    flags: int


class IndexReader:
    """Looks up places, in any number of threads and processes.

    Args:
        descriptor: The index file, open for reading; it belongs to the caller.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._table = _NO_TABLE  # its start, and its buckets less one; one value, for threads look up while it changes
        with contextlib.suppress(OSError):  # a read will raise it
            self._read_header()

    def find(self, key: bytes) -> Place | None:
        """Return the place of an entry, None if the tier does not hold it.

        Raises:
            OSError: The file cannot be read.
        """
        if len(key) != _KEY_BYTES or key == _NO_KEY:
            return None
        while True:
            table = self._table
            found = self._look_up(key, table)
            if found is not None:
                return found[0]
            self._read_header()
            if self._table == table:  # otherwise this thread, or another one, has found that the table was replaced
                return None

    def entries(self) -> Iterator[tuple[bytes, Place]]:
        """Yield keys and places, as of the moment of the call."""
        table = self._read_table().reshape(-1)
        for record in table[_in_use(table)]:
            data = record.tobytes()
            yield data[:_KEY_BYTES], Place._make(_RECORD.unpack_from(data, _KEY_BYTES))

    def places(self) -> npt.NDArray[np.void]:
        """Return the records of all entries, shape (num_entries,), with fields ``offset``, ``length``, ``segment``, ``flags``."""
        table = self._read_table().reshape(-1)
        found: npt.NDArray[np.void] = table[_in_use(table)]
        return found

    def keys(self) -> bytes:
        """Return the keys of all entries, one after the other."""
        places = self.places()
        return np.stack([places["low"], places["high"]], axis=1).tobytes()

    def _look_up(self, key: bytes, table: tuple[int, int]) -> tuple[Place, int] | None:
        """Return the place of an entry and the position of its record in the file."""
        if table == _NO_TABLE:
            return None
        start, mask = table
        for half in _PAIR.unpack(key):
            position = start + (half & mask) * _BUCKET_BYTES
            bucket = os.pread(self._descriptor, _BUCKET_BYTES, position)
            at = _find_record(bucket, key)
            if at >= 0:
                return Place._make(_RECORD.unpack_from(bucket, at + _KEY_BYTES)), position + at
        return None

    def _read_header(self) -> None:
        """Use the table that the header names, if the header is whole."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return
        start, buckets, checksum = _HEADER.unpack(header)
        if checksum == xxh3_64_digest(header[: _PAIR.size]):
            self._table = (start, buckets - 1)

    def _read_table(self) -> npt.NDArray[np.void]:
        self._read_header()
        start, mask = self._table
        table = np.zeros((mask + 1, _BUCKET_RECORDS), dtype=_RECORDS)
        data = table.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(data):
            read = os.preadv(self._descriptor, [data[done:]], start + done)
            if not read:
                break
            done += read
        return table


class Index(IndexReader):
    """Looks up places and changes them.

    **Ownership.** One process changes the file, or several in turns; the descriptor belongs to the caller. A file without a valid
    header becomes an empty index.
    **Threads.** One thread changes it at a time; any thread may look up.

    Args:
        descriptor: The index file, open for reading and writing.
        is_shared: Several processes change it in turns, each after ``refresh``.

    Attributes:
        was_damaged: The file had no valid header, and was emptied.

    Raises:
        OSError: The file cannot be read or written, or its file system is full.
    """

    def __init__(self, descriptor: int, *, is_shared: bool = False) -> None:
        super().__init__(descriptor)
        size_bytes = os.fstat(descriptor).st_size
        start, mask = self._table
        end = start + (mask + 1) * _BUCKET_BYTES
        is_whole = start >= _HEADER_BYTES and end <= size_bytes
        self.was_damaged: bool = size_bytes > 0 and not is_whole
        self._num_entries = 0
        if is_whole and not is_shared:
            punch(descriptor, _HEADER_BYTES, start - _HEADER_BYTES)  # a table that was replaced just before a kill
            os.ftruncate(descriptor, end)  # a table that a kill kept from being published
            self._num_entries = int(np.count_nonzero(_in_use(self._read_table())))
            self.discard(self._are_misplaced())
        elif not is_whole:
            self.clear()

    def refresh(self, num_entries: int) -> None:
        """Take in what other processes have changed; the index has so many entries now."""
        self._read_header()
        self._num_entries = num_entries

    def __len__(self) -> int:
        return self._num_entries

    def put(self, key: bytes, place: Place) -> Place | None:
        """Add an entry, or replace its place; return the place that is not named any more, None if there is none.

        Where the table has no room for the key, that is the new place. If an error is raised, nothing has changed.
        """
        record = key + _RECORD.pack(*place)
        while True:
            start, mask = self._table
            num_free = free = 0
            for half in _PAIR.unpack(key):
                bucket_start = start + (half & mask) * _BUCKET_BYTES
                bucket = os.pread(self._descriptor, _BUCKET_BYTES, bucket_start)
                at = _find_record(bucket, key)
                if at >= 0:
                    os.pwrite(self._descriptor, record, bucket_start + at)
                    return Place._make(_RECORD.unpack_from(bucket, at + _KEY_BYTES))
                if num_free < _FEW_FREE:
                    others, row = _free_records(bucket)
                    if others > num_free:
                        num_free, free = others, bucket_start + row
            if num_free:
                os.pwrite(self._descriptor, record, free)
                self._num_entries += 1
                return None
            if self._num_entries < _LEAST_FULL * _BUCKET_RECORDS * (mask + 1):
                return place
            self._grow()

    def remove(self, key: bytes) -> Place | None:
        """Remove an entry, and return its place; None if it is not held."""
        found = None if len(key) != _KEY_BYTES or key == _NO_KEY else self._look_up(key, self._table)
        if found is None:
            return None
        place, position = found
        os.pwrite(self._descriptor, _EMPTY, position)
        self._num_entries -= 1
        return place

    def discard(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Remove records, chosen from those that ``places`` returns: damage can give two of them one key."""
        rows = np.flatnonzero(_in_use(self._read_table().reshape(-1)))[chosen]
        for row in rows.tolist():
            os.pwrite(self._descriptor, _EMPTY, self._table[0] + row * _RECORD_BYTES)
        self._num_entries -= len(rows)

    def growth_bytes(self, num_entries: int = 1) -> int:
        """Return what the file may grow by with so many more entries: much when the table is nearly full."""
        before = buckets = self._table[1] + 1
        while self._num_entries + num_entries > _NEARLY_FULL * _BUCKET_RECORDS * buckets:
            buckets *= 2
        # The table of half the size is still there when the last one is written.
        return (buckets + buckets // 2 - before) * _BUCKET_BYTES if buckets > before else 0

    def clear(self) -> None:
        """Remove all entries."""
        start, mask = self._table
        os.ftruncate(self._descriptor, 0)
        self._num_entries = 0
        # A table is never where an earlier one was: a reader that missed in that one would take the header as unchanged.
        start = max(_HEADER_BYTES, start + (mask + 1) * _BUCKET_BYTES)
        self._publish(np.zeros((_FIRST_BUCKETS, _BUCKET_RECORDS), dtype=_RECORDS), start)

    def _grow(self) -> None:
        """Double the table: each record stays in its row of the bucket, or moves to that row of the new bucket."""
        old_start, mask = self._table
        old_buckets = mask + 1
        old = self._read_table()
        new = np.zeros((2 * old_buckets, _BUCKET_RECORDS), dtype=_RECORDS)
        number = np.arange(old_buckets, dtype=np.uint64)[:, None]
        half = np.where(old["low"] & np.uint64(mask) == number, old["low"], old["high"])
        moves = (half & np.uint64(old_buckets)) != 0
        new[:old_buckets] = np.where(moves, np.zeros((), dtype=_RECORDS), old)
        new[old_buckets:] = np.where(moves, old, np.zeros((), dtype=_RECORDS))
        try:
            self._publish(new, old_start + old.nbytes)
        except OSError:
            os.ftruncate(self._descriptor, old_start + old.nbytes)
            raise
        punch(self._descriptor, old_start, old.nbytes)

    def _are_misplaced(self) -> npt.NDArray[np.bool_]:
        """Return which records are in buckets that their keys do not name: no lookup finds them."""
        mask, places = np.uint64(self._table[1]), self.places()
        number = (np.flatnonzero(_in_use(self._read_table().reshape(-1))) // _BUCKET_RECORDS).astype(np.uint64)
        misplaced: npt.NDArray[np.bool_] = (places["low"] & mask != number) & (places["high"] & mask != number)
        return misplaced

    def _publish(self, table: npt.NDArray[np.void], start: int) -> None:
        data = table.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], start + done)
        header = _PAIR.pack(start, len(table))
        os.pwrite(self._descriptor, header + xxh3_64_digest(header), 0)
        self._table = (start, len(table) - 1)


def _find_record(bucket: bytes, key: bytes) -> int:
    """Return where in a bucket the record of a key begins, -1 if it is not there."""
    at = bucket.find(key)
    while at > 0 and at % _RECORD_BYTES:
        at = bucket.find(key, at + 1)
    return at if at + _RECORD_BYTES <= len(bucket) else -1


def _free_records(bucket: bytes) -> tuple[int, int]:
    """Return how many records of a bucket are free, and where one of them begins."""
    halves = _HALVES.unpack(bucket)
    count = halves.count(0)
    row = halves.index(0) * _RECORD_BYTES if count else 0
    if count and bucket[row : row + _KEY_BYTES] != _NO_KEY:  # a key with eight zeros
        free = [row for row in _ROWS if bucket[row : row + _KEY_BYTES] == _NO_KEY]
        return len(free), free[0] if free else 0
    return count, row


def _in_use(table: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    used: npt.NDArray[np.bool_] = (table["low"] | table["high"]) != 0
    return used
