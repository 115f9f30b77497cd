"""LMDB's data file read without LMDB: its meta pages, and whether all of it is as LMDB leaves it (data format 1, LMDB 0.9, 2026-11).

LMDB believes what it reads. A flipped bit in one of its pages ends in an error, in a signal, in the bytes of another key, or in a page
that is written while it is in use. Here nothing is believed: each page must be what the page above it says, each byte of it be accounted
for, and no page be reached twice, or be both in use and free. LMDB takes the last page that its meta page names for granted: where the
file ends before it, the first touch of what is missing is a SIGBUS.

::

    page     number u64, pad u16, flags u16, then lower u16, upper u16, pointers u16 …   or, of a run, pages u32
    node     low u16, high u16, flags u16, key size u16, key, value                     in a leaf: low and high are the value's size
    meta     magic u32, version u32, address, size of the map u64, two tables, last page u64, transaction u64
    table    pad u32, flags u16, depth u16, branch pages, leaf pages, pages of runs, entries, root: u64 each
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import numpy as np

from prefeed.store.layout import PAGE_BYTES, PAGE_HEADER_BYTES, data_path, num_pages

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<QHHI")
_META: Final = struct.Struct("<II8xQ48s48sQQ")
_TRANSACTION_AT: Final = PAGE_HEADER_BYTES + _META.size - 8
_TABLE: Final = struct.Struct("<IHHQQQQQ")
_PAGE_NUMBER: Final = struct.Struct("<Q")

_BRANCH, _LEAF, _RUN, _META_PAGE = 1, 2, 4, 8
_ON_RUN, _IS_TABLE = 1, 2
_INTEGER_KEYS: Final = 8
_NODE_HEADER_BYTES: Final = 8
_EMPTY: Final = 2**64 - 1
_MOST_LEVELS: Final = 32
_MOST_TRANSACTIONS: Final = 1 << 48
_MOST_MAP_BYTES: Final = 1 << 46


class Leaf(NamedTuple):
    """Entries of one page: their keys, ascending, and of each value where it begins in the file, and its size, in bytes."""

    keys: list[bytes]
    starts: list[int]
    sizes: list[int]


class _Table(NamedTuple):
    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    run_pages: int
    entries: int
    root: int


class _Nodes(NamedTuple):
    """Nodes of one page: where each begins, its key's size, its flags, and its value's size or its low 32 bits."""

    starts: list[int]
    key_sizes: list[int]
    flags: list[int]
    words: list[int]


class Walk:
    """One look through a data file that no process writes meanwhile. It reads with system calls: a bad disk is an ``OSError``.

    Args:
        file: Descriptor of the file.
        visits_values: Look at the first page of each value too. Where values have sums beside them that is not needed, and on a disk
            it takes as long as reading them.

    Raises:
        lmdb.CorruptedError: It is damaged.
        OSError: It cannot be read.
    """

    def __init__(self, file: int, *, visits_values: bool = True) -> None:
        self._file = file
        self._visits_values = visits_values
        self._transaction, last_page, free, main = self._newest_meta()
        self._used = np.zeros(last_page + 1, np.bool_)
        self._used[:2] = True
        self._tables: dict[bytes, _Table] = {}
        self._take_free_pages(free)
        for page, nodes, keys in self._pages(_table_of(main), integer_keys=False):
            self._take_tables(page, nodes, keys)

    @property
    def tables(self) -> tuple[bytes, ...]:
        """Names of the tables."""
        return tuple(self._tables)

    @property
    def num_pages(self) -> int:
        """Pages of the trees of all tables, as the tables say."""
        return sum(table.branch_pages + table.leaf_pages for table in self._tables.values())

    def leaves(self, name: bytes) -> Iterator[Leaf]:
        """Yield what a table holds, page by page; once. The table is sound when the last page has been yielded.

        Raises:
            lmdb.CorruptedError: It is damaged.
            OSError: It cannot be read.
        """
        for page, nodes, keys in self._pages(self._tables[name], integer_keys=False):
            if any(flags & ~_ON_RUN for flags in nodes.flags):
                raise _damaged("a node with flags of another kind of table")
            yield Leaf(keys, [self._value_start(page, nodes, at) for at in range(len(keys))], nodes.words)

    # ------------------------------------------------------------ the top of the file

    def _newest_meta(self) -> tuple[int, int, bytes, bytes]:
        found = []
        for number in (0, 1):
            page = self._read(number * PAGE_BYTES, PAGE_BYTES)
            _, _, flags, _ = _HEADER.unpack_from(page)
            magic, version, map_bytes, free, main, last_page, transaction = _META.unpack_from(page, PAGE_HEADER_BYTES)
            if (magic, version) != (_MAGIC, _VERSION) or flags != _META_PAGE:
                raise _damaged("a meta page")
            found.append((transaction, map_bytes, last_page, free, main))
        newest = int(found[0][0] < found[1][0])
        transaction, map_bytes, last_page, free, main = found[newest]
        size = os.fstat(self._file).st_size
        if (
            transaction & 1 != newest
            or transaction >= _MOST_TRANSACTIONS
            or not 1 <= last_page < size // PAGE_BYTES
            or not (last_page + 1) * PAGE_BYTES <= map_bytes <= _MOST_MAP_BYTES
        ):
            raise _damaged("the newest meta page")
        return transaction, last_page, free, main

    def _take_free_pages(self, record: bytes) -> None:
        table = _Table(*_TABLE.unpack(record))
        if table.pad != PAGE_BYTES or table.flags != _INTEGER_KEYS:
            raise _damaged("pages of another size, or other flags")
        lists = []
        for page, nodes, keys in self._pages(table, integer_keys=True):
            for at, key in enumerate(keys):
                if nodes.flags[at] & ~_ON_RUN or int.from_bytes(key, "little") > self._transaction:
                    raise _damaged("the list of free pages")
                lists.append((self._value_start(page, nodes, at), nodes.words[at]))
        for start, size in lists:  # when all pages that they lie in are known
            words = np.frombuffer(self._read(start, size // 8 * 8), np.uint64)
            if size % 8 or not size or int(words[0]) != len(words) - 1:
                raise _damaged("a list of free pages")
            free = words[1:].astype(np.int64)
            if len(free) and (free[0] >= len(self._used) or free[-1] < 2 or bool((free[1:] >= free[:-1]).any())):
                raise _damaged("the numbers of free pages")
            if bool(self._used[free].any()):
                raise _damaged("a page that is free and in use")
            self._used[free] = True

    def _take_tables(self, page: bytes, nodes: _Nodes, keys: list[bytes]) -> None:
        for at, key in enumerate(keys):
            if nodes.flags[at] == _IS_TABLE and nodes.words[at] == _TABLE.size:
                start = nodes.starts[at] + _NODE_HEADER_BYTES + len(key)
                self._tables[key] = _table_of(page[start : start + _TABLE.size])
            elif nodes.flags[at] & ~_ON_RUN:
                raise _damaged("the record of a table")
            else:
                self._value_start(page, nodes, at)

    # ------------------------------------------------------------ one tree

    def _pages(self, table: _Table, *, integer_keys: bool) -> Iterator[tuple[bytes, _Nodes, list[bytes]]]:
        """Yield the leaves of a tree, in order; it is as its table says when the last one has been yielded."""
        counts = [0, 0, 0]  # branch pages, leaf pages, entries
        self._run_pages = 0
        self._integer_keys = integer_keys
        run_pages = 0
        if table.root != _EMPTY:
            if not 1 <= table.depth <= _MOST_LEVELS:
                raise _damaged("the depth of a tree")
            for page, nodes, keys in self._below(table.root, table.depth, b"", None, counts):
                self._run_pages, before = 0, run_pages
                yield page, nodes, keys
                run_pages = before + self._run_pages
        elif table.depth:
            raise _damaged("an empty tree with levels")
        if (*counts, run_pages) != (table.branch_pages, table.leaf_pages, table.entries, table.run_pages):
            raise _damaged("a tree that is not as large as its table says")

    def _below(
        self, number: int, depth: int, least: bytes, beyond: bytes | None, counts: list[int]
    ) -> Iterator[tuple[bytes, _Nodes, list[bytes]]]:
        self._claim(number, 1)
        page = self._read(number * PAGE_BYTES, PAGE_BYTES)
        own_number, _, flags, _ = _HEADER.unpack_from(page)
        if own_number != number or flags != (_LEAF if depth == 1 else _BRANCH):
            raise _damaged(f"page {number} is another one, or of another kind")
        nodes = _nodes_of(page, is_leaf=depth == 1)
        ends = [start + _NODE_HEADER_BYTES + size for start, size in zip(nodes.starts, nodes.key_sizes, strict=True)]
        keys = [page[end - size : end] for end, size in zip(ends, nodes.key_sizes, strict=True)]
        self._number = number
        if depth == 1:
            self._require_order(keys, least, beyond)
            counts[1] += 1
            counts[2] += len(keys)
            yield page, nodes, keys
            return
        if len(keys) < 2 - self._integer_keys:
            raise _damaged("a branch without a fork")
        self._require_order(keys[1:], least, beyond)
        counts[0] += 1
        bounds = [least, *keys[1:], beyond]
        for at, (low, flag) in enumerate(zip(nodes.words, nodes.flags, strict=True)):
            first = bounds[at]
            assert first is not None
            yield from self._below(low | flag << 32, depth - 1, first, bounds[at + 1], counts)

    def _require_order(self, keys: list[bytes], least: bytes, beyond: bytes | None) -> None:
        if self._integer_keys:
            if any(len(key) != _PAGE_NUMBER.size for key in keys):
                raise _damaged("a key of another size")
            keys, least = [key[::-1] for key in keys], least[::-1]
            beyond = None if beyond is None else beyond[::-1]
        if not all(before < after for before, after in pairwise(keys)) or (
            keys and (keys[0] < least or (beyond is not None and keys[-1] >= beyond))
        ):
            raise _damaged("keys out of order")

    def _value_start(self, page: bytes, nodes: _Nodes, at: int) -> int:
        """Return where a value begins in the file; its pages are its own from now on."""
        inside = nodes.starts[at] + _NODE_HEADER_BYTES + nodes.key_sizes[at]
        if not nodes.flags[at] & _ON_RUN:
            return self._number * PAGE_BYTES + inside
        (number,) = _PAGE_NUMBER.unpack_from(page, inside)
        count = num_pages(nodes.words[at])
        self._claim(number, count)
        if self._visits_values:
            own_number, _, flags, pages = _HEADER.unpack(self._read(number * PAGE_BYTES, PAGE_HEADER_BYTES))
            if (own_number, flags, pages) != (number, _RUN, count):
                raise _damaged(f"page {number} does not begin a value of its size")
        self._run_pages += count
        return int(number) * PAGE_BYTES + PAGE_HEADER_BYTES

    # ------------------------------------------------------------ pages

    def _claim(self, number: int, count: int) -> None:
        if not 2 <= number <= len(self._used) - count or bool(self._used[number : number + count].any()):
            raise _damaged(f"page {number} is named twice, or is none")
        self._used[number : number + count] = True

    def _read(self, start: int, size: int) -> bytes:
        data = os.pread(self._file, size, start)
        if len(data) != size:
            raise _damaged("the file ends before its data")
        return data


def _nodes_of(page: bytes, *, is_leaf: bool) -> _Nodes:
    """Return the nodes of a page whose every byte is one node's, the header's, or free."""
    words = np.frombuffer(page, "<u2")
    lower, upper = int(words[6]), int(words[7])
    if not PAGE_HEADER_BYTES <= lower <= upper <= PAGE_BYTES or lower % 2:
        raise _damaged("the bounds of a page")
    starts = words[PAGE_HEADER_BYTES // 2 : lower // 2].astype(np.int64)
    if bool(((starts < upper) | (starts > PAGE_BYTES - _NODE_HEADER_BYTES) | (starts % 2 != 0)).any()):
        raise _damaged("a pointer of a page")
    at = starts // 2
    low, high, flags, key_sizes = (words[at + offset].astype(np.int64) for offset in range(4))
    found = low | high << 16
    taken = np.where(flags & _ON_RUN, _PAGE_NUMBER.size, found) if is_leaf else 0
    ends = starts + (_NODE_HEADER_BYTES + key_sizes + taken + 1) // 2 * 2
    order = np.argsort(starts)
    if bool((np.append(starts[order], PAGE_BYTES) != np.append(upper, ends[order])).any()):
        raise _damaged("the nodes of a page")
    return _Nodes(starts.tolist(), key_sizes.tolist(), flags.tolist(), found.tolist())


def _table_of(record: bytes) -> _Table:
    table = _Table(*_TABLE.unpack(record))
    if table.flags:
        raise _damaged("a table of another kind")
    return table


def _damaged(what: str) -> lmdb.CorruptedError:
    return lmdb.CorruptedError(f"damaged: {what}")


class MetaPages:
    """The meta pages of a store as they are now; costs no system call to look at.

    Raises:
        OSError: There is no store.
    """

    def __init__(self, directory: Path) -> None:
        with data_path(directory).open("rb") as file:
            self._pages = mmap.mmap(file.fileno(), 2 * PAGE_BYTES, prot=mmap.PROT_READ)
        self._words = memoryview(self._pages).cast("Q")

    def last_transaction(self) -> int:
        """Return the transaction that was committed last."""
        words = self._words
        return max(words[_TRANSACTION_AT // 8], words[(PAGE_BYTES + _TRANSACTION_AT) // 8])

    def close(self) -> None:
        """Let go of them."""
        self._words.release()
        self._pages.close()


def require_whole(directory: Path) -> None:
    """Do nothing if the store's data file reaches to the end of what its newest meta page says is in use.

    A file without meta pages is left to LMDB, which says what it is.

    Raises:
        FileNotFoundError: There is no data file.
        OSError: It cannot be read.
        lmdb.CorruptedError: It ends before its data do.
    """
    with data_path(directory).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        pages = file.read(2 * PAGE_BYTES)
    needed = end_of_data(pages)
    if needed > size:
        raise lmdb.CorruptedError(f"{data_path(directory)} has {size} bytes, and its data take {needed}")


def end_of_data(pages: bytes) -> int:
    """Return up to where a data file that begins with these two pages is in use, in bytes; 0 when that is not said."""
    return _newest(pages)[1]


def last_transaction(pages: bytes) -> int:
    """Return the transaction that a data file that begins with these two pages ends with; 0 when that is not said."""
    return _newest(pages)[0]


def _newest(pages: bytes) -> tuple[int, int]:
    found = [(0, 0)]
    for start in (0, PAGE_BYTES):
        meta = pages[start + PAGE_HEADER_BYTES : start + PAGE_HEADER_BYTES + _META.size]
        if len(meta) == _META.size:
            magic, *_, last_page, transaction = _META.unpack(meta)
            if magic == _MAGIC:
                found.append((transaction, (last_page + 1) * PAGE_BYTES))
    return max(found)
