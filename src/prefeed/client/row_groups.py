"""Which bytes of a Parquet file follow: its footer says where columns lie, its reader's own reads say which columns it wants; pure.

footer ──→ row group 0  [ a ][ b ][ c ]      read: a, c  ──→ follows: a and c of row group 1, 2, …
           row group 1  [ a ][ b ][ c ]
"""

from __future__ import annotations

import io
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
"""At the end of a file: the length of its footer, and the magic."""

_MOST_BYTES: Final = 16 * 1024**2
_MOST_CHUNKS: Final = 20_000
"""Of a file with more the footer is not looked at: it takes a microsecond per chunk."""

Chunk = tuple[int, int]


class RowGroups:
    """What one reader of one Parquet file has read, and what follows from it.

    Args:
        chunks: Of each row group, of each of its columns: the first byte, and the one behind the last.
        names: Of the columns; what was read of a file tells what is read of the next one by them.
    """

    def __init__(self, chunks: Sequence[Sequence[Chunk]], names: Sequence[str] = ()) -> None:
        self._chunks = chunks
        self._names = names
        self._read: set[int] = set()  # columns
        self._starts = [min(start for start, _ in group) for group in chunks]
        self._end = max((end for group in chunks for _, end in group), default=0)
        self._group = -1
        self._seen: set[int] = set()  # columns that were read of this row group
        self._wanted: set[int] = set()  # columns that were read of the one before

    def note(self, offset: int, count: int) -> None:
        """Note what is read: columns count as wanted once another row group is read, or all of them are."""
        end = offset + count
        if end > self._end:
            return  # the footer is wanted, whatever lies before it
        for number in range(max(0, bisect_right(self._starts, offset) - 1), len(self._chunks)):
            if self._starts[number] >= end:
                break
            group = self._chunks[number]
            found = {column for column, (start, stop) in enumerate(group) if start < end and stop > offset}
            if not found:
                continue
            if number != self._group:
                if number > self._group and self._seen:
                    self._wanted = self._seen
                self._group, self._seen = number, set()
            self._seen = self._seen | found
            self._read = self._read | found
            if len(self._seen) == len(group):
                self._wanted = self._seen

    @property
    def names_read(self) -> frozenset[str]:
        """Columns of which something was read."""
        return frozenset(self._names[column] for column in self._read if column < len(self._names))

    def are_some_read(self) -> bool:
        """Return whether something was read of some columns, and nothing of the others."""
        return 0 < len(self._read) < len(self._names)

    def is_half_read(self) -> bool:
        """Return whether the reader has come to the row group in the middle: a file of one is half read from its first column on."""
        return 2 * self._group >= max(0, len(self._chunks) - 1)

    def want(self, names: Collection[str]) -> None:
        """These columns are going to be read, until its reads show which."""
        self._wanted = {column for column, name in enumerate(self._names) if name in names}

    def parts_of(self, names: Collection[str]) -> Iterator[Chunk]:
        """Yield all parts of these columns, in the order in which they are read."""
        columns = [column for column, name in enumerate(self._names) if name in names]
        return (group[column] for group in self._chunks for column in columns)

    def after(self, position: int) -> Iterator[Chunk]:
        """Yield what is wanted from a position on, each part by its first byte and the one behind its last."""
        for group in self._chunks[max(0, bisect_right(self._starts, position) - 1) :]:
            for column in sorted(self._wanted):
                if column < len(group) and group[column][1] > position:
                    yield max(position, group[column][0]), group[column][1]


class FooterReader:
    """Finds the footer among the reads of a file.

    Args:
        size_bytes: Of the file.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._end = b""
        self._start = -1

    def may_be_in(self, offset: int, count: int) -> bool:
        """Return True for a read that may have it: of the end of the file, and then, if that was too short, of all of the footer."""
        if self._end:
            return offset <= self._start and offset + count >= self._size - _END_BYTES
        return offset + count == self._size and _END_BYTES <= count <= _MOST_BYTES

    @property
    def start(self) -> int:
        """First byte of the footer, once the end of the file has told it; negative: it has not, or the footer was returned."""
        return self._start

    def look(self, offset: int, data: bytes | memoryview) -> bytes:
        """Return the footer of a Parquet file, to the end of the file; empty: it has not been read, or it is another file.

        Args:
            offset: Of a read that may have it.
            data: What was read.
        """
        if not self._end and data[-len(_MAGIC) :] == _MAGIC:
            self._end = bytes(data[-_END_BYTES:])
            self._start = self._size - _END_BYTES - int.from_bytes(self._end[:4], "little")
        if not self._end or self._start < 0:
            return b""
        begin, length = self._start - offset, self._size - _END_BYTES - self._start
        if begin < 0 or begin + length > len(data):
            return b""
        footer = bytes(data[begin : begin + length])
        self._start = -1  # once
        return footer + self._end


def read_footer(size_bytes: int, end_bytes: int, read: Callable[[int], bytes | None]) -> bytes | None:
    """Return the footer of a file, to its end; empty: there is none; None: ``read`` could not.

    Args:
        size_bytes: Of the file.
        end_bytes: At its end, that are read first.
        read: Returns the bytes from a place to the end; None: not now.
    """
    start, reader = max(0, size_bytes - end_bytes), FooterReader(size_bytes)
    while start >= 0 and reader.may_be_in(start, size_bytes - start):
        data = read(start)
        if data is None:
            return None
        if footer := reader.look(start, data):
            return footer
        start = reader.start
    return b""


def row_groups_of(footer: bytes) -> RowGroups | None:
    """Return the row groups that a footer describes; None: nobody has imported pyarrow, or the footer is too large or damaged.

    Args:
        footer: To the end of the file.
    """
    parquet: Any = sys.modules.get("pyarrow.parquet")
    if parquet is None:
        return None
    try:
        found = parquet.read_metadata(io.BytesIO(footer))
        if not 0 < found.num_row_groups * found.num_columns <= _MOST_CHUNKS:
            return None
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        names = [groups[0].column(at).path_in_schema for at in range(found.num_columns)]
        return RowGroups([[_chunk(group.column(at)) for at in range(found.num_columns)] for group in groups], names)
    except Exception:  # noqa: BLE001 - its reader meets the error as well, and says it
        return None


def _chunk(column: Any) -> Chunk:
    start = column.data_page_offset
    dictionary = column.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return start, start + column.total_compressed_size
