"""Bytes, text, arrays and tensors of a batch of any nesting, sent in one slot of recycled memory (``slots``).

torch's workers pickle such a batch through a pipe. Here the large objects are copied into a slot, and the pickle has only
what is around them: each of them is entered into the pickler's memo beforehand, which writes a reference in its place, and
the unpickler's memo has the object that the main process made of the slot. So nesting, classes and which objects are
one and the same are pickle's own affair (docs/adr/0035-bytes-through-workers.md).
"""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Literal

import numpy as np
import torch

from prefeed.system.heap import keep_freed
from prefeed.torch.ring import ring_of
from prefeed.torch.slots import Bytes, RingWriter, Slot

__all__ = ["INLINE_BYTES", "Parts", "bytes_of", "find_parts", "is_plain", "sent_parts", "tensor_over"]

INLINE_BYTES: Final = 64 * 1024
"""Batches whose large objects have no more than this are pickled, and arrays up to this size are copied out of the slot: a
label that the loop keeps keeps no slot. (Measured 2026-11.)"""

_LEAST_BYTES: Final = 1024
"""A smaller object is pickled: that takes no longer. (Measured 2026-11.)"""

_MOST_OBJECTS: Final = 4096
"""Objects of a batch that are looked at, level by level: 64 samples with ten fields each need 700."""

_ALIGNMENT: Final = 64

_BATCHES: Final = 2
"""A loop has a batch while the next one is made, and frees them one after the other."""

_ATOMS: Final = frozenset({int, float, bool, complex, NoneType, torch.dtype, torch.device, torch.Size, slice, range})
_CONTAINERS: Final = frozenset({list, tuple, dict, OrderedDict, defaultdict})
_OF_ANOTHER_PACKAGE: Final = 2  # what ``dtype.isbuiltin`` is then
_KINDS_OF_NUMBERS: Final = frozenset("?biufcmMSU")

_INTO_MEMO: Final = pickle.NEXT_BUFFER + pickle.MEMOIZE + pickle.POP
"""Opcodes that enter the next of the objects given to the unpickler into its memo: an unpickler's memo cannot be set."""

Make = Callable[..., Any]
"""Makes an object in the main process from a slot: ``(memory, offset, num_bytes, *facts)``."""

Place = tuple[Make, int, int, tuple[Any, ...]]
"""What makes an object, where its bytes lie in the slot, their number, and what else ``Make`` must know."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A large object of a batch.

    Attributes:
        value: It.
        make, facts: What makes it in the main process.
        num_bytes: It takes in the slot.
        write: Copies it to an array of that size.
    """

    value: Any
    make: Make
    facts: tuple[Any, ...]
    num_bytes: int
    write: Callable[[Bytes], None]


# ---------------------------------------------------------------- the worker's side


@dataclass(frozen=True, slots=True)
class Parts:
    """The large objects of one batch.

    Attributes:
        parts: They, each once.
        num_bytes: All of them take in a slot.
    """

    parts: list[_Part]
    num_bytes: int

    def try_take(self, writer: RingWriter, *, num_before: int = 0) -> Slot | None:
        """Return a slot for them; None when there is none, or they are pickled as quickly."""
        if self.num_bytes <= INLINE_BYTES:
            return None
        return writer.try_take(_rounded(self.num_bytes), num_before=num_before)

    def write(self, writer: RingWriter, slot: Slot) -> list[Place]:
        """Copy them into a slot; return where each lies."""
        keep_freed(_BATCHES * self.num_bytes)
        memory = writer.bytes_of(slot, self.num_bytes)
        places: list[Place] = []
        offset = 0
        for part in self.parts:
            part.write(memory[offset : offset + part.num_bytes])
            places.append((part.make, offset, part.num_bytes, part.facts))
            offset += _aligned(part.num_bytes)
        return places

    def memo(self) -> dict[int, tuple[int, Any]]:
        """Return what a pickler's memo has when all of them were written already."""
        return {id(part.value): (number, part.value) for number, part in enumerate(self.parts)}


