"""What LMDB's two meta pages say of a data file, read without opening it (data format 1, LMDB 0.9, 2026-11).

LMDB takes the last page that its meta page names for granted: where the file ends before it, the first touch of what is
missing is a SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final

import lmdb

from prefeed.store.layout import PAGE_BYTES, PAGE_HEADER_BYTES, data_path

_MAGIC: Final = 0xBEEFC0DE
_META: Final = struct.Struct("<II8xQ96xQQ")
"""Magic, version, (address), size of the map, (two tables), last page, transaction."""


_TRANSACTION_AT: Final = PAGE_HEADER_BYTES + _META.size - 8


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
            magic, _, _, last_page, transaction = _META.unpack(meta)
            if magic == _MAGIC:
                found.append((transaction, (last_page + 1) * PAGE_BYTES))
    return max(found)
