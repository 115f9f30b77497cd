"""Data files of two formats: tar files in WebDataset's layout, and TFRecord files. LMDB has a module of its own.

For each format a function frames an object: ``tar_frame`` and ``tfrecord_frame`` return the bytes before and after its own bytes.
Equal objects give equal data files.

A TFRecord frame is the payload's length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes (4), the payload, and
the masked CRC-32C of the payload (4): tensorflow/core/lib/io/record_writer.h. The payload is a ``tf.train.Example`` with the
features ``path`` and ``data``.
"""

from __future__ import annotations

import struct
import tarfile
from typing import Final

from prefeed.errors import CannotPackError
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
