"""Plain values, containers and arrays."""

from __future__ import annotations

import itertools
import os
import struct
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import msgspec
import numpy as np

from prefeed.stage.anatomy.parts import Anatomy, Part, UntoldError, attributes
from prefeed.stage.plug_ins import plug_in

# ---------------------------------------------------------------- plain values


def look_at_plain(value: Any) -> Anatomy:
    return Anatomy(kind=type(value).__name__, content=lambda: [repr(value).encode("utf-8", "backslashreplace")])


def look_at_float(value: float) -> Anatomy:
    return Anatomy(kind="float", content=lambda: [struct.pack("<d", value)])


def look_at_complex(value: complex) -> Anatomy:
    return Anatomy(kind="complex", content=lambda: [struct.pack("<dd", value.real, value.imag)])


def look_at_text(value: str) -> Anatomy:
    return Anatomy(kind="str", content=lambda: [value.encode("utf-8", "surrogatepass")])


def look_at_path(value: PurePath) -> Anatomy:
    return Anatomy(kind=type(value).__name__, content=lambda: [str(value).encode("utf-8", "surrogateescape")])


def look_at_bytes(value: bytes | bytearray) -> Anatomy:
    return Anatomy(kind=type(value).__name__, content=lambda: [value])


# ---------------------------------------------------------------- containers

_NUMBERS_AND_TEXTS: Final = frozenset({bool, int, float, str, types.NoneType})


def look_at_sequence(value: list[Any] | tuple[Any, ...]) -> Anatomy:
    kind = type(value).__name__
    shape = _plain_shape(value)
    packed = _packed(list(map(str, value)) if shape.endswith("Path") else value) if shape else None
    if packed is not None:
        return Anatomy(kind=f"{kind} of {shape}", content=lambda: [packed])
    return Anatomy(kind=kind, parts=tuple((f"[{index}]", item) for index, item in enumerate(value)))


def _plain_shape(value: list[Any] | tuple[Any, ...]) -> str:
    """Return what a long list is of, plain values, tuples of them or paths, at the speed of C; "" for other things."""
    kinds = set(map(type, value))
    if kinds <= _NUMBERS_AND_TEXTS:
        return "plain"
    if len(kinds) == 1 and issubclass(next(iter(kinds)), PurePath):
        return next(iter(kinds)).__name__
    if kinds == {tuple} and set(map(type, itertools.chain.from_iterable(value))) <= _NUMBERS_AND_TEXTS:
        return "tuple"
    return ""


def _packed(value: Any) -> bytes | None:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):  # integers of more than 64 bits, lone surrogates
        return None


def look_at_dict(value: dict[Any, Any]) -> Anatomy:
    if set(map(type, value)) <= _NUMBERS_AND_TEXTS and set(map(type, value.values())) <= _NUMBERS_AND_TEXTS:
        packed = _packed(value)
        if packed is not None:
            return Anatomy(kind="dict of plain", content=lambda: [packed])
    return Anatomy(kind="dict", parts=tuple(items_of(value)))


def items_of(value: dict[Any, Any]) -> Iterator[Part]:
    for key, item in value.items():
        yield f"[key {_short(key)}]", key
        yield f"[{_short(key)}]", item


def look_at_set(value: set[Any] | frozenset[Any]) -> Anatomy:
    parts = tuple((f"[{_short(item)}]", item) for item in value)
    return Anatomy(kind=type(value).__name__, parts=parts, is_unordered=True)


def _short(value: Any) -> str:
    return repr(value)[:40] if type(value) in _NUMBERS_AND_TEXTS | {bytes} else f"<{type(value).__name__}>"


# ---------------------------------------------------------------- arrays


def look_at_array(value: np.ndarray[Any, Any]) -> Anatomy:
    if value.dtype.hasobject:
        return Anatomy(kind=f"array {value.dtype} {value.shape}", parts=(("", value.ravel().tolist()),))
    kind = f"{type(value).__name__} {value.dtype.descr if value.dtype.names else value.dtype.str} {value.shape}"
    return Anatomy(kind=kind, content=lambda: [np.ascontiguousarray(value).reshape(-1).view(np.uint8).data])


def look_at_memmap(value: np.memmap[Any, Any]) -> Anatomy:
    if value.mode != "r" or value.filename is None or value.base is not value._mmap:  # type: ignore[attr-defined]
        return look_at_array(value)
    # The whole of a file that is only read: as large as the data, perhaps, and known by its version.
    status = os.stat(value.filename)
    told = (os.fspath(value.filename), value.offset, status.st_size, status.st_mtime_ns)
    return Anatomy(kind=f"mapped {value.dtype.str} {value.shape} {value.strides}", parts=((".filename", told),))


def look_at_number(value: Any) -> Anatomy:
    return Anatomy(kind=f"{type(value).__name__} {value.dtype.str}", content=lambda: [value.tobytes()])


def look_at_tensor(value: Any) -> Anatomy:
    found = plug_in("torch").content_of(value)
    if found is None:
        raise UntoldError(f"its layout is {value.layout}")
    told, content = found
    parts = ((".__class__", type(value)), *attributes(vars(value)))
    return Anatomy(kind=f"tensor {told}", content=lambda: [content()], parts=parts)
