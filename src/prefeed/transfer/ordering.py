"""Sorts listings into key order on disk, and checks the order of stores."""

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
"""Maximum number of objects that are sorted in memory, about 40 MB."""

_LENGTH_BYTES: Final = 4


def check_order(entries: Iterable[Entry], where: str) -> Iterator[Entry]:
    """Yield a listing. Raise an error if it is not in key order without duplicates.

    Raises:
        JobError: The store lists in another order, so that listings cannot be compared.
    """
    last: bytes | None = None  # None, because a key may be the root and a slash, which is the path ""
    for one in entries:
        key = key_of(one.path)
        if last is not None and key <= last:
            raise JobError(f"{where} does not list its objects in the order of their names, which sync needs")
        last = key
        yield one


def sort_on_disk(entries: Iterable[Entry], directory: Path, *, in_memory: int = _IN_MEMORY) -> Iterator[Entry]:
    """Sort a listing into key order. Of equal paths, keep the last.

    Args:
        entries: In any order.
        directory: Directory for temporary files, which have no name.
        in_memory: Maximum number of objects in memory.
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
            last = one  # merge is stable, so the later of equal paths comes last
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
    """Temporary list of entries in an unnamed file, which is freed with this process.

    **Threads**: call ``add`` from one thread or under a lock; call ``close`` last.
    """

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by close()

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        _write(self._file, entry)

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries in the order in which they were added."""
        self._file.seek(0)
        return _read(self._file)

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._file.close()
