"""What the node does with objects that lie in a ring: they are stored or copied before their room is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from nodes import RecordingTier, Rig, content, memory_source, rig
from prefeed.core.actions import Outcome
from prefeed.core.requests import START
from prefeed.errors import ObjectNotFoundError, SourceError, TierFullError, TransientSourceError
from prefeed.limits import Limits
from prefeed.server import fetchers
from prefeed.server.fetch_processes import Delivery, Lease
from prefeed.server.fetch_ring import Ring
from prefeed.server.fetchers import Job
from prefeed.sources.quick_fetches import MISSING, ODD, TIMED_OUT, QuickOrigin
from prefeed.sources.quick_heads import WHOLE
from prefeed.store.entry_sums import sum_of
from prefeed.testing.sources import CountingSource
from sandbox import Sandbox

SIZE = 5000
READER = 7
ORIGIN = QuickOrigin("http://origin", False, "origin", 80, b"", 60.0)

pytestmark = pytest.mark.usefixtures("sandbox")


class QuickMemory(CountingSource):
    """An origin whose objects processes may fetch."""

    def quick_origin(self) -> QuickOrigin:
        return ORIGIN

    def quick_target(self, path: str) -> bytes:
        return path.encode()

    def quick_failure(self, path: str, failure: str) -> SourceError | None:
        if failure == MISSING:
            return ObjectNotFoundError(f"{path} does not exist", path=path)
        return None if failure == ODD else TransientSourceError(failure)


class HandProcesses:
    """Stands for the processes: objects arrive when the test says, in a ring that is written over after each turn."""

    def __init__(self) -> None:
        self.num_ready = 1
        self.ready_ids = ()
        self.is_urgent = False
        self.ring = Ring(8 * 1024**2)
        self.asked: list[tuple[int, Job, bool]] = []
        self.limits: list[int] = []
        self.expected: list[int] = []
        self.keys: dict[int, bytes] = {}  # whose sums are wanted, by object
        self._deliveries: list[Delivery[Job]] = []
        self._lost: list[Job] = []

    def expect(self, num_objects: int) -> None:
        self.expected.append(num_objects)

    def limit(self, origin: QuickOrigin, most: int) -> None:
        assert origin == ORIGIN
        self.limits.append(most)

    def try_fetch(
        self,
        origin: QuickOrigin,
        target: bytes,
        size_bytes: int,
        job: Job,
        *,
        is_demanded: bool = False,
        key: bytes = b"",
        first: int = WHOLE,
    ) -> bool:
        assert first == WHOLE
        assert target.decode() == job.manifest.path(job.ticket.object_id)
        self.keys[job.ticket.object_id] = key
        self.asked.append((size_bytes, job, is_demanded))
        return True

    def flush(self) -> None:
        """What was asked is known."""

    def take(self, most: int) -> list[Delivery[Job]]:
        taken, self._deliveries = self._deliveries[:most], self._deliveries[most:]
        return taken

    def take_lost(self) -> list[Job]:
        lost, self._lost = self._lost, []
        return lost

    @property
    def num_arrived(self) -> int:
        return len(self._deliveries)

    @property
    def has_results(self) -> bool:
        return bool(self._deliveries or self._lost)

    def close(self) -> None:
        self.ring.close()

    # ------------------------------------------------------------ by the test

    def take_asked(self) -> list[Job]:
        asked, self.asked = self.asked, []
        return [job for _, job, _ in asked]

    def arrive(self, data_of: Callable[[int], bytes] = content, version: str = "") -> int:
        """Let all that was asked for arrive; return how many."""
        jobs = self.take_asked()
        for job in jobs:
            data = data_of(job.ticket.object_id)
            part = self.ring.lease(len(data) + 100)
            assert part is not None
            lease = Lease(self.ring, part, part[0] + 100, len(data))
            lease.data[:] = data
            seen = version or job.source.fetch(job.manifest.path(job.ticket.object_id)).version
            key = self.keys[job.ticket.object_id]
            value_sum = sum_of(key, data) if key else 0
            self._deliveries.append(Delivery(job, lease, seen, seconds=0.01, value_sum=value_sum))
        return len(jobs)

    def fail(self, failure: str) -> None:
        self._deliveries += [Delivery(job, None, failure=failure) for job in self.take_asked()]

    def die(self) -> None:
        self._lost += self.take_asked()

    def write_over(self) -> None:
        """Others use the room: nothing may be read from it any more."""
        assert self.ring.num_leased == 0
        view = self.ring.view(0, self.ring.size_bytes)
        view[:] = b"\xee" * self.ring.size_bytes
        view.release()


class Node:
    """A node with such processes."""

    def __init__(self, made: Rig) -> None:
        self.made = made
        self.processes = HandProcesses()
        made.node.fetchers._processes = self.processes  # type: ignore[assignment]
        self.source = QuickMemory(memory_source(300, size=SIZE))
        self.dataset = made.open(self.source)

    def pump(self) -> None:
        self.made.node.pump()
        self.made.node.validate()
        self.processes.write_over()


@pytest.fixture
def node(sandbox: Sandbox) -> Iterator[Node]:
    with rig(sandbox.home, threads=True, limits=Limits(retry_seconds=60.0)) as made:
        yield Node(made)


def test_objects_are_stored_before_their_room_is_used_again(node: Node) -> None:
    node.made.plan(READER, node.dataset, range(300))
    node.pump()
    while node.processes.arrive():
        node.pump()
    assert node.made.num_residents(node.dataset) == 300
    for index in (0, 150, 299):
        assert node.made.tier.get(node.dataset.key(index)) == content(index)
    assert node.made.node.statistics().origin_requests == 300


class AskingTier(RecordingTier):
    """Asks first, each time that it is to store something."""

    before: Callable[[int], None] | None = None

    def apply(self, puts: Any, deletes: Any, sums: Any = MappingProxyType({})) -> None:
        if self.before is not None:
            self.before(len(puts))
        super().apply(puts, deletes, sums)


def test_next_requests_are_made_before_arrivals_are_stored(sandbox: Sandbox) -> None:
    """As many as have arrived: never are more under way than the limit allows."""
    tier = AskingTier(1 << 30)
    with rig(sandbox.home, threads=True, tier=tier) as made:
        node = Node(made)
        processes, groups = node.processes, list[int]()

        def before(num_puts: int) -> None:
            groups.append(num_puts)
            assert len(processes.asked) >= sum(groups)
            assert len(processes.asked) + processes.num_arrived <= processes.limits[-1] + fetchers._QUEUED

        made.plan(READER, node.dataset, range(300))
        node.pump()
        node.processes.arrive()
        node.pump()  # the first answers have come: the limit is the processes'
        num_under_way = len(node.processes.asked)
        tier.before = before
        assert node.processes.arrive() == num_under_way
        node.pump()
        assert sum(groups) == num_under_way
        assert len(groups) > 1
        table = made.node.scheduler.tables[node.dataset.number]
        assert len(node.processes.asked) == table.in_flight <= table.max_in_flight


def test_listing_of_many_objects_starts_processes_where_the_tier_is_empty(node: Node) -> None:
    node.made.node.foresee(node.source, 1000)
    assert node.processes.expected == [1000]
    node.made.node.foresee(memory_source(1), 1000)  # one that processes do not reach
    assert node.processes.expected == [1000]
    node.made.demand(node.dataset, 0)
    node.processes.arrive()
    node.pump()
    node.made.node.foresee(node.source, 1000)  # the tier may hold them
    assert node.processes.expected == [1000]


def test_sums_of_what_is_kept_come_with_it(node: Node) -> None:
    keys = [node.dataset.key(index) for index in range(3)]
    node.made.plan(READER, node.dataset, [0, 1])
    node.pump()
    node.processes.arrive()
    node.pump()
    assert node.made.tier.sums == {keys[index]: sum_of(keys[index], content(index)) for index in (0, 1)}


def test_no_sum_is_made_of_what_only_passes(node: Node) -> None:
    node.made.node.scheduler.register_plan(READER, node.dataset.number, np.arange(2), resident=False)
    node.pump()
    assert node.processes.keys == {0: b"", 1: b""}


def test_bytes_that_the_tier_refuses_are_copied_for_the_reader(node: Node) -> None:
    node.made.tier.refusal = TierFullError("full")
    reader = node.made.demand(node.dataset, 3)
    node.processes.arrive()
    node.pump()
    assert (reader.outcome, reader.data) == (Outcome.INLINE, content(3))


def test_what_a_plan_expects_and_the_tier_refuses_is_copied(node: Node) -> None:
    """It is kept aside, and its reader asks for it later."""
    node.made.tier.refusal = TierFullError("full")
    node.made.node.begin_plan(READER, node.dataset.number, np.arange(4), upcoming=False, resident=False, recheck=False)
    node.pump()
    node.processes.arrive()
    node.pump()
    reader = node.made.demand(node.dataset, 2, consumer=READER)
    assert (reader.outcome, reader.data) == (Outcome.INLINE, content(2))


def test_object_that_has_changed_is_copied_for_the_reader(node: Node) -> None:
    reader = node.made.demand(node.dataset, 3)
    node.processes.arrive(version="another")
    node.pump()
    assert (reader.outcome, reader.data) == (Outcome.INLINE, content(3))
    assert node.made.node.statistics().errors["object-changed"] == 1


def test_request_that_failed_is_made_again_by_a_process(node: Node) -> None:
    reader = node.made.demand(node.dataset, 3)
    node.processes.fail(TIMED_OUT)
    node.pump()
    assert reader.outcome is None
    node.made.timers.run_next()
    assert node.processes.arrive() == 1
    node.pump()
    assert reader.outcome == Outcome.STORED


def test_missing_object_is_told(node: Node) -> None:
    reader = node.made.demand(node.dataset, 3)
    node.processes.fail(MISSING)
    node.pump()
    assert (reader.outcome, reader.code) == (Outcome.FAILED, ObjectNotFoundError.code)
    assert node.source.fetches == 0


@pytest.mark.parametrize("end", ["odd", "lost"])
def test_what_processes_do_not_bring_a_thread_fetches(node: Node, end: str) -> None:
    reader = node.made.demand(node.dataset, 3)
    if end == "odd":
        node.processes.fail(ODD)
    else:
        node.processes.die()
    node.made.pump_until(lambda: reader.outcome == Outcome.STORED)
    assert node.source.fetches_by_path == {"00003.bin": 1}
    assert node.made.tier.get(node.dataset.key(3)) == content(3)
    assert not node.processes.asked


def test_more_is_handed_over_than_is_requested_at_a_time(node: Node) -> None:
    node.made.plan(READER, node.dataset, range(300))
    node.pump()
    assert len(node.processes.asked) == START
    node.processes.arrive()
    node.pump()
    assert node.processes.limits[-1] == node.dataset.limit.limit
    assert len(node.processes.asked) == node.dataset.limit.limit + 64


def test_only_fetches_that_a_reader_waits_for_are_demanded(node: Node) -> None:
    node.made.plan(READER, node.dataset, range(4))
    node.pump()
    node.made.demand(node.dataset, 9)
    assert {job.ticket.object_id: is_demanded for _, job, is_demanded in node.processes.asked} == {
        0: False, 1: False, 2: False, 3: False, 9: True,
    }  # fmt: skip


def test_objects_behind_a_disk_tier_are_handed_on_by_threads(sandbox: Sandbox) -> None:
    class Disk:
        keys_in_use: Any = None
        offered: dict[bytes, bytes]

        def read(self, key: bytes) -> None:
            return None

        def offer(self, key: bytes, data: Any) -> None:
            self.offered[key] = data

    disk = Disk()
    disk.offered = {}
    with rig(sandbox.home, threads=True) as made:
        node = Node(made)
        made.node.disk = made.node.fetchers._disk = disk  # type: ignore[assignment]
        reader = made.demand(node.dataset, 3)

        def is_asked() -> bool:
            return len(node.processes.asked) == 1

        made.pump_until(is_asked)
        node.processes.arrive()
        node.pump()
        assert reader.outcome == Outcome.STORED
        assert [bytes(data) for data in disk.offered.values()] == [content(3)]


class NoObjects:
    """A pool that has nothing, and keeps what it is offered."""

    is_rich = False
    num_asked = 0

    def __init__(self) -> None:
        self.offered: list[Any] = []

    def read(self, key: bytes, *, is_urgent: Callable[[], bool]) -> None:
        self.num_asked += 1

    def offer(self, key: bytes, data: Any) -> None:
        self.offered.append(data)


def test_objects_that_the_pool_does_not_have_are_brought_by_processes(sandbox: Sandbox) -> None:
    pool = NoObjects()
    with rig(sandbox.home, threads=True) as made:
        node = Node(made)
        made.node.pool = made.node.fetchers._pool = pool  # type: ignore[assignment]
        reader = made.demand(node.dataset, 3)
        made.pump_until(lambda: len(node.processes.asked) == 1)
        node.processes.arrive()
        made.node.pump()
        node.processes.write_over()
        assert reader.outcome == Outcome.STORED
    assert pool.num_asked == 1
    assert [bytes(data) for data in pool.offered] == [content(3)]  # copies: the room is used again


def test_tier_of_tests_keeps_no_view() -> None:
    """Else these tests would not see that bytes are read too late."""
    tier, data = RecordingTier(1 << 20), bytearray(b"abc")
    tier.apply([(b"k" * 16, memoryview(data), False)], [])
    data[:] = b"xyz"
    assert tier.get(b"k" * 16) == b"abc"
