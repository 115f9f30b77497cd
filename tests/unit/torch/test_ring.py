"""Rings: a slot is used again when nobody can read it any more, and never before."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from leaks import wait_until
from prefeed.torch.collating import _received
from prefeed.torch.ring import Lease, Ring, Rings, ring_of
from prefeed.torch.slots import RingWriter, Slot

pytestmark = pytest.mark.usefixtures("sandbox")

PAGE = mmap.PAGESIZE
torch = pytest.importorskip("torch")


class Pair:
    """A ring, and the worker's side of it in the same process. Each message is one page, filled with its number."""

    def __init__(self) -> None:
        self.ring = Ring(64 * PAGE, slots_a_tensor=64)
        self.writer = RingWriter.open(self.ring.name)
        self.num_sent = 0

    def send(self) -> Slot:
        slot = self.writer.try_take(PAGE)
        assert slot is not None
        self.num_sent += 1
        self.writer.bytes_of(slot, PAGE)[:] = self.num_sent
        return slot

    def receive(self, slot: Slot) -> Any:
        return _received(self.ring.name.number, slot.number, PAGE, torch.uint8, (64, PAGE // 64))

    def is_free(self, slot: Slot) -> bool:
        """Return True when the worker would take this slot among all."""
        taken = []
        while (other := self.writer.try_take(1)) is not None:
            taken.append(other)
        for other in taken:
            self.writer.free(other)
        return slot in taken

    def close(self) -> None:
        self.writer.close()
        self.ring.close()
        del self.writer, self.ring  # pytest keeps the fixture


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def same(value: Any) -> Any:
    return value


KEEPERS: dict[str, Callable[[Any], Any]] = {
    "itself": same,
    "view": lambda tensor: tensor[3:5, 2],
    "shape": lambda tensor: tensor.view(-1).view(torch.float32),
    "numpy": lambda tensor: tensor.numpy()[1:2],
    "memory": lambda tensor: memoryview(tensor.numpy()),
    "storage": lambda tensor: tensor.untyped_storage(),
    "detached": lambda tensor: tensor.detach().requires_grad_(False),
    "dlpack": lambda tensor: torch.from_dlpack(tensor),
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "iterator": lambda tensor: iter(tensor),
}


@pytest.mark.parametrize("name", KEEPERS)
@pytest.mark.parametrize("is_moved", [False, True])
def test_whatever_can_read_the_slot_keeps_it(pair: Pair, name: str, is_moved: bool) -> None:
    """Also when torch moves the tensor to other memory: what was made of it before goes on reading this one."""
    slot = pair.send()
    tensor = pair.receive(slot)
    keeper = KEEPERS[name](tensor)
    if is_moved:
        tensor.share_memory_()
    del tensor
    gc.collect()
    assert not pair.is_free(slot)
    del keeper
    gc.collect()
    assert pair.is_free(slot)


def test_what_is_held_does_not_change(pair: Pair) -> None:
    held = [pair.receive(pair.send()) for _ in range(5)]
    views = [pair.receive(pair.send())[1:].numpy() for _ in range(5)]
    for _ in range(100):
        pair.receive(pair.send())
    assert [tensor.unique().tolist() for tensor in held] == [[n] for n in range(1, 6)]
    assert [np.unique(view).tolist() for view in views] == [[n] for n in range(6, 11)]


def test_a_tensor_may_go_in_any_thread(pair: Pair) -> None:
    slots = [pair.send() for _ in range(20)]
    tensors = [pair.receive(slot) for slot in slots]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert all(pair.is_free(slot) for slot in slots)


def test_a_batch_that_was_not_received_is_free_for_the_next_worker(pair: Pair) -> None:
    held, lost = pair.send(), pair.send()
    tensor = pair.receive(held)
    assert not pair.is_free(lost)
    pair.ring.begin()
    assert pair.is_free(lost)
    assert not pair.is_free(held)
    assert tensor.unique().tolist() == [1]
    del tensor
    assert pair.is_free(held)


# ---------------------------------------------------------------- forks


class Forked:
    """A forked child that does something with what it has, waits until it is told to end, and does it once more."""

    def __init__(self, act: Callable[[], bool]) -> None:
        told, self._tell = os.pipe()
        self._hear, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._tell)
                os.write(answer, b"1" if act() else b"0")
                os.read(told, 1)
                os.write(answer, b"1" if act() else b"0")
            finally:
                os._exit(0)
        for descriptor in (told, answer):
            os.close(descriptor)

    def went_well(self) -> bool:
        return os.read(self._hear, 1) == b"1"

    def end(self) -> bool:
        """Let it act once more, and wait for its end; return whether it went well."""
        os.close(self._tell)
        went_well = self.went_well()
        os.waitpid(self.pid, 0)
        os.close(self._hear)
        return went_well


def test_a_child_frees_nothing(pair: Pair) -> None:
    tensors = [pair.receive(pair.send())]

    def let_go() -> bool:
        tensors.clear()
        gc.collect()
        return True

    slots = pair.ring._memory.slots()
    child = Forked(let_go)
    assert child.went_well()
    assert not any(pair.is_free(slot) for slot in slots)
    assert tensors[0].unique().tolist() == [1]
    assert child.end()


def test_a_child_continues_reading_what_it_has(pair: Pair) -> None:
    slot = pair.send()
    tensors = [pair.receive(slot)]
    child = Forked(lambda: tensors[0].unique().tolist() == [1])
    assert child.went_well()
    tensors.clear()
    for _ in range(10):
        pair.receive(pair.send())
    assert not pair.is_free(slot)
    pair.ring.begin()
    assert not pair.is_free(slot)
    assert child.end()
    pair.receive(pair.send())
    assert pair.is_free(slot)


def test_a_childs_child_continues_reading(pair: Pair) -> None:
    slot = pair.send()
    tensors = [pair.receive(slot)]
    told, tell = os.pipe()
    first = os.fork()
    if first == 0:
        if os.fork() == 0:
            os.close(tell)
            os.read(told, 1)
        os._exit(0)
    os.close(told)
    os.waitpid(first, 0)
    tensors.clear()
    pair.receive(pair.send())
    assert not pair.is_free(slot)
    os.close(tell)

    def is_free() -> bool:
        pair.receive(pair.send())
        return pair.is_free(slot)

    assert wait_until(is_free, timeout_seconds=60)


def test_slots_of_later_batches_do_not_wait_for_a_child(pair: Pair) -> None:
    tensors = [pair.receive(pair.send())]
    child = Forked(lambda: True)
    child.went_well()
    slot = pair.send()
    pair.receive(slot)
    pair.receive(pair.send())
    assert pair.is_free(slot)
    assert child.end()
    assert tensors[0].unique().tolist() == [1]


def test_children_leave_no_descriptors_behind(pair: Pair) -> None:
    tensor = pair.receive(pair.send())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        child = Forked(lambda: True)
        child.went_well()
        child.end()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert tensor.unique().tolist() == [1]


def test_no_pipe_without_a_batch(pair: Pair) -> None:
    before = os.listdir("/proc/self/fd")
    child = Forked(lambda: True)
    child.went_well()
    child.end()
    assert os.listdir("/proc/self/fd") == before


# ---------------------------------------------------------------- the end


def test_a_slot_that_is_used_again_at_once_is_held(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensor goes in one thread, and another one has the worker's next batch before that thread goes on."""
    tensor = pair.receive(pair.send())
    free, received = pair.ring._memory.free, []

    def free_and_receive(number: int) -> None:
        free(number)
        received.append(pair.receive(pair.send()))

    with monkeypatch.context() as patch:
        patch.setattr(pair.ring._memory, "free", free_and_receive)
        del tensor
    assert pair.ring.is_held
    pair.ring.begin()
    pair.send()
    assert received.pop().unique().tolist() == [2]


def test_closing_leaves_what_is_held_and_nothing_else() -> None:
    pair = Pair()
    tensor = pair.receive(pair.send())
    for _ in range(5):
        pair.send()
    memory = os.open(f"/proc/self/fd/{pair.ring.name.descriptor}", os.O_RDONLY)
    pair.close()

    def pages() -> int:
        return os.fstat(memory).st_blocks * 512 // PAGE - 2  # of the header

    assert pages() == 1
    assert tensor.unique().tolist() == [1]
    del tensor
    assert pages() == 0
    os.close(memory)


def test_a_ring_is_found_while_somebody_has_it(pair: Pair) -> None:
    assert ring_of(pair.ring.name.number) is pair.ring


# ---------------------------------------------------------------- of a loader


def lease_of(rings: Rings, num_workers: int = 2) -> Lease:
    lease = rings.try_lease(num_workers, prefetch_factor=2)
    assert lease is not None
    return lease


def test_one_iterator_at_a_time_has_the_rings() -> None:
    rings = Rings(1 << 20)
    first = lease_of(rings)
    assert len({name.number for name in first.names}) == 2
    assert rings.try_lease(2, prefetch_factor=2) is None
    first.end()
    second = lease_of(rings)
    assert second.names == first.names
    first.end()
    assert rings.try_lease(2, prefetch_factor=2) is None, "the second has not ended"


def test_the_bound_is_the_loaders() -> None:
    rings = Rings(1 << 20)
    assert [name.max_bytes for name in lease_of(rings, 4).names] == [1 << 18] * 4
    assert Rings(0).try_lease(4, prefetch_factor=2) is None


def test_another_number_of_workers_has_other_rings() -> None:
    rings = Rings(1 << 20)
    lease = lease_of(rings, 2)
    lease.end()
    assert len(lease_of(rings, 3).names) == 3


def test_no_descriptor_left_is_no_error() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rings = Rings(1 << 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, hard))
    try:
        assert rings.try_lease(8, prefetch_factor=2) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    lease_of(rings, 8)


def test_an_iterator_keeps_the_rings_of_a_loader_that_is_gone() -> None:
    rings = Rings(1 << 20)
    lease = lease_of(rings, 1)
    del rings
    gc.collect()
    writer = RingWriter.open(lease.names[0])
    slot = writer.try_take(PAGE)
    assert slot is not None
    writer.bytes_of(slot, 2)[:] = 5
    assert ring_of(lease.names[0].number).receive(slot.number, 2).tolist() == [5, 5]
    writer.close()


def test_a_forked_process_makes_its_own() -> None:
    rings = Rings(1 << 20)
    names = lease_of(rings).names

    def has_its_own() -> bool:
        lease = rings.try_lease(2, prefetch_factor=2)
        if lease is None or {name.pid for name in lease.names} != {os.getpid()}:
            return False
        writer = RingWriter.open(lease.names[0])
        writer.close()
        lease.end()
        return True

    child = Forked(has_its_own)
    assert child.went_well()
    RingWriter.open(names[0]).close()
    assert child.end()
    RingWriter.open(names[1]).close()
