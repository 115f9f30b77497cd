"""TFRecord: frames with checksums, each holding one ``tf.train.Example`` with the features ``path`` and ``data``.

A frame is the payload's length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes (4), the payload, and the
masked CRC-32C of the payload (4): tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import CannotPackError
from prefeed.packing.records import Record, ShardWriter
from prefeed.types import Buffer

try:
    import google_crc32c

    from prefeed.packing.example import encode_example
except ImportError:  # the other formats do not need them
    _IS_INSTALLED = False
else:
    _IS_INSTALLED = True

FRAME_BYTES: Final = 16
_AROUND_BYTES: Final = 512
"""More bytes than frame, path and tags of one record."""
_LENGTH: Final = struct.Struct("<Q")
_SUM: Final = struct.Struct("<I")
_HEAD_BYTES: Final = _LENGTH.size + _SUM.size


class TfrecordWriter(ShardWriter):
    """Writes one TFRecord file."""

    suffix = ".tfrecord"

    def __init__(self, path: Path) -> None:
        """Begin the file.

        Raises:
            CannotPackError: What the format needs is not installed.
        """
        require_installed()
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._end = 0

    def add(self, path: str, data: Buffer) -> int:
        """Append a file as one record; return where its bytes begin."""
        payload, offset = encode_example(path, bytes(data))
        length = _LENGTH.pack(len(payload))
        self._file.write(length + _SUM.pack(masked_sum(length)))
        self._file.write(payload)
        self._file.write(_SUM.pack(masked_sum(payload)))
        start = self._end + _HEAD_BYTES
        self._end += FRAME_BYTES + len(payload)
        return start + offset

    @property
    def num_bytes(self) -> int:
        """Length so far."""
        return self._end

    def flush(self) -> int:
        """Write what is buffered; return the descriptor to be synced."""
        self._file.flush()
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def room_bytes(sizes: NDArray[np.uint64]) -> int:
    """Return the most bytes that objects of these sizes take, names of usual length included."""
    return int(sizes.sum()) + len(sizes) * _AROUND_BYTES


def scan(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yield the payload of every record; its path is the file's name and its number, six digits or more.

    Raises:
        CannotPackError: A checksum does not fit, or the file is cut off.
    """
    require_installed()
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = number = 0
    while head := file.read(_HEAD_BYTES):
        where = f"record {number} of {name}"
        if len(head) < _HEAD_BYTES or _SUM.unpack_from(head, _LENGTH.size)[0] != masked_sum(head[: _LENGTH.size]):
            raise CannotPackError(f"{where}: no TFRecord file, a compressed one, or a damaged one; unpack it first")
        (size,) = _LENGTH.unpack_from(head)
        there = end - start - FRAME_BYTES
        if size > there:  # before memory is taken for it
            raise CannotPackError(f"{where} is cut off: {max(0, there)} of {size} bytes are there")
        payload, check = file.read(size), file.read(_SUM.size)
        if _SUM.unpack(check)[0] != masked_sum(payload):
            raise CannotPackError(f"{where} is damaged: its bytes are not those of its checksum")
        yield Record(f"{name}/{number:06d}", start + _HEAD_BYTES, payload)
        start += FRAME_BYTES + size
        number += 1


def require_installed() -> None:
    """Raise ``CannotPackError`` when what this format needs is not installed."""
    if not _IS_INSTALLED:
        raise CannotPackError("tfrecord needs google-crc32c and protobuf: pip install 'prefeed[pack]'")


def masked_sum(data: bytes) -> int:
    """Return TensorFlow's masked CRC-32C: turned by 15 bits, plus a constant."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
