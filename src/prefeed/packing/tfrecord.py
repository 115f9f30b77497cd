"""TFRecord: frames with checksums, each holding one ``tf.train.Example`` with the features ``path`` and ``data``.

A frame is the payload's length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes (4), the payload, and the
masked CRC-32C of the payload (4): tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import CannotPackError
from prefeed.packing.records import Record, ShardWriter
from prefeed.types import Buffer

try:
    import google_crc32c
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
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
            raise CannotPackError(f"{where}: not a TFRecord file, or compressed, or damaged; unpack it first")
        (size,) = _LENGTH.unpack_from(head)
        there = end - start - FRAME_BYTES
        if size > there:  # before memory is taken for it
            raise CannotPackError(f"{where} is cut off: {max(0, there)} of {size} bytes are there")
        payload, check = file.read(size), file.read(_SUM.size)
        if _SUM.unpack(check)[0] != masked_sum(payload):
            raise CannotPackError(f"{where} is damaged: its bytes do not match its checksum")
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


def encode_example(path: str, data: bytes) -> tuple[bytes, int]:
    """Return an Example with the features ``path`` and ``data``, one ``bytes`` each, and where the data begins in it."""
    example = _example_class()()
    features = example.features.feature
    features["path"].bytes_list.value.append(path.encode("utf-8", "surrogateescape"))
    # The map's keys are written in their order, so "path" comes last: what it takes is what it takes alone.
    after = len(example.features.SerializeToString(deterministic=True))
    features["data"].bytes_list.value.append(data)
    payload: bytes = example.SerializeToString(deterministic=True)
    offset = len(payload) - after - len(data)
    assert payload[offset : offset + len(data)] == data
    return payload, offset


def decode_example(payload: bytes) -> dict[str, bytes]:
    """Return the first ``bytes`` of each feature of an Example."""
    features = _example_class().FromString(payload).features.feature
    return {name: feature.bytes_list.value[0] for name, feature in features.items() if feature.bytes_list.value}


@cache
def _example_class() -> Any:
    pool = descriptor_pool.DescriptorPool()  # Our own: where TensorFlow is imported, the default one has these names.
    pool.Add(_describe())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _describe() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="tensorflow/core/example/example.proto", package="tensorflow", syntax="proto3"
    )
    _add_list(file, "BytesList", descriptor_pb2.FieldDescriptorProto.TYPE_BYTES)
    _add_list(file, "FloatList", descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT)
    _add_list(file, "Int64List", descriptor_pb2.FieldDescriptorProto.TYPE_INT64)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        message = f".tensorflow.{kind.title().replace('_', '')}"
        _add_field(
            feature,
            kind,
            number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
            type_name=message,
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING)
    _add_field(
        entry, "value", 2, type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, type_name=".tensorflow.Feature"
    )
    field = _add_field(features, "feature", 1, type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE)
    field.type_name, field.label = (
        ".tensorflow.Features.FeatureEntry",
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    )
    example = file.message_type.add(name="Example")
    _add_field(
        example, "features", 1, type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, type_name=".tensorflow.Features"
    )
    return file


def _add_list(file: Any, name: str, kind: int) -> None:
    field = _add_field(file.message_type.add(name=name), "value", 1, type=kind)
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def _add_field(message: Any, name: str, number: int, **what: Any) -> Any:
    return message.field.add(name=name, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL, **what)
