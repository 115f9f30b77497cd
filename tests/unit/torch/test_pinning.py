"""Slots that a device reads by itself: pinned once, and free only when it has done so. The device is a stand-in."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator

import pytest

from leaks import wait_until
from prefeed.torch.collating import _received
from prefeed.torch.ring import Ring
from prefeed.torch.slots import RingWriter, Slot

pytestmark = pytest.mark.usefixtures("sandbox")

torch = pytest.importorskip("torch")
PAGE = mmap.PAGESIZE


class Device:
    """Does what a driver does, when it is told to.

    Attributes:
        pinned: Address and size of what is registered now.
        num_registered: Calls of ``register``.
        may_finish: Work that was asked for is done.
        is_waited_for: Somebody is inside ``wait``.
    """

    def __init__(self, *, can_register: bool = True) -> None:
        self.pinned: dict[int, int] = {}
        self.num_registered = 0
        self.can_register = can_register
        self.may_finish = threading.Event()
        self.is_waited_for = threading.Event()

    def register(self, address: int, num_bytes: int) -> bool:
        if not self.can_register:
            return False
        assert address not in self.pinned
        self.pinned[address] = num_bytes
        self.num_registered += 1
        return True

    def unregister(self, address: int) -> None:
        del self.pinned[address]

    def wait(self) -> None:
        self.is_waited_for.set()
        assert self.may_finish.wait(60)


class Pair:
    """A ring of four pages of which a device knows, and the worker's side of it in the same process."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.ring = Ring(4 * PAGE, slots_a_tensor=64, driver=device)
        self.writer = RingWriter.open(self.ring.name)

    def send(self, pages: int = 1) -> Slot | None:
        return self.writer.try_take(pages * PAGE)

    def receive(self, slot: Slot | None) -> object:
        assert slot is not None
        return _received(self.ring.name.number, slot.number, PAGE, torch.uint8, (PAGE,))

    def close(self) -> None:
        self.writer.close()
        self.ring.close()
        del self.writer, self.ring


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair(Device())
    yield pair
    pair.device.may_finish.set()
    pair.close()
    assert wait_until(lambda: not _threads(), timeout_seconds=60)


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefeed-pinned"]


def test_a_slot_is_pinned_when_it_is_received_first(pair: Pair) -> None:
    pair.device.may_finish.set()
    slot = pair.send()
    assert slot is not None
    for _ in range(3):
        batch = pair.receive(slot)
        assert pair.device.pinned == {batch.data_ptr(): PAGE}  # type: ignore[attr-defined]
        del batch
    assert pair.device.num_registered == 1


def test_a_slot_is_not_free_before_the_device_has_read_it(pair: Pair) -> None:
    slots = [pair.send() for _ in range(4)]
    batch = pair.receive(slots[2])
    del batch
    assert pair.device.is_waited_for.wait(60)
    assert pair.send() is None
    pair.device.may_finish.set()
    assert wait_until(lambda: pair.send() == slots[2], timeout_seconds=60)


def test_memory_that_cannot_be_pinned_is_used_as_it_is() -> None:
    device = Device(can_register=False)
    pair = Pair(device)
    slots = [pair.send() for _ in range(4)]
    batch = pair.receive(slots[1])
    del batch
    assert pair.send() == slots[1]
    assert not device.is_waited_for.is_set()
    device.may_finish.set()
    pair.close()
    assert wait_until(lambda: not _threads(), timeout_seconds=60)


def test_no_slot_makes_room_for_another(pair: Pair) -> None:
    slots = [pair.send() for _ in range(4)]
    for slot in slots:
        assert slot is not None
        pair.writer.free(slot)
    assert pair.send(pages=2) is None
    assert pair.send() in slots


def test_nothing_stays_pinned() -> None:
    device = Device()
    pair = Pair(device)
    batches = [pair.receive(pair.send()) for _ in range(3)]
    del batches[:2]
    assert device.is_waited_for.wait(60)
    pair.close()
    assert len(device.pinned) == 3  # one is held, two may still be read
    device.may_finish.set()
    assert wait_until(lambda: len(device.pinned) == 1, timeout_seconds=60)
    (batch,) = batches
    assert batch.data_ptr() in device.pinned  # type: ignore[attr-defined]
    assert _threads()
    batches.clear()
    del batch
    assert wait_until(lambda: not device.pinned and not _threads(), timeout_seconds=60)
