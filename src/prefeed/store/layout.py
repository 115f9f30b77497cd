"""How the store lies on its file system: names, page arithmetic, what a value costs. Pure.

One directory holds one store::

    data.mdb      LMDB: resident values, transient values, one layout record
    lock.mdb      LMDB: reader slots
    writer.lock   held by the one process that writes
    namespace-*   whose processes have the reader slots (``namespaces.py``)
    readers       locks of those who have none (``foreign.py``)
    sums          of the residents, for the next writer (``sums.py``)

A value is kept raw under its 16-byte key, in one run of pages behind a 16-byte page header, so that a reader gets a
view of it. Whether it is resident or transient is told by the table it lies in, and its size by LMDB: there is no
record beside the value. A value above 4 MiB is split, and any value for which no run of free pages is long enough: its key
holds an empty value, and the pieces follow it under ``key + four-byte index``.

A store that many processes write (``shared.py``) has the same two LMDB files and ``namespace-*``, nothing else, and never
splits a value. Its tables are the values and, on disk, their checksums; beside the layout record lies one of totals.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.types import ENTRY_KEY_BYTES

DATA_NAME: Final = "data.mdb"
LOCK_NAME: Final = "lock.mdb"

LAYOUT_VERSION: Final = b"1"
LAYOUT_KEY: Final = b"layout"
RESIDENT_TABLE: Final = b"resident"
TRANSIENT_TABLE: Final = b"transient"

TOTALS_KEY: Final = b"totals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What an LMDB file holds.

    Attributes:
        version: Lies under ``LAYOUT_KEY``.
        tables: Names of its two tables.
    """

    version: bytes
    tables: tuple[bytes, bytes]


TIER_LAYOUT: Final = Layout(version=LAYOUT_VERSION, tables=(RESIDENT_TABLE, TRANSIENT_TABLE))
SHARED_LAYOUT: Final = Layout(version=b"shared 1", tables=(b"values", b"checksums"))

PAGE_BYTES: Final = min(mmap.PAGESIZE, 32768)
"""LMDB takes the system's page size, 32 KiB at most."""

PAGE_HEADER_BYTES: Final = 16
NODE_BYTES: Final = 10
"""Header and pointer of one entry in a leaf page."""

