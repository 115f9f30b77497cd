"""Slots of recycled shared memory, as the worker has them that writes its batches there.

    memory of one worker    | header: flags, sizes, offsets | slot 3 | slot 0 |   hole   | slot 1 | ...

    slot      FREE ── worker: take ──→ TAKEN ── the storage over it is gone ──────→ FREE
                                         └───── not received, when another worker starts ──→ FREE

The memory is a memfd of the main process, ``ring.Ring``: it has no name, so nothing is left of it when every process
was killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from prefeed.system.memory import fits_in_memory

__all__ = ["MAX_SLOTS", "RingName", "RingWriter", "Slot", "SlotMemory", "memory_bytes"]

MAX_SLOTS: Final = 256
"""Most slots of one worker; it rarely needs more than ten."""

_FREE, _TAKEN = 0, 1
_HEADER_BYTES: Final = -(-MAX_SLOTS * 17 // mmap.PAGESIZE) * mmap.PAGESIZE
_ADDRESSES_A_BYTE: Final = 4  # addresses cost nothing, and a large slot finds a place between others
_ROOMY: Final = 2  # a slot that is more than this many times too large is taken only when there is no other

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingName:
    """By what a worker finds its memory; picklable.

    Attributes:
        number: Of the ring in the main process.
        pid, descriptor: Of the memory in the main process.
        inode: Device and number of the memory: the process id may have been given to somebody else.
        max_bytes: Most bytes of all slots together.
        slots_a_tensor: Most slots for each large tensor of a batch.
        keeps_slots: None makes room for another: a device knows where their pages are.
    """

    number: int
    pid: int
    descriptor: int
    inode: tuple[int, int]
    max_bytes: int
    slots_a_tensor: int
    keeps_slots: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the memory.

    Attributes:
        number: In the tables of the header.
        offset, size: Bytes from the start of the memory; whole pages.
    """

    number: int
    offset: int
    size: int


def memory_bytes(max_bytes: int) -> int:
    """Return how long the memory is that holds slots of ``max_bytes`` together; most of it never has pages."""
    return _HEADER_BYTES + _ADDRESSES_A_BYTE * _whole_pages(max_bytes)


class SlotMemory:
    """The mapped memory with its tables.

    **Threads and processes**: shared between the main process and one worker at a time. Only the worker makes slots
    and takes them; only the main process frees what was sent. A row is written in an order in which a worker that is
    killed in between leaves one that says "no slot".
    """

    header_bytes: Final = _HEADER_BYTES

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._map = mmap.mmap(descriptor, num_bytes)
        self.num_bytes = num_bytes
        self._flags = np.frombuffer(self._map, np.uint8, MAX_SLOTS)
        self._sizes = np.frombuffer(self._map, np.int64, MAX_SLOTS, MAX_SLOTS)
        self._offsets = np.frombuffer(self._map, np.int64, MAX_SLOTS, MAX_SLOTS * 9)

    def slot(self, number: int) -> Slot:
        return Slot(number, int(self._offsets[number]), int(self._sizes[number]))

    def slots(self) -> list[Slot]:
        """Return the slots that there are."""
        return [self.slot(int(number)) for number in np.flatnonzero(self._sizes)]

    def is_free(self, slot: Slot) -> bool:
        return bool(self._flags[slot.number] == _FREE)

    def take(self, slot: Slot) -> None:
        self._flags[slot.number] = _TAKEN

    def free(self, number: int) -> None:
        self._flags[number] = _FREE

    def bytes_of(self, slot: Slot, num_bytes: int) -> Bytes:
        """Return an array over the first bytes of a slot, shape (num_bytes,)."""
        return np.frombuffer(self._map, np.uint8, num_bytes, slot.offset)

    def add(self, slot: Slot) -> None:
        """Enter a slot that has its pages, as taken."""
        self.take(slot)
        self._offsets[slot.number] = slot.offset
        self._sizes[slot.number] = slot.size

    def remove(self, slot: Slot) -> None:
        """Strike a slot out, and give its pages back."""
        self._sizes[slot.number] = 0
        self.drop_pages(slot)

    def drop_pages(self, slot: Slot) -> None:
        """Give the pages of a slot back to the kernel, if it takes them; else they go with the memory."""
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_REMOVE, slot.offset, slot.size)

    def unused_number(self) -> int | None:
        """Return a row of the tables that has no slot; None when there is none."""
        return next(iter(np.flatnonzero(self._sizes == 0).tolist()), None)


