"""Tensors in rows of stage caches: pickled without their elements, which are buffers of the row (``stage_cache.rows``)."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from prefeed.torch.sending import is_plain
from prefeed.types import Buffer

_NAMES: Final = {
    dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}
_IN_NUMPY: Final = {
    name: np.dtype(name) for name in ("float32", "float64", "float16", "uint8", "int32", "int64", "bool")
}

with warnings.catch_warnings():
    # torch warns once per process about memory that cannot be written to. Tensors over rows are only read.
    warnings.simplefilter("ignore", UserWarning)
    torch.frombuffer(bytes(1), dtype=torch.uint8)
    torch.from_numpy(np.frombuffer(bytes(1), np.uint8))


def reducer_of(cls: type) -> Callable[[Any], Any] | None:
    """Return the reducer for a class of tensors; None if pickle's own is used, as for parameters."""
    own: Any = getattr(cls, "__reduce_ex__", None)
    return _reduce if own is torch.Tensor.__reduce_ex__ else None


def _reduce(value: torch.Tensor) -> Any:
    """Reduce a dense CPU tensor to its own elements, even if it is a part of a larger one."""
    is_tensor, plain = type(value) is torch.Tensor, value
    if not is_tensor or not is_plain(value):
        if value.layout is not torch.strided or not value.is_cpu:
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        plain = value.detach().as_subclass(torch.Tensor)  # without the gradient
        if not is_plain(plain):
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    stride = None
    if plain.is_contiguous():
        flat = plain
    else:
        dense = plain.clone()  # keeps the order of the dimensions, and has no gaps
        flat, stride = dense.as_strided((dense.numel(),), (1,)), dense.stride()
    name = _NAMES[plain.dtype]
    array: Any = flat.numpy() if name in _IN_NUMPY else flat.reshape(-1).view(torch.uint8).numpy()
    more = (stride, value.requires_grad) if stride is not None or plain is not value else ()
    facts = (pickle.PickleBuffer(array), name, tuple(plain.shape), *more)
    if is_tensor and not value.__dict__:
        return make_tensor, facts
    internals: Any = torch._tensor
    return internals._rebuild_from_type_v2, (make_tensor, type(value), facts, torch._utils._get_obj_state(value))


def make_tensor(
    data: Buffer, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...] | None = None, requires_grad: bool = False
) -> torch.Tensor:
    """Return a tensor over these bytes; rows name this function."""
    if dtype in _IN_NUMPY and stride is None:  # takes half the time of the other way
        tensor = torch.from_numpy(np.ndarray(shape, _IN_NUMPY[dtype], data))
    elif not len(data):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    else:
        flat = torch.frombuffer(data, dtype=getattr(torch, dtype))
        tensor = flat.view(shape) if stride is None else flat.as_strided(shape, stride)
    return tensor.requires_grad_() if requires_grad else tensor