def sent_parts(ring: int, slot: int, num_bytes: int, places: list[Place], message: bytes) -> Any:
    """In the main process: return the batch. The slot is free when nothing refers to it any more.

    Args:
        ring, slot: Where the large objects lie.
        num_bytes: Of all of them.
        places: As ``Parts.write`` returned them.
        message: The rest, pickled.
    """
    is_for_device = any(make is _make_tensor for make, *_ in places)
    memory = ring_of(ring).receive(slot, num_bytes, is_for_device=is_for_device)
    keep_freed(_BATCHES * num_bytes)
    objects = [make(memory, offset, size, *facts) for make, offset, size, facts in places]
    return pickle.loads(_INTO_MEMO * len(objects) + message, buffers=objects)  # noqa: S301 - of a worker of this process


def find_parts(batch: Any, *, has_tensors: bool) -> Parts:
    """Return the large objects of a batch; it is left as it is.

    Those inside of objects of other classes than containers are not found, nor what comes after the first few thousand
    objects: pickle sends them.

    Args:
        batch: As the ``collate_fn`` returned it.
        has_tensors: Tensors are wanted as well. They are taken only if all of the batch was seen: no two may have one memory.
    """
    found: dict[int, _Part] = {}
    tensors: list[torch.Tensor] = []
    opened: set[int] = set()
    left: deque[Iterable[Any]] = deque([(batch,)])
    num_left, is_all_seen = _MOST_OBJECTS, True
    while left and num_left > 0:
        for value in itertools.islice(left.popleft(), num_left):
            num_left -= 1
            kind = type(value)
            if kind in _ATOMS or issubclass(kind, np.generic):
                continue
            if kind is torch.Tensor:
                tensors.append(value)
            elif (take := _TAKES.get(kind)) is not None:
                part = take(value)
                if part is not None:
                    found[id(value)] = part
            elif issubclass(kind, list | tuple | dict):
                is_all_seen &= kind in _CONTAINERS or _is_named_tuple(kind)
                if id(value) not in opened:
                    opened.add(id(value))
                    left.append(_inside(value))
            else:
                is_all_seen = False
    if has_tensors and is_all_seen and num_left > 0:
        found.update(_parts_of_tensors(tensors))
    parts = list(found.values())
    return Parts(parts, sum(_aligned(part.num_bytes) for part in parts))


def _inside(container: Any) -> Iterable[Any]:
    """Return what a container has, with no method that the user may have put into its class."""
    if isinstance(container, dict):
        return itertools.chain.from_iterable(dict.items(container))
    return list.__iter__(container) if isinstance(container, list) else tuple.__iter__(container)


def _is_named_tuple(kind: type) -> bool:
    return kind.__bases__ == (tuple,) and hasattr(kind, "_fields")


