from __future__ import annotations

import threading

import pytest

from prefeed.transfer.entries import Entry
from prefeed.transfer.flow import CopyLimits, CopyScheduler

pytestmark = pytest.mark.usefixtures("sandbox")

ITEMS = [Entry(str(number), 1000) for number in range(10)]


class Taker:
    """Takes one object in a thread of its own."""

    def __init__(self, flow: CopyScheduler, number: int) -> None:
        self.taken: Entry | None = None
        self._thread = threading.Thread(target=self._take, args=(flow, number), daemon=True)
        self._thread.start()

    def _take(self, flow: CopyScheduler, number: int) -> None:
        self.taken = flow.take(number)

    def wait(self) -> Entry | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.taken


def test_objects_come_in_order_and_then_none() -> None:
    flow = CopyScheduler(ITEMS, CopyLimits())

    assert [flow.take(0) for _ in range(11)] == [*ITEMS, None]
    assert flow.num_threads == 0


def test_a_thread_too_many_waits_until_the_limit_grows_again() -> None:
    now = 0.0
    flow = CopyScheduler(ITEMS, CopyLimits(max_in_flight=2), clock=lambda: now)
    first = flow.take(0)
    flow.record_throttle()
    assert (first, flow.num_threads) == (ITEMS[0], 1)
    waiting = Taker(flow, 1)

    now = 2.0  # the limit is held for a second
    flow.record_success(1000, 0.01)

    assert waiting.wait() == ITEMS[1]


def test_an_object_waits_for_bytes() -> None:
    flow = CopyScheduler(ITEMS, CopyLimits(max_bytes_in_flight=1500))
    first = flow.take(0)
    assert first is not None
    waiting = Taker(flow, 1)

    flow.release(first)

    assert waiting.wait() == ITEMS[1]


def test_who_waits_goes_when_it_is_over() -> None:
    flow = CopyScheduler(ITEMS, CopyLimits(max_in_flight=1, max_bytes_in_flight=1500))
    flow.take(0)
    takers = [Taker(flow, 0), Taker(flow, 1)]

    flow.stop()

    assert [taker.wait() for taker in takers] == [None, None]
