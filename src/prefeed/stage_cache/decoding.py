"""Samples put together: a schema is compiled into nested functions once, and these read values and payload in turn.

Nothing here trusts the bytes: lengths are checked against what is there before anything is made, and of classes only
those are touched that ``named_types.py`` calls harmless.
"""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from prefeed.stage_cache.encoding import PATHS
from prefeed.stage_cache.layout import ALIGNMENT, MAX_DEPTH, Node, Op
from prefeed.stage_cache.named_types import (
    class_at,
    dtype_of,
    field_names,
    is_enum,
    is_flag,
    is_named_tuple,
    is_plain_dataclass,
    rebuild,
)
from prefeed.stage_cache.plug_ins import CompileNode, Reader, plug_in


class Source:
    """An entry being decoded: what is next of its values and of its payload."""

    __slots__ = ("_address", "allow_pickle", "buffer", "copy", "end", "next_start", "used", "values")

    def __init__(
        self, buffer: memoryview, start: int, end: int, values: Iterator[Any], *, copy: bool, allow_pickle: bool
    ) -> None:
        self.buffer: memoryview = buffer  # read-only
        self.next_start: int = start
        self.used: int = start
        self.end: int = end
        self.values: Iterator[Any] = values
        self.copy: bool = copy
        self.allow_pickle: bool = allow_pickle
        self._address = 0

    def take(self, num_bytes: int) -> int:
        """Return the offset of the next block.

        Raises:
            ValueError: The entry has not that many bytes left.
        """
        start = self.next_start
        if num_bytes == 0:
            return start if start <= self.end else self.end
        end = start + num_bytes
        if num_bytes < 0 or end > self.end:
            raise ValueError(f"a block of {num_bytes} bytes where {max(0, self.end - start)} are left")
        self.used = end
        self.next_start = end + -num_bytes % ALIGNMENT
        return start

    def take_array(self, itemsize: int) -> tuple[tuple[int, ...], int, int]:
        """Return shape, offset and size in bytes of the next array.

        Raises:
            ValueError: The entry has not that many bytes left.
        """
        shape = tuple(next(self.values))
        if shape and min(shape) < 0:
            raise ValueError(f"an array of shape {shape}")
        num_bytes = itemsize * math.prod(shape)
        return shape, self.take(num_bytes), num_bytes

    @property
    def address(self) -> int:
        """Where the entry lies in memory."""
        if not self._address:
            self._address = np.frombuffer(self.buffer, np.uint8).ctypes.data
        return self._address

    def finish(self) -> None:
        """Check that nothing is left over.

        Raises:
            ValueError: Something is.
        """
        if self.used != self.end or next(self.values, self) is not self:
            raise ValueError("values or bytes are left over")


def compile_schema(node: Node) -> Reader:
    """Return what reads a sample of this schema.

    Raises:
        ValueError: There is no such node, or a class in it is not there or not what it was.
        TypeError, KeyError, AttributeError, ImportError: Likewise.
    """
    return _compile(node, 0)


def _compile(node: Node, depth: int) -> Reader:
    if depth > MAX_DEPTH:
        raise ValueError("a schema nested too deep")
    if isinstance(node, int):
        return _ATOMS[Op(node)]
    return _COMPILERS[Op(node[0])](node, lambda child: _compile(child, depth + 1))


# ---------------------------------------------------------------- nodes without children


def _plain(source: Source) -> Any:
    return next(source.values)


def _plain_tuple(source: Source) -> Any:
    return tuple(next(source.values))


def _int(source: Source) -> int:
    return int.from_bytes(next(source.values), "little", signed=True)


def _complex(source: Source) -> complex:
    real, imag = next(source.values)
    return complex(real, imag)


def _text(source: Source) -> str:
    return str(next(source.values), "utf-8", "surrogatepass")


def _block(source: Source) -> memoryview:
    num_bytes = next(source.values)
    start = source.take(num_bytes)
    return source.buffer[start : start + num_bytes]


def _bytes(source: Source) -> bytes:
    return bytes(_block(source))


def _bytearray(source: Source) -> bytearray:
    return bytearray(_block(source))


def _unpickled(source: Source) -> Any:
    if not source.allow_pickle:
        raise ValueError("it holds pickled values, which are decoded where codec='pickle' allows it")
    return pickle.loads(_block(source))  # noqa: S301 - opted into, for a store of the user's own


# ---------------------------------------------------------------- containers


def _tuple(node: list[Any], compile_node: CompileNode) -> Reader:
    readers = [compile_node(child) for child in node[1:]]
    return lambda source: tuple([read(source) for read in readers])


def _list(node: list[Any], compile_node: CompileNode) -> Reader:
    readers = [compile_node(child) for child in node[1:]]
    return lambda source: [read(source) for read in readers]


