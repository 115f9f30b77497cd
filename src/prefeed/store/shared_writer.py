"""Groups of values put into, and deleted from, a store that many processes write: one commit per group.

On disk a checksum lies beside each value, with its size and about where it begins, so that it can be read ahead.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import numpy as np
from xxhash import xxh3_64_digest

from prefeed.store.batches import read_transaction, write_in_turn
from prefeed.store.environment import SharedEnvironment
from prefeed.store.layout import INLINE_MAX_BYTES, PAGE_BYTES, PAGE_HEADER_BYTES, TOTALS_KEY, num_pages
from prefeed.store.shared_files import end_of_data
from prefeed.store.values import require_spare_pages, value_size
from prefeed.system.files import free_bytes
from prefeed.types import Buffer

_RECORD: Final = struct.Struct("<8sIQ")


class Checksum(NamedTuple):
    """Of one value.

    Attributes:
        digest: xxh3-64 of the value.
        size_bytes: Its size.
        page: Number of the page at which it begins; 0 when it lies in a page with others. A hint, and no more.
    """

    digest: bytes
    size_bytes: int
    page: int


def put_checksum(shared: SharedEnvironment, txn: Any, key: bytes, value: Buffer) -> None:
    """Store the checksum of a value that this transaction has put."""
    size = value_size(value)
    page = 0
    if size > INLINE_MAX_BYTES:
        # LMDB's header before the value begins with the number of its page (0.9.x, 2026-11).
        found = txn.get(key, None, shared.tables[0])
        if found is None:  # keys on its way down are damaged, so that LMDB put it where it does not find it
            raise lmdb.CorruptedError("a value that was just put is not found")
        inside = np.frombuffer(found, np.uint8).__array_interface__["data"][0]
        page = ctypes.c_uint64.from_address(inside - PAGE_HEADER_BYTES).value
    txn.put(key, _RECORD.pack(xxh3_64_digest(value), size, page), db=shared.tables[1])


def get_checksum(shared: SharedEnvironment, txn: Any, key: bytes) -> Checksum | None:
    """Return what is kept of a value, without touching the value; None when there is no such value."""
    found = txn.get(key, None, shared.tables[1])
    return None if found is None or len(found) != _RECORD.size else Checksum(*_RECORD.unpack(found))


def read_ahead(shared: SharedEnvironment, checksums: Sequence[Checksum | None]) -> None:
    """Let the system read these values from the disk, all at once and each as a whole.

    LMDB's own way is one page after the other: measured, 50 MB/s instead of 300 to 600 (2026-11).
    """
    with suppress(OSError, OverflowError):  # the page may be damaged
        file = shared.data_file()
        for checksum in checksums:
            if checksum is not None and checksum.page:
                size = PAGE_HEADER_BYTES + checksum.size_bytes
                os.posix_fadvise(file, checksum.page * PAGE_BYTES, size, os.POSIX_FADV_WILLNEED)


Put = tuple[bytes, Buffer]
"""Key and value."""

_TOTALS: Final = struct.Struct("<QQ")
_MAX_VALUE_BYTES: Final = 2**32 - 1
_SLACK_PAGES: Final = 64
_TREE_PAGES_A_KEY: Final = 6
"""Pages of both tables that one key may rewrite or split; the first keys of a group take the most."""

_PAGE_NUMBER_BYTES: Final = 8
"""What LMDB's list of free pages takes for one of them."""

