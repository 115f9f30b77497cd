"""Rings of recycled shared buffers: a worker writes a tensor into a slot, the main process hands out the same memory.

torch gives every batch fresh shared memory, whose pages the kernel has to find and clear; that costs several times what
the copy does. Here the pages are kept, and used again when the last storage over them is gone (docs/adr/0008-batch-ring.md). ``slots``
has the layout, and what the worker does.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Sequence, Sized
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

import torch

from prefeed.torch.slots import Bytes, RingName, SlotMemory, memory_bytes


class Child:
    """A child that is forked now or was forked, and its own children.

    A child has the parent's memory as it was at the fork, shared mappings included. What it may look at must not be used
    for something else before it has ended.

    It has one end of a pipe, which the kernel closes when it ends or runs another program; nothing is written into it.

    **Ownership**: the holder of the object; the descriptor is closed with it.
    """

    def __init__(self) -> None:
        self._ours: Connection | None = None
        self._theirs: Connection | None = None
        try:
            self._ours, self._theirs = multiprocessing.Pipe(duplex=False)
        except OSError:
            pass  # no descriptor left: it counts as one that never ends

    def has_ended(self) -> bool:
        """Return True when no process is left that has the memory of the fork; does not block."""
        return self._ours is not None and self._ours.poll()

    def _was_forked(self) -> None:
        """Call it in the parent; also when the fork failed, and then no process has the other end."""
        if self._theirs is not None:
            self._theirs.close()

    def _is_this(self) -> None:
        """In the child: keep the end of the pipe for life."""
        if self._ours is not None:
            self._ours.close()
        _inherited.append(self._theirs)


class _Forking(threading.local):
    child: Child | None = None


_inherited: list[Connection | None] = []
_forking = _Forking()  # a thread of its own may fork between this one's hooks
_asked: list[Callable[[Callable[[], Child]], None]] = []


def before_each_fork(tell: Callable[[Callable[[], Child]], None]) -> None:
    """Have a function called before each fork of this process, with a function that returns the child.

    The latter is called by those who have something that the child may read: a pipe is made only then.
    """
    _asked.append(tell)


def _before() -> None:
    _forking.child = None
    for tell in _asked:
        tell(_child_to_be)


def _child_to_be() -> Child:
    if _forking.child is None:
        _forking.child = Child()
    return _forking.child


def _after_in_parent() -> None:
    child, _forking.child = _forking.child, None
    if child is not None:
        child._was_forked()


def _after_in_child() -> None:
    child, _forking.child = _forking.child, None
    if child is not None:
        child._is_this()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


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
        """Return when the devices have done all that they were asked for until now; other threads run."""
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
        bindings: Any = torch._C
        for device in range(torch.cuda.device_count()):
            if bindings._cuda_hasPrimaryContext(device):  # asking any other would make it a context, of some 500 MB
                torch.cuda.synchronize(device)


def can_pin() -> bool:
    """Return True when there is a device that reads pinned memory."""
    return torch.cuda.is_available()


class PinnedSlots:
    """The slots of one ring that are pinned, and those that a device may still be reading.

    A copy to the device that does not block may still run when the tensor that it reads is gone. torch's own pinned memory
    remembers on which stream; of memory that is registered from outside torch knows nothing. So a slot whose last tensor
    is gone is free only when the device has done all that it was asked for before.

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


_SPARE_SLOTS: Final = 4
"""Slots that a worker may have for one tensor of a batch, beyond those of batches on their way to the loop.

The loop holds a batch while it asks for the next one, and frameworks read one ahead.
"""


