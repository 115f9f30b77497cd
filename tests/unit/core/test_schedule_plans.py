"""Epochs, several consumers, several datasets: what plans do to each other."""

from __future__ import annotations

import numpy as np
import pytest

from prefeed.core.actions import Outcome, Placement
from prefeed.core.plan import MOST_OUTSTANDING
from prefeed.core.table import ABSENT, FAILED, FETCHING, RESIDENT, TRANSIENT
from ring import Ring, as_ids

A, B = 7, 8
SIZE = 10


def ring_of(budget_objects: int, *num_objects: int, lookahead_objects: int = 10**6) -> Ring:
    """A ring with datasets 1, 2, … of that many objects."""
    ring = Ring(budget=budget_objects * SIZE, lookahead=lookahead_objects * SIZE)
    for dataset, count in enumerate(num_objects, start=1):
        ring.add(dataset, [SIZE] * count)
    return ring


# ------------------------------------------------------------ position, order, end


def test_what_the_position_passes_is_freed_unread() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    ring.scheduler.position(A, 30)
    asked = ring.settle_frees()
    assert asked == [(1, 50), (1, 51), (1, 52), (1, 53)]
    assert ring.scheduler.passed_unread == 30
    assert not ring.holds(1) & {26, 27, 28, 29}


def test_nothing_is_fetched_any_more_before_the_position() -> None:
    ring = ring_of(1000, 10)
    ring.scheduler.tables[1].max_in_flight = 1
    ring.plan(A, 1, range(10))
    ring.scheduler.position(A, 6)
    ring.arrive_all()
    assert ring.fetched == [(1, 0), (1, 6), (1, 7), (1, 8), (1, 9)]


def test_a_late_report_does_not_free_what_another_access_needs() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, [*range(27), *range(27, 40), 26])
    ring.arrive_all()
    ring.scheduler.position(A, 27)  # passes the first access to 26
    ring.settle_frees()
    assert 26 in ring.holds(1)
    ring.consume(A, 1, [26])
    assert 26 not in ring.holds(1)


def test_an_epoch_that_ends_early_frees_its_transients() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    ring.scheduler.end_consumer(A)
    ring.settle_frees()
    assert ring.scheduler.num_transients == 0
    assert ring.scheduler.residency.transient_bytes == 0
    assert ring.holds(1) == set(range(26))


def test_what_arrives_after_the_end_is_kept_only_as_a_resident() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(100))
    ring.scheduler.end_consumer(A)
    assert ring.arrive(1, 0) == Placement.RESIDENT
    assert ring.arrive(1, 30) == Placement.DIRECT
    ring.arrive_all()
    assert ring.holds(1) == set(range(26))


def test_a_new_epoch_takes_over_from_one_that_was_left_early() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    ring.plan(A, 1, range(99, -1, -1))
    ring.arrive_all()
    assert ring.holds(1) == {*range(26), *range(76, 100)}


def test_a_plan_that_grows_is_followed() -> None:
    ring = ring_of(1000, 10)
    assert ring.plan(A, 1, []) == []
    assert not ring.scheduler.has_work(A)
    ring.scheduler.extend_plan(A, as_ids([3, 4]))
    assert ring.scheduler.has_work(A)
    assert ring.collect() == [(1, 3), (1, 4)]
    ring.scheduler.extend_plan(A, as_ids([5]))
    assert ring.collect() == [(1, 5)]


def test_events_of_a_consumer_that_is_gone_change_nothing() -> None:
    ring = ring_of(50, 100)
    ring.scheduler.extend_plan(A, as_ids([1]))
    ring.scheduler.position(A, 5)
    ring.scheduler.consumed(A, 1, [3])
    ring.scheduler.end_consumer(A)
    assert not ring.scheduler.adopt_upcoming(A)
    assert not ring.scheduler.has_work(A)
    assert ring.collect() == []


# ------------------------------------------------------------ the next epoch


def test_the_next_epoch_is_fetched_ahead_and_taken_over_as_it_is() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    for object_id in range(100):
        ring.consume(A, 1, [object_id])
        ring.arrive_all()
    ring.upcoming(A, 1, range(99, -1, -1))
    ring.arrive_all()
    assert ring.holds(1) == {*range(26), *range(76, 100)}
    before = len(ring.fetched)
    assert ring.scheduler.adopt_upcoming(A)
    ring.collect()
    assert len(ring.fetched) == before
    assert ring.consume(A, 1, [99]) == [(1, 75)]


