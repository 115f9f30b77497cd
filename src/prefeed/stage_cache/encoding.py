"""Samples taken apart: for each type a handler that returns a node of the schema and puts the rest into ``Parts``."""

from __future__ import annotations

import ctypes
import pickle
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Final

import numpy as np

from prefeed.stage_cache.layout import ALIGNMENT, MAX_DEPTH, Node, Op
from prefeed.stage_cache.named_types import (
    describe_dtype,
    field_names,
    is_flag,
    is_importable,
    is_named_tuple,
    is_plain_dataclass,
    state_of,
)
from prefeed.stage_cache.plug_ins import Handler, plug_in_handler

_BLOCK_BYTES: Final = 512
"""Byte strings from this length on lie in the payload."""

_SELF_TOLD: Final[frozenset[type]] = frozenset({float, bool, types.NoneType})
"""Types whose every value is plain."""

PATHS: Final = {cls.__name__: cls for cls in (PosixPath, PurePosixPath, PureWindowsPath, Path)}

Copy = Callable[[Any, bytearray, int, int], None]
"""Writes a value's bytes: (value, buffer, offset in it, address of that offset)."""


class RefusedError(Exception):
    """A value cannot be encoded: why, and where in the sample. Becomes a ``CannotEncodeError``."""

    def __init__(self, value: Any, reason: str, *, can_pickle: bool = True) -> None:
        super().__init__(reason)
        self.type_name: str = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        self.reason = reason
        self.can_pickle = can_pickle
        self.where = ""


class Parts:
    """What a sample comes to: values, and blocks of bytes that are copied once the place for them is known."""

    __slots__ = ("allow_pickle", "blocks", "depth", "has_pickle", "payload_bytes", "values")

    def __init__(self, *, allow_pickle: bool) -> None:
        self.values: list[Any] = []
        self.blocks: list[tuple[int, int, Copy, Any]] = []
        self.payload_bytes: int = 0
        self.depth: int = 0
        self.allow_pickle: bool = allow_pickle
        self.has_pickle: bool = False

    def add_block(self, value: Any, num_bytes: int, copy: Copy) -> None:
        """Set room aside for a value's bytes; ``copy`` writes them later."""
        if num_bytes:
            start = self.payload_bytes + -self.payload_bytes % ALIGNMENT
            self.blocks.append((start, num_bytes, copy, value))
            self.payload_bytes = start + num_bytes


def take_apart(value: Any, parts: Parts) -> Node:
    """Add a value to the parts and return its node.

    Raises:
        RefusedError: It cannot be encoded.
    """
    num_values, num_blocks, payload_bytes = len(parts.values), len(parts.blocks), parts.payload_bytes
    try:
        parts.depth += 1
        if parts.depth > MAX_DEPTH:
            raise RefusedError(value, f"is nested in more than {MAX_DEPTH} others, or holds itself", can_pickle=False)
        cls = type(value)
        node = (_HANDLERS.get(cls) or _handler_of(cls, value))(value, parts)
        parts.depth -= 1
        return node
    except RefusedError as err:
        if not (parts.allow_pickle and err.can_pickle):
            raise
        parts.depth -= 1
        del parts.values[num_values:], parts.blocks[num_blocks:]
        parts.payload_bytes = payload_bytes
        return _pickled(value, parts)


def _item(value: Any, parts: Parts, key: Any) -> Node:
    try:
        return take_apart(value, parts)
    except RefusedError as err:
        err.where = f"[{key!r}]{err.where}"
        raise


def _attribute(value: Any, parts: Parts, name: str) -> Node:
    try:
        return take_apart(value, parts)
    except RefusedError as err:
        err.where = f".{name}{err.where}"
        raise


def _handler_of(cls: type, value: Any) -> Handler:
    """Return the handler of a class met for the first time, and keep it."""
    found = _derived(cls) or plug_in_handler(cls)
    if found is None:
        raise RefusedError(value, "has no encoding")
    if _is_by_path(found) and not is_importable(cls):
        raise RefusedError(
            value, "is not found at its import path by another process: define it at the top of a module"
        )
    _HANDLERS[cls] = found
    return found


def _derived(cls: type) -> Handler | None:
    if issubclass(cls, Enum):
        return _flag if is_flag(cls) else _enum
    if issubclass(cls, np.generic):
        return _scalar
    if cls is np.memmap:  # a slice of a mapped file; where its bytes lie is no part of the sample
        return _array
    if is_named_tuple(cls):
        return _named_tuple
    return _dataclass if is_plain_dataclass(cls) else None


def _is_by_path(handler: Handler) -> bool:
    return handler in (_flag, _enum, _named_tuple, _dataclass)


# ---------------------------------------------------------------- values of Python


def _plain(value: Any, parts: Parts) -> Node:
    parts.values.append(value)
    return Op.PLAIN


