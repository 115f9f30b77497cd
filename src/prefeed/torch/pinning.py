"""Slots of a ring that a device reads by itself: pages that stay where they are, and are known to its driver.

A copy to the device that does not block goes on when the tensor that it reads is gone already. torch's own pinned memory
remembers on which stream; of memory that is registered from outside torch knows nothing. So a slot whose last tensor is
gone is free only when the device has done all that it was asked for before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

import torch

__all__ = ["CudaDriver", "Driver", "PinnedSlots", "can_pin"]

_PORTABLE: Final = 1  # cudaHostRegisterPortable: pinned for every device


class Driver(Protocol):
    """What is asked of a device's driver."""

    def register(self, address: int, num_bytes: int) -> bool:
        """Pin memory, and let devices read it; False when that cannot be."""
        ...

    def unregister(self, address: int) -> None:
        """Undo ``register``."""
        ...

    def wait(self) -> None:
        """Return when the devices have done all that they were asked for until now; other threads go on."""
        ...


class CudaDriver:
    """CUDA's, as torch has it."""

    def register(self, address: int, num_bytes: int) -> bool:
        cudart: Any = torch.cuda.cudart()
        return int(cudart.cudaHostRegister(address, num_bytes, _PORTABLE)) == 0

    def unregister(self, address: int) -> None:
        cudart: Any = torch.cuda.cudart()
        cudart.cudaHostUnregister(address)

    def wait(self) -> None:
        for device in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(device):  # asking any other would make it a context, of some 500 MB
                torch.cuda.synchronize(device)


def can_pin() -> bool:
    """Return True when there is a device that reads pinned memory."""
    return torch.cuda.is_available()


class PinnedSlots:
    """The slots of one ring that are pinned, and those that a device may still be reading.

    **Ownership**: of the ring, which closes it.
    **Threads and processes**: of the process that made it. ``gone`` may be called by the garbage collector, anywhere.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._addresses: dict[int, int] = {}  # by slot
        self._gone: _Gone = SimpleQueue()
        threading.Thread(
            target=_free_when_read, args=(self._gone, self._addresses, driver), name="prefeed-pinned", daemon=True
        ).start()

    def pin(self, slot: int, address: int, num_bytes: int) -> None:
        """Pin a slot, if it is not yet. What cannot be pinned is copied to pinned memory by torch, as ever."""
        if slot not in self._addresses and self._driver.register(address, num_bytes):
            self._addresses[slot] = address

    def gone(self, slot: int, free: Callable[[int], None]) -> bool:
        """The last tensor over a slot is gone. True: it is pinned, and ``free`` is called when no device reads it."""
        if slot not in self._addresses:
            return False
        self._gone.put((free, slot))
        return True

    def unpin(self, slot: int) -> None:
        """The pages of a slot are about to be given back."""
        address = self._addresses.pop(slot, None)
        if address is not None:
            self._driver.unregister(address)

    def close(self) -> None:
        """Nothing is pinned from now on. Slots that tensors are over stay as they are until these are gone."""
        self._gone.put(None)


_Gone = SimpleQueue[tuple[Callable[[int], None], int] | None]


def _free_when_read(gone: _Gone, addresses: Sized, driver: Driver) -> None:
    is_closed = False
    while addresses or not is_closed:
        items = [gone.get()]
        with suppress(Empty):
            while True:
                items.append(gone.get_nowait())
        driver.wait()
        while items:
            item = items.pop()
            if item is None:
                is_closed = True
            else:
                free, slot = item
                free(slot)
                del free  # it keeps the ring
            del item
