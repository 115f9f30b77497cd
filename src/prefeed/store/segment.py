"""Segments: files to which entries are appended, and which any process reads.

::

    ┌──────────┬─────────┬──────────┬─────────┬─────
    │ value    │ trailer │ value    │ trailer │ …       trailer: key (16 bytes), checksum of the value (8 bytes)
    └──────────┴─────────┴──────────┴─────────┴─────

An entry is appended before the index names it. When it is freed, the index forgets it first, then its trailer is zeroed, and
then its pages are punched out of the file. No place is written twice, except in an emptied segment with checksums. So a
reader copies the value first and compares the trailer afterwards: if the key is there, the value was whole during the copy.
If it is not there, the entry was freed meanwhile, or the index is torn or older than the segment, and the read is a miss. A
reader holds no lock, and may be suspended in the middle of a read for any time.

Values are read with ``pread``: a file that is truncated or punched gives short reads and zeros, not SIGBUS. Only ``shared`` maps a
segment, which it does not punch while a process has it open.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from prefeed.system.files import punch
from prefeed.types import ENTRY_KEY_BYTES, Buffer

TRAILER_BYTES: Final = ENTRY_KEY_BYTES + 8
PAGE_BYTES: Final = 4096
_NO_TRAILER: Final = bytes(TRAILER_BYTES)
_NO_SUM: Final = bytes(8)
_MOST_BUFFERS: Final = 1024
"""IOV_MAX: the most parts of one ``pwritev``."""


def read_value(descriptor: int, key: bytes, offset: int, length: int, *, verify: bool) -> bytes | None:
    """Return the value of an entry, None if it is not there any more.

    Args:
        descriptor: The segment.
        key: Of the entry.
        offset: Of its value, as the index has it.
        length: Of its value.
        verify: Compare the value with its checksum.

    Raises:
        OSError: The file cannot be read.
    """
    value = os.pread(descriptor, length, offset)
    if len(value) < length:  # one call returns at most 2 GiB
        value = _read_rest(descriptor, value, offset, length)
    trailer = os.pread(descriptor, TRAILER_BYTES, offset + length)
    if trailer[:ENTRY_KEY_BYTES] != key or (verify and trailer[ENTRY_KEY_BYTES:] != xxh3_64_digest(value)):
        return None
    return value


def read_into(descriptor: int, key: bytes, offset: int, length: int, start: int, target: memoryview) -> int | None:
    """Copy a part of a value; return how many bytes, fewer at its end; None if the entry is not there any more.

    Args:
        descriptor: The segment.
        key: Of the entry.
        offset: Of its value, as the index has it.
        length: Of its value.
        start: First byte of the part, from the value's start.
        target: Bytes that are written over; their contents are undefined after None.

    Raises:
        OSError: The file cannot be read.
    """
    num_bytes = max(0, min(len(target), length - start))
    done = 0
    while done < num_bytes:
        read = os.preadv(descriptor, [target[done:num_bytes]], offset + start + done)
        if not read:
            return None
        done += read
    trailer = os.pread(descriptor, ENTRY_KEY_BYTES, offset + length)
    return num_bytes if trailer == key else None


def _read_rest(descriptor: int, head: bytes, offset: int, length: int) -> bytes:
    parts, done = [head], len(head)
    while done < length and parts[-1]:
        parts.append(os.pread(descriptor, length - done, offset + done))
        done += len(parts[-1])
    return b"".join(parts)


class Segment:
    """Appends entries to a segment, takes places for entries that others write, and frees them.

    **Ownership.** One process decides who writes where; the descriptor belongs to the caller.
    **Threads.** One at a time.

    Args:
        descriptor: Open for reading and writing.
        sums: Give entries a checksum, for files that outlive the machine's memory.
        offsets: Of the entries that the file holds already, shape (n,).
        lengths: Of their values, shape (n,).
    """

    def __init__(
        self,
        descriptor: int,
        *,
        sums: bool,
        offsets: npt.NDArray[np.integer] | Sequence[int] = (),
        lengths: npt.NDArray[np.integer] | Sequence[int] = (),
    ) -> None:
        self.descriptor = descriptor
        self._sums = sums
        starts = np.asarray(offsets, dtype=np.int64)
        ends = starts + np.asarray(lengths, dtype=np.int64) + TRAILER_BYTES
        if not len(starts):
            os.ftruncate(descriptor, 0)  # file systems limit offsets
        self._end = os.fstat(descriptor).st_size
        self._punch_gaps(starts, ends)
        # Entries on each page that an entry begins or ends on. Other pages of an entry are its own.
        first, last = starts // PAGE_BYTES, (ends - 1) // PAGE_BYTES
        pages, counts = np.unique(np.concatenate([first, last[last != first]]), return_counts=True)
        self._entries_on: dict[int, int] = dict(zip(pages.tolist(), counts.tolist(), strict=True))
        self._num_pages = len(pages) + int(np.maximum(last - first - 1, 0).sum())
        self.can_punch: bool = True

    def taken_bytes(self) -> int:
        """Return the bytes of pages with a part of an entry, also of reserved ones, or the allocated ones if they are more."""
        return max(self._num_pages * PAGE_BYTES, os.fstat(self.descriptor).st_blocks * 512)

    def reserve(self, lengths: Sequence[int]) -> list[int]:
        """Take places at the end for values of these lengths, which ``write`` or another process fills; return their offsets."""
        ends = list(accumulate((length + TRAILER_BYTES for length in lengths), initial=self._end))
        entries_on = self._entries_on
        for start, end in pairwise(ends):
            first, last = start // PAGE_BYTES, (end - 1) // PAGE_BYTES
            before = entries_on.get(first, 0)
            entries_on[first] = before + 1
            self._num_pages += last - first + (not before)
            if last != first:
                entries_on[last] = 1
        self._end = ends.pop()
        return ends

    def append(self, entries: Sequence[tuple[bytes, Buffer]]) -> list[int]:
        """Write keys and values at the end; return the offsets of the values.

        Raises:
            OSError: The file system is full; nothing was appended.
        """
        values = [memoryview(value).cast("B") for _, value in entries]
        start = self._end
        offsets = self.reserve([len(value) for value in values])
        parts: list[Buffer] = []
        for (key, _), value in zip(entries, values, strict=True):
            parts += (value, trailer(key, xxh3_64_digest(value) if self._sums else _NO_SUM))
        try:
            write_parts(self.descriptor, parts, start)
        except OSError:
            for offset, value in zip(offsets, values, strict=True):
                self._leave_pages(offset, len(value))
            self._end = start
            os.ftruncate(self.descriptor, start)
            raise
        return offsets

    def free(self, places: Iterable[tuple[int, int]], *, were_named: bool = True) -> None:
        """Give the pages of entries back, which the index does not name.

        Args:
            places: Offsets and lengths of their values.
            were_named: The index named them, so that readers may be there.
        """
        free: list[tuple[int, int]] = []
        for offset, length in sorted(places):
            if were_named:
                os.pwrite(self.descriptor, _NO_TRAILER, offset + length)
            start, end = self._leave_pages(offset, length)
            if free and free[-1][1] == start:
                free[-1] = (free[-1][0], end)
            elif start < end:
                free.append((start, end))
        for start, end in free:
            self.can_punch &= punch(self.descriptor, start * PAGE_BYTES, (end - start) * PAGE_BYTES)

    def clear(self) -> None:
        """Free everything: readers find nothing any more."""
        os.ftruncate(self.descriptor, 0)
        self._entries_on.clear()
        self._num_pages = 0
        # A reader with an old place finds no entry at it, or one that does not fit the checksum.
        self._end = 0 if self._sums else self._end
        os.ftruncate(self.descriptor, self._end)

    def _punch_gaps(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        """Give back what a writer that was killed had appended and not published, or not freed to the end."""
        order = np.argsort(starts)
        gaps_from = np.concatenate([[0], np.maximum.accumulate(ends[order])])
        gaps_to = np.concatenate([starts[order], [self._end]])
        wide = gaps_to - gaps_from >= PAGE_BYTES
        for start, end in zip(gaps_from[wide].tolist(), gaps_to[wide].tolist(), strict=True):
            punch(self.descriptor, start, end - start)

    def _leave_pages(self, offset: int, length: int) -> tuple[int, int]:
        """Count one entry less on its pages; return the first of those without entries, and the one after the last."""
        first, last = offset // PAGE_BYTES, (offset + length + TRAILER_BYTES - 1) // PAGE_BYTES
        start, end = first, last + 1
        if not self._leave(first):
            start += 1
        if last != first and not self._leave(last):
            end -= 1
        self._num_pages -= max(0, end - start)
        return start, end

    def _leave(self, page: int) -> bool:
        """Count one entry less on a page; return whether it was the last one."""
        left = self._entries_on.get(page, 0) - 1
        if left > 0:
            self._entries_on[page] = left
            return False
        self._entries_on.pop(page, None)
        return True


def trailer(key: bytes, digest: bytes = _NO_SUM) -> bytes:
    """Return the trailer of an entry, with the xxh3-64 of its value where values have checksums."""
    return key + digest


def write_parts(descriptor: int, parts: Sequence[Buffer], offset: int) -> None:
    """Write bytes one after the other, all of them.

    Raises:
        OSError: The file system is full; some may be written.
    """
    at = offset
    for first in range(0, len(parts), _MOST_BUFFERS):
        group = parts[first : first + _MOST_BUFFERS]
        size = sum(len(part) for part in group)
        written = os.pwritev(descriptor, group, at)
        if written < size:
            _write_rest(descriptor, group, written, at + written)
        at += size


def _write_rest(descriptor: int, group: Sequence[Buffer], written: int, at: int) -> None:
    """Write what one ``pwritev`` left: calls write at most 2 GiB, and as much as there is room for."""
    for part in group:
        data = memoryview(part).cast("B")
        if written >= len(data):
            written -= len(data)
            continue
        data, written = data[written:], 0
        while data:
            done = os.pwrite(descriptor, data, at)
            if not done:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data, at = data[done:], at + done