INLINE_MAX_BYTES: Final = ((PAGE_BYTES - PAGE_HEADER_BYTES) // 2 & ~1) - NODE_BYTES - ENTRY_KEY_BYTES
"""Largest value that LMDB keeps in the leaf page beside its key; larger ones get pages of their own."""

_LEAF_SLACK: Final = 3
"""Values that come and go in any order leave leaf pages a third full; LMDB merges them below a quarter."""

_NODE_STORED_BYTES: Final = _LEAF_SLACK * (NODE_BYTES + ENTRY_KEY_BYTES + 8)

_LOCK_HEADER_BYTES: Final = 192
_READER_SLOT_BYTES: Final = 64
MAX_READERS: Final = 1024
LOCK_BYTES: Final = -(-(_LOCK_HEADER_BYTES + _READER_SLOT_BYTES * MAX_READERS) // PAGE_BYTES) * PAGE_BYTES
"""Size of lock.mdb: a header and 64 bytes a reader slot; more readers than that read nothing."""

_SMALL_LOCK_BYTES: Final = 4 * PAGE_BYTES
_SMALL_STORE_BYTES: Final = 32 * 1024**2

RESERVE_BYTES: Final = 768 * 1024
RESERVE_SHARE: Final = 1 / 128
"""What capacity_bytes leaves to LMDB: tree pages rewritten by a commit, its free list, ends of split values."""

MIN_BUDGET_BYTES: Final = 4 * 1024**2

_SUMS_BYTES: Final = 16 * 1024
_SUMS_SHARE: Final = 1024
"""One byte of this number of a budget's bytes is for sums: enough for values of 8 KiB; of smaller values the last that were stored have one."""

PIECE_PAGES: Final = (4, 1)
"""Sizes of the pieces of a split value, tried in this order; pieces of one page fit wherever a page is free."""

LARGE_BYTES: Final = 4 * 1024**2
"""A larger value is always split: the LMDB binding touches every page of a value that it looks up, 0.4 ms for 60 MB."""

LARGE_PIECE_PAGES: Final = 64
"""Size of the pieces of a large value, where there is room for them: a lookup of one takes 1 us."""


def data_path(directory: Path) -> Path:
    """Return the path of LMDB's data file."""
    return directory / DATA_NAME


def lock_path(directory: Path) -> Path:
    """Return the path of LMDB's table of readers."""
    return directory / LOCK_NAME


def writer_lock_path(directory: Path) -> Path:
    """Return the path of the file that the writing process holds locked."""
    return directory / "writer.lock"


def namespace_paths(directory: Path) -> list[Path]:
    """Return the paths of the empty files, one as a rule, whose name says whose processes use LMDB's table of readers."""
    return list(directory.glob("namespace-*"))


def readers_path(directory: Path) -> Path:
    """Return the path of the file that readers lock who are not in LMDB's table."""
    return directory / "readers"


def sums_path(directory: Path) -> Path:
    """Return the path of the sums of the residents."""
    return directory / "sums"


def sums_bytes_for(budget_bytes: int) -> int:
    """Return the most that the sums may take of a store's budget."""
    return (_SUMS_BYTES + budget_bytes // _SUMS_SHARE) // PAGE_BYTES * PAGE_BYTES


def stored_bytes(size_bytes: int) -> int:
    """Return what a value of this size costs of ``capacity_bytes``: its pages, and its share of a tree page.

    Raises:
        ValueError: The size is negative.
    """
    if size_bytes < 0:
        raise ValueError(f"a size cannot be negative: {size_bytes}")
    if size_bytes <= INLINE_MAX_BYTES:
        return min(PAGE_BYTES, _LEAF_SLACK * (NODE_BYTES + ENTRY_KEY_BYTES + size_bytes + size_bytes % 2))
    return -(-(size_bytes + PAGE_HEADER_BYTES) // PAGE_BYTES) * PAGE_BYTES + _NODE_STORED_BYTES


def map_bytes_for(budget_bytes: int) -> int:
    """Return the most that data.mdb may take so that the whole store stays within the budget.

    Raises:
        ValueError: The budget is below ``MIN_BUDGET_BYTES``.
    """
    if budget_bytes < MIN_BUDGET_BYTES:
        raise ValueError(f"a memory tier needs at least {MIN_BUDGET_BYTES} bytes, not {budget_bytes}")
    return (budget_bytes - LOCK_BYTES - sums_bytes_for(budget_bytes)) // PAGE_BYTES * PAGE_BYTES


def lock_bytes_for(limit_bytes: int) -> int:
    """Return the size of lock.mdb in a store that many write: a small store cannot spare much."""
    return LOCK_BYTES if limit_bytes >= _SMALL_STORE_BYTES else _SMALL_LOCK_BYTES


def max_readers_of(lock_bytes: int) -> int:
    """Return how many reader slots a lock.mdb of this size has."""
    return max(1, (lock_bytes - _LOCK_HEADER_BYTES) // _READER_SLOT_BYTES)


def num_pages(size_bytes: int) -> int:
    """Return how many pages of its own a value of this size takes, at most."""
    return -(-(size_bytes + PAGE_HEADER_BYTES) // PAGE_BYTES)


def capacity_of_map(map_bytes: int) -> int:
    """Return how many bytes, counted by ``stored_bytes``, a map of this size takes."""
    return max(0, map_bytes - RESERVE_BYTES - int(map_bytes * RESERVE_SHARE))


def piece_key(key: bytes, index: int) -> bytes:
    """Return the key under which a piece of a split value lies, right behind the value's own."""
    return key + index.to_bytes(4, "big")


def piece_bytes(num_pages: int) -> int:
    """Return how many bytes of a value fill a run of this many pages."""
    return num_pages * PAGE_BYTES - PAGE_HEADER_BYTES
