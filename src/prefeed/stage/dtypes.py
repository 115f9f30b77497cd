"""numpy's dtypes as plain data, so exact that the same one comes back."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

_TEXT: Final = re.compile(r"[<>|=]?[a-zA-Z?][0-9]{0,9}(\[[0-9a-zA-Zμ/]{1,20}\])?")
_BY_CHARACTER: Final = "biufc"
_MAX_NESTED: Final = 8

_known: dict[int, Any] = {}


def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """Return a text, or for structured dtypes lists of texts and numbers.

    Raises:
        ValueError: The dtype holds Python objects, or what comes back would not be the same.
    """
    if dtype.kind not in _BY_CHARACTER or not dtype.isnative:
        return _described(dtype)
    described = _known.get(dtype.num)  # not by dtype: "long" and "longlong" are equal and are two types
    if described is None:
        described = _known[dtype.num] = _described(dtype)
    return described


def _described(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds Python objects")
    described = _walk(dtype)
    again = dtype_of(described)
    if again != dtype or again.type is not dtype.type or again.char != dtype.char:
        raise ValueError(f"dtype {dtype} has parts that are not kept")
    return described


def _walk(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_walk(base), list(shape)]
    if dtype.fields is None:
        order = "" if dtype.isnative else dtype.str[0]
        return order + dtype.char if dtype.kind in _BY_CHARACTER else dtype.str  # two types may have one text
    names = list(dtype.names or ())
    fields = [dtype.fields[name] for name in names]
    return [
        names,
        [_walk(field[0]) for field in fields],
        [field[1] for field in fields],
        dtype.itemsize,
        dtype.isalignedstruct,
    ]


def dtype_of(described: Any, depth: int = 0) -> np.dtype[Any]:
    """Return the dtype that was described.

    Raises:
        ValueError: It was not described by ``describe_dtype``.
        TypeError: Likewise.
    """
    if depth > _MAX_NESTED:
        raise ValueError("a dtype nested too deep")
    if isinstance(described, str):
        if not _TEXT.fullmatch(described):
            raise ValueError(f"no dtype: {described[:40]!r}")
        dtype = np.dtype(described)
    elif len(described) == 2:
        base, shape = described
        dtype = np.dtype((dtype_of(base, depth + 1), tuple(shape)))
    else:
        names, formats, offsets, itemsize, is_aligned = described
        parts = [dtype_of(part, depth + 1) for part in formats]
        dtype = np.dtype({"names": names, "formats": parts, "offsets": offsets, "itemsize": itemsize}, align=is_aligned)
    if dtype.hasobject or dtype.itemsize <= 0:
        raise ValueError(f"dtype {dtype} holds Python objects, or nothing")
    return dtype
