"""Threads that read origins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fake_sources import CountingSource, Fault, FaultySource
from leaks import wait_until
from nodes import FakeClock, content, memory_source
from prefeed.core.actions import Placement, Ticket
from prefeed.errors import ObjectNotFoundError, SourceError
from prefeed.server.fetchers import Fetchers, Job

pytestmark = pytest.mark.usefixtures("sandbox")

MANIFEST: Any = SimpleNamespace(
    path=lambda object_id: f"{object_id:05d}.bin", url="memory://test", grows=True, listed=lambda _: None
)


class Pool:
    """A pool and its wake-ups."""

    def __init__(self, behind: Any = None) -> None:
        self.wakes = threading.Semaphore(0)
        self.fetchers = Fetchers(max_threads=4, clock=FakeClock(), wake=self.wakes.release, pool=behind)

    def submit(self, source: Any, *ids: int) -> None:
        for object_id in ids:
            self.fetchers.submit([Job(Ticket(1, object_id, Placement.RESIDENT, 0), source, MANIFEST)])

    def take(self, count: int) -> list[Any]:
        results: list[Any] = []

        def is_done() -> bool:
            results.extend(self.fetchers.take(100))
            return len(results) >= count

        assert wait_until(is_done, timeout_seconds=60)
        return results


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.fetchers.close()
    for thread in pool.fetchers._threads:
        thread.join(60)


def test_every_request_comes_back_once(pool: Pool) -> None:
    source = CountingSource(memory_source(50))
    pool.submit(source, *range(50))
    results = pool.take(50)
    assert {r.job.ticket.object_id: r.fetched.data for r in results} == {i: content(i) for i in range(50)}
    assert source.fetches == 50
    assert not pool.fetchers.has_results


def test_no_thread_is_made_that_would_have_nothing_to_do(pool: Pool) -> None:
    source = memory_source(10)
    for object_id in range(10):
        pool.submit(source, object_id)
        pool.take(1)
    assert len(pool.fetchers._threads) == 1


def test_there_are_as_many_threads_as_requests_up_to_the_most(pool: Pool) -> None:
    faults = {f"{index:05d}.bin": Fault("stall") for index in range(9)}
    source = FaultySource(memory_source(9), faults)
    pool.submit(source, *range(9))
    source.wait_for_stalled(4)
    assert len(pool.fetchers._threads) == 4
    source.faults.clear()
    source.release()
    assert len(pool.take(9)) == 9


def test_take_gives_no_more_than_asked_for(pool: Pool) -> None:
    pool.submit(memory_source(5), *range(5))
    assert wait_until(lambda: len(pool.fetchers._results) == 5, timeout_seconds=60)
    assert len(pool.fetchers.take(2)) == 2
    assert len(pool.fetchers.take(10)) == 3


def test_errors_come_back_and_the_thread_continues(pool: Pool) -> None:
    class Broken(CountingSource):
        def fetch(self, path: str) -> Any:
            if path == "00001.bin":
                raise RuntimeError("a defect")
            return super().fetch(path)

    pool.submit(Broken(memory_source(1)), 0, 1, 2, 0)
    results = pool.take(4)
    errors = {r.job.ticket.object_id: r.error for r in results if r.error}
    assert isinstance(errors[2], ObjectNotFoundError)
    assert type(errors[1]) is SourceError
    assert str(errors[1]) == "RuntimeError: a defect"
    assert sum(r.fetched is not None for r in results) == 2


def test_a_reader_that_waits_is_woken_for_at_once(pool: Pool) -> None:
    pool.fetchers.is_urgent = True
    pool.submit(memory_source(1), 0)
    assert pool.wakes.acquire(timeout=60)
    assert pool.fetchers.has_results


def test_arrivals_that_are_not_awaited_wake_in_groups(pool: Pool) -> None:
    first = FaultySource(memory_source(100), {f"{i:05d}.bin": Fault("stall") for i in range(4)})
    rest = FaultySource(memory_source(100), {f"{i:05d}.bin": Fault("stall") for i in range(15, 19)})
    pool.submit(first, *range(4))  # all threads are busy: the others wait in line
    first.wait_for_stalled(4)
    pool.submit(rest, *range(4, 40))
    first.release()
    rest.wait_for_stalled(4)
    assert len(pool.fetchers._results) == 15
    assert not pool.wakes.acquire(blocking=False)
    rest.release()
    assert pool.wakes.acquire(timeout=60)


def test_arrivals_wake_sooner_when_few_are_under_way(pool: Pool) -> None:
    """Else an origin that takes few requests at a time would wait for the loop's next turn between them."""
    source = FaultySource(memory_source(100), {"00001.bin": Fault("stall")})
    pool.submit(source, 0, 1)
    source.wait_for_stalled(1)
    assert pool.wakes.acquire(timeout=60)
    source.release()


def test_the_end_lets_go_of_requests_that_were_not_made(pool: Pool) -> None:
    source = FaultySource(CountingSource(memory_source(50)), {f"{i:05d}.bin": Fault("stall") for i in range(4)})
    pool.submit(source, *range(50))
    source.wait_for_stalled(4)
    pool.fetchers.close()
    source.release()
    for thread in pool.fetchers._threads:
        thread.join(60)
    assert source.source.fetches == 4  # type: ignore[attr-defined]


def test_an_offer_that_fails_costs_no_request_and_no_thread() -> None:
    """The catalogue was closed meanwhile, or no thread is to be had: the object has come all the same."""

    class Refusing:
        is_rich = False

        def offer(self, key: bytes, data: bytes) -> None:
            raise RuntimeError("a defect")

        def read(self, key: bytes, *, is_urgent: object) -> None:
            return None

    pool = Pool(Refusing())
    source = memory_source(3)
    pool.submit(source, 0, 1, 2)
    assert {r.job.ticket.object_id: r.fetched.data for r in pool.take(3)} == {i: content(i) for i in range(3)}
    pool.fetchers.close()
    for thread in pool.fetchers._threads:
        thread.join(60)


def test_once_closed_it_asks_no_origin_for_what_a_tier_would_have_had(pool: Pool) -> None:
    """At the end of the server the disk tier is closed first, and says of everything that it is not there."""
    source = CountingSource(memory_source(1))
    pool.fetchers._is_closed = True
    result = pool.fetchers._fetch(Job(Ticket(1, 0, Placement.RESIDENT, 0), source, MANIFEST))
    assert (source.fetches, result.fetched) == (0, None)