def test_a_wrong_guess_is_dropped_with_what_it_fetched() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(26))
    ring.arrive_all()
    ring.upcoming(A, 1, range(50, 60))
    ring.arrive_all()
    assert ring.scheduler.num_transients == 10
    ring.upcoming(A, 1, range(60, 63))
    ring.arrive_all()
    assert ring.holds(1) == {*range(26), 60, 61, 62}
    ring.plan(A, 1, range(70, 72))
    ring.arrive_all()
    assert ring.holds(1) == {*range(26), 70, 71}


def test_a_guess_waits_while_the_present_plan_has_less_ahead() -> None:
    ring = ring_of(1000, 20, 20)
    ring.scheduler.tables[1].max_in_flight = 4
    ring.scheduler.register_plan(A, 1, as_ids(range(10)))
    ring.scheduler.register_upcoming(A, 1, as_ids(range(10, 20)))
    assert ring.collect() == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_a_failure_is_forgotten_when_the_guessed_epoch_begins() -> None:
    ring = ring_of(1000, 4)
    ring.plan(A, 1, [0])
    ring.fail(1, 0, permanent=True)
    ring.upcoming(A, 1, [0, 1])
    assert ring.scheduler.tables[1].state[0] == FAILED
    ring.scheduler.adopt_upcoming(A)
    assert ring.scheduler.tables[1].state[0] == ABSENT


# ------------------------------------------------------------ two consumers


def test_two_consumers_share_one_request() -> None:
    ring = ring_of(1000, 10)
    ring.plan(A, 1, [1, 2, 3])
    assert ring.plan(B, 1, [3, 2, 4]) == [(1, 4)]
    tokens = [ring.demand(1, 3, consumer=A), ring.demand(1, 3, consumer=B)]
    ring.arrive(1, 3)
    assert {ring.outcome(token) for token in tokens} == {Outcome.STORED}
    assert ring.fetched.count((1, 3)) == 1


def test_a_transient_of_two_consumers_stays_until_both_have_read_it() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(30))
    ring.plan(B, 1, [28, 29])
    ring.arrive_all()
    ring.consume(A, 1, [28])
    assert ring.scheduler.tables[1].state[28] == TRANSIENT
    ring.consume(B, 1, [28])
    assert ring.scheduler.tables[1].state[28] == ABSENT
    ring.consume(B, 1, [29])
    ring.scheduler.end_consumer(A)
    ring.settle_frees()
    assert ring.holds(1) == set(range(26))


def test_the_consumer_with_the_least_ahead_comes_first() -> None:
    ring = ring_of(1000, 20)
    ring.scheduler.tables[1].max_in_flight = 2
    ring.plan(A, 1, range(10))
    ring.scheduler.register_plan(B, 1, as_ids(range(10, 20)))
    ring.arrive(1, 0)
    assert (1, 10) in ring.fetching


def test_one_consumer_cannot_consume_what_another_waits_for() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(30))
    ring.arrive_all()
    ring.plan(B, 1, [])
    ring.consume(B, 1, [29, 29])
    assert 29 in ring.holds(1)


# ------------------------------------------------------------ two datasets


def test_a_dataset_that_is_no_longer_read_makes_room() -> None:
    ring = ring_of(10, 10, 10)
    ring.plan(A, 1, range(10))
    ring.arrive_all()
    ring.scheduler.end_consumer(A)
    ring.settle_frees()
    held = len(ring.holds(1))
    ring.plan(B, 2, range(10))
    ring.arrive_all()
    ring.settle_frees()
    assert len(ring.holds(2)) >= held
    assert len(ring.holds(1)) < held


def test_a_dataset_that_somebody_reads_is_not_evicted_for_another() -> None:
    ring = ring_of(100, 100, 100)
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    residents = set(ring.scheduler.tables[1].ids_in(RESIDENT).tolist())
    ring.plan(B, 2, range(100))
    ring.arrive_all()
    assert len(residents) == 76
    assert residents <= ring.holds(1)


def test_an_abandoned_dataset_is_kept_while_there_is_room() -> None:
    ring = ring_of(1000, 10, 10)
    ring.plan(A, 1, range(10))
    ring.arrive_all()
    ring.scheduler.end_consumer(A)
    ring.plan(B, 2, range(10))
    ring.arrive_all()
    assert ring.holds(1) == set(range(10))