class Ring:
    """The memory that one worker after the other writes batches into, as the main process has it.

    **Ownership**: made by ``Rings``, which closes it. Tensors that were handed out keep the mapping beyond that.

    **Threads and processes**: tensors may go in any thread, whenever the garbage collector wants; hence nothing here
    takes a lock, and each step is one that the interpreter does in one go. A forked child frees nothing.

    **Invariants**: a slot is taken while the array that ``receive`` gave for it lives, which tensors' storages keep, while
    a device may read it, and while a child lives that was forked meanwhile.
    """

    def __init__(self, max_bytes: int, *, slots_a_tensor: int, driver: Driver | None = None) -> None:
        descriptor = os.memfd_create("prefeed-batches", os.MFD_CLOEXEC)
        try:
            self._memory = _made(descriptor, memory_bytes(max_bytes))
        except BaseException:
            os.close(descriptor)
            raise
        self._held: set[tuple[int, int]] = set()  # slots, and which of their arrays
        self._arrays = itertools.count()
        self._left_to_children: set[int] = set()  # no tensor of this process is over them
        self._children: list[tuple[Child, frozenset[int]]] = []
        self._is_closed = False
        self._pinned = None if driver is None else PinnedSlots(driver)
        status = os.fstat(descriptor)
        self.name: RingName = RingName(
            number=next(_numbers),
            pid=os.getpid(),
            descriptor=descriptor,
            inode=(status.st_dev, status.st_ino),
            max_bytes=max_bytes,
            slots_a_tensor=slots_a_tensor,
            keeps_slots=driver is not None,
        )
        _rings[self.name.number] = self

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child."""
        return self.name.pid == os.getpid()

    @property
    def is_held(self) -> bool:
        """True when a tensor is over a slot."""
        return bool(self._held)

    def begin(self) -> None:
        """Free what an ended worker sent and the loop did not receive, before another worker is started."""
        self._forget_children()
        for slot in self._unused():
            self._memory.free(slot)

    def receive(self, number: int, num_bytes: int, *, is_for_device: bool = True) -> Bytes:
        """Return what the worker wrote into a slot, shape (num_bytes,); the slot is free when nothing refers to it.

        Args:
            number: Of the slot.
            num_bytes: That were written.
            is_for_device: It has tensors: of a ring whose slots are pinned, this one is, too.
        """
        if self._left_to_children:
            self._free_left()
        held = number, next(self._arrays)
        self._held.add(held)
        slot = self._memory.slot(number)
        array = self._memory.bytes_of(slot, num_bytes)
        if self._pinned is not None and is_for_device:
            self._pinned.pin(number, array.ctypes.data, slot.size)
        weakref.finalize(array, self._gone, held).atexit = False
        return array

    def close(self) -> None:
        """Give the memory back, except what tensors are over; that follows when they are gone.

        The loop does not receive from it any more.
        """
        if not self.is_of_this_process:
            return
        os.close(self.name.descriptor)
        self._is_closed = True
        for number in self._unused():
            self._drop(number)
        if self._pinned is not None:
            self._pinned.close()

    def child_begins(self, child: Child) -> None:
        """This process is about to be forked: what tensors are over now, the child may read until it ends."""
        self._forget_children()
        self._children.append((child, self._held_slots()))

    def _unused(self) -> list[int]:
        """Return the slots that no process can read."""
        # In this order: ``_gone``, in another thread, moves a slot from the first set to the second.
        numbers, held = (slot.number for slot in self._memory.slots()), self._held_slots()
        return [number for number in numbers if number not in held and number not in self._left_to_children]

    def _held_slots(self) -> frozenset[int]:
        return frozenset(number for number, _ in self._held.copy())

    def _gone(self, held: tuple[int, int]) -> None:
        """No tensor of this process is over the slot any more. Called from anywhere."""
        if not self.is_of_this_process:
            return
        if self._pinned is None or not self._pinned.gone(held[0], lambda _: self._not_read(held)):
            self._not_read(held)

    def _not_read(self, held: tuple[int, int]) -> None:
        """Neither a tensor of this process nor a device reads the slot any more. Called from anywhere."""
        number, _ = held
        if self._children:
            self._left_to_children.add(number)
        else:
            self._free(number)
        self._held.discard(held)  # of the slot another array may be held by now

    def _free(self, number: int) -> None:
        if self._is_closed:
            self._drop(number)
        else:
            self._memory.free(number)

    def _drop(self, number: int) -> None:
        if self._pinned is not None:
            self._pinned.unpin(number)
        self._memory.drop_pages(self._memory.slot(number))

    def _forget_children(self) -> None:
        for entry in list(self._children):
            if entry[0].has_ended():
                self._children.remove(entry)
        self._free_left()

    def _free_left(self) -> None:
        """Free the slots that only children had which have ended."""
        for number in list(self._left_to_children):
            if not any(number in held and not child.has_ended() for child, held in list(self._children)):
                with contextlib.suppress(KeyError):  # one thread receives, another forks: only one of them frees it
                    self._left_to_children.remove(number)
                    self._free(number)


def _made(descriptor: int, num_bytes: int) -> SlotMemory:
    os.ftruncate(descriptor, num_bytes)
    memory = SlotMemory(descriptor, num_bytes)
    os.posix_fallocate(descriptor, 0, memory.header_bytes)
    return memory


_numbers = itertools.count()
_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()


def ring_of(number: int) -> Ring:
    """Return a ring of this process."""
    return _rings[number]


def _tell_rings(child: Callable[[], Child]) -> None:
    for ring in list(_rings.values()):
        if ring.is_of_this_process and ring.is_held:
            ring.child_begins(child())


before_each_fork(_tell_rings)


class Lease:
    """Rings for the workers of one iterator.

    Attributes:
        names: By which the workers find them; by worker.

    **Ownership**: of the iterator. Until it ends, the rings are kept even when the loader is gone.
    """

    def __init__(self, owner: Rings, rings: Sequence[Ring]) -> None:
        self.names: tuple[RingName, ...] = tuple(ring.name for ring in rings)
        self._owner: Rings | None = owner

    def end(self) -> None:
        """The workers have ended: others may have their rings. A second call does nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.is_in_use = False


