"""Batches of workers, made in recycled memory (``ring``) or copied there, and sent as a short message.

Of torch's ``default_collate``, nesting, mappings, named tuples, strings, numbers and errors are torch's own code: only the
function that stacks tensors is another, and where it has its memory from. A function of the user's runs as it is; large
objects of what it returns are copied (``sending``). What the worker sends becomes the batch when the main process unpickles
it: torch's iterator and its thread for pinned memory see nothing else.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import get_worker_info
from torch.utils.data._utils import collate as torchs

from prefeed.system.heap import keep_freed
from prefeed.torch.ring import ring_of
from prefeed.torch.sending import (
    INLINE_BYTES,
    Parts,
    bytes_of,
    find_parts,
    is_plain,
    sent_parts,
    tensor_over,
)
from prefeed.torch.slots import RingName, RingWriter, Slot

__all__ = ["Collate", "collate_of", "collates_as_torch", "copies_samples"]

_log = logging.getLogger("prefeed")


def collates_as_torch(loader: TorchDataLoader[Any]) -> bool:
    """Return True when the batches of a loader are made by torch's ``default_collate``."""
    return loader._auto_collation and loader.collate_fn is torchs.default_collate


def copies_samples(loader: TorchDataLoader[Any]) -> bool:
    """Return True when a batch of this loader never refers to memory of its samples.

    torch's functions copy all that has memory of its own to share; one that the user registered with them may not.
    """
    functions = torchs.default_collate_fn_map.values()
    return collates_as_torch(loader) and all(function.__module__ == torchs.__name__ for function in functions)


def collate_of(
    loader: TorchDataLoader[Any], *, names: Sequence[RingName] = (), after: Callable[[], None] | None = None
) -> Callable[[Any], Any]:
    """Return what a loader's twin collates with: a ``Collate``, or the loader's own function where nothing is to be done.

    Args:
        loader: The user's.
        names, after: As of ``Collate``. A function of the user's may return the samples as they are: nothing would be
            right to call after it.
    """
    function: Callable[[Any], Any] = loader.collate_fn
    after = after if collates_as_torch(loader) else None
    return Collate(function, names=names, after=after) if names or after else function


class Collate:
    """What a loader's twin collates with.

    Args:
        inner: The loader's own ``collate_fn``.
        names: Rings of the workers, by worker; empty: every batch goes as torch sends it.
        after: Called when a batch was collated, also when that failed: the samples' memory may be used again.

    **Threads and processes**: made in the main process, used in the thread that makes batches; picklable before use.
    """

    def __init__(
        self,
        inner: Callable[[Any], Any],
        *,
        names: Sequence[RingName] = (),
        after: Callable[[], None] | None = None,
    ) -> None:
        self._inner = inner
        self._names = tuple(names)
        self._after = after
        self._writer: RingWriter | None = None

    def __call__(self, samples: Any) -> Any:
        """Return the batch, or what becomes the batch when it is unpickled in the main process."""
        if self._after is None:
            return self._collated(samples)
        try:
            with warnings.catch_warnings():  # what is lent cannot be written to, and is only read here
                warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
                return self._collated(samples)
        finally:
            self._after()

    def _collated(self, samples: Any) -> Any:
        if self._names:
            self._writer, self._names = _opened(self._names), ()
        if self._writer is None:
            return self._inner(samples)
        if self._inner is not torchs.default_collate:
            return _packed(self._inner(samples), self._writer)
        if torchs.default_collate_fn_map.get(torch.Tensor) is not torchs.collate_tensor_fn:
            return self._inner(samples)
        return _stacked(samples, self._writer)


def _opened(names: tuple[RingName, ...]) -> RingWriter | None:
    worker: Any = get_worker_info()
    try:
        return RingWriter.open(names[worker.id])
    except (OSError, ValueError):
        _log.debug("prefeed: batches are sent as torch sends them", exc_info=True)
        return None


