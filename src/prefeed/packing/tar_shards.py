"""WebDataset: tar files in which the files of one sample follow each other."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import CannotPackError, PrefeedError
from prefeed.packing.records import Record, ShardWriter
from prefeed.types import Buffer

_MODE: Final = 0o644


class TarWriter(ShardWriter):
    """Writes one tar file; the same files give the same bytes, whenever and by whomever they are packed."""

    suffix = ".tar"

    def __init__(self, path: Path) -> None:
        """Begin the file."""
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        # GNU's format takes names of any length and any bytes, and sizes beyond 8 GiB.
        self._tar = tarfile.open(  # noqa: SIM115 - closed by flush()
            fileobj=self._file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        )

    def add(self, path: str, data: Buffer) -> int:
        """Append a file; return where its bytes begin."""
        member = tarfile.TarInfo(path)
        member.size, member.mode = len(data), _MODE
        self._tar.addfile(member, io.BytesIO(data))
        return self._tar.offset - _blocks_bytes(len(data))

    @property
    def num_bytes(self) -> int:
        """Length so far."""
        return self._tar.offset

    def flush(self) -> int:
        """Write the end of the archive; return the descriptor to be synced."""
        self._tar.close()
        self._file.flush()
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def room_bytes(sizes: NDArray[np.uint64]) -> int:
    """Return the most bytes that objects of these sizes take, names of usual length: headers and padding included."""
    return int((-(-sizes // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE).sum()) + len(sizes) * 3 * tarfile.BLOCKSIZE


def scan(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yield every regular file of a tar file; links, directories and devices are passed over.

    Paths are relative, as all others are: ``tar -cf x.tar .`` writes ``./`` before each, which is left out.

    Raises:
        CannotPackError: It is compressed, cut off, damaged or no tar file at all.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
                _check_whole(member, end, name)
                path = member.name.removeprefix("./").lstrip("/")
                if member.isreg() and path:
                    yield Record(path, member.offset_data, _read(tar, member, name))
            _check_end(file, tar.offset, name)
    except (tarfile.TarError, ValueError, OverflowError, MemoryError) as err:  # what damaged headers end in
        if isinstance(err, PrefeedError):
            raise
        raise CannotPackError(
            f"{name} is not a tar file, is compressed, or is cut off: {err}; unpack it first"
        ) from err


def _check_whole(member: tarfile.TarInfo, end: int, name: str) -> None:
    """Check that all of a member lies in the file, before memory is taken for it."""
    if member.issparse():
        raise CannotPackError(f"{name}: {member.name} is stored as a sparse file, which is in pieces")
    if member.isreg() and not 0 <= member.size <= end - member.offset_data:
        there = max(0, end - member.offset_data)
        raise CannotPackError(f"{name} is cut off: {there} of {member.size} bytes of {member.name} are there")


def _check_end(file: BinaryIO, offset: int, name: str) -> None:
    """Check that nothing follows: at a header that cannot be read tarfile ends as if it were the last one."""
    file.seek(offset)
    if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise CannotPackError(f"{name} is damaged, or cut off: no header of a file follows after {offset} bytes")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    data = file.read()
    if len(data) != member.size:
        raise CannotPackError(f"{name} is cut off: {len(data)} of {member.size} bytes of {member.name} are there")
    return data


def _blocks_bytes(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