def _dict(node: list[Any], compile_node: CompileNode) -> Reader:
    readers = [compile_node(child) for child in node[2:]]
    items = list(zip(map(str, node[1]), readers, strict=True))
    return lambda source: {key: read(source) for key, read in items}


def _map(node: list[Any], compile_node: CompileNode) -> Reader:
    readers = [compile_node(child) for child in node[1:]]
    pairs = list(zip(readers[::2], readers[1::2], strict=True))
    cls: type[dict[Any, Any]] = dict if node[0] == Op.MAP else OrderedDict
    return lambda source: cls([(read_key(source), read(source)) for read_key, read in pairs])


def _named_tuple(node: list[Any], compile_node: CompileNode) -> Reader:
    _, module, qualname, fields, *children = node
    readers = [compile_node(child) for child in children]

    def read(source: Source) -> Any:
        cls = class_at(module, qualname)  # each time: a notebook may define it again
        if not is_named_tuple(cls) or list(cls._fields) != fields or len(readers) != len(fields):
            raise ValueError(f"{module}.{qualname} is no longer the same named tuple")
        return tuple.__new__(cls, [read(source) for read in readers])

    return read


def _dataclass(node: list[Any], compile_node: CompileNode) -> Reader:
    _, module, qualname, fields, names, *children = node
    readers = [compile_node(child) for child in children]

    def read(source: Source) -> Any:
        cls = class_at(module, qualname)
        if not is_plain_dataclass(cls) or field_names(cls) != fields:
            raise ValueError(f"{module}.{qualname} is no longer the same dataclass")
        return rebuild(cls, names, [read(source) for read in readers])

    return read


# ---------------------------------------------------------------- one value each


def _path(node: list[Any], compile_node: CompileNode) -> Reader:
    cls, read = PATHS[node[1]], compile_node(node[2])
    return lambda source: cls(read(source))


def _enum(node: list[Any], compile_node: CompileNode) -> Reader:
    _, module, qualname = node

    def read(source: Source) -> Any:
        cls = class_at(module, qualname)
        if not is_enum(cls):
            raise ValueError(f"{module}.{qualname} is no longer an enum")
        return cls.__members__[next(source.values)]

    return read


def _flag(node: list[Any], compile_node: CompileNode) -> Reader:
    _, module, qualname, child = node
    read_value = compile_node(child)

    def read(source: Source) -> Any:
        cls = class_at(module, qualname)
        if not is_flag(cls):
            raise ValueError(f"{module}.{qualname} is no longer a flag")
        return cls(read_value(source))

    return read


def _array(node: list[Any], compile_node: CompileNode) -> Reader:
    dtype = dtype_of(node[1])

    def read(source: Source) -> np.ndarray[Any, Any]:
        shape, start, _ = source.take_array(dtype.itemsize)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, source.buffer, start)
        return array.copy() if source.copy else array

    return read


def _scalar(node: list[Any], compile_node: CompileNode) -> Reader:
    dtype = dtype_of(node[1])

    def read(source: Source) -> Any:
        data = bytearray(next(source.values))
        if len(data) != dtype.itemsize:
            raise ValueError(f"{len(data)} bytes for a number of {dtype.itemsize}")
        return np.frombuffer(data, dtype)[0]

    return read


def _numpy_text(node: list[Any], compile_node: CompileNode) -> Reader:
    cls, read = (np.str_ if node[0] == Op.NUMPY_TEXT else np.bytes_), compile_node(node[1])
    return lambda source: cls(read(source))


def _plug_in(node: list[Any], compile_node: CompileNode) -> Reader:
    return plug_in(node[1]).reader_of(node, compile_node)


_ATOMS: Final[dict[Op, Reader]] = {
    Op.PLAIN: _plain,
    Op.PLAIN_TUPLE: _plain_tuple,
    Op.INT: _int,
    Op.COMPLEX: _complex,
    Op.TEXT: _text,
    Op.BYTES: _bytes,
    Op.BYTEARRAY: _bytearray,
    Op.PICKLE: _unpickled,
}

_COMPILERS: Final[dict[Op, Callable[[list[Any], CompileNode], Reader]]] = {
    Op.TUPLE: _tuple,
    Op.LIST: _list,
    Op.DICT: _dict,
    Op.MAP: _map,
    Op.ORDERED_DICT: _map,
    Op.NAMED_TUPLE: _named_tuple,
    Op.DATACLASS: _dataclass,
    Op.PATH: _path,
    Op.ENUM: _enum,
    Op.FLAG: _flag,
    Op.ARRAY: _array,
    Op.SCALAR: _scalar,
    Op.NUMPY_TEXT: _numpy_text,
    Op.NUMPY_BYTES: _numpy_text,
    Op.PLUG_IN: _plug_in,
}
