"""One batch again and again: what a loop is fed with when no data is to be waited for."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import torch

from prefeed.torch.nesting import map_tensors, tensors_in

_FIRST_COPIES: Final = 4
"""More than a thread between the loader and the loop holds: by then it shows whether the steps change batches."""


def again_and_again(batch: Any) -> Iterator[Any]:
    """Yield the same batch; some steps take the labels out of it, or scale it in place: then, copies of it."""
    shared, first = _copy_of(batch), [_copy_of(batch) for _ in range(_FIRST_COPIES)]
    tensors = list(tensors_in([shared, *first]))
    versions = [tensor._version for tensor in tensors]
    yield from first
    while [tensor._version for tensor in tensors] == versions:
        yield map_tensors(shared, lambda tensor: tensor, copy.copy)
    while True:
        yield _copy_of(batch)


def _copy_of(batch: Any) -> Any:
    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone().pin_memory() if tensor.is_pinned() else tensor.clone()

    return map_tensors(batch, copied, copy.deepcopy)
