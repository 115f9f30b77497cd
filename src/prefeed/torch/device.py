"""Batches of any loader, on the device before the loop asks for them.

    for images, labels in prefeed.DevicePrefetcher(loader, transform=normalise): ...

A thread asks the loader and puts copies into a queue aside of the one that computes::

     loader ──batch──→ thread ──copy, cast, transform──→ queue aside ──mark─┐
                         ↑ at most ``depth`` ahead                          ↓ waits
     loop ←────────────────────── batch ──────────────────── current queue of the loop

The four rules, each with a test that fails without it: the loop's queue waits for the batch's mark; memory that was handed
over is not used again before the loop's queue is done with it; what is copied from is kept until the copy is done; the
ready batch is handed over before the loader is asked for another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import torch

from prefeed.errors import ResumeError
from prefeed.prefetching import BackgroundGenerator, close_iterator
from prefeed.shown import shown
from prefeed.torch.nesting import map_tensors, tensors_in

_WITH_STREAMS: Final = ("cuda", "xpu")  # ROCm's are called cuda


class Mark(Protocol):
    """A place in a queue: torch's ``Event``."""

    def query(self) -> bool:
        """Return True when the device has come to it."""
        ...

    def synchronize(self) -> None:
        """Return when the device has come to it; other threads run."""
        ...


