"""Listings brought into key order: those of stores are in it, others are sorted on disk a part at a time."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from prefeed.errors import JobError
from prefeed.transfer.entries import Entry, key_of

_IN_MEMORY: Final = 100_000
"""Objects sorted at a time: some 40 MB."""

_LENGTH_BYTES: Final = 4


def check_order(entries: Iterable[Entry], where: str) -> Iterator[Entry]:
    """Yield what a store lists, each path once.

    Raises:
        JobError: It does not list in key order, so that nothing can be compared.
    """
    last: bytes | None = None  # the key of the root and a slash has an empty path
    for one in entries:
        key = key_of(one.path)
        if last is not None and key <= last:
            raise JobError(f"{where} does not list its objects in the order of their names, which sync needs")
        last = key
        yield one


def sort_on_disk(entries: Iterable[Entry], directory: Path, *, in_memory: int = _IN_MEMORY) -> Iterator[Entry]:
    """Yield a listing in key order, each path once; of those that it has twice the last counts.

    Args:
        entries: In any order.
        directory: Where parts lie meanwhile, in files without a name.
        in_memory: Most objects that are in memory.
    """
    runs: list[IO[bytes]] = []
    part: dict[str, Entry] = {}
    try:
        for one in entries:
            part[one.path] = one
            if len(part) >= in_memory:
                runs.append(_write_run(_sort(part), directory))
                part = {}
        parts: list[Iterator[Entry]] = [_read(run) for run in runs]
        last: Entry | None = None
        for one in heapq.merge(*parts, iter(_sort(part)), key=lambda entry: key_of(entry.path)):
            if last is not None and last.path != one.path:
                yield last
            last = one  # merge is stable: of equal paths the later part comes last
        if last is not None:
            yield last
    finally:
        for run in runs:
            run.close()


def _sort(part: dict[str, Entry]) -> list[Entry]:
    return sorted(part.values(), key=lambda entry: key_of(entry.path))


def _write_run(part: list[Entry], directory: Path) -> IO[bytes]:
    file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - the merge closes it
    for one in part:
        _write(file, one)
    file.seek(0)
    return file


def _write(file: IO[bytes], one: Entry) -> None:
    record = msgspec.msgpack.encode((key_of(one.path), *one[1:]))
    file.write(len(record).to_bytes(_LENGTH_BYTES, "little") + record)


def _read(file: IO[bytes]) -> Iterator[Entry]:
    decoder = msgspec.msgpack.Decoder(tuple[bytes, int, int | None, str, bool])
    while length := file.read(_LENGTH_BYTES):
        path, size_bytes, mtime_ns, etag, is_file = decoder.decode(file.read(int.from_bytes(length, "little")))
        yield Entry(path.decode("utf-8", "surrogateescape"), size_bytes, mtime_ns, etag, is_file)


class Spool:
    """Entries put by until the end, in a file without a name: no other process finds it, and it ends with this process.

    **Threads**: ``add`` under a lock of the caller's, or from one thread; ``close`` at the end.
    """

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by close()

    def add(self, entry: Entry) -> None:
        """Put one by."""
        _write(self._file, entry)

    def __iter__(self) -> Iterator[Entry]:
        """Yield all, in the order in which they came."""
        self._file.seek(0)
        return _read(self._file)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