def _rounded(num_bytes: int) -> int:
    """Return a size for a slot, at most a quarter more: the next batch, a little larger, has the same one. Pure."""
    step = 1 << max(num_bytes.bit_length() - 3, 0)
    return -(-num_bytes // step) * step


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


# ---------------------------------------------------------------- kinds of objects


def _take_bytes(value: bytes | bytearray) -> _Part | None:
    num_bytes = len(value)
    if num_bytes < _LEAST_BYTES:
        return None
    make = _make_bytes if type(value) is bytes else _make_bytearray
    return _Part(value, make, (), num_bytes, lambda memory: _copy(memory, np.frombuffer(value, np.uint8)))


def _take_text(value: str) -> _Part | None:
    if len(value) < _LEAST_BYTES:
        return None
    data = value.encode("utf-8", "surrogatepass")
    return _Part(value, _make_text, (), len(data), lambda memory: _copy(memory, np.frombuffer(data, np.uint8)))


def _take_array(value: np.ndarray[Any, Any]) -> _Part | None:
    """Return a part for an array of numbers, or of records that lie one after the other.

    Pickle sends all others: it makes native numbers of those that are not, for example.
    """
    dtype, num_bytes = value.dtype, value.nbytes
    if num_bytes < _LEAST_BYTES or dtype.hasobject or not dtype.isnative or dtype.isbuiltin == _OF_ANOTHER_PACKAGE:
        return None
    is_contiguous = value.flags.c_contiguous or value.flags.f_contiguous
    if dtype.kind not in _KINDS_OF_NUMBERS and not (dtype.kind == "V" and is_contiguous):
        return None
    order: Literal["C", "F"] = (
        "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    )  # as numpy pickles it

    def write(memory: Bytes) -> None:
        if is_contiguous:  # padding of records as well
            _copy(memory, value.reshape(-1, order=order).view(np.uint8).reshape(-1))
        else:
            np.copyto(np.ndarray(value.shape, dtype, memory, order=order), value)

    return _Part(value, _make_array, (dtype, value.shape, order), num_bytes, write)


_TAKES: Final[dict[type, Callable[[Any], _Part | None]]] = {
    bytes: _take_bytes,
    bytearray: _take_bytes,
    str: _take_text,
    np.ndarray: _take_array,
}


def _parts_of_tensors(tensors: list[torch.Tensor]) -> dict[int, _Part]:
    """Return parts for the tensors that have memory of their own, and all of it; torch sends all others."""
    if any(tensor.layout is not torch.strided for tensor in tensors):  # others have tensors inside
        return {}
    each = {id(tensor): tensor for tensor in tensors}
    num_over = Counter(tensor.untyped_storage()._cdata for tensor in each.values())
    parts = {}
    for key, tensor in each.items():
        storage = tensor.untyped_storage()
        has_all = 0 < tensor.nbytes == storage.nbytes() and num_over[storage._cdata] == 1
        if has_all and not tensor.storage_offset() and is_plain(tensor) and not tensor.is_shared():
            facts = (tensor.dtype, tuple(tensor.shape), tensor.stride())
            parts[key] = _Part(tensor, _make_tensor, facts, tensor.nbytes, _writer_of(tensor))
    return parts


def _writer_of(tensor: torch.Tensor) -> Callable[[Bytes], None]:
    return lambda memory: _copy(memory, bytes_of(tensor))


def _copy(memory: Bytes, data: Bytes) -> None:
    memory[:] = data  # other threads of the worker run meanwhile


# ---------------------------------------------------------------- the main process's side


def _make_bytes(memory: Bytes, offset: int, num_bytes: int) -> bytes:
    return memory[offset : offset + num_bytes].tobytes()


def _make_bytearray(memory: Bytes, offset: int, num_bytes: int) -> bytearray:
    return bytearray(memory[offset : offset + num_bytes])


def _make_text(memory: Bytes, offset: int, num_bytes: int) -> str:
    return str(memory[offset : offset + num_bytes].data, "utf-8", "surrogatepass")


def _make_array(
    memory: Bytes, offset: int, num_bytes: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any
) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory, offset, order=order)
    return array.copy(order) if num_bytes <= INLINE_BYTES else array


def _make_tensor(
    memory: Bytes, offset: int, num_bytes: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    array = memory[offset : offset + num_bytes]
    return tensor_over(array.copy() if num_bytes <= INLINE_BYTES else array, dtype, shape, stride)


# ---------------------------------------------------------------- tensors over bytes


def is_plain(tensor: Any) -> bool:
    """Return True for a tensor that is its bytes, its dtype and its shape, on the CPU."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad)
    )


def tensor_over(
    array: Bytes, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Return a tensor that has the memory of an array; it is no view of another tensor.

    The array is kept as long as the storage lives, also when torch moves the storage to other memory, as it does to
    share it with another process: arrays and other libraries' tensors over the first memory keep the storage only.

    Args:
        array: The tensor's bytes.
        dtype, shape: The tensor's.
        stride: The tensor's, in elements; None: the last dimension is contiguous.
    """
    storage = torch.from_numpy(array).untyped_storage()
    _kept[id(array)] = array
    weakref.finalize(storage, _kept.pop, id(array)).atexit = False
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    return tensor.set_(storage).resize_(shape) if stride is None else tensor.set_(storage, 0, shape, stride)


_kept: dict[int, Bytes] = {}
"""Memory of the storages that are alive, by the array's id."""


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """Return an array over all of a tensor's storage."""
    array: Bytes = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy()
    return array
