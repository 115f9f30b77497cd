"""The index of a pack: where in which data file each object lies. One file, mapped and never loaded.

::

    head     48 bytes                 magic, length of header and body, digest of both, sum of the head
    header   JSON                     padded with spaces to a multiple of 8 bytes
    sizes    uint64 (n,)              size in bytes
    offsets  uint64 (n,)              where the object begins in its data file
    sums     uint64 (n,)              xxh3-64 of its bytes
    starts   uint64 (n + 1,)          where path i begins in ``paths``
    files    uint32 (n,)              number of the data file in the header's list
    paths    bytes                    UTF-8 with surrogate escapes, ascending, no separators

It is written last, and in one step: a directory with an index is a finished pack. The head tells in one short request
which pack this is.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128

from prefeed.errors import StoreFormatError
from prefeed.sources.listing import ENCODING
from prefeed.types import Buffer, ObjectInfo

INDEX_NAME: Final = "prefeed-pack.index"
HEAD_BYTES: Final = 48

_MAGIC: Final = b"PFPACK\x00\x01"
_HEAD: Final = struct.Struct("<8sQQ16s")
_SUM: Final = struct.Struct("<Q")
_BATCH: Final = 1000
_MOST_BYTES: Final = 2**62
"""Sizes and offsets are below; what calculates with them may use signed numbers."""


class PackHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the header holds.

    Attributes:
        layout: ``lmdb``, ``webdataset`` or ``tfrecord``.
        num_objects: Number of objects.
        total_bytes: Their size in bytes.
        path_bytes: Length of ``paths``.
        data_files: Names of the data files, relative to the pack's directory.
        made_from: URL of the packed directory, and the options.
        listing: Stands for the listing of what was packed.
    """

    layout: str
    data_files: list[str]
    num_objects: int = 0
    total_bytes: int = 0
    path_bytes: int = 0
    made_from: str = ""
    listing: str = ""


