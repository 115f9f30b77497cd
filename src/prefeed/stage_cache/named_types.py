"""Types by name, as plain data: classes, found again without calling anything of theirs, and numpy's dtypes, exactly."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from enum import Enum, Flag
from typing import Any, Final

import numpy as np

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or the like


def class_at(module: str, qualname: str) -> Any:
    """Return what a module holds at a dotted name; the module is imported if it was not.

    Raises:
        ValueError: There is nothing of that name.
    """
    found: Any = sys.modules.get(module)
    if found is None:
        try:
            found = importlib.import_module(module)
        except (Exception, SystemExit) as err:  # whatever the module does when it is imported
            raise ValueError(f"{module} cannot be imported: {err!r}") from err
    for part in qualname.split("."):
        # Not getattr: a module's or a metaclass's __getattr__ is code.
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if found is None:
        raise ValueError(f"{module}.{qualname} is not there any more")
    return found


def is_importable(cls: type) -> bool:
    """Return whether another process finds this very class at its path."""
    try:
        return class_at(cls.__module__, cls.__qualname__) is cls
    except (ValueError, TypeError, ImportError):
        return False


def is_plain_dataclass(cls: Any) -> bool:
    """Return whether instances are all that ``__dict__`` and ``__slots__`` hold, of a dataclass."""
    return (
        isinstance(cls, type)
        and dataclasses.is_dataclass(cls)
        and all(base is object or base.__flags__ & _HEAP_TYPE for base in cls.__mro__)
        and not issubclass(cls, tuple | Enum)
    )


def field_names(cls: Any) -> list[str]:
    """Return the names of a dataclass's fields, in order."""
    return [field.name for field in dataclasses.fields(cls)]


def is_named_tuple(cls: Any) -> bool:
    """Return whether the class is what ``NamedTuple`` or ``namedtuple`` make, or derived from it without a state."""
    if not (isinstance(cls, type) and issubclass(cls, tuple) and cls is not tuple):
        return False
    fields = getattr(cls, "_fields", None)
    return type(fields) is tuple and all(type(name) is str for name in fields)


def is_enum(cls: Any) -> bool:
    """Return whether the class has members."""
    return isinstance(cls, type) and issubclass(cls, Enum)


def is_flag(cls: Any) -> bool:
    """Return whether the class's values are sets of members, with nothing of its own done to unknown ones."""
    if not (is_enum(cls) and issubclass(cls, Flag)):
        return False
    lookup: Any = cls._missing_
    ours: Any = Flag._missing_
    return lookup.__func__ is ours.__func__


def slots_of(cls: type) -> list[str]:
    """Return the names that instances keep outside ``__dict__``, as attributes."""
    names = []
    for base in cls.__mro__:
        for name, member in vars(base).items():
            if type(member).__name__ == "member_descriptor" and name not in names:
                names.append(name)
    return names


def state_of(value: Any) -> dict[str, Any]:
    """Return all that an instance holds, by name, attributes that are not set left out."""
    state = dict(getattr(value, "__dict__", {}))
    for name in slots_of(type(value)):
        if hasattr(value, name):
            state[name] = getattr(value, name)
    return state


def rebuild(cls: type, names: list[str], values: list[Any]) -> Any:
    """Return an instance that holds this state. No code of the class runs.

    Raises:
        ValueError: The class has no such slot.
    """
    value: Any = object.__new__(cls)
    slots = slots_of(cls)
    own = getattr(value, "__dict__", None)
    for name, item in zip(names, values, strict=True):
        if name in slots:
            object.__setattr__(value, name, item)
        elif own is not None:
            own[name] = item
        else:
            raise ValueError(f"{cls.__qualname__} has no {name!r}")
    return value


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
