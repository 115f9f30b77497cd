"""Rings of recycled shared buffers: a worker writes a tensor into a slot, the main process hands out the same memory.

torch gives every batch fresh shared memory, whose pages the kernel has to find and clear; that costs several times what
the copy does. Here the pages are kept, and used again when the last storage over them is gone (docs/adr/0008-batch-ring.md). ``slots``
has the layout, and what the worker does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from prefeed.torch.fork_tracking import Child, before_each_fork
from prefeed.torch.pinning import CudaDriver, Driver, PinnedSlots
from prefeed.torch.slots import Bytes, RingName, SlotMemory, memory_bytes

__all__ = ["Lease", "Ring", "Rings", "ring_of"]

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
        self._held: set[int] = set()
        self._left_to_children: set[int] = set()  # no tensor of this process is over them
        self._children: list[tuple[Child, frozenset[int]]] = []
        self._is_closed = False
        self._pinned = None if driver is None else PinnedSlots(driver)
        status = os.fstat(descriptor)
        self.name = RingName(
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
        """A worker is about to be started, and the one before has ended: what it sent and nobody received is free."""
        self._forget_children()
        for slot in self._unused():
            self._memory.free(slot)

    def receive(self, number: int, num_bytes: int) -> Bytes:
        """Return what the worker wrote into a slot, shape (num_bytes,); the slot is free when nothing refers to it."""
        if self._left_to_children:
            self._free_left()
        self._held.add(number)
        slot = self._memory.slot(number)
        array = self._memory.bytes_of(slot, num_bytes)
        if self._pinned is not None:
            self._pinned.pin(number, array.ctypes.data, slot.size)
        weakref.finalize(array, self._gone, number).atexit = False
        return array

    def close(self) -> None:
        """Give the memory back, except what tensors are over; that follows when they are gone.

        Nobody receives from it any more.
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
        self._children.append((child, frozenset(self._held)))

    def _unused(self) -> list[int]:
        """Return the slots that nobody can read."""
        # In this order: ``_gone``, in another thread, moves a slot from the first set to the second.
        numbers = (slot.number for slot in self._memory.slots())
        return [number for number in numbers if number not in self._held and number not in self._left_to_children]

    def _gone(self, number: int) -> None:
        """No tensor of this process is over the slot any more. Called from anywhere."""
        if not self.is_of_this_process:
            return
        if self._pinned is None or not self._pinned.gone(number, self._not_read):
            self._not_read(number)

    def _not_read(self, number: int) -> None:
        """Neither a tensor of this process nor a device reads the slot any more. Called from anywhere."""
        if self._children:
            self._left_to_children.add(number)
        else:
            self._free(number)
        self._held.discard(number)

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
        self.names = tuple(ring.name for ring in rings)
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
        self.is_in_use = False
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
