"""Slots as the worker takes them."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from prefeed.torch.ring import Ring
from prefeed.torch.slots import MAX_SLOTS, RingWriter, Slot

pytestmark = pytest.mark.usefixtures("sandbox")

PAGE = mmap.PAGESIZE

Open = Callable[..., RingWriter]


@pytest.fixture
def open_writer() -> Iterator[Open]:
    """Make a ring with room for so many pages, and open it as a worker does."""
    opened: list[tuple[Ring, RingWriter]] = []

    def open_one(pages: int, *, slots_a_tensor: int = 4) -> RingWriter:
        ring = Ring(pages * PAGE, slots_a_tensor=slots_a_tensor)
        opened.append((ring, RingWriter.open(ring.name)))
        return opened[-1][1]

    yield open_one
    for ring, writer in opened:
        writer.close()
        ring.close()
    opened.clear()  # pytest keeps the fixture


def taken(writer: RingWriter, num_bytes: int, **kwargs: int) -> Slot:
    slot = writer.try_take(num_bytes, **kwargs)
    assert slot is not None
    return slot


def test_a_slot_is_used_again_and_not_before(open_writer: Open) -> None:
    writer = open_writer(100)
    first, second = taken(writer, 3 * PAGE), taken(writer, 3 * PAGE)
    assert first.number != second.number
    writer.free(first)
    assert taken(writer, 3 * PAGE) == first
    assert taken(writer, 3 * PAGE) not in (first, second)


def test_another_worker_finds_the_slots(open_writer: Open) -> None:
    ring = Ring(10 * PAGE, slots_a_tensor=4)
    one = RingWriter.open(ring.name)
    slot = taken(one, 10)
    one.bytes_of(slot, 3)[:] = (1, 2, 3)
    other = RingWriter.open(ring.name)
    assert other.bytes_of(slot, 3).tolist() == [1, 2, 3]
    assert taken(other, 10) != slot
    one.free(slot)
    assert taken(other, 10) == slot
    for writer in (one, other):
        writer.close()
    ring.close()


def test_bytes_are_bounded(open_writer: Open) -> None:
    writer = open_writer(5)
    slots = [taken(writer, 2 * PAGE), taken(writer, 2 * PAGE)]
    assert writer.try_take(2 * PAGE) is None
    taken(writer, 1)
    assert writer.try_take(1) is None
    assert open_writer(5).try_take(6 * PAGE) is None
    writer.free(slots[1])
    assert taken(writer, 2 * PAGE) == slots[1]


def test_slots_are_bounded_by_what_a_batch_needs(open_writer: Open) -> None:
    writer = open_writer(1000, slots_a_tensor=3)
    for _ in range(3):
        taken(writer, PAGE)
    assert writer.try_take(PAGE) is None
    for _ in range(3):  # the second tensor of a batch
        taken(writer, PAGE, num_before=1)
    assert writer.try_take(PAGE, num_before=1) is None


def test_the_tables_are_bounded(open_writer: Open) -> None:
    writer = open_writer(1000, slots_a_tensor=MAX_SLOTS + 7)
    for _ in range(MAX_SLOTS):
        taken(writer, 1)
    assert writer.try_take(1) is None


def test_a_slot_that_is_far_too_large_is_the_last_choice(open_writer: Open) -> None:
    writer = open_writer(12)
    large = taken(writer, 10 * PAGE)
    writer.free(large)
    small = taken(writer, PAGE)
    assert small.size == PAGE
    taken(writer, PAGE)
    assert taken(writer, PAGE) == large


def test_small_slots_make_room_for_a_large_one(open_writer: Open) -> None:
    writer = open_writer(6)
    slots = [taken(writer, 2 * PAGE) for _ in range(3)]
    writer.free(slots[0])
    assert writer.try_take(4 * PAGE) is None, "the other two are in use"
    assert taken(writer, 2 * PAGE) == slots[0], "nothing is given up for a slot that cannot be had"
    writer.free(slots[0])
    writer.free(slots[1])
    large = taken(writer, 4 * PAGE)
    assert large.size == 4 * PAGE
    assert writer.try_take(1) is None


def test_slots_that_are_in_use_never_overlap(open_writer: Open) -> None:
    draw = random.Random(5)
    writer = open_writer(64, slots_a_tensor=12)
    in_use: list[Slot] = []
    for _ in range(3000):
        if in_use and draw.random() < 0.5:
            writer.free(in_use.pop(draw.randrange(len(in_use))))
        elif (slot := writer.try_take(num_bytes := draw.randrange(1, 20 * PAGE))) is not None:
            assert slot.size >= num_bytes
            assert slot.number not in {other.number for other in in_use}
            in_use.append(slot)
            spans = sorted((slot.offset, slot.offset + slot.size) for slot in in_use)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
            assert sum(slot.size for slot in in_use) <= 64 * PAGE


def test_pages_of_a_slot_that_made_room_are_given_back(open_writer: Open) -> None:
    ring = Ring(8 * PAGE, slots_a_tensor=1)
    writer = RingWriter.open(ring.name)
    for pages in range(1, 9):
        slot = taken(writer, pages * PAGE)
        writer.bytes_of(slot, slot.size)[:] = 1
        writer.free(slot)
        held_bytes = os.stat(f"/proc/self/fd/{ring.name.descriptor}").st_blocks * 512
        assert held_bytes <= (pages + 2) * PAGE
    writer.close()
    ring.close()


def test_full_memory_is_no_error(open_writer: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    writer = open_writer(100)
    slot = taken(writer, PAGE)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert writer.try_take(PAGE) is None
    monkeypatch.undo()
    assert writer.try_take(PAGE) is None, "it was asked once, and that took time"
    writer.free(slot)
    assert taken(writer, PAGE) == slot


def test_memory_that_is_gone_is_an_error() -> None:
    ring = Ring(PAGE, slots_a_tensor=1)
    with pytest.raises(FileNotFoundError, match="no such memory"):
        RingWriter.open(replace(ring.name, inode=(0, 0)))
    ring.close()
    with pytest.raises(FileNotFoundError):
        RingWriter.open(ring.name)