def test_what_an_earlier_life_left_counts_against_the_budget_and_makes_room() -> None:
    ring = ring_of(100, 100)
    ring.add(0, [SIZE] * 40)
    ring.scheduler.adopt(0, range(40), [SIZE] * 40)
    ring.tier = {(0, object_id): SIZE for object_id in range(40)}
    assert ring.scheduler.residency.resident_bytes == 40 * SIZE
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    assert ring.holds(0) == set()
    assert len(ring.holds(1)) == 100


def test_residents_are_handed_over_to_a_newer_listing() -> None:
    ring = ring_of(1000, 10, 10)
    ring.plan(A, 1, range(5))
    ring.arrive_all()
    ring.scheduler.end_consumer(A)
    ring.scheduler.tables[2].state[9] = ABSENT
    ring.scheduler.transfer(1, [0, 1, 2, 7], 2, [9, 8, 7, 6])
    for object_id, other_id in ((0, 9), (1, 8), (2, 7)):
        ring.tier[2, other_id] = ring.tier.pop((1, object_id))
    assert ring.scheduler.tables[2].ids_in(RESIDENT).tolist() == [7, 8, 9]
    assert ring.scheduler.tables[1].ids_in(RESIDENT).tolist() == [3, 4]
    assert (ring.scheduler.tables[1].resident_bytes, ring.scheduler.tables[2].resident_bytes) == (2 * SIZE, 3 * SIZE)
    ring.check()
    assert ring.plan(B, 2, [9, 8, 7, 6]) == [(2, 6)]


def test_a_hand_over_takes_the_size_as_it_was_seen() -> None:
    ring = ring_of(1000, 2, 2)
    ring.plan(A, 1, [0])
    ring.arrive(1, 0, size=3)
    ring.scheduler.end_consumer(A)
    ring.scheduler.transfer(1, [0], 2, [1])
    ring.tier[2, 1] = ring.tier.pop((1, 0))
    ring.clear(2)
    ring.settle_frees()
    assert ring.scheduler.residency.resident_bytes == 0


# ------------------------------------------------------------ warm plans


def test_a_warm_plan_fills_the_cache_and_expects_no_reader() -> None:
    ring = ring_of(1000, 10)
    ring.plan(A, 1, range(10), warm=True)
    ring.arrive_all()
    assert ring.holds(1) == set(range(10))
    assert not ring.scheduler.has_work(A)
    ring.scheduler.end_consumer(A)
    assert ring.collect() == []


def test_a_warm_plan_ends_when_the_cache_is_full() -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(100), warm=True)
    ring.arrive_all()
    assert len(ring.holds(1)) == 26
    assert ring.scheduler.num_transients == 0
    assert not ring.scheduler.has_work(A)


def test_a_warm_plan_keeps_to_what_the_origin_takes_and_frees_the_rest() -> None:
    ring = ring_of(11, 10, 10)
    ring.plan(A, 1, range(10))
    ring.arrive_all()
    ring.scheduler.end_consumer(A)
    ring.scheduler.tables[2].max_in_flight = 3
    ring.plan(B, 2, range(10), warm=True)
    ring.settle_frees()
    assert len(ring.fetching) == 3
    ring.arrive_all()
    assert ring.holds(1) == set()
    assert len(ring.holds(2)) == 10


def test_a_warm_plan_that_names_an_object_twice_fetches_it_once() -> None:
    ring = ring_of(1000, 4)
    assert ring.plan(A, 1, [0, 0, 1, 0], warm=True) == [(1, 0), (1, 1)]


def test_a_warm_plan_passes_what_is_on_its_way() -> None:
    ring = ring_of(1000, 4)
    ring.plan(A, 1, [1])
    assert ring.plan(B, 1, range(4), warm=True) == [(1, 0), (1, 2), (1, 3)]
    assert ring.scheduler.tables[1].state[1] == FETCHING


# ------------------------------------------------------------ what is too large


def test_sizes_that_were_unknown_and_do_not_fit_stream_through_from_the_second_epoch_on() -> None:
    mebibyte = 1024**2
    ring = Ring(budget=50 * mebibyte)
    ring.add(1, [None] * 100)  # guessed to be small enough for all to fit
    for _ in range(2):
        ring.plan(A, 1, range(100))
        while ring.fetching:
            ring.arrive(*next(iter(ring.fetching)), size=mebibyte)
        ring.scheduler.end_consumer(A)
    hits = 0
    ring.plan(A, 1, range(100))
    for object_id in range(100):
        while ring.fetching:
            ring.arrive(*next(iter(ring.fetching)), size=mebibyte)
        hits += ring.read(A, 1, object_id)
    assert hits == 100


