"""Plain values, containers and arrays."""

from __future__ import annotations

import itertools
import marshal
import os
import struct
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from prefeed.stage.identity.parts import Anatomy, Part, UntoldError, attributes
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


def look_at_slice(value: slice) -> Anatomy:
    return Anatomy(kind="slice", parts=((".start", value.start), (".stop", value.stop), (".step", value.step)))


def look_at_bytes(value: bytes | bytearray) -> Anatomy:
    return Anatomy(kind=type(value).__name__, content=lambda: [value])


# ---------------------------------------------------------------- containers

_PLAIN: Final = frozenset({bool, int, float, complex, str, types.NoneType})
"""Not bytes: there may be many GB of them, which are not to be copied."""

_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})
_CONTAINERS: Final = _SEQUENCES | {dict}
_PLAIN_OR_CONTAINERS: Final = _PLAIN | _CONTAINERS
_MAX_DEPTH: Final = 32
_MAX_OCCURRENCES: Final = 64
_FEW_CONTAINERS: Final = 1 << 12
"""Of more than these each may occur so often on average: nested lists that hold each other twice have no end otherwise."""


def look_at_sequence(value: list[Any] | tuple[Any, ...]) -> Anatomy:
    if is_plain(value):
        return _whole(value)
    kinds = set(map(type, value))
    if len(kinds) == 1 and issubclass(next(iter(kinds)), PurePath):
        return Anatomy(
            kind=f"{type(value).__name__} of {next(iter(kinds)).__name__}",
            content=lambda: [marshal.dumps(list(map(str, value)), 2)],
        )
    return Anatomy(kind=type(value).__name__, parts=tuple((f"[{index}]", item) for index, item in enumerate(value)))


def is_plain(value: Any) -> bool:
    """Return whether a container holds nothing but numbers, texts and containers of these, found at the speed of C."""
    level: list[Any] = [value]
    num_containers, distinct = 0, set[int]()
    for _ in range(_MAX_DEPTH):
        kinds = set(map(type, level))
        if kinds <= _PLAIN:
            return True
        if not kinds <= _PLAIN_OR_CONTAINERS:
            return False
        level = [item for item in level if type(item) in _CONTAINERS]
        num_containers += len(level)
        distinct.update(map(id, level))
        if num_containers > max(_FEW_CONTAINERS, _MAX_OCCURRENCES * len(distinct)):
            return False
        dicts = [item for item in level if type(item) is dict]
        sequences = level if not dicts else [item for item in level if type(item) is not dict]
        level = [
            *itertools.chain.from_iterable(sequences),
            *itertools.chain.from_iterable(dicts),
            *itertools.chain.from_iterable(map(dict.values, dicts)),
        ]
    return False


def _whole(value: Any) -> Anatomy:
    # Version 2 has no references, so that the bytes depend on values alone, not on which of them are one object; sets
    # are sorted. marshal also takes arrays, as bytes without a type: hence ``is_plain``.
    return Anatomy(kind="plain", content=lambda: [marshal.dumps(value, 2)])


def look_at_dict(value: dict[Any, Any]) -> Anatomy:
    return _whole(value) if is_plain(value) else Anatomy(kind="dict", parts=tuple(items_of(value)))


def items_of(value: dict[Any, Any]) -> Iterator[Part]:
    for key, item in value.items():
        yield f"[key {_short(key)}]", key
        yield f"[{_short(key)}]", item


def look_at_set(value: set[Any] | frozenset[Any]) -> Anatomy:
    if is_plain(value):
        return _whole(value)
    parts = tuple((f"[{_short(item)}]", item) for item in value)
    return Anatomy(kind=type(value).__name__, parts=parts, is_unordered=True)


def _short(value: Any) -> str:
    return repr(value)[:40] if type(value) in _PLAIN | {bytes} else f"<{type(value).__name__}>"


# ---------------------------------------------------------------- arrays


def look_at_array(value: np.ndarray[Any, Any]) -> Anatomy:
    if value.dtype.hasobject:
        return Anatomy(kind=f"array {value.dtype} {value.shape}", parts=(("", value.ravel().tolist()),))
    kind = f"{type(value).__name__} {_dtype_text(value.dtype)} {value.shape}"
    if not value.dtype.itemsize:
        return Anatomy(kind=kind)
    return Anatomy(kind=kind, content=lambda: [np.ascontiguousarray(value).reshape(-1).view(np.uint8).data])


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return repr(dtype) if dtype.names else dtype.str  # fields may overlap, which ``descr`` does not know


def look_at_array_like(value: np.ndarray[Any, Any]) -> Anatomy:
    """Look at an array of a class derived from numpy's: what else it holds counts as well."""
    own = dict(getattr(value, "__dict__", {}))
    if isinstance(value, np.ma.MaskedArray):
        masked = {"mask": np.ma.getmaskarray(value), "fill_value": value.fill_value}
        own = masked | {name: item for name, item in own.items() if name in _OF_MASKED or not name.startswith("_")}
    data = ("", np.asarray(value))
    return Anatomy(kind="array", parts=((".__class__", type(value)), data, *attributes(own)))


_OF_MASKED: Final = frozenset({"_optinfo", "_hardmask"})
"""What else a masked array's result may depend on; the rest of its private attributes follow from its use."""


def look_at_memmap(value: np.memmap[Any, Any]) -> Anatomy:
    if value.mode != "r" or value.filename is None or value.base is not value._mmap:  # type: ignore[attr-defined]
        return look_at_array(value)
    # The whole of a file that is only read: as large as the data, perhaps, and known by its version.
    status = os.stat(value.filename)
    told = (os.fspath(value.filename), value.offset, status.st_size, status.st_mtime_ns)
    kind = f"mapped {_dtype_text(value.dtype)} {value.shape} {value.strides}"
    return Anatomy(kind=kind, parts=((".filename", told),))


def look_at_number(value: Any) -> Anatomy:
    return Anatomy(kind=f"{type(value).__name__} {_dtype_text(value.dtype)}", content=lambda: [value.tobytes()])


def look_at_tensor(value: Any) -> Anatomy:
    found = plug_in("torch").content_of(value)
    if found is None:
        raise UntoldError(f"its layout is {value.layout}")
    told, content = found
    parts = ((".__class__", type(value)), *attributes(vars(value)))
    return Anatomy(kind=f"tensor {told}", content=lambda: [content()], parts=parts)