class Rings:
    """The rings of one loader, one a worker; they outlive the workers.

    Args:
        max_bytes: Most bytes that all slots take together; 0: there are no rings.

    Attributes:
        is_in_use: An iterator has them.

    **Ownership**: of the loader's attachment, and of a lease. When it is collected the rings are closed.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rings: list[Ring] = []
        self.is_in_use: bool = False
        weakref.finalize(self, _close, self._rings).atexit = False

    def try_lease(self, num_workers: int, *, prefetch_factor: int, pinned: bool = False) -> Lease | None:
        """Return a ring for each worker; None when there is no memory for them, or another iterator has them.

        Args:
            num_workers: Of the iterator.
            prefetch_factor: Batches that each of them is ahead.
            pinned: A device is to read the batches by itself.
        """
        if self._rings and not self._rings[0].is_of_this_process:
            self.is_in_use = False
            _close(self._rings)
        if self.is_in_use or not self._max_bytes:
            return None
        if len(self._rings) != num_workers or pinned is not self._rings[0].name.keeps_slots:
            _close(self._rings)
            self._make(num_workers, prefetch_factor + _SPARE_SLOTS, CudaDriver() if pinned else None)
        if not self._rings:
            return None
        for ring in self._rings:
            ring.begin()
        self.is_in_use = True
        return Lease(self, self._rings)

    def _make(self, num_workers: int, slots_a_tensor: int, driver: Driver | None) -> None:
        max_bytes = self._max_bytes // num_workers
        try:
            for _ in range(num_workers):
                self._rings.append(Ring(max_bytes, slots_a_tensor=slots_a_tensor, driver=driver))
        except (OSError, ValueError):  # no descriptor, memory or address is left: batches go as torch sends them
            _close(self._rings)


def _close(rings: list[Ring]) -> None:
    for ring in rings:
        ring.close()
    rings.clear()
