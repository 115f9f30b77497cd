"""Datasets that grow and change while they are read, and what each consumer's reads came to."""

from __future__ import annotations

import numpy as np

from prefeed.core.actions import Free, Outcome, Placement
from prefeed.core.table import ABSENT, FREEING, RESIDENT, UNKNOWN_SIZE
from prefeed.types import ReadCounts
from ring import Ring, as_ids

A, B = 7, 8
SIZE = 10


def ring_of(budget_objects: int, num_objects: int) -> Ring:
    ring = Ring(budget=budget_objects * SIZE)
    ring.add(1, [SIZE] * num_objects)
    return ring


def grow(ring: Ring, num_objects: int, size: int | None = SIZE) -> None:
    """Grow the first dataset to that many objects."""
    ring.scheduler.grow_dataset(1, np.full(num_objects, UNKNOWN_SIZE if size is None else size, dtype=np.uint64))


# ------------------------------------------------------------ growth


def test_what_was_appended_can_be_planned_and_asked_for() -> None:
    ring = ring_of(100, 2)
    ring.plan(A, 1, [0])
    grow(ring, 5)
    ring.scheduler.extend_plan(A, as_ids([4, 3]))
    assert ring.collect() == [(1, 4), (1, 3)]
    ring.demand(1, 2)
    ring.arrive_all()
    assert ring.holds(1) == {0, 2, 3, 4}


def test_states_stay_as_they_were() -> None:
    ring = ring_of(100, 3)
    ring.plan(A, 1, [1])
    ring.arrive_all()
    for num_objects in range(4, 3000, 7):
        grow(ring, num_objects)
    table = ring.scheduler.tables[1]
    assert table.ids_in(RESIDENT).tolist() == [1]
    assert len(table) == len(table.states) == num_objects
    table.state[num_objects - 1] = RESIDENT
    assert table.states[-1] == RESIDENT


def test_room_is_lent_once_the_dataset_has_outgrown_the_budget() -> None:
    ring = ring_of(100, 0)
    ring.plan(A, 1, [])
    assert ring.scheduler.residency.lent_bytes == 0
    grow(ring, 101)
    assert ring.scheduler.residency.lent_bytes == 24 * SIZE
    ring.scheduler.extend_plan(A, as_ids(range(101)))
    ring.arrive_all()
    assert ring.scheduler.num_transients == 24


def test_residents_give_way_when_the_dataset_outgrows_the_budget() -> None:
    ring = ring_of(100, 100)
    ring.add(2, [SIZE] * 98)
    ring.plan(A, 2, range(98))
    ring.arrive_all()
    ring.plan(B, 1, range(2))
    ring.arrive_all()
    grow(ring, 1000)
    ring.scheduler.extend_plan(B, as_ids(range(2, 1000)))
    ring.arrive_all()
    assert ring.scheduler.num_transients == 24


def test_growth_of_a_dataset_that_is_not_read_changes_no_room() -> None:
    ring = ring_of(100, 0)
    grow(ring, 1000)
    assert ring.scheduler.residency.lent_bytes == 0


def test_room_is_lent_within_the_epoch_when_files_turn_out_larger_than_guessed() -> None:
    ring = Ring(budget=2_000_000, lookahead=60_000)
    table = ring.add(1, [None] * 50, max_in_flight=1)
    table.guess_mean(10_000)
    ring.plan(A, 1, range(50))
    assert ring.scheduler.residency.lent_bytes == 0
    for object_id in range(50):
        while ring.fetching:
            ring.arrive(*next(iter(ring.fetching)), size=100_000)
            ring.settle_frees()
        assert object_id in ring.holds(1)  # each is there before its reader
        ring.consume(A, 1, [object_id])
    assert 0 < ring.scheduler.residency.lent_bytes < 2_000_000
    assert ring.scheduler.residency.resident_bytes > 0


# ------------------------------------------------------------ change


def test_a_resident_that_is_out_of_date_is_freed_and_fetched_for_its_reader() -> None:
    ring = ring_of(100, 3)
    ring.plan(A, 1, range(3))
    ring.arrive_all()
    ring.scheduler.position(A, 3)
    assert ring.scheduler.invalidate(1, 1)
    ring.collect()
    assert ring.freeing == [Free(1, 1, SIZE, True)]
    assert ring.scheduler.tables[1].state[1] == FREEING
    assert ring.outcome(ring.demand(1, 1, consumer=A)) == Outcome.READ_ORIGIN
    assert ring.settle_frees() == []  # the plan has passed it
    assert ring.scheduler.tables[1].state[1] == ABSENT
    token = ring.demand(1, 1, consumer=A)
    ring.arrive(1, 1, size=25)
    assert ring.outcome(token) == Outcome.STORED
    assert ring.scheduler.residency.resident_bytes == 2 * SIZE + 25


