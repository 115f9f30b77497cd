"""Tensors in entries of stage caches: CPU tensors, torchvision's ``tv_tensors``, and ``torch.Size``.

A plug-in of ``prefeed.stage_cache.plug_ins``; it is imported when the first tensor is met.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from prefeed.stage_cache.decoding import Source
from prefeed.stage_cache.encoding import Parts, RefusedError, take_apart
from prefeed.stage_cache.layout import Node, Op
from prefeed.stage_cache.named_types import class_at, is_importable
from prefeed.stage_cache.plug_ins import CompileNode, Handler, Reader

_PACKAGE: Final = "torch"
_TV_TENSORS: Final = "torchvision.tv_tensors"

_NAMES: Final = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "bcomplex32", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_DTYPES: Final[dict[str, torch.dtype]] = {name: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
_NAME_OF: Final = {dtype: name for name, dtype in _DTYPES.items()}


def handler_of(cls: type) -> Handler | None:
    """Return what encodes exact instances of the class; None when nothing does."""
    if cls is torch.Tensor:
        return _take_tensor
    if cls is torch.Size:
        return _take_size
    return _take_tv_tensor if _is_tv_tensor(cls) and is_importable(cls) else None


def reader_of(node: list[Any], compile_node: CompileNode) -> Reader:
    """Return what decodes a node that a handler of this module has made.

    Raises:
        ValueError: It is none.
    """
    match node[2:]:
        case ["size"]:
            return _read_size
        case ["tensor", str(name), bool(requires_grad)]:
            return _tensor_reader(_DTYPES[name], requires_grad)
        case ["tv", str(module), str(qualname), list(names), tensor, *children]:
            return _tv_reader(
                module, qualname, names, compile_node(tensor), [compile_node(child) for child in children]
            )
    raise ValueError(f"no node of a tensor: {node!r}")


def content_of(value: torch.Tensor) -> tuple[str, Callable[[], np.ndarray[Any, Any]]] | None:
    """Return what a tensor is besides its bytes, and a function for these; None when it is not dense.

    Raises:
        RuntimeError: It has no memory.
    """
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        return None

    def content() -> np.ndarray[Any, Any]:
        plain = value.detach().as_subclass(torch.Tensor).cpu().contiguous().resolve_conj().resolve_neg()
        return np.asarray(plain.reshape(-1).view(torch.uint8).numpy())

    return f"{value.dtype} {tuple(value.shape)} {value.requires_grad}", content


# ---------------------------------------------------------------- encoding


def _take_tensor(value: torch.Tensor, parts: Parts) -> Node:
    if value.__dict__:
        raise RefusedError(value, f"has attributes of its own: {', '.join(map(str, value.__dict__))}")
    return _take_data(value, parts)


def _take_data(value: torch.Tensor, parts: Parts) -> Node:
    name = _NAME_OF.get(value.dtype)
    if name is None or not value.is_cpu or value.layout is not torch.strided:
        raise RefusedError(
            value, f"({value.dtype}, {value.layout}, {value.device}) is not a dense CPU tensor: call .cpu()"
        )
    if value.requires_grad and not value.is_leaf:
        raise RefusedError(value, "is part of a computation: call .detach()", can_pickle=False)
    num_bytes = value.nbytes
    if num_bytes and not value.data_ptr():
        raise RefusedError(value, "has no memory")
    parts.values.append(list(value.shape))
    parts.add_block(value, num_bytes, _copy_tensor)
    return [Op.PLUG_IN, _PACKAGE, "tensor", name, value.requires_grad]


def _copy_tensor(value: torch.Tensor, buffer: bytearray, offset: int, address: int) -> None:
    if value.is_contiguous() and not value.is_neg() and not value.is_conj():
        ctypes.memmove(address, value.data_ptr(), value.nbytes)
        return
    there = torch.frombuffer(buffer, dtype=value.dtype, count=value.numel(), offset=offset)
    there.view(value.shape).copy_(value.detach())


def _take_size(value: torch.Size, parts: Parts) -> Node:
    parts.values.append(list(value))
    return [Op.PLUG_IN, _PACKAGE, "size"]


def _is_tv_tensor(cls: Any) -> bool:
    tv_tensors = sys.modules.get(_TV_TENSORS)
    return tv_tensors is not None and isinstance(cls, type) and issubclass(cls, tv_tensors.TVTensor)


def _take_tv_tensor(value: torch.Tensor, parts: Parts) -> Node:
    cls, state = type(value), value.__dict__
    tensor = _take_data(value.as_subclass(torch.Tensor), parts)
    children = [take_apart(child, parts) for child in state.values()]
    return [Op.PLUG_IN, _PACKAGE, "tv", cls.__module__, cls.__qualname__, list(state), tensor, *children]


# ---------------------------------------------------------------- decoding


def _read_size(source: Source) -> torch.Size:
    return torch.Size(next(source.values))


def _tensor_reader(dtype: torch.dtype, requires_grad: bool) -> Reader:
    itemsize = dtype.itemsize
    view_of = _view_reader(dtype)

    def read(source: Source) -> torch.Tensor:
        shape, start, num_bytes = source.take_array(itemsize)
        if num_bytes == 0 or source.copy:
            tensor = torch.empty(shape, dtype=dtype)
            if num_bytes:
                ctypes.memmove(tensor.data_ptr(), source.address + start, num_bytes)
        else:
            tensor = view_of(source.buffer, start, shape, num_bytes)
        return tensor.requires_grad_() if requires_grad else tensor

    return read


def _view_reader(dtype: torch.dtype) -> Callable[[memoryview, int, tuple[int, ...], int], torch.Tensor]:
    """Return what makes a tensor over part of a buffer: its start, the tensor's shape, its size in bytes.

    By way of an array, which is the quickest: measured, 1.1 us; 3.6 by way of an address (2026-11).
    """
    numpy_dtype = _NUMPY_DTYPES.get(dtype)
    if numpy_dtype is None:
        return lambda buffer, start, shape, num_bytes: (
            torch.from_numpy(np.ndarray((num_bytes,), np.uint8, buffer, start)).view(dtype).view(shape)
        )
    return lambda buffer, start, shape, _: torch.from_numpy(np.ndarray(shape, numpy_dtype, buffer, start))


def _find_numpy_dtypes() -> dict[torch.dtype, np.dtype[Any]]:
    """Return numpy's name for each of torch's types that it has.

    torch warns once in a process when it is given an array that cannot be written to, since it has no such tensors.
    Those made here are lent to be read, so that one warning is taken here.
    """
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for dtype in _NAME_OF:
            with contextlib.suppress(TypeError):
                array = torch.empty(1, dtype=dtype).numpy()
                array.flags.writeable = False
                torch.from_numpy(array)
                found[dtype] = array.dtype
    return found


_NUMPY_DTYPES: Final = _find_numpy_dtypes()


def _tv_reader(module: str, qualname: str, names: list[str], read_tensor: Reader, readers: list[Reader]) -> Reader:
    def read(source: Source) -> torch.Tensor:
        cls = class_at(module, qualname)
        if not _is_tv_tensor(cls):
            raise ValueError(f"{module}.{qualname} is no tensor of torchvision's any more")
        tensor: torch.Tensor = read_tensor(source).as_subclass(cls)
        for name, read_child in zip(names, readers, strict=True):
            tensor.__dict__[name] = read_child(source)
        return tensor

    return read
