"""What a prefetcher asks of a device that does its work later: queues, marks in them, copies, and memory.

A queue is what torch calls a stream: work in one is done in order, work in two is not. The current queue is that of the
calling thread, as with ``torch.cuda.current_stream()``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch

__all__ = ["Mark", "Streams", "TorchStreams", "default_device", "has_streams"]

_WITH_STREAMS: Final = ("cuda", "xpu")  # ROCm's are called cuda


class Mark(Protocol):
    """A place in a queue: torch's ``Event``."""

    def query(self) -> bool:
        """Return True when the device has come to it."""
        ...

    def synchronize(self) -> None:
        """Return when the device has come to it; other threads go on."""
        ...


class Streams(Protocol):
    """One device, and a queue aside of the one that computes.

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
