"""What samples opened while they were read in place: told to the loader's process, so that it need not be learned a second time.

Each worker appends to a row of its own in shared memory. The loader reads the rows when it joins the server, and plans by them as by
a guess: what samples really open is still what counts.

    row     bytes in use
    record  sample, length, checksum, paths separated by NUL
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from prefeed.client.in_place import SharedBytes

ROW_BYTES: Final = 128 * 1024
"""Of each worker: some thousand files."""

_USED: Final = struct.Struct("=q")
_RECORD: Final = struct.Struct("=qqQ")


class SeenFiles:
    """Files by sample.

    **Threads and processes.** Each row has one writer; the loader's process reads, also while others write. Pickles as its memory.
    """

    def __init__(self, memory: SharedBytes) -> None:
        """Use this memory, which begins as zeros: rows of ``ROW_BYTES``."""
        self._memory = memory
        self._bytes: memoryview | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (SeenFiles, (self._memory,))

    def add(self, row: int, sample: int, paths: Sequence[str]) -> None:
        """A sample has opened these files; nothing is kept where there is no such row, or no room in it."""
        data, start = self._view, row * ROW_BYTES
        if not 0 <= start < len(data):
            return
        names = b"\0".join(map(os.fsencode, paths))
        (used,) = _USED.unpack_from(data, start)
        at, end = start + _USED.size + used, start + ROW_BYTES
        if at + _RECORD.size + len(names) > end:
            return
        _RECORD.pack_into(data, at, sample, len(names), xxh3_64_intdigest(names))
        data[at + _RECORD.size : at + _RECORD.size + len(names)] = names
        _USED.pack_into(data, start, used + _RECORD.size + len(names))

    def files(self, *, most: int = sys.maxsize) -> dict[int, tuple[str, ...]]:
        """Return the files of samples seen, the last ones of each; a record that is not whole yet ends its row.

        Args:
            most: Records of each row that are looked at; the default is all.
        """
        data, found = self._view, {}
        for start in range(0, len(data), ROW_BYTES):
            (used,) = _USED.unpack_from(data, start)
            at, end = start + _USED.size, start + _USED.size + min(used, ROW_BYTES - _USED.size)
            for _ in range(most):
                if at + _RECORD.size > end:
                    break
                sample, length, checksum = _RECORD.unpack_from(data, at)
                at += _RECORD.size
                names = bytes(data[at : at + length]) if 0 < length <= end - at else b""
                if not names or xxh3_64_intdigest(names) != checksum:
                    break
                found[sample] = tuple(map(os.fsdecode, names.split(b"\0")))
                at += length
        return found

    @property
    def _view(self) -> memoryview:
        if self._bytes is None:
            self._bytes = memoryview(self._memory.numpy()).cast("B")
        return self._bytes
