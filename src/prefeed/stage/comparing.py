"""Whether two makings of one sample are the same, bit for bit, and in what they differ."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from prefeed.errors import EntryFormatError
from prefeed.stage.codec import decode
from prefeed.stage.layout import Header, unpack_header
from prefeed.types import Buffer

_SHOWN: Final = 40


def difference(kept: Buffer, fresh: Buffer, *, allow_pickle: bool = False) -> str | None:
    """Return in what two entries differ, their notes left out; None when they are the same, bit for bit.

    What is pickled may have other bytes and be equal: there ``==`` decides.

    Args:
        kept: An entry.
        fresh: What it is compared with.
        allow_pickle: Decode pickled values, in order to say in what they differ.

    Returns:
        A few words for people: where in the sample, and what: type, dtype, shape, length, key, or the first element.
    """
    one, other = memoryview(kept), memoryview(fresh)
    headers = unpack_header(one), unpack_header(other)
    if _content(one, headers[0]) == _content(other, headers[1]):
        return None
    try:
        values = [
            decode(view, header, allow_pickle=allow_pickle) for view, header in zip((one, other), headers, strict=True)
        ]
    except EntryFormatError:
        return "its bytes"
    if headers[0].has_pickle and headers[1].has_pickle and _are_equal(*values):
        return None
    return _difference(values[0], values[1], "sample") or "its bytes"


def _content(view: memoryview, header: Header) -> tuple[memoryview, memoryview]:
    return view[header.note_end : header.values_end], view[header.payload_start : header.payload_end]


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - whatever the comparison of a class of the user's makes of it
        return False


def _difference(one: Any, other: Any, where: str) -> str | None:
    """Return the first difference of two decoded values."""
    if type(one) is not type(other):
        return f"{where}: type {type(one).__qualname__}, now {type(other).__qualname__}"
    if isinstance(one, dict):
        return _of_dicts(one, other, where)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{where}: length {len(one)}, now {len(other)}"
        pairs = (_difference(a, b, f"{where}[{at}]") for at, (a, b) in enumerate(zip(one, other, strict=True)))
        return next(filter(None, pairs), None)
    arrays = _array(one), _array(other)
    if arrays[0] is not None and arrays[1] is not None:
        return _of_arrays(arrays[0], arrays[1], one, other, where)
    state = getattr(one, "__dict__", None)
    if type(state) is dict and state and type(getattr(other, "__dict__", None)) is dict:
        return _of_dicts(state, other.__dict__, where)
    return None if _are_equal(one, other) else f"{where}: {_short(one)}, now {_short(other)}"


def _of_dicts(one: dict[Any, Any], other: dict[Any, Any], where: str) -> str | None:
    if list(one) != list(other):
        odd = next((key for key in [*one, *other] if (key in one) != (key in other)), None)
        return f"{where}: the order of its keys" if odd is None else f"{where}: key {_short(odd)}"
    return next(filter(None, (_difference(one[key], other[key], f"{where}[{key!r}]") for key in one)), None)


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return what numpy makes of an array, a tensor or a picture; None for what it makes nothing of."""
    if not hasattr(value, "__array__") and not hasattr(value, "__array_interface__"):
        return None
    try:
        return np.asarray(value)
    except Exception:  # noqa: BLE001 - a layout or a type that numpy does not have
        return None


def _of_arrays(one: Any, other: Any, first: Any, second: Any, where: str) -> str | None:
    for name in ("dtype", "shape"):
        was, now = (getattr(value, name, getattr(array, name)) for value, array in ((first, one), (second, other)))
        if was != now:
            return f"{where}: {name} {_plain(was)}, now {_plain(now)}"
    if not one.size or one.dtype.hasobject:
        return None
    rows = [np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8).reshape(one.size, -1) for array in (one, other)]
    differs = (rows[0] != rows[1]).any(axis=1)
    if not differs.any():
        return None
    at = tuple(map(int, np.unravel_index(int(differs.argmax()), one.shape)))
    count = int(differs.sum())
    place = f"{where}[{', '.join(map(str, at))}]" if at else where
    return f"{place}: {one[at]}, now {other[at]} ({count} of {one.size} elements differ)"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