def test_a_plan_that_has_not_come_so_far_fetches_it_again() -> None:
    ring = Ring(budget=1000, lookahead=2 * SIZE)
    ring.add(1, [SIZE] * 10)
    ring.plan(A, 1, range(10))
    ring.arrive_all()
    ring.demand(1, 9)
    ring.arrive_all()
    assert ring.scheduler.invalidate(1, 9)
    ring.settle_frees()
    ring.consume(A, 1, range(2))
    ring.arrive_all()
    ring.consume(A, 1, range(2, 9))
    ring.arrive_all()
    assert ring.fetched.count((1, 9)) == 2


def test_only_what_is_held_can_be_out_of_date() -> None:
    ring = ring_of(30, 100)
    ring.plan(A, 1, range(100))
    assert not ring.scheduler.invalidate(1, 0)  # on its way
    ring.arrive_all()
    assert not ring.scheduler.invalidate(1, 99)  # absent
    assert ring.collect() == []
    for held in (0, 20):  # a resident, a transient
        assert ring.scheduler.invalidate(1, held)
        assert not ring.scheduler.invalidate(1, held)  # on its way out
    assert ring.settle_frees() == [(1, 0), (1, 20)]


def test_what_is_missing_is_fetched_in_the_order_in_which_it_is_read() -> None:
    ring = ring_of(100, 30)
    ring.plan(A, 1, range(29, -1, -1))
    ring.arrive_all()
    ring.scheduler.tables[1].max_in_flight = 0
    for object_id in range(20):
        assert ring.scheduler.invalidate(1, object_id)
    ring.settle_frees()
    ring.scheduler.tables[1].max_in_flight = 2
    assert ring.collect() == [(1, 19), (1, 18)]
    ring.scheduler.position(A, 20)  # the next one is 9: what the loop has is not fetched for it any more
    ring.arrive(1, 19)
    assert ring.fetched[-1] == (1, 9)
    ring.arrive_all()
    assert ring.fetched.count((1, 10)) == 1
    assert [ring.fetched.count((1, object_id)) for object_id in range(10)] == [2] * 10


def test_what_its_reader_asked_for_while_it_was_missing_is_not_fetched_ahead_as_well() -> None:
    ring = ring_of(100, 3)
    ring.scheduler.tables[1].max_in_flight = 0
    ring.scheduler.adopt(1, range(3), [SIZE] * 3)
    ring.plan(A, 1, range(3))
    ring.scheduler.invalidate(1, 1)
    ring.settle_frees()
    token = ring.demand(1, 1, consumer=A)
    assert ring.arrive(1, 1, size=10**6) == Placement.DIRECT
    assert ring.outcome(token) == Outcome.INLINE
    ring.consume(A, 1, [1])
    ring.scheduler.tables[1].max_in_flight = 10
    assert ring.collect() == []


# ------------------------------------------------------------ counts of one consumer


def test_reads_are_counted_by_consumer() -> None:
    ring = ring_of(100, 10)
    ring.plan(A, 1, [0])
    ring.plan(B, 1, [])
    ring.demand(1, 0, consumer=A)  # late
    ring.demand(1, 5, consumer=B)  # a miss
    ring.demand(1, 6, consumer=B)
    ring.scheduler.count_reads(A, 3, 1)
    assert ring.scheduler.counts_of(A) == ReadCounts(hits=3, late=1, misses=0, direct_reads=1)
    assert ring.scheduler.counts_of(B) == ReadCounts(misses=2)
    assert (ring.scheduler.counts.late, ring.scheduler.counts.misses) == (1, 2)
    counts = ring.scheduler.counts_of(A)
    assert counts is not None
    assert counts.reads == 5


def test_counts_continue_from_one_epoch_to_the_next_and_end_with_the_consumer() -> None:
    ring = ring_of(100, 10)
    ring.upcoming(A, 1, [0])
    ring.demand(1, 1, consumer=A)
    ring.scheduler.adopt_upcoming(A)
    ring.demand(1, 2, consumer=A)
    ring.plan(A, 1, [3])
    ring.demand(1, 3, consumer=A)
    assert ring.scheduler.counts_of(A) == ReadCounts(misses=2, late=1)
    ring.scheduler.end_consumer(A)
    assert ring.scheduler.counts_of(A) is None
    ring.plan(A, 1, [4])
    assert ring.scheduler.counts_of(A) == ReadCounts()


def test_reads_of_a_consumer_that_is_not_registered_are_counted_for_all_only() -> None:
    ring = ring_of(100, 10)
    ring.scheduler.count_reads(A, 1, 1)
    ring.demand(1, 1, consumer=A)
    assert ring.scheduler.counts_of(A) is None
    assert ring.scheduler.counts.misses == 1


def test_counts_are_a_copy() -> None:
    ring = ring_of(100, 10)
    ring.plan(A, 1, [])
    before = ring.scheduler.counts_of(A)
    ring.scheduler.count_reads(A, 5, 0)
    assert before == ReadCounts()
