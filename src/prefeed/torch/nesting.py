"""Tensors inside a batch of any nesting: rebuilt one by one, or listed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import torch

__all__ = ["map_tensors", "moves_itself", "tensors_in"]

OnTensor = Callable[[torch.Tensor], torch.Tensor]

_TEXTS: Final = (str, bytes, bytearray, memoryview)


def map_tensors(batch: Any, on_tensor: OnTensor, on_object: Callable[[Any], Any]) -> Any:
    """Return the batch with a function's result in the place of each tensor.

    Tuples, named tuples, lists, mappings and dataclasses are rebuilt, of the same class where it lets itself; all else
    is what it was.

    Args:
        batch: Nested as the user's ``collate_fn`` likes.
        on_tensor: Called with each tensor.
        on_object: Called with each object that is none of these but moves itself; see ``moves_itself``.
    """

    def mapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return on_tensor(value)
        if moves_itself(value):
            return on_object(value)
        if isinstance(value, Mapping):
            return _mapping_like(value, {key: mapped(part) for key, part in value.items()})
        if isinstance(value, Sequence) and not isinstance(value, _TEXTS):
            return _sequence_like(value, [mapped(part) for part in value])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _dataclass_like(value, mapped)
        return value

    return mapped(batch)


def moves_itself(value: Any) -> bool:
    """Return True for an object, no tensor, with a method ``to``: a ``PackedSequence``, a ``BatchEncoding``, a graph."""
    return callable(getattr(type(value), "to", None)) and not isinstance(value, torch.Tensor | torch.nn.Module)


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor of a batch that has memory of its own; objects are looked through by their attributes."""
    seen: set[int] = set()  # an object may refer to itself
    left = [batch]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield from _with_memory(value)
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, (*_TEXTS, range)):
            left.extend(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            left.extend(getattr(value, field.name, None) for field in dataclasses.fields(value))
        if moves_itself(value):
            left.extend(getattr(value, "__dict__", {}).values())


def _with_memory(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the dense tensors that a tensor is made of."""
    if hasattr(type(tensor), "__tensor_flatten__"):  # jagged tensors, distributed ones
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        for name in names:
            yield from _with_memory(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def _mapping_like(value: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return parts
    try:
        if isinstance(value, MutableMapping):
            same = copy.copy(value)  # keeps what else it has: a default factory, attributes
            same.update(parts)
            return same
        return type(value)(parts)  # type: ignore[call-arg]
    except TypeError:
        return parts


def _sequence_like(value: Sequence[Any], parts: list[Any]) -> Any:
    kind: Any = type(value)
    if kind is list:
        return parts
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*parts)
    if all(part is old for part, old in zip(parts, value, strict=True)):
        return value  # a range, an array of Python's: nothing in it is ours
    try:
        return kind(parts)
    except TypeError:
        return parts


def _dataclass_like(value: Any, mapped: Callable[[Any], Any]) -> Any:
    same = copy.copy(value)  # without its __init__, which may do anything
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            object.__setattr__(same, field.name, mapped(getattr(value, field.name)))  # it may be frozen
    return same