_SPARE_PAGES: Final = 32
_TIGHT_SHARE: Final = 0.9
_MOST_DELETES: Final = 1024
_REFUSED_CALLS: Final = 32
"""So often a group is refused at once after one for which there was no room: batches that pinned pages end some time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTierStatistics:
    """State of a store; a snapshot.

    Attributes:
        entries: Values held.
        value_bytes: Their sizes together.
        stored_bytes: The pages that they and their tree take.
        limit_bytes: The most that the store's files may take.
        corrupt: Values that were found damaged, and deleted, since the store was made.
    """

    entries: int
    value_bytes: int
    stored_bytes: int
    limit_bytes: int
    corrupt: int


class SharedWriter:
    """Writes groups of values into the store of one directory.

    **Threads and processes.** Any; one writes at a time.
    """

    def __init__(self, directory: Path, *, on_disk: bool, min_free_bytes: int) -> None:
        self._directory = directory
        self._on_disk = on_disk
        self._min_free_bytes = min_free_bytes
        self._refusal: _Refusal | None = None
        self._drift_bytes = 0

    def put(self, shared: SharedEnvironment, items: Sequence[Put]) -> int:
        """Store values in one commit; returns how many from the front had room."""
        if self._is_refused(shared, items):
            return 0
        seen_end = self._reserve_ahead(shared, items)
        if self._try_commit(shared, items, seen_end=seen_end):
            return len(items)
        count, replacing = self._make_room(shared, items)
        while count and not self._try_commit(shared, items[:count], replacing=replacing):
            count //= 2
        if not count:
            self._refusal = _Refusal(value_size(items[0][1]), _room_bytes(shared))
        return count

    def delete(self, shared: SharedEnvironment, keys: Sequence[bytes], *, corrupt: bool = False) -> int:
        """Delete values, with ``corrupt`` only those that do not fit their sum, which are counted; returns how many."""
        deleted = 0
        for start in range(0, len(keys), _MOST_DELETES):
            with suppress(lmdb.MapFullError):
                deleted += self._delete(shared, keys[start : start + _MOST_DELETES], corrupt=corrupt)
        return deleted

    # ------------------------------------------------------------ puts

    def _is_refused(self, shared: SharedEnvironment, items: Sequence[Put]) -> bool:
        """Return whether a group like this was refused lately, and there is no more room now than there was then."""
        refusal = self._refusal
        if refusal is None or value_size(items[0][1]) < refusal.size_bytes or refusal.calls_left == 0:
            return False
        refusal.calls_left -= 1
        with read_transaction(shared) as txn:
            replacing = any(txn.get(key, None, shared.tables[0]) is not None for key, _ in items)
        return not replacing and _room_bytes(shared) <= refusal.room_bytes

    def _make_room(self, shared: SharedEnvironment, items: Sequence[Put]) -> tuple[int, bool]:
        """Delete what the group replaces, and let freed pages age; returns how many values may fit, and if it deleted."""
        shared.env.reader_check()
        replacing = self.delete(shared, [key for key, _ in items]) > 0
        sizes = accumulate(num_pages(value_size(value)) * PAGE_BYTES for _, value in items)
        room = _room_bytes(shared)
        count = sum(size <= room for size in sizes)
        for _ in range(2 if count else 0):  # pages freed by commit n can be used by commit n + 2
            self._delete(shared, ())
        return count, replacing

    def _try_commit(
        self, shared: SharedEnvironment, items: Sequence[Put], *, replacing: bool = False, seen_end: int | None = None
    ) -> bool:
        """Store all or none; False when there is no room."""
        try:
            with write_in_turn(shared) as txn:
                end = end_of_data(shared)
                if seen_end is not None:
                    self._drift_bytes = end - seen_end
                needed = self._bytes_for(shared, txn, items)
                self._require_free(needed)
                _reserve(shared, end, needed)
                grown = sum(self._store(shared, txn, key, value) for key, value in items)
                _add_to_totals(txn, value_bytes=grown)
                map_pages = shared.env.info()["map_size"] // PAGE_BYTES
                if end + needed > _TIGHT_SHARE * map_pages * PAGE_BYTES:
                    require_spare_pages(txn, _spare_pages(map_pages, replacing=replacing))
        except (lmdb.MapFullError, lmdb.DiskError):
            return False
        return True

    def _bytes_for(self, shared: SharedEnvironment, txn: Any, items: Sequence[Put]) -> int:
        """Return by how much the data may grow, which is what must be backed before the first page is written."""
        replaced = sum(self._size(shared, txn, key) or 0 for key, _ in items)
        return _bytes_for_puts(items) + _bytes_to_list(replaced)

    def _size(self, shared: SharedEnvironment, txn: Any, key: bytes) -> int | None:
        """Return the size of a value, None if there is none; without reading it from the disk."""
        if self._on_disk:
            checksum = get_checksum(shared, txn, key)
            return None if checksum is None else checksum.size_bytes
        found = txn.get(key, None, shared.tables[0])
        return None if found is None else len(found)

    def _require_free(self, needed_bytes: int) -> None:
        if self._min_free_bytes and free_bytes(self._directory) < self._min_free_bytes + needed_bytes:
            raise lmdb.MapFullError("the file system is to keep what it has free")

    def _reserve_ahead(self, shared: SharedEnvironment, items: Sequence[Put]) -> int:
        """Make pages before the write lock is taken, so that others can write meanwhile; returns where the data end.

        They are made where the data will end when the lock is had, if others write as much meanwhile as the last time. Large
        ones are not: they are made quickly, and must be made with the lock.
        """
        end, reservation = end_of_data(shared), shared.reservation
        if reservation is not None and reservation.can_populate and not reservation.makes_large:
            start = end + self._drift_bytes
            reservation.try_reserve(start + _bytes_for_puts(items), from_bytes=start)
        return end

    def _store(self, shared: SharedEnvironment, txn: Any, key: bytes, value: Buffer) -> int:
        """Put one value; returns by how many bytes the values have grown."""
        grown = value_size(value)
        if grown > _MAX_VALUE_BYTES:
            raise lmdb.MapFullError(f"LMDB takes no value of {grown} bytes")
        table = shared.tables[0]
        if not txn.put(key, value, True, False, False, table):
            grown -= self._size(shared, txn, key) or 0
            txn.put(key, value, True, True, False, table)
        if self._on_disk:
            put_checksum(shared, txn, key, value)
        return grown

    # ------------------------------------------------------------ deletes

    def _delete(self, shared: SharedEnvironment, keys: Sequence[bytes], *, corrupt: bool = False) -> int:
        values, checksums = shared.tables
        with write_in_turn(shared) as txn:
            sizes = {key: size for key in keys if (size := self._size(shared, txn, key)) is not None}
            if corrupt:
                sizes = {key: size for key, size in sizes.items() if not _is_right(shared, txn, key)}
            freed = sum(sizes.values())
            pages = _SLACK_PAGES + len(sizes) * _TREE_PAGES_A_KEY
            _reserve(shared, end_of_data(shared), pages * PAGE_BYTES + _bytes_to_list(freed))
            for key in sizes:
                txn.delete(key, db=values)
                txn.delete(key, db=checksums)
            _add_to_totals(txn, value_bytes=-freed, corrupt=len(sizes) if corrupt else 0)
        return len(sizes)


@dataclass(slots=True)
class _Refusal:
    """A value for which there was no room, and what room there was."""

    size_bytes: int
    room_bytes: int
    calls_left: int = _REFUSED_CALLS


def totals(txn: Any) -> tuple[int, int]:
    """Return the bytes of all values, and how many were found corrupt; O(1)."""
    found = txn.get(TOTALS_KEY)
    value_bytes, corrupt = (0, 0) if found is None else _TOTALS.unpack(found)
    return value_bytes, corrupt


def tree_bytes(shared: SharedEnvironment, txn: Any) -> int:
    """Return what the pages of both tables take; O(1)."""
    stats = [txn.stat(table) for table in shared.tables]
    pages: int = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
    return pages * PAGE_BYTES


def statistics_of(shared: SharedEnvironment, txn: Any, limit_bytes: int) -> SharedTierStatistics:
    """Return the state of a store as a transaction sees it."""
    value_bytes, corrupt = totals(txn)
    return SharedTierStatistics(
        entries=txn.stat(shared.tables[0])["entries"],
        value_bytes=value_bytes,
        stored_bytes=tree_bytes(shared, txn),
        limit_bytes=limit_bytes,
        corrupt=corrupt,
    )


def _is_right(shared: SharedEnvironment, txn: Any, key: bytes) -> bool:
    value, checksum = txn.get(key, None, shared.tables[0]), get_checksum(shared, txn, key)
    return value is not None and checksum is not None and xxh3_64_digest(value) == checksum.digest


def _add_to_totals(txn: Any, *, value_bytes: int = 0, corrupt: int = 0) -> None:
    before = totals(txn)
    txn.put(TOTALS_KEY, _TOTALS.pack(before[0] + value_bytes, before[1] + corrupt))


def _room_bytes(shared: SharedEnvironment) -> int:
    with read_transaction(shared) as txn:
        map_bytes: int = shared.env.info()["map_size"]
        return map_bytes - tree_bytes(shared, txn)


def _spare_pages(map_pages: int, *, replacing: bool) -> int:
    """Return how many pages a commit of puts leaves free: a delete rewrites a few before it frees any.

    Filling the store leaves twice as many, so that a value of a full store can be replaced.
    """
    spare = min(_SPARE_PAGES, map_pages // _SPARE_PAGES)
    return spare if replacing else 2 * spare


def _reserve(shared: SharedEnvironment, end: int, needed_bytes: int) -> None:
    """Back all pages that a transaction may write, with the write lock held.

    Raises:
        lmdb.MapFullError: The file system has too few.
    """
    reservation = shared.reservation
    if reservation is not None and not reservation.try_reserve(end + needed_bytes, from_bytes=end, is_unused=True):
        raise lmdb.MapFullError("the file system is full")


def _bytes_for_puts(items: Sequence[Put]) -> int:
    pages = sum(num_pages(value_size(value)) + _TREE_PAGES_A_KEY for _, value in items)
    return (_SLACK_PAGES + pages) * PAGE_BYTES


def _bytes_to_list(freed_bytes: int) -> int:
    return freed_bytes // PAGE_BYTES * _PAGE_NUMBER_BYTES