class RingWriter:
    """The memory as the worker has it.

    **Blocking**: never; a slot that cannot be had is None.
    """

    def __init__(self, memory: SlotMemory, descriptor: int, name: RingName) -> None:
        self.number: int = name.number
        self._memory = memory
        self._descriptor = descriptor
        self._max_bytes = name.max_bytes
        self._slots_a_tensor = name.slots_a_tensor
        self._keeps_slots = name.keeps_slots
        self._max_slots = 0
        self._may_grow = True
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, name: RingName) -> Self:
        """Open the memory that the main process has made for this worker.

        Raises:
            OSError: It is not there any more, or must not be opened.
        """
        descriptor = os.open(f"/proc/{name.pid}/fd/{name.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != name.inode:
                raise FileNotFoundError(f"process {name.pid} has no such memory any more")
            memory = SlotMemory(descriptor, status.st_size)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(memory, descriptor, name)

    def close(self) -> None:
        """Make no further slots; the end of the process does it as well."""
        self._may_grow = False
        self._close()

    def try_take(self, num_bytes: int, *, num_before: int = 0) -> Slot | None:
        """Take a slot of at least that size; None when all are taken and no other can be made.

        Args:
            num_bytes: At least 1.
            num_before: Slots that the same batch has asked for before: one of several large tensors needs more.
        """
        self._max_slots = min(MAX_SLOTS, max(self._max_slots, (num_before + 1) * self._slots_a_tensor))
        slots = self._memory.slots()
        free = [slot for slot in slots if self._memory.is_free(slot)]
        best = min((slot for slot in free if slot.size >= num_bytes), key=lambda slot: slot.size, default=None)
        if best is None or best.size > _ROOMY * _whole_pages(num_bytes):
            best = self._try_make(_whole_pages(num_bytes), slots, free) or best
        if best is not None:
            self._memory.take(best)
        return best

    def bytes_of(self, slot: Slot, num_bytes: int) -> Bytes:
        """Return an array over the first bytes of a slot, shape (num_bytes,)."""
        return self._memory.bytes_of(slot, num_bytes)

    def free(self, slot: Slot) -> None:
        """Give back a slot that was taken and not sent."""
        self._memory.free(slot.number)

    def _try_make(self, num_bytes: int, slots: list[Slot], free: list[Slot]) -> Slot | None:
        """Return a new slot; free ones that are too small make room for it."""
        excess_bytes = sum(slot.size for slot in slots) + num_bytes - self._max_bytes
        excess_slots = len(slots) + 1 - self._max_slots
        small = [] if self._keeps_slots else [slot for slot in free if slot.size < num_bytes]
        if not self._may_grow or sum(slot.size for slot in small) < excess_bytes or len(small) < excess_slots:
            return None
        left = set(slots)
        while excess_bytes > 0 or excess_slots > 0:
            slot = small.pop()
            self._memory.remove(slot)
            left.remove(slot)
            excess_bytes, excess_slots = excess_bytes - slot.size, excess_slots - 1
        return self._try_add(num_bytes, left)

    def _try_add(self, num_bytes: int, slots: Iterable[Slot]) -> Slot | None:
        offset = _place_for(num_bytes, slots, self._memory.num_bytes)
        number = self._memory.unused_number()
        if offset is None or number is None or not fits_in_memory(num_bytes):
            return None
        try:
            os.posix_fallocate(self._descriptor, offset, num_bytes)
        except OSError:  # memory is full, or the control group: batches go as torch sends them
            self._may_grow = False
            return None
        slot = Slot(number, offset, num_bytes)
        self._memory.add(slot)
        return slot


def _place_for(num_bytes: int, slots: Iterable[Slot], end: int) -> int | None:
    """Return the lowest offset with a gap of that size between the slots; None when there is none. Pure."""
    start = _HEADER_BYTES
    for slot in sorted(slots, key=lambda slot: slot.offset):
        if slot.offset - start >= num_bytes:
            return start
        start = slot.offset + slot.size
    return start if end - start >= num_bytes else None


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
