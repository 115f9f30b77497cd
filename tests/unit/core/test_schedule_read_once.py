"""Plans that read once: everything streams, nothing is kept, and nothing stands still."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prefeed.core.actions import Outcome, Placement
from prefeed.core.table import ABSENT, RESIDENT, TRANSIENT
from ring import Ring, as_ids

A, B = 7, 8
SIZE = 10


def ring_of(budget_objects: int, *num_objects: int) -> Ring:
    """A ring with datasets 1, 2, … of that many objects."""
    ring = Ring(budget=budget_objects * SIZE)
    for dataset, count in enumerate(num_objects, start=1):
        ring.add(dataset, [SIZE] * count)
    return ring


def plan_once(ring: Ring, consumer: int, dataset: int, ids: Sequence[int]) -> None:
    ring.scheduler.register_plan(consumer, dataset, as_ids(ids), resident=False)
    ring.collect()


def read_all(ring: Ring, consumer: int, dataset: int, ids: Sequence[int]) -> int:
    """Read in this order, each fetch back before the next read; return how many were hits."""
    hits = 0
    for index, object_id in enumerate(ids):
        ring.arrive_all()
        hits += ring.read(consumer, dataset, object_id)
        ring.scheduler.position(consumer, index + 1)
    ring.arrive_all()
    return hits


def residents(ring: Ring, dataset: int) -> list[int]:
    return ring.scheduler.tables[dataset].ids_in(RESIDENT).tolist()


def test_everything_streams_through_and_nothing_stays() -> None:
    ring = ring_of(50, 100)
    plan_once(ring, A, 1, range(100))
    assert len(ring.fetching) == 50  # the whole budget
    assert read_all(ring, A, 1, range(100)) == 100
    assert ring.tier == {}
    assert ring.fetched == [(1, object_id) for object_id in range(100)]


def test_nothing_stays_even_if_everything_fits() -> None:
    ring = ring_of(1000, 10)
    plan_once(ring, A, 1, range(10))
    ring.arrive_all()
    assert ring.scheduler.num_transients == 10
    assert read_all(ring, A, 1, range(10)) == 10
    assert ring.tier == {}


def test_a_transient_that_the_plan_names_twice_stays_until_it_was_read_twice() -> None:
    ring = ring_of(50, 100)
    plan_once(ring, A, 1, [3, 3])
    ring.arrive_all()
    ring.consume(A, 1, [3])
    assert ring.holds(1) == {3}
    ring.consume(A, 1, [3])
    assert ring.holds(1) == set()


def test_an_announced_plan_is_read_once_too() -> None:
    ring = ring_of(50, 100)
    ring.scheduler.register_upcoming(A, 1, as_ids(range(100)), resident=False)
    ring.arrive_all()
    assert ring.scheduler.adopt_upcoming(A)
    assert residents(ring, 1) == []
    assert read_all(ring, A, 1, range(100)) == 100
    assert ring.tier == {}


def test_what_is_resident_already_is_read_and_stays() -> None:
    ring = ring_of(1000, 10)
    ring.plan(A, 1, range(5))
    ring.arrive_all()
    plan_once(ring, A, 1, range(10))
    assert list(ring.fetching) == [(1, object_id) for object_id in range(5, 10)]
    assert read_all(ring, A, 1, range(10)) == 10
    assert residents(ring, 1) == [0, 1, 2, 3, 4]


def test_residents_of_the_same_dataset_leave_the_part_that_is_always_lent() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(50))  # all of it resident, but for what is lent
    ring.arrive_all()
    kept = residents(ring, 1)
    assert len(kept) == 26
    plan_once(ring, A, 1, range(100))
    assert read_all(ring, A, 1, range(100)) == 100
    assert residents(ring, 1) == kept


def test_residents_that_are_not_read_make_room() -> None:
    ring = ring_of(50, 40, 100)
    ring.plan(A, 1, range(40))
    ring.arrive_all()
    assert len(residents(ring, 1)) == 40
    ring.scheduler.end_consumer(A)
    plan_once(ring, B, 2, range(100))
    assert len(residents(ring, 1)) >= 25  # first what is always lent is freed, the rest when it is needed
    assert read_all(ring, B, 2, range(100)) == 100
    assert residents(ring, 1) == []
    assert residents(ring, 2) == []


def test_residents_that_are_not_read_stay_while_there_is_room() -> None:
    ring = ring_of(100, 40, 60)
    ring.plan(A, 1, range(40))
    ring.arrive_all()
    ring.scheduler.end_consumer(A)
    plan_once(ring, B, 2, range(60))
    assert read_all(ring, B, 2, range(60)) == 60
    assert len(residents(ring, 1)) == 40


def test_a_plan_that_keeps_and_one_that_reads_once_share_the_budget() -> None:
    ring = ring_of(100, 30, 1000)
    ring.plan(A, 1, range(30))
    plan_once(ring, B, 2, range(1000))
    assert ring.scheduler.residency.lent_bytes == 50 * SIZE  # half, as the rest is room enough for what is kept
    ring.arrive_all()
    assert len(residents(ring, 1)) == 30
    assert ring.scheduler.num_transients == 50
    assert read_all(ring, B, 2, range(1000)) == 1000


def test_what_is_kept_has_its_room_before_what_is_read_once() -> None:
    ring = ring_of(100, 200, 1000)
    plan_once(ring, B, 2, range(1000))
    ring.arrive_all()
    ring.plan(A, 1, range(200))
    assert ring.scheduler.residency.lent_bytes == 24 * SIZE
    assert read_all(ring, B, 2, range(1000)) == 1000
    assert len(residents(ring, 1)) == 76


def test_the_room_is_planned_again_when_the_last_plan_that_reads_once_ends() -> None:
    ring = ring_of(100, 90, 1000)
    ring.plan(A, 1, range(90))
    plan_once(ring, B, 2, range(1000))
    assert ring.scheduler.residency.lent_bytes == 24 * SIZE
    ring.scheduler.end_consumer(B)
    assert ring.scheduler.residency.lent_bytes == 0


@pytest.mark.parametrize("kept", [0, 100])
def test_an_object_that_finds_no_room_does_not_stop_the_plan(kept: int) -> None:
    ring = Ring(budget=1000)
    ring.add(1, [10, 5000, 10, 900, 10])
    ring.add(2, [10] * kept)
    if kept:
        ring.plan(B, 2, range(kept))
        ring.arrive_all()
    plan_once(ring, A, 1, range(5))
    ring.arrive_all()
    assert {0, 2, 4} <= ring.holds(1)
    token = ring.demand(1, 1, consumer=A)
    ring.arrive(1, 1)
    assert ring.outcome(token) == Outcome.INLINE
    ring.consume(A, 1, range(5))
    assert ring.holds(1) == set()


def test_an_object_that_is_larger_than_what_live_residents_leave_is_passed_over() -> None:
    ring = Ring(budget=1000)
    ring.add(1, [10] * 100 + [400, 10])
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    kept = residents(ring, 1)
    assert 1000 - 10 * len(kept) < 400
    plan_once(ring, A, 1, [100, 101])
    ring.arrive_all()
    assert ring.holds(1) == {*kept, 101}


# ------------------------------------------------------------ readers that ask


def test_a_reader_that_was_not_expected_gets_the_bytes_and_nothing_is_kept() -> None:
    ring = ring_of(1000, 10)
    plan_once(ring, A, 1, [0])
    token = ring.demand(1, 5, consumer=A)
    assert ring.arrive(1, 5) == Placement.DIRECT
    assert ring.outcome(token) == Outcome.INLINE
    assert ring.scheduler.tables[1].state[5] == ABSENT


def test_a_reader_that_was_expected_finds_a_transient() -> None:
    ring = ring_of(1000, 10)
    plan_once(ring, A, 1, [5])
    ring.fail(1, 5, permanent=False)  # given up; the plan still expects its reader
    token = ring.demand(1, 5, consumer=A)
    assert ring.arrive(1, 5) == Placement.TRANSIENT
    assert ring.outcome(token) == Outcome.STORED
    assert ring.scheduler.tables[1].state[5] == TRANSIENT
    ring.consume(A, 1, [5])
    assert ring.tier == {}


def test_a_reader_of_another_consumer_keeps_what_it_asks_for() -> None:
    ring = ring_of(100, 10, 10)
    ring.plan(B, 2, [])
    plan_once(ring, A, 1, [])
    ring.demand(1, 5, consumer=B)
    assert ring.arrive(1, 5) == Placement.RESIDENT


def test_a_warm_plan_always_keeps() -> None:
    ring = ring_of(1000, 10)
    ring.scheduler.register_plan(A, 1, as_ids(range(10)), warm=True, resident=False)
    ring.arrive_all()
    assert len(residents(ring, 1)) == 10


def test_sizes_that_are_known_only_on_arrival_stream_too() -> None:
    ring = Ring(budget=1_000_000)
    ring.add(1, [None] * 200)
    plan_once(ring, A, 1, range(200))
    assert len(ring.fetching) == 1  # twice the first guess is reserved for each
    for object_id in range(200):
        while (1, object_id) not in ring.tier:
            ring.arrive(*next(iter(ring.fetching)), size=20_000)
            ring.settle_frees()
        ring.consume(A, 1, [object_id])
    ring.arrive_all()
    assert ring.tier == {}
    assert len(ring.fetched) == 200


# ------------------------------------------------------------ plans that keep from now on, and those of others


def test_a_plan_that_keeps_from_now_on_keeps_what_waits_and_what_follows() -> None:
    ring = ring_of(1000, 10)
    plan_once(ring, A, 1, range(10))
    for object_id in range(4):
        ring.arrive(1, object_id)
    ring.consume(A, 1, [0])
    ring.settle_frees()
    ring.keep(A, resident=True)
    assert residents(ring, 1) == [1, 2, 3]
    ring.arrive_all()
    ring.consume(A, 1, range(1, 10))
    ring.settle_frees()
    assert residents(ring, 1) == list(range(1, 10))
    assert ring.scheduler.num_transients == 0
    assert len(ring.fetched) == 10


def test_what_waits_is_kept_as_far_as_there_is_room() -> None:
    ring = ring_of(50, 100)
    plan_once(ring, A, 1, range(100))
    ring.arrive_all()
    ring.keep(A, resident=True)
    assert residents(ring, 1) == list(range(26))  # the rest is lent
    assert ring.scheduler.num_transients == 24
    assert read_all(ring, A, 1, range(100)) == 100
    assert residents(ring, 1) == list(range(26))


def test_a_plan_that_reads_once_from_now_on_leaves_what_is_resident() -> None:
    ring = ring_of(1000, 10)
    ring.plan(A, 1, range(4))
    ring.arrive_all()
    ring.keep(A, resident=False)
    ring.scheduler.extend_plan(A, as_ids(range(4, 10)))
    ring.collect()
    assert read_all(ring, A, 1, range(10)) == 10
    assert residents(ring, 1) == [0, 1, 2, 3]


def test_an_announced_plan_keeps_from_now_on_too() -> None:
    ring = ring_of(1000, 10)
    ring.scheduler.register_upcoming(A, 1, as_ids(range(10)), resident=False)
    ring.arrive_all()
    ring.keep(A, resident=True)
    assert len(residents(ring, 1)) == 10


def test_a_warm_plan_keeps_whatever_its_consumer_says() -> None:
    ring = ring_of(1000, 10)
    ring.plan(A, 1, range(10), warm=True)
    ring.keep(A, resident=False)
    ring.arrive_all()
    assert len(residents(ring, 1)) == 10


def test_a_consumer_without_a_plan_may_say_so_too() -> None:
    ring = ring_of(1000, 10)
    ring.keep(A, resident=True)
    assert ring.fetched == []


@pytest.mark.parametrize("is_here", [False, True])
def test_what_another_plan_keeps_is_kept(is_here: bool) -> None:
    """A program reads its files into a stage, another one reads them as they are: they are fetched once, and stay."""
    ring = ring_of(1000, 10)
    plan_once(ring, A, 1, range(10))
    if is_here:
        ring.arrive_all()
    ring.plan(B, 1, range(10))
    ring.arrive_all()
    ring.consume(A, 1, range(10))
    ring.consume(B, 1, range(10))
    ring.settle_frees()
    assert residents(ring, 1) == list(range(10))
    assert len(ring.fetched) == 10


def test_what_a_plan_that_keeps_is_to_read_is_kept_whichever_plan_comes_first() -> None:
    ring = ring_of(1000, 10)
    ring.plan(B, 1, [])
    plan_once(ring, A, 1, range(10))
    ring.arrive_all()
    ring.consume(A, 1, range(10))
    ring.settle_frees()
    assert residents(ring, 1) == list(range(10))


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_reader_without_a_plan_may_have_no_use_for_an_object_after_its_read(is_kept: bool) -> None:
    ring = ring_of(1000, 10)
    if is_kept:
        ring.plan(B, 1, [])
    token = ring.demand(1, 5, once=True)
    assert ring.arrive(1, 5) == (Placement.RESIDENT if is_kept else Placement.DIRECT)
    assert ring.outcome(token) == (Outcome.STORED if is_kept else Outcome.INLINE)