class Extent(NamedTuple):
    """Where one object lies: its data file, offset and size in bytes, and the xxh3-64 of its bytes."""

    file: str
    offset: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of an index: how long the rest is, and what stands for all of it."""

    header_bytes: int
    body_bytes: int
    digest: bytes

    @classmethod
    def decode(cls, data: Buffer, where: str) -> Head:
        """Return the head.

        Raises:
            StoreFormatError: The bytes are not the beginning of an index.
        """
        if len(data) != HEAD_BYTES or bytes(data[:6]) != _MAGIC[:6]:
            raise StoreFormatError(f"{where} is not the index of a pack")
        magic, header_bytes, body_bytes, digest = _HEAD.unpack_from(data)
        if _SUM.unpack_from(data, _HEAD.size)[0] != xxh3_64_intdigest(bytes(data[: _HEAD.size])):
            raise StoreFormatError(f"{where} is damaged: its head is not what was written; make the pack again")
        if magic != _MAGIC:
            raise StoreFormatError(f"{where} has another layout than this version of prefeed reads")
        return cls(header_bytes, body_bytes, digest)

    def encode(self) -> bytes:
        """Return the bytes of the head."""
        packed = _HEAD.pack(_MAGIC, self.header_bytes, self.body_bytes, self.digest)
        return packed + _SUM.pack(xxh3_64_intdigest(packed))

    @property
    def total_bytes(self) -> int:
        """Length of the whole index."""
        return HEAD_BYTES + self.header_bytes + self.body_bytes


class PackIndex:
    """One index, mapped or in memory. Opening it reads the header only, whatever the number of objects.

    **Threads and processes.** Read-only: shared by all threads and inherited by forked children.

    Attributes:
        head: Its first bytes.
        header: What the pack is.
        sizes, offsets, checksums: See the module, shape (num_objects,), uint64.
        files: Number of each object's data file, shape (num_objects,), uint32.
    """

    __slots__ = ("_paths", "_starts", "_view", "checksums", "files", "head", "header", "offsets", "sizes", "where")

    def __init__(self, view: memoryview, where: str) -> None:
        """Read an index from its bytes; ``where`` names it in messages.

        Raises:
            StoreFormatError: It is none, or not a whole one.
        """
        self.where: str = where
        self._view = view
        self.head: Head = Head.decode(view[:HEAD_BYTES], where)
        if len(view) != self.head.total_bytes:
            raise StoreFormatError(f"{where} is damaged: {len(view)} bytes, {self.head.total_bytes} expected")
        self.header: PackHeader = _decode_header(view[HEAD_BYTES : HEAD_BYTES + self.head.header_bytes], where)
        count, body = self.header.num_objects, view[HEAD_BYTES + self.head.header_bytes :]
        is_possible = count >= 0 and self.header.path_bytes >= 0
        if not is_possible or len(body) != (4 * count + 1) * 8 + count * 4 + self.header.path_bytes:
            raise StoreFormatError(f"{where} is damaged: {len(body)} bytes cannot be {count} objects")
        numbers = np.frombuffer(body, np.uint64, 4 * count + 1)
        self.sizes, self.offsets, self.checksums = numbers[: 3 * count].reshape(3, count)  # (3, num_objects)
        self._starts = numbers[3 * count :]
        self.files = np.frombuffer(body, np.uint32, count, numbers.nbytes)
        self._paths = body[numbers.nbytes + self.files.nbytes :]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PackIndex:
        """Return the index in a file of a local disk, mapped.

        Raises:
            FileNotFoundError: There is no such file.
            StoreFormatError: It is no index, or not a whole one.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < HEAD_BYTES:
                raise StoreFormatError(f"{os.fspath(path)} is not the index of a pack")
            return cls(memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), os.fspath(path))
        finally:
            os.close(descriptor)

    def __len__(self) -> int:
        """Return the number of objects."""
        return self.header.num_objects

    @property
    def name(self) -> str:
        """32 hexadecimal digits that stand for all of the index."""
        return self.head.digest.hex()

    def path_bytes(self, index: int) -> bytes:
        """Return the path of an object as it stands in the file."""
        return bytes(self._paths[self._starts[index] : self._starts[index + 1]])

    def path(self, index: int) -> str:
        """Return the path of an object."""
        return self.path_bytes(index).decode(*ENCODING)

    def find(self, path: str) -> int | None:
        """Return the number of the object with this path; None if the pack has none."""
        wanted = path.encode(*ENCODING)
        index = bisect_left(range(len(self)), wanted, key=self.path_bytes)
        return index if index < len(self) and self.path_bytes(index) == wanted else None

    def extent(self, index: int) -> Extent:
        """Return where an object lies.

        Raises:
            StoreFormatError: It lies in a file that the header does not name.
        """
        number = int(self.files[index])
        if number >= len(self.header.data_files):
            raise StoreFormatError(f"{self.where} is damaged: object {index} lies in data file {number}")
        where = int(self.offsets[index]), int(self.sizes[index]), int(self.checksums[index])
        return Extent(self.header.data_files[number], *where)

    def infos(self) -> Iterable[list[ObjectInfo]]:
        """Yield all objects in order of their paths, in batches; the version of each is the sum of its bytes."""
        for start in range(0, len(self), _BATCH):
            batch = range(start, min(start + _BATCH, len(self)))
            yield [
                ObjectInfo(path=self.path(i), size_bytes=int(self.sizes[i]), version=version_of(int(self.checksums[i])))
                for i in batch
            ]

    def validate(self) -> None:
        """Compare all bytes with the digest in the head, and look whether they can be an index; reads all of it.

        Raises:
            StoreFormatError: They are not what was written, or were not written by prefeed.
        """
        if xxh3_128(self._view[HEAD_BYTES:]).digest() != self.head.digest:
            raise StoreFormatError(f"{self.where} is damaged: it is not what was written; make the pack again")
        steps = np.diff(self._starts.astype(np.int64))
        ends = np.maximum(self.sizes, self.offsets)
        if not (
            int(self._starts[0]) == 0
            and int(self._starts[-1]) == self.header.path_bytes
            and bool((steps > 0).all())
            and int(self.files.max(initial=0)) < max(1, len(self.header.data_files))
            and int(ends.max(initial=0)) < _MOST_BYTES
        ):
            raise StoreFormatError(f"{self.where} is no index that prefeed wrote: its columns cannot be; make it again")


def version_of(checksum: int) -> str:
    """Return the version of an object whose bytes have this sum."""
    return f"{checksum:016x}"


def encode_index(
    header: PackHeader,
    *,
    sizes: NDArray[np.uint64],
    offsets: NDArray[np.uint64],
    checksums: NDArray[np.uint64],
    files: NDArray[np.uint32],
    starts: NDArray[np.uint64],
    paths: Buffer,
) -> list[Buffer]:
    """Return the bytes of an index in pieces, to be written one after the other.

    Raises:
        ValueError: The shapes do not fit the header.
    """
    count = header.num_objects
    columns: list[NDArray[Any]] = [
        *(np.ascontiguousarray(column, np.uint64) for column in (sizes, offsets, checksums, starts)),
        np.ascontiguousarray(files, np.uint32),
    ]
    lengths = [len(column) for column in columns]
    if lengths != [count, count, count, count + 1, count] or len(paths) != header.path_bytes:
        raise ValueError(f"columns of {lengths} and {len(paths)} bytes of paths are no index of {count} objects")
    text = msgspec.json.encode(header)
    body: list[Buffer] = [text + b" " * (-len(text) % 8), *(column.data.cast("B") for column in columns), paths]
    digest = xxh3_128()
    for part in body:
        digest.update(part)
    head = Head(len(body[0]), sum(map(len, body[1:])), digest.digest())
    return [head.encode(), *body]


def _decode_header(data: memoryview, where: str) -> PackHeader:
    try:
        header = msgspec.json.decode(data, type=PackHeader)
    except msgspec.DecodeError as err:
        raise StoreFormatError(f"{where} is damaged: {err}") from err
    for name in header.data_files:  # an index may come from anywhere: it names files beside it, and no others
        if name.startswith("/") or ".." in name.split("/"):
            raise StoreFormatError(f"{where} names a data file outside of its directory: {name!r}")
    return header