class Streams(Protocol):
    """One device, and a queue aside of the one that computes.

    A queue is what torch calls a stream: work in one is done in order, work in two is not. The current queue is that of
    the calling thread, as with ``torch.cuda.current_stream()``.

    **Threads and processes**: any thread of the process that made it. A thread of our own calls ``enter_thread`` first.
    """

    def enter_thread(self) -> None:
        """The calling thread works with this device from now on."""
        ...

    def aside(self) -> AbstractContextManager[Any]:
        """Inside, the current queue of the calling thread is the one aside."""
        ...

    def mark(self) -> Mark:
        """Return a mark at the end of the current queue."""
        ...

    def wait(self, mark: Mark) -> None:
        """Work that is put into the current queue from now on begins when the device has come to the mark."""
        ...

    def has(self, tensor: torch.Tensor) -> bool:
        """Return True when the tensor is on the device."""
        ...

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, or a copy of it that the device can read by itself."""
        ...

    def copy(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """Return the tensor on the device, floating point numbers as ``dtype``; the current queue is to fill it.

        Until then the memory of a pinned tensor must stay as it is.
        """
        ...

    def move(self, value: Any) -> Any:
        """Return an object on the device that moves itself; the current queue is to do it."""
        ...

    def keep(self, tensor: torch.Tensor) -> None:
        """When the tensor is gone, its memory is not used for another before the current queue is done with it."""
        ...


class TorchStreams:
    """A device of torch's."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = getattr(torch, device.type)
        index: Any = device.index  # None: the current one
        self._device = torch.device(device.type, self._module.current_device() if index is None else index)
        self._side: Any = self._module.Stream(device=self._device)
        # Else CUDA waits for an event in a loop, which would take a core from the workers.
        self._event_options = {"blocking": True} if device.type == "cuda" else {}

    def enter_thread(self) -> None:
        self._module.set_device(self._device)

    def aside(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._module.stream(self._side)
        return context

    def mark(self) -> Mark:
        event = self._module.Event(**self._event_options)
        event.record(self._current())
        mark: Mark = event
        return mark

    def wait(self, mark: Mark) -> None:
        self._current().wait_event(mark)

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._device.type

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _can_be_pinned(tensor):
            return tensor
        try:
            return tensor.pin_memory()
        except RuntimeError:  # no memory is left that could be pinned
            return tensor

    def copy(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        there = tensor.to(self._device, non_blocking=True)
        # In two steps: in one, torch would convert on the CPU, to memory that is not pinned.
        return cast(there, dtype)

    def move(self, value: Any) -> Any:
        return moved(value, self._device)

    def keep(self, tensor: torch.Tensor) -> None:
        if self.has(tensor):
            tensor.record_stream(self._current())

    def _current(self) -> Any:
        return self._module.current_stream(self._device)


def _can_be_pinned(tensor: torch.Tensor) -> bool:
    """Return False for what needs no pinning, or would become something else; its copy makes the thread wait."""
    kind: Any = type(tensor)  # tensors of torchvision, say, would lose their class
    is_dense = tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested
    return kind is torch.Tensor and is_dense and tensor.numel() > 0 and not (tensor.requires_grad or tensor.is_pinned())


def moved(value: Any, device: torch.device) -> Any:
    """Return an object with a method ``to`` on the device."""
    try:
        return value.to(device, non_blocking=True)
    except TypeError:  # it may not know the second argument
        return value.to(device)


def cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return floating point numbers as ``dtype``, anything else as it is."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def has_streams(device: torch.device) -> bool:
    """Return True when copies to the device can be made aside of what it computes."""
    return device.type in _WITH_STREAMS


def default_device() -> torch.device:
    """Return this machine's accelerator, or the CPU when there is none."""
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6
    if accelerator is not None:
        return (accelerator.is_available() and accelerator.current_accelerator()) or torch.device("cpu")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


T = TypeVar("T")
Transform = Callable[[Any], Any]


class DevicePrefetcher(Generic[T]):
    """A loader whose batches are on the device already, copied while the step before is computed.

    Each ``for`` over it is an epoch of the loader, and so are the calls of ``next()`` until it returns no batch. Attributes that
    it does not have itself are the loader's.

    Args:
        loader: Any iterable of batches. ``iter()`` of it is called in the loop's thread, ``next()`` in another.
        device: Where to; None: the accelerator of this machine, or the CPU.
        transform: Called with each batch on the device, in the order of the batches. What it asks of the device is done
            aside of the loop's work. It runs in the thread: without the loop's ``autocast`` or ``no_grad``.
        dtype: Of floating point tensors on the device; others, such as uint8 images, stay what they are. Tensors inside objects
            that move themselves stay as well.
        depth: Batches that are ready or being made, beyond the one that was handed over.
        resumable: Make ``state_dict()`` possible in the midst of an epoch, for loaders that have one. It is asked for with
            each batch, which may take some 0.3 ms.

    Raises:
        ValueError: ``depth`` is less than 1.

    Batches may be nested: tensors, tuples, named tuples, lists, mappings, dataclasses, and objects with a method
    ``to(device, non_blocking=True)``; anything else is handed over as it is. Tensors that are not pinned are pinned
    by the thread, which costs it one more copy: ``pin_memory=True`` in the loader spares it.

    **Same batches**: those of the loader, in its order; an exception of the loader or the transform comes in the place of
    its batch. Random numbers that the transform draws on the device, or the loader in this process, may be
    drawn earlier than without.

    **Devices**: CUDA and XPU. On the CPU, and on devices without queues such as MPS, each batch is moved, cast
    and transformed when it is asked for, without a thread.

    **Memory**: of the device, ``depth`` batches ahead and, when the loop asks the device for more than it has done, at most as
    many behind.

    **Ownership**: an iterator of it has a thread, which ends with the epoch, with the iterator's ``close()``, or when the
    iterator is dropped, as that of a ``BackgroundGenerator``; then nothing that it asked for is left to do.

    **Threads and processes**: one loop at a time. The queue aside of the loop's is made at the first iteration, so that
    the prefetcher itself may be made before a fork.
    """

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device | str | int | None = None,
        transform: Transform | None = None,
        dtype: torch.dtype | None = None,
        depth: int = 2,
        *,
        resumable: bool = False,
    ) -> None:
        if isinstance(depth, bool) or not hasattr(depth, "__index__") or depth < 1:
            raise ValueError(f"depth must be a whole number, at least 1: {depth!r}")
        self.loader: Any = loader
        self.device: Any = default_device() if device is None else torch.device(device)
        self.transform = transform
        self.dtype = dtype
        self.depth = depth
        self.resumable = resumable
        self._streams: Streams | None = None
        self._place = _LoopPosition()
        self._epoch: Iterator[T] | None = None
        self._after_last: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {shown(self.loader)}, to {self.device}, {self.depth} batches ahead>"

    def __iter__(self) -> Iterator[T]:
        self._epoch = None  # one loop at a time
        if self._streams is None and has_streams(self.device):
            self._streams = TorchStreams(self.device)
        if self._streams is None:
            at_once = partial(_done_at_once, device=self.device, dtype=self.dtype, transform=self.transform)
            return map(at_once, iter(self.loader))
        self._place = _LoopPosition(is_midway=True, state=self.loader.state_dict() if self._keeps_states else None)
        return _Ahead(self, self._streams, self._place)

    def next(self) -> Any:
        """Return the next batch, and None after the last one: for loops written for apex's ``data_prefetcher``.

        Where the last batch was a tuple or a list, there are as many None after it as it had entries, so that
        ``images, labels = prefetcher.next()`` can be unpacked to the end. The call after that begins another epoch.

        Blocks and raises as the iterator of a ``for`` loop does.
        """
        epoch = self._epoch = self._epoch or iter(self)
        try:
            batch = next(epoch)
        except StopIteration:
            self._epoch, after_last, self._after_last = None, self._after_last, None
            return after_last
        self._after_last = (None,) * len(batch) if type(batch) in (tuple, list) else None  # type: ignore[arg-type]
        return batch

    def __len__(self) -> int:
        """Return the number of batches of an epoch, if the loader knows it."""
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        of_loader = getattr(self.loader, name)
        return {"state_dict": self._state_dict, "load_state_dict": self._load_state_dict}.get(name, of_loader)

    @property
    def _keeps_states(self) -> bool:
        return self.resumable and hasattr(self.loader, "state_dict")

    def _state_dict(self) -> Any:
        """Return the loader's state as it was when it gave the batch that the loop has."""
        if not self._place.is_midway:
            return self.loader.state_dict()
        if not self.resumable:
            raise ResumeError(
                f"the loader is up to {self.depth} batches ahead of the loop, so its state would skip them: "
                "make the DevicePrefetcher with resumable=True, or save between epochs"
            )
        return self._place.state

    def _load_state_dict(self, state: Any) -> None:
        self._place = _LoopPosition()
        self.loader.load_state_dict(state)


def _done_at_once(batch: Any, *, device: torch.device, dtype: torch.dtype | None, transform: Transform | None) -> Any:
    there = map_tensors(batch, lambda tensor: cast(tensor.to(device), dtype), lambda value: moved(value, device))
    return there if transform is None else transform(there)


@dataclass(slots=True, kw_only=True)
class _LoopPosition:
    """Where the loop is.

    Attributes:
        is_midway: It has begun an epoch and not come to its end, and the loader may be ahead of it.
        state: The loader's, when it gave the batch that the loop has.
    """

    is_midway: bool = False
    state: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A batch that the device has, or will have when it has come to the mark."""

    batch: Any
    mark: Mark
    state: Any


class _Ahead(Iterator[T], Generic[T]):
    """One epoch, in the loop's thread."""

    def __init__(self, owner: DevicePrefetcher[T], streams: Streams, place: _LoopPosition) -> None:
        self._streams = streams
        self._place = place
        self._asked: deque[Mark] = deque()
        self._has_batch = False
        copies = _Copies(
            iter(owner.loader),
            streams,
            transform=owner.transform,
            dtype=owner.dtype,
            begin=streams.mark(),
            asked=self._asked,
            max_behind=owner.depth,
            state=owner.loader.state_dict if owner._keeps_states else None,
        )
        self._ahead = BackgroundGenerator(copies, owner.depth)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._has_batch:  # all that the loop does with it, it has asked for by now
            self._asked.append(self._streams.mark())
        try:
            ready = next(self._ahead)
        except StopIteration:
            self._place.is_midway = False
            raise
        self._has_batch, self._place.state = True, ready.state
        self._streams.wait(ready.mark)
        for tensor in tensors_in(ready.batch):
            self._streams.keep(tensor)
        batch: T = ready.batch
        return batch

    def close(self) -> None:
        """End the epoch: the thread ends, and what it asked of the device is done."""
        self._ahead.close()


class _Copies(Iterator[_Ready]):
    """What the thread does: batches of the loader, on their way to the device.

    Args:
        source: The loader's iterator.
        streams: The device.
        transform, dtype: As of ``DevicePrefetcher``.
        begin: What the loop asked of the device before this.
        asked: After each batch, what the loop asked of the device until it wanted the next one.
        max_behind: Batches that the loop is done with and the device is not: while there are more, nothing is copied.
        state: Returns the loader's; None: it will not be asked for.

    **Invariants**: what is copied from is referred to until the device has it.
    """

    def __init__(
        self,
        source: Iterator[Any],
        streams: Streams,
        *,
        transform: Transform | None,
        dtype: torch.dtype | None,
        begin: Mark,
        asked: deque[Mark],
        max_behind: int,
        state: Callable[[], Any] | None,
    ) -> None:
        self._source = source
        self._streams = streams
        self._transform = transform
        self._dtype = dtype
        self._begin: Mark | None = begin
        self._asked = asked
        self._max_behind = max_behind
        self._state = state
        self._copied_from: deque[tuple[Mark, Any]] = deque()

    def __next__(self) -> _Ready:
        self._begin_once()
        try:
            batch = next(self._source)
        except BaseException:
            self._end()
            raise
        try:
            state = None if self._state is None else self._state()
            return self._on_its_way(batch, state)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for the device, and close the loader's iterator."""
        close_iterator(self._end())

    def _end(self) -> Iterator[Any]:
        """Wait for the device, and let the loader's iterator go."""
        while self._copied_from:
            self._copied_from[0][0].synchronize()
            self._copied_from.popleft()
        source, self._source = self._source, iter(())
        return source

    def _begin_once(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            self._streams.enter_thread()
            with self._streams.aside():
                self._streams.wait(begin)  # what the transform uses may have been made just before the loop

    def _on_its_way(self, batch: Any, state: Any) -> _Ready:
        streams = self._streams
        self._forget_copied()
        while len(self._asked) > self._max_behind:
            self._asked.popleft().synchronize()
        made_here = streams.mark() if any(map(streams.has, tensors_in(batch))) else None
        batch = map_tensors(batch, streams.pinned, _pinned_object)
        with streams.aside():
            if made_here is not None:
                streams.wait(made_here)
            there = map_tensors(batch, lambda tensor: streams.copy(tensor, self._dtype), streams.move)
            if self._transform is not None:
                there = self._transform(there)
            mark = streams.mark()
        self._copied_from.append((mark, batch))
        return _Ready(batch=there, mark=mark, state=state)

    def _forget_copied(self) -> None:
        while self._copied_from and self._copied_from[0][0].query():
            self._copied_from.popleft()


def _pinned_object(value: Any) -> Any:
    """Return an object that moves itself with its tensors pinned, if it can do that."""
    try:
        return value if value.is_pinned() else value.pin_memory()
    except (AttributeError, TypeError, RuntimeError):
        return value
