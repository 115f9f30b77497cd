"""Classes that samples are made of, and what it means that two samples are the same."""

from __future__ import annotations

import ctypes
import enum
import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Steps(enum.Flag):
    UP = 1
    DOWN = 2


class Point(NamedTuple):
    x: Any
    y: Any


class Bag(Point):
    """A named tuple that can hold more than its fields."""

    def __new__(cls, x: Any) -> Bag:
        return super().__new__(cls, x, x)


@dataclass
class Shape:
    name: str
    points: list[Point]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    a: Any
    b: Any
    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Slotted.made += 1


def same(one: Any, other: Any) -> bool:
    """Return whether two samples have the same types, dtypes, shapes and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and type(one) is float:
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex) and type(one) is complex:
        return same((one.real, one.imag), (other.real, other.imag))
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.dtype.char, one.shape, one.tobytes()) == (
            other.dtype,
            other.dtype.char,
            other.shape,
            other.tobytes(),
        )
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Shape):
        return same(vars(one), vars(other))
    if isinstance(one, Slotted):
        return same((one.a, one.b), (other.a, other.b))
    if hasattr(one, "untyped_storage"):
        return _same_tensors(one, other)
    return bool(one == other)


def _same_tensors(one: Any, other: Any) -> bool:
    def told(value: Any) -> Any:
        return value.dtype, tuple(value.shape), value.requires_grad, _bytes_of(value)

    return bool(told(one) == told(other)) and same(vars(one), vars(other))


def _bytes_of(tensor: Any) -> bytes:
    flat = tensor.detach().clone().contiguous().resolve_conj().resolve_neg()
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b""