def test_a_dataset_that_joins_another_finds_room_to_stream_through() -> None:
    ring = ring_of(102, 100, 100)
    ring.plan(A, 1, range(100))
    ring.arrive_all()
    assert len(ring.holds(1)) == 100
    ring.plan(B, 2, range(100))
    hits = 0
    for object_id in range(100):
        ring.arrive_all()
        hits += ring.read(B, 2, object_id)
    assert hits == 100
    assert len(ring.holds(1)) == 102 - 24


def test_an_object_larger_than_the_lent_part_is_left_to_its_reader() -> None:
    ring = Ring(budget=50 * SIZE)
    ring.add(1, [SIZE] * 99 + [400])
    ring.plan(A, 1, [*range(30), 99, *range(30, 99)])
    ring.arrive_all()
    assert (1, 99) not in ring.fetched
    assert (1, 30) in ring.fetched
    token = ring.demand(1, 99)
    assert ring.arrive(1, 99) == Placement.DIRECT
    assert ring.outcome(token) == Outcome.INLINE


@pytest.mark.parametrize("objects", [1, 60])
def test_status_counts(objects: int) -> None:
    ring = ring_of(50, 100)
    ring.plan(A, 1, range(objects))
    assert ring.scheduler.num_plans == 1
    assert ring.scheduler.num_in_flight == min(objects, 50)
    assert ring.scheduler.working_set_bytes() == 100 * SIZE
    ring.scheduler.end_consumer(A)
    assert (ring.scheduler.num_plans, ring.scheduler.working_set_bytes()) == (0, 100 * SIZE)  # what was read last


def test_the_working_set_of_those_who_have_ended_is_that_of_the_last_to_read_together() -> None:
    ring = Ring(budget=1000 * SIZE)
    for dataset in (1, 2, 3):
        ring.add(dataset, [SIZE] * (1, 2, 5)[dataset - 1])
    assert ring.scheduler.working_set_bytes() == 0
    for _ in range(2):
        ring.plan(A, 1, [0])
        ring.plan(B, 2, [0])
        assert ring.scheduler.working_set_bytes() == 3 * SIZE
        ring.scheduler.end_consumer(B)
        assert ring.scheduler.working_set_bytes() == SIZE
        ring.scheduler.end_consumer(A)
        ring.scheduler.end_consumer(A)
        assert ring.scheduler.working_set_bytes() == 3 * SIZE
        ring.plan(A, 3, [0])
        assert ring.scheduler.working_set_bytes() == 5 * SIZE
        ring.scheduler.end_consumer(B)  # which has no plan
        ring.scheduler.end_consumer(A)
        assert ring.scheduler.working_set_bytes() == 5 * SIZE


# ------------------------------------------------------------ long orders


def test_a_long_order_of_few_objects_is_looked_at_no_further_than_it_is_expected() -> None:
    """10⁵ draws of 10 objects that are on their way: each is asked for once, and what is kept is bounded."""
    ring = ring_of(50, 10)
    ring.plan(A, 1, [*range(10)] * 10_000)
    plan, _ = ring.scheduler.plans()[0]
    assert plan.cursor == MOST_OUTSTANDING
    assert plan.memory_bytes < 64 * 1024**2
    ring.arrive_all()
    assert ring.fetched == [(1, object_id) for object_id in range(10)]
    for start in range(0, 10**5, 10_000):
        ring.consume(A, 1, [*range(10)] * 1000)
        ring.scheduler.position(A, start + 10_000)
        ring.collect()
    assert ring.fetched == [(1, object_id) for object_id in range(10)]


@pytest.mark.parametrize("budget", [1000, 50])
def test_an_epoch_that_comes_in_windows_asks_for_each_object_once(budget: int) -> None:
    """Also where what was read earlier in the epoch is freed before the next window comes."""
    ring = ring_of(budget, 400)
    order = np.random.default_rng(3).permutation(400).tolist()
    ring.plan(A, 1, order[:80])
    for start in range(0, 400, 80):
        for at in range(start, start + 80, 8):
            ring.arrive_all()
            ring.consume(A, 1, order[at : at + 8])
            ring.scheduler.position(A, at + 8)
            ring.settle_frees()
            if at == start + 40 and start < 320:
                ring.scheduler.extend_plan(A, as_ids(order[start + 80 : start + 160]))
    assert sorted(object_id for _, object_id in ring.fetched) == list(range(400))
    ring.check()
