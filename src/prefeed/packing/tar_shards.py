"""WebDataset: tar files in which the files of one sample follow each other."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import CannotPackError
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

    Raises:
        CannotPackError: It is compressed, cut off or no tar file at all.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
                if member.issparse():
                    raise CannotPackError(f"{name}: {member.name} is stored as a sparse file, which is in pieces")
                if member.isreg():
                    yield Record(member.name, member.offset_data, _read(tar, member, name))
    except tarfile.TarError as err:
        raise CannotPackError(f"{name} is no tar file, a compressed one, or cut off: {err}; unpack it first") from err


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    data = file.read()
    if len(data) != member.size:
        raise CannotPackError(f"{name} is cut off: {len(data)} of {member.size} bytes of {member.name} are there")
    return data


def _blocks_bytes(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
