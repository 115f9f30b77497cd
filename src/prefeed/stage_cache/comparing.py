"""Compares rows: two samples are the same if all their values are, bit for bit.

Equal samples can have unequal pickles: pickle writes a string that occurs twice in a sample once if it is one object. So rows
with other bytes are loaded, and their values are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pickle import PickleBuffer
from typing import Any, Final

import numpy as np

from prefeed.errors import EntryFormatError
from prefeed.stage_cache.rows import Row, reduce
from prefeed.types import Buffer

_MAX_TEXT: Final = 40
_BYTES: Final = "its bytes"


def difference(kept: Buffer, fresh: Buffer) -> str | None:
    """Return the first difference of two rows, their notes left out; None if their samples are the same, bit for bit.

    Returns:
        The place in the sample, and its type, dtype, shape, length, key or first element in both rows.
    """
    one, other = Row.open(memoryview(kept)), Row.open(memoryview(fresh))
    if one.has_bytes_of(other):
        return None
    try:
        return _compare(one.load(), other.load(), "sample")
    except (EntryFormatError, RecursionError):
        return _BYTES


def _compare(one: Any, other: Any, where: str) -> str | None:
    """Return the first difference of two values."""
    if type(one) is not type(other):
        return f"{where}: type {type(one).__qualname__}, now {type(other).__qualname__}"
    if type(one) in _BITS:
        return None if _BITS[type(one)](one) == _BITS[type(other)](other) else _both(one, other, where)
    found = None
    if isinstance(one, dict):
        found = _compare_dicts(one, other, where)
    elif isinstance(one, list | tuple):
        found = _compare_items(one, other, where)
    elif hasattr(one, "__array__") or hasattr(one, "__array_interface__"):
        found = _compare_arrays(one, other, where)
    is_whole = type(one) in (dict, list, tuple, np.ndarray)
    return found if found is not None or is_whole else _compare_reduced(one, other, where)


def _compare_dicts(one: dict[Any, Any], other: dict[Any, Any], where: str) -> str | None:
    if list(one) != list(other):
        odd = next((key for key in [*one, *other] if (key in one) != (key in other)), None)
        return f"{where}: the order of its keys" if odd is None else f"{where}: key {_short(odd)}"
    return _first(_compare(one[key], other[key], f"{where}[{key!r}]") for key in one)


def _compare_items(one: Any, other: Any, where: str) -> str | None:
    if len(one) != len(other):
        return f"{where}: length {len(one)}, now {len(other)}"
    return _first(_compare(a, b, f"{where}[{at}]") for at, (a, b) in enumerate(zip(one, other, strict=True)))


def _compare_reduced(one: Any, other: Any, where: str) -> str | None:
    """Compare the parts that pickle would write: the state, the items and the arguments of both values."""
    parts, other_parts = _pickled_parts(one), _pickled_parts(other)
    if parts is None or other_parts is None:
        return None if _are_equal(one, other) else _both(one, other, where)
    return _first(_compare(a, b, where) for a, b in zip(parts, other_parts, strict=False))


def _pickled_parts(value: Any) -> list[Any] | None:
    """Return the parts of a value that pickle writes; None for classes, functions and modules, which it writes by name."""
    try:
        reduced: tuple[Any, ...] | str = reduce(value)
    except Exception:  # noqa: BLE001 - raised by a class of the user's
        return None
    if isinstance(reduced, str):
        return [reduced]
    args = reduced[1]
    state, items, pairs = (*reduced[2:5], *[None] * (5 - len(reduced)))[:3]
    return [state, list(items or ()), dict(pairs or ()), len(args), *args]


def _compare_arrays(first: Any, second: Any, where: str) -> str | None:
    """Compare arrays, tensors and images by their elements, as far as numpy has them."""
    try:
        one, other = np.asarray(first), np.asarray(second)
    except Exception:  # noqa: BLE001 - a layout or a type that numpy does not have
        return None
    for name in ("dtype", "shape"):
        was, now = (getattr(value, name, getattr(array, name)) for value, array in ((first, one), (second, other)))
        if was != now:
            return f"{where}: {name} {_plain(was)}, now {_plain(now)}"
    if one.dtype.hasobject:
        return _compare(one.tolist(), other.tolist(), where)
    if not one.size:
        return None
    rows = [np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8).reshape(one.size, -1) for array in (one, other)]
    differs = (rows[0] != rows[1]).any(axis=1)
    if not differs.any():
        return None
    at = tuple(map(int, np.unravel_index(int(differs.argmax()), one.shape)))
    count = int(differs.sum())
    place = f"{where}[{', '.join(map(str, at))}]" if at else where
    return f"{place}: {one[at]}, now {other[at]} ({count} of {one.size} elements differ)"


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - raised by a class of the user's
        return False


def _both(one: Any, other: Any, where: str) -> str:
    return f"{where}: {_BYTES}" if isinstance(one, PickleBuffer) else f"{where}: {_short(one)}, now {_short(other)}"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


_BITS: Final[dict[type, Any]] = {
    **dict.fromkeys((int, str, bytes, bytearray, bool, type(None), set, frozenset), lambda value: value),
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<dd", value.real, value.imag),
    PickleBuffer: lambda value: bytes(value.raw()),
}
"""Plain types, each with a function that returns equal results for equal bits only."""