def _int(value: int, parts: Parts) -> Node:
    if -(2**63) <= value < 2**63:
        parts.values.append(value)
        return Op.PLAIN
    parts.values.append(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    return Op.INT


def _complex(value: complex, parts: Parts) -> Node:
    parts.values.append([value.real, value.imag])
    return Op.COMPLEX


def _text(value: str, parts: Parts) -> Node:
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        parts.values.append(value.encode("utf-8", "surrogatepass"))
        return Op.TEXT
    parts.values.append(value)
    return Op.PLAIN


def _bytes(value: bytes, parts: Parts) -> Node:
    if len(value) < _BLOCK_BYTES:
        parts.values.append(value)
        return Op.PLAIN
    parts.values.append(len(value))
    parts.add_block(value, len(value), copy_buffer)
    return Op.BYTES


def _bytearray(value: bytearray, parts: Parts) -> Node:
    parts.values.append(len(value))
    parts.add_block(value, len(value), copy_buffer)
    return Op.BYTEARRAY


def copy_buffer(value: Any, buffer: bytearray, offset: int, address: int) -> None:
    """Write the bytes of anything with the buffer protocol."""
    with memoryview(buffer) as view:
        view[offset : offset + len(value)] = value


def _path(value: PurePath, parts: Parts) -> Node:
    return [Op.PATH, type(value).__name__, _text(str(value), parts)]


def _enum(value: Enum, parts: Parts) -> Node:
    parts.values.append(value.name)
    return [Op.ENUM, type(value).__module__, type(value).__qualname__]


def _flag(value: Flag, parts: Parts) -> Node:
    return [Op.FLAG, type(value).__module__, type(value).__qualname__, _int(int(value.value), parts)]


# ---------------------------------------------------------------- containers


def _list(value: list[Any], parts: Parts) -> Node:
    if _are_plain(value):
        parts.values.append(value)
        return Op.PLAIN
    start = len(parts.values)
    nodes = [_item(child, parts, index) for index, child in enumerate(value)]
    if any(nodes):
        return [Op.LIST, *nodes]
    parts.values[start:] = [parts.values[start:]]
    return Op.PLAIN


def _tuple(value: tuple[Any, ...], parts: Parts) -> Node:
    start = len(parts.values)
    nodes = [_item(child, parts, index) for index, child in enumerate(value)]
    if any(nodes):
        return [Op.TUPLE, *nodes]
    parts.values[start:] = [parts.values[start:]]
    return Op.PLAIN_TUPLE


def _are_plain(value: list[Any]) -> bool:
    """Return True for long lists of numbers at the speed of C; False says nothing."""
    kinds = set(map(type, value))
    return kinds <= _SELF_TOLD or (kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63)


def _dict(value: dict[Any, Any], parts: Parts) -> Node:
    if not all(type(key) is str and key.isascii() for key in value):
        return _map(Op.MAP, value, parts)
    start = len(parts.values)
    nodes = [_item(child, parts, key) for key, child in value.items()]
    if any(nodes):
        return [Op.DICT, list(value), *nodes]
    parts.values[start:] = [dict(zip(value, parts.values[start:], strict=True))]
    return Op.PLAIN


def _ordered_dict(value: OrderedDict[Any, Any], parts: Parts) -> Node:
    return _map(Op.ORDERED_DICT, value, parts)


def _map(op: Op, value: dict[Any, Any], parts: Parts) -> Node:
    nodes: list[Node] = [op]
    for key, child in value.items():
        nodes += (_item(key, parts, key), _item(child, parts, key))
    return nodes


def _named_tuple(value: Any, parts: Parts) -> Node:
    if getattr(value, "__dict__", None):
        raise RefusedError(value, f"has attributes of its own besides its fields: {', '.join(vars(value))}")
    cls = type(value)
    nodes = [_attribute(child, parts, name) for name, child in zip(cls._fields, value, strict=True)]
    return [Op.NAMED_TUPLE, cls.__module__, cls.__qualname__, list(cls._fields), *nodes]


def _dataclass(value: Any, parts: Parts) -> Node:
    cls = type(value)
    state = state_of(value)
    nodes = [_attribute(child, parts, name) for name, child in state.items()]
    return [Op.DATACLASS, cls.__module__, cls.__qualname__, field_names(cls), list(state), *nodes]


# ---------------------------------------------------------------- numpy


def _array(value: np.ndarray[Any, Any], parts: Parts) -> Node:
    described = _described(value)
    parts.values.append(list(value.shape))
    parts.add_block(value, value.nbytes, _copy_array)
    return [Op.ARRAY, described]


def _copy_array(value: np.ndarray[Any, Any], buffer: bytearray, offset: int, address: int) -> None:
    if value.dtype.names:  # copied field by field, and gaps between fields are not
        ctypes.memset(address, 0, value.nbytes)
    np.ndarray(value.shape, value.dtype, buffer, offset)[...] = value


def _scalar(value: Any, parts: Parts) -> Node:
    if isinstance(value, np.str_):
        return [Op.NUMPY_TEXT, _text(str.__str__(value), parts)]  # numpy's drops zeros at the end
    if isinstance(value, np.bytes_):
        return [Op.NUMPY_BYTES, _bytes(bytes(value), parts)]
    described = _described(value)
    parts.values.append(value.tobytes())
    return [Op.SCALAR, described]


def _described(value: Any) -> Any:
    try:
        return describe_dtype(value.dtype)
    except (ValueError, TypeError) as err:
        raise RefusedError(value, f"cannot be encoded: {err}") from err


# ---------------------------------------------------------------- the rest


def _pickled(value: Any, parts: Parts) -> Node:
    try:
        data = pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as err:
        raise RefusedError(value, f"cannot be pickled either: {err}", can_pickle=False) from err
    parts.has_pickle = True
    parts.values.append(len(data))
    parts.add_block(data, len(data), copy_buffer)
    return Op.PICKLE


def _handlers(handler: Handler, classes: Iterable[type]) -> dict[type, Handler]:
    return dict.fromkeys(classes, handler)


_HANDLERS: Final[dict[type, Handler]] = {
    **_handlers(_plain, _SELF_TOLD),
    **_handlers(_path, PATHS.values()),
    int: _int,
    complex: _complex,
    str: _text,
    bytes: _bytes,
    bytearray: _bytearray,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    OrderedDict: _ordered_dict,
    np.ndarray: _array,
}
"""By exact type; classes that are met later are added."""
