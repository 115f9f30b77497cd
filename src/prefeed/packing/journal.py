"""What of a pack is done: a file that grows by one record for each data file, and is gone when the pack is finished.

A record is its length (4 bytes), the xxh3-64 of its content (8) and the content, msgpack. The first one says what is
packed and how; it is followed by one ``Part`` for each data file, or committed batch, that is whole and in its place.
Whatever follows the last whole record was being written when the process died, and is cut off.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, Self

import msgspec
from xxhash import xxh3_64_intdigest

from prefeed.errors import PackOccupiedError
from prefeed.system.locks import is_named, locked_at_once

JOURNAL_NAME: Final = "prefeed-pack.journal"
_FRAME: Final = struct.Struct("<IQ")
_FORMAT: Final = 1


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is packed, and how: only the same job resumes."""

    source: str
    layout: str
    shard_bytes: int
    seed: int | None
    format: int = _FORMAT

    def describe(self) -> str:
        """Return the job as the options that ask for it."""
        shards = f" --shard-size {self.shard_bytes}" if self.shard_bytes else ""
        shuffle = "" if self.seed is None else f" --shuffle {self.seed}"
        return f"{self.source} --format {self.layout}{shards}{shuffle}"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that are packed, in packing order.

    Attributes:
        file: Name of their data file.
        count: How many.
        signature: Of the listing that they were packed from; see ``order.signature``.
        sizes, checksums: As in the index, 8 bytes each.
        offsets: The same; empty where they are known only at the end (LMDB).
    """

    file: str
    count: int
    signature: bytes
    sizes: bytes
    checksums: bytes
    offsets: bytes = b""


class Journal:
    """The journal of a directory, held with a lock that goes with the process.

    **Ownership.** The code that opens it closes it; ``finish`` removes the file. **Threads and processes.** One at a time.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Read what an open and locked file holds; use ``open``."""
        self._path = path
        self._descriptor = descriptor
        records = _whole_records(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        self._ends = [end for _, end in records]
        self.job = msgspec.msgpack.decode(records[0][0], type=Job) if records else None
        self.parts = [msgspec.msgpack.decode(content, type=Part) for content, _ in records[1:]]

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Return the journal of a directory, an empty one where there was none.

        Raises:
            PackOccupiedError: Another process packs into the directory.
        """
        path = directory / JOURNAL_NAME
        try:
            descriptor = locked_at_once(
                lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644),
                lambda opened: is_named(opened, path),
            )
        except BlockingIOError as err:
            raise PackOccupiedError(f"another process packs into {directory} now; wait for it") from err
        try:
            return cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def begin(self, job: Job) -> None:
        """Start with nothing done."""
        self._cut(0)
        self._append(msgspec.msgpack.encode(job))
        self.job, self.parts = job, []

    def add(self, part: Part) -> None:
        """Note a part that is whole, in its place and on disk."""
        self._append(msgspec.msgpack.encode(part))
        self.parts.append(part)

    def keep(self, count: int) -> None:
        """Forget all parts but the first ``count``."""
        self._cut(count + 1)
        del self.parts[count:]

    def finish(self) -> None:
        """Remove the file: the pack has its index."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let another process continue."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self, num_records: int) -> None:
        del self._ends[num_records:]
        os.ftruncate(self._descriptor, self._ends[-1] if self._ends else 0)

    def _append(self, content: bytes) -> None:
        start = self._ends[-1] if self._ends else 0
        os.ftruncate(self._descriptor, start)
        record = _FRAME.pack(len(content), xxh3_64_intdigest(content)) + content
        written = 0
        while written < len(record):
            written += os.pwrite(self._descriptor, record[written:], start + written)
        os.fsync(self._descriptor)
        self._ends.append(start + len(record))


def _whole_records(data: bytes) -> list[tuple[bytes, int]]:
    """Return the content of each whole record, and where it ends."""
    records: list[tuple[bytes, int]] = []
    start = 0
    while start + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, start)
        end = start + _FRAME.size + length
        content = data[start + _FRAME.size : end]
        if end > len(data) or xxh3_64_intdigest(content) != checksum:
            break
        records.append((content, end))
        start = end
    return records
