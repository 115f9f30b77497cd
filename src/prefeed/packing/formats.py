"""Data files of two formats: tar files in WebDataset's layout, and TFRecord files. LMDB has a module of its own.

For each format there is a function that frames an object (``tar_frame``, ``tfrecord_frame``: the bytes before and after its own
bytes) and one that yields the objects of a data file (``scan_tar``, ``scan_tfrecord``). Equal objects give equal data files.

A TFRecord frame is the payload's length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes (4), the payload, and
the masked CRC-32C of the payload (4): tensorflow/core/lib/io/record_writer.h. The payload is a ``tf.train.Example`` with the
features ``path`` and ``data``.
"""

from __future__ import annotations

import os
import struct
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from prefeed.errors import CannotPackError, PrefeedError
from prefeed.sources.listing import ENCODING
from prefeed.types import Buffer

try:
    import google_crc32c
except ImportError:  # the other formats do not need it
    _IS_INSTALLED = False
else:
    _IS_INSTALLED = True

_MODE: Final = 0o644
_END_BYTES: Final = 2 * tarfile.BLOCKSIZE
_LENGTH: Final = struct.Struct("<Q")
_SUM: Final = struct.Struct("<I")
_HEAD_BYTES: Final = _LENGTH.size + _SUM.size


class PackedObject(NamedTuple):
    """Object in a data file: its path, the offset of its bytes, and these bytes."""

    path: str
    offset: int
    data: Buffer


# ---------------------------------------------------------------- tar


def tar_frame(path: str, data: Buffer) -> tuple[bytes, bytes]:
    """Return the header of a file in a tar file, and the padding after its bytes.

    GNU's format takes names of any length and any bytes, and sizes beyond 8 GiB.
    """
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), _MODE
    return member.tobuf(tarfile.GNU_FORMAT, *ENCODING), bytes(-len(data) % tarfile.BLOCKSIZE)


def tar_end(num_bytes: int) -> bytes:
    """Return the end of a tar file of ``num_bytes``: two empty blocks, and zeros up to a whole record."""
    return bytes(_END_BYTES + -(num_bytes + _END_BYTES) % tarfile.RECORDSIZE)


def scan_tar(file: BinaryIO, name: str) -> Iterator[PackedObject]:
    """Yield each regular file of a tar file; links, directories and devices are passed over.

    Paths are relative, as all others are: ``tar -cf x.tar .`` writes ``./`` before each, which is left out.

    Raises:
        CannotPackError: The file is compressed, cut off, damaged or not a tar file.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
                _require_whole(member, end, name)
                path = member.name.removeprefix("./").lstrip("/")
                if member.isreg() and path:
                    content = tar.extractfile(member)
                    assert content is not None
                    yield PackedObject(path, member.offset_data, content.read())
            # At a header that cannot be read, tarfile ends as if it were the last one.
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise CannotPackError(
                    f"{name} is damaged, or cut off: no header of a file follows at byte {tar.offset}"
                )
    except (tarfile.TarError, ValueError, OverflowError, MemoryError) as err:  # the errors of damaged headers
        if isinstance(err, PrefeedError):
            raise
        raise CannotPackError(
            f"{name} is not a tar file, is compressed, or is cut off: {err}; unpack it first"
        ) from err


def _require_whole(member: tarfile.TarInfo, end: int, name: str) -> None:
    """Check that the file has all bytes of a member, before memory is allocated for them."""
    if member.issparse():
        raise CannotPackError(f"{name}: {member.name} is stored as a sparse file, which is in pieces")
    if member.isreg() and not 0 <= member.size <= end - member.offset_data:
        there = max(0, end - member.offset_data)
        raise CannotPackError(f"{name} is cut off: {there} of {member.size} bytes of {member.name} are there")


# ---------------------------------------------------------------- TFRecord


def require_crc32c() -> None:
    """Raise ``CannotPackError`` if the checksums of TFRecord files cannot be computed."""
    if not _IS_INSTALLED:
        raise CannotPackError("tfrecord needs google-crc32c: pip install 'prefeed[pack]'")


def tfrecord_frame(path: str, data: Buffer) -> tuple[bytes, bytes]:
    """Return the beginning of a record up to the object's bytes, and the checksum after them."""
    head = _example_head(path.encode(*ENCODING), len(data))
    length = _LENGTH.pack(len(head) + len(data))
    return length + _masked(google_crc32c.value(length)) + head, _masked(
        google_crc32c.extend(google_crc32c.value(head), bytes(data))
    )


def scan_tfrecord(file: BinaryIO, name: str) -> Iterator[PackedObject]:
    """Yield the payload of each record; its path is the file's name and its number, six digits or more.

    Raises:
        CannotPackError: A checksum does not match, or the file is cut off.
    """
    require_crc32c()
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = number = 0
    while head := file.read(_HEAD_BYTES):
        where = f"record {number} of {name}"
        if len(head) < _HEAD_BYTES or head[_LENGTH.size :] != _masked(google_crc32c.value(head[: _LENGTH.size])):
            raise CannotPackError(f"{where}: not a TFRecord file, or compressed, or damaged; unpack it first")
        (size,) = _LENGTH.unpack_from(head)
        there = end - start - _HEAD_BYTES - _SUM.size
        if size > there:  # before memory is allocated for it
            raise CannotPackError(f"{where} is cut off: {max(0, there)} of {size} bytes are there")
        payload = file.read(size)
        if file.read(_SUM.size) != _masked(google_crc32c.value(payload)):
            raise CannotPackError(f"{where} is damaged: its bytes do not match its checksum")
        yield PackedObject(f"{name}/{number:06d}", start + _HEAD_BYTES, payload)
        start += _HEAD_BYTES + size + _SUM.size
        number += 1


def _masked(crc: int) -> bytes:
    """Encode a CRC-32C with TensorFlow's mask: rotated by 15 bits, plus a constant."""
    return _SUM.pack((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _example_head(path: bytes, size: int) -> bytes:
    """Encode a ``tf.train.Example`` of two features up to the value of the last one, of ``size`` bytes."""
    return _field(1, _feature(b"path", path) + _feature(b"data", b"", size), size)


def _feature(name: bytes, value: bytes, size: int = 0) -> bytes:
    """Encode an entry of ``Features.feature`` that holds one ``bytes``; ``size`` bytes of the value follow."""
    feature = _field(1, _field(1, value, size), size)  # Feature.bytes_list, BytesList.value
    return _field(1, _field(1, name) + _field(2, feature, size), size)


def _field(number: int, content: bytes, size: int = 0) -> bytes:
    """Encode a field of Protocol Buffers that has a length; ``size`` bytes of its content follow."""
    length, rest = bytearray(), len(content) + size
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + content
