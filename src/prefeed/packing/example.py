"""``tf.train.Example`` without TensorFlow: its description, given to protobuf (tensorflow/core/example)."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

_Field = descriptor_pb2.FieldDescriptorProto


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
    _add_list(file, "BytesList", _Field.TYPE_BYTES)
    _add_list(file, "FloatList", _Field.TYPE_FLOAT)
    _add_list(file, "Int64List", _Field.TYPE_INT64)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        message = f".tensorflow.{kind.title().replace('_', '')}"
        _add_field(feature, kind, number, type=_Field.TYPE_MESSAGE, type_name=message, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, type=_Field.TYPE_STRING)
    _add_field(entry, "value", 2, type=_Field.TYPE_MESSAGE, type_name=".tensorflow.Feature")
    field = _add_field(features, "feature", 1, type=_Field.TYPE_MESSAGE)
    field.type_name, field.label = ".tensorflow.Features.FeatureEntry", _Field.LABEL_REPEATED
    example = file.message_type.add(name="Example")
    _add_field(example, "features", 1, type=_Field.TYPE_MESSAGE, type_name=".tensorflow.Features")
    return file


def _add_list(file: Any, name: str, kind: int) -> None:
    field = _add_field(file.message_type.add(name=name), "value", 1, type=kind)
    field.label = _Field.LABEL_REPEATED


def _add_field(message: Any, name: str, number: int, **what: Any) -> Any:
    return message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, **what)