class _Packed:
    """A batch on its way: what it is unpickled to is the batch itself."""

    def __init__(self, load: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = load, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _packed(batch: Any, writer: RingWriter) -> Any:
    """Return what is sent for a batch that a function of the user's made: it, if nothing of it is large."""
    parts = find_parts(batch, has_tensors=True)
    slot = parts.try_take(writer)
    return batch if slot is None else _with_parts(batch, parts, writer, slot, _Pickler())


def _stacked(samples: Any, writer: RingWriter) -> _Packed:
    """Return what is sent for the batch that torch's own function makes of samples."""
    stacked = _Stacked(writer)
    try:
        functions = {**torchs.default_collate_fn_map, torch.Tensor: stacked.stack}
        batch = torchs.collate(samples, collate_fn_map=functions)
        parts = find_parts(batch, has_tensors=False)
        slot = parts.try_take(writer, num_before=stacked.num_large)
        pickler = _Pickler(stacked.reduce)
        if slot is None:
            packed = _Packed(ForkingPickler.loads, pickler.dumped(batch))
        else:
            packed = _with_parts(batch, parts, writer, slot, pickler)
    except BaseException:
        stacked.free_all()
        raise
    stacked.free_unsent()
    return packed


def _with_parts(batch: Any, parts: Parts, writer: RingWriter, slot: Slot, pickler: _Pickler) -> _Packed:
    """Return what is sent for a batch whose large objects go into a slot, which is given back if that fails."""
    try:
        places = parts.write(writer, slot)
        message = pickler.dumped(batch, parts)
    except BaseException:
        writer.free(slot)
        raise
    return _Packed(sent_parts, writer.number, slot.number, parts.num_bytes, places, message)


class _Stacked:
    """The tensors of one batch that lie in slots.

    Attributes:
        num_large: Slots that were asked for.
    """

    def __init__(self, writer: RingWriter) -> None:
        self.num_large = 0
        self._writer = writer
        self._taken: dict[int, tuple[torch.Tensor, Slot]] = {}  # by id of the tensor
        self._sent: set[int] = set()

    def stack(self, tensors: list[Any] | tuple[Any, ...], *, collate_fn_map: Any = None) -> Any:
        """Return what ``collate_tensor_fn`` returns, in a slot if there is one."""
        out = self._try_out(tensors) if _are_alike(tensors) else None
        if out is None:
            return torchs.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        return torch.stack(tensors, 0, out=out)

    def _try_out(self, tensors: list[Any] | tuple[Any, ...]) -> torch.Tensor | None:
        """Return memory for a batch, shape (batch_size, *shape of a sample); None when there is no slot for it."""
        first = tensors[0]
        shape, num_bytes = (len(tensors), *first.shape), len(tensors) * first.nbytes
        if num_bytes <= INLINE_BYTES:
            return torch.empty(shape, dtype=first.dtype, device="cpu")
        keep_freed(2 * num_bytes)  # the samples are freed together, and the next batch's are as large
        slot = self._writer.try_take(num_bytes, num_before=self.num_large)
        self.num_large += 1
        if slot is None:
            return None
        out = tensor_over(self._writer.bytes_of(slot, num_bytes), first.dtype, shape)
        self._taken[id(out)] = (out, slot)
        return out

    def reduce(self, tensor: torch.Tensor) -> Any:
        """Return how a tensor of the batch is sent; NotImplemented: as torch sends it."""
        _, slot = self._taken.get(id(tensor), (None, None))
        if slot is not None:
            self._sent.add(id(tensor))
            return _received, (self._writer.number, slot.number, tensor.nbytes, tensor.dtype, tuple(tensor.shape))
        if _is_small(tensor):
            return _unpacked, (bytes_of(tensor).tobytes(), tensor.dtype, tuple(tensor.shape))
        return NotImplemented

    def free_all(self) -> None:
        """Give back what was taken for a batch that failed."""
        self._sent.clear()
        self.free_unsent()

    def free_unsent(self) -> None:
        """Give back what the batch does not refer to: a mapping may make something else of its tensors."""
        for key in self._taken.keys() - self._sent:
            self._writer.free(self._taken[key][1])


class _Pickler(ForkingPickler):
    """torch's, which sends tensors in shared memory, but for those of ours.

    Args:
        reduce: Returns how a tensor is sent; None: as torch sends it.
    """

    def __init__(self, reduce: Callable[[torch.Tensor], Any] | None = None) -> None:
        self._message = io.BytesIO()
        super().__init__(self._message)
        self._reduce = reduce

    def dumped(self, batch: Any, parts: Parts | None = None) -> bytes:
        """Return a batch pickled, without the parts."""
        if parts is not None:
            self.memo = parts.memo()
        self.dump(batch)
        return self._message.getvalue()

    def reducer_override(self, obj: Any) -> Any:
        return self._reduce(obj) if self._reduce is not None and type(obj) is torch.Tensor else NotImplemented


def _are_alike(tensors: list[Any] | tuple[Any, ...]) -> bool:
    """Return True for what torch stacks into one plain CPU tensor; all the rest, and all errors, are left to it."""
    first = tensors[0]
    if not all(is_plain(tensor) and tensor.dtype == first.dtype and tensor.shape == first.shape for tensor in tensors):
        return False
    # A batch may be of a class of its own; torchvision's ``tv_tensors`` become plain tensors.
    return type(first) is torch.Tensor or type(first.new()) is torch.Tensor


def _is_small(tensor: torch.Tensor) -> bool:
    return (
        is_plain(tensor)
        and 0 < tensor.nbytes <= INLINE_BYTES
        and tensor.is_contiguous()
        and tensor.nbytes == tensor.untyped_storage().nbytes()
    )


# ---------------------------------------------------------------- tensors over bytes


def _received(ring: int, slot: int, num_bytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """In the main process: return a tensor over a slot, which is free when the tensor's storage is gone."""
    return tensor_over(ring_of(ring).receive(slot, num_bytes), dtype, shape)


def _unpacked(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """In the main process: return a tensor that came as bytes."""
    return tensor_over(np.frombuffer(bytearray(data), np.uint8), dtype, shape)
