"""Progress of a pack on disk: a file with a line of JSON per step, which is removed when the pack is finished.

The first line is the job. A ``Part`` follows for each data file, or committed batch, that is complete and durable. The rest
after the last whole line was being written when the process died, and is cut off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Self

import msgspec

from prefeed.errors import PackOccupiedError
from prefeed.system.locks import is_named, open_locked

JOURNAL_NAME: Final = "prefeed-pack.journal"


class PackOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a pack: only the same job resumes it."""

    source: str
    layout: str
    shard_bytes: int
    seed: int | None

    def describe(self) -> str:
        """Return the options of the command line for this job."""
        shards = f" --shard-size {self.shard_bytes}" if self.shard_bytes else ""
        shuffle = "" if self.seed is None else f" --shuffle {self.seed}"
        return f"{self.source} --format {self.layout}{shards}{shuffle}"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Objects that are packed, in packing order.

    Attributes:
        file: Name of their data file.
        signature: Hash of their listing; see ``order.signature``.
        sizes, checksums: Columns of the index, one number per object.
        offsets: Column of the index; empty for LMDB, whose offsets are final at the end only.
    """

    file: str
    signature: str
    sizes: list[int]
    checksums: list[int]
    offsets: list[int] = []

    @property
    def count(self) -> int:
        """Number of objects."""
        return len(self.sizes)


class Journal:
    """Journal in a directory, held with a lock that the kernel releases with the process.

    **Ownership.** The code that opens it closes it; ``finish`` removes the file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Read the whole lines of an open and locked file; use ``open``."""
        self._path, self._descriptor = path, descriptor
        self.job: PackOptions | None = None
        self.parts: list[Part] = []
        self._ends = [0]  # of each line
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        while (end := data.find(b"\n", self._ends[-1])) >= 0:
            line = data[self._ends[-1] : end]
            try:
                if self.job is None:
                    self.job = msgspec.json.decode(line, type=PackOptions)
                else:
                    self.parts.append(msgspec.json.decode(line, type=Part))
            except msgspec.DecodeError:
                break
            self._ends.append(end + 1)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the journal of a directory, or create an empty one.

        Raises:
            PackOccupiedError: Another process packs into the directory.
        """
        path = directory / JOURNAL_NAME
        try:
            descriptor = open_locked(
                lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644),
                lambda opened: is_named(opened, path),
            )
        except BlockingIOError as err:
            raise PackOccupiedError(f"another process packs into {directory} now; wait for it") from err
        return cls(path, descriptor)

    def begin(self, job: PackOptions) -> None:
        """Record a job without parts."""
        self._ends, self.job, self.parts = [0], job, []
        self._append(job)

    def add(self, part: Part) -> None:
        """Record a part that is complete and durable."""
        self._append(part)
        self.parts.append(part)

    def keep(self, count: int) -> None:
        """Remove all parts but the first ``count``."""
        del self._ends[count + 2 :], self.parts[count:]
        os.ftruncate(self._descriptor, self._ends[-1])

    def finish(self) -> None:
        """Remove the file, because the pack has its index."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _append(self, step: PackOptions | Part) -> None:
        line, start = msgspec.json.encode(step) + b"\n", self._ends[-1]
        os.ftruncate(self._descriptor, start)
        self._ends.append(start + len(line))
        while line:
            written = os.pwrite(self._descriptor, line, start)
            line, start = line[written:], start + written
        os.fsync(self._descriptor)
