"""Each way from one state of an object to another; the diagram is in ``schedule.py``."""

from __future__ import annotations

import numpy as np
import pytest

from prefeed.core.actions import Outcome, Placement
from prefeed.core.table import ABSENT, FAILED, FETCHING, FREEING, RESIDENT, TRANSIENT
from ring import Ring, as_ids

READER = 7
SIZE = 10


def roomy(num_objects: int = 4) -> Ring:
    """A ring in which everything fits."""
    ring = Ring(budget=100 * SIZE * num_objects)
    ring.add(1, [SIZE] * num_objects)
    return ring


def narrow() -> Ring:
    """A ring with room for 26 residents and 24 transients, and 100 objects."""
    ring = Ring(budget=50 * SIZE)
    ring.add(1, [SIZE] * 100)
    return ring


def filled() -> Ring:
    """A narrow ring whose first 26 objects are residents; the consumer goes on with the others."""
    ring = narrow()
    ring.plan(READER, 1, range(100))
    ring.arrive_all()
    assert ring.scheduler.tables[1].ids_in(RESIDENT).tolist() == list(range(26))
    assert ring.scheduler.tables[1].ids_in(TRANSIENT).tolist() == list(range(26, 50))
    return ring


def state(ring: Ring, object_id: int, dataset: int = 1) -> int:
    return ring.scheduler.tables[dataset].state[object_id]


# ------------------------------------------------------------ ahead of demand


def test_a_plan_is_fetched_in_its_order() -> None:
    ring = roomy()
    assert ring.plan(READER, 1, [2, 0, 3, 1]) == [(1, 2), (1, 0), (1, 3), (1, 1)]
    assert state(ring, 2) == FETCHING


def test_what_fits_becomes_resident_and_is_never_fetched_again() -> None:
    ring = roomy()
    ring.plan(READER, 1, [0, 1, 2, 3])
    ring.arrive_all()
    ring.consume(READER, 1, [0, 1, 2, 3])
    assert ring.plan(READER, 1, [3, 2, 1, 0]) == []
    assert ring.holds(1) == {0, 1, 2, 3}


def test_an_object_that_is_planned_twice_is_fetched_once() -> None:
    ring = roomy()
    assert ring.plan(READER, 1, [1, 1, 0, 1]) == [(1, 1), (1, 0)]


def test_no_more_is_in_flight_than_the_origin_takes() -> None:
    ring = roomy(10)
    ring.scheduler.tables[1].max_in_flight = 3
    assert len(ring.plan(READER, 1, range(10))) == 3
    ring.arrive(1, 0)
    assert list(ring.fetching) == [(1, 1), (1, 2), (1, 3)]


def test_no_more_is_fetched_ahead_than_the_lookahead() -> None:
    ring = Ring(budget=1000, lookahead=3 * SIZE)
    ring.add(1, [SIZE] * 10)
    assert len(ring.plan(READER, 1, range(10))) == 3
    ring.arrive_all()
    assert len(ring.fetched) == 3
    assert ring.consume(READER, 1, [0]) == [(1, 3)]


def test_one_object_larger_than_the_lookahead_is_still_fetched() -> None:
    ring = Ring(budget=1000, lookahead=1)
    ring.add(1, [SIZE] * 2)
    assert ring.plan(READER, 1, [1, 0]) == [(1, 1)]


# ------------------------------------------------------------ transients


def test_what_does_not_fit_streams_through_and_is_freed_once_consumed() -> None:
    ring = filled()
    ring.consume(READER, 1, range(26))
    assert ring.scheduler.num_transients == 24
    ring.scheduler.consumed(READER, 1, [26])
    ring.collect()
    assert state(ring, 26) == FREEING
    assert ring.settle_frees() == [(1, 50)]
    assert state(ring, 26) == ABSENT
    assert ring.holds(1) == {*range(26), *range(27, 50)}


def test_room_is_not_given_away_before_the_entry_is_gone() -> None:
    ring = filled()
    ring.scheduler.consumed(READER, 1, [26])
    assert ring.collect() == []
    ring.free()
    assert ring.collect() == [(1, 50)]


def test_transients_are_freed_in_the_order_in_which_they_were_consumed() -> None:
    ring = filled()
    ring.scheduler.consumed(READER, 1, [30, 26, 41])
    ring.collect()
    assert [free.object_id for free in ring.freeing] == [30, 26, 41]


def test_a_transient_stays_until_its_last_reader() -> None:
    ring = narrow()
    ring.plan(READER, 1, [*range(27), 26])
    ring.arrive_all()
    ring.consume(READER, 1, [26])
    assert state(ring, 26) == TRANSIENT
    ring.consume(READER, 1, [26])
    assert state(ring, 26) == ABSENT


def test_a_transient_that_is_being_freed_is_fetched_again_if_it_comes_again() -> None:
    ring = filled()
    ring.scheduler.extend_plan(READER, as_ids([26]))
    ring.scheduler.consumed(READER, 1, range(27, 50))
    ring.settle_frees()
    ring.arrive_all()
    ring.consume(READER, 1, [26, *range(50, 100)])
    ring.arrive_all()
    assert ring.fetched.count((1, 26)) == 2
    assert state(ring, 26) == TRANSIENT


# ------------------------------------------------------------ readers that ask


def test_a_miss_is_fetched_at_once_and_kept() -> None:
    ring = roomy()
    token = ring.demand(1, 2)
    assert list(ring.fetching) == [(1, 2)]
    assert ring.outcome(token) is None
    assert ring.arrive(1, 2) == Placement.RESIDENT
    assert ring.outcome(token) == Outcome.STORED
    assert (ring.scheduler.counts.misses, ring.scheduler.counts.late) == (1, 0)


def test_a_miss_is_fetched_whatever_the_limit() -> None:
    ring = roomy()
    ring.scheduler.tables[1].max_in_flight = 1
    ring.plan(READER, 1, [0, 1, 2, 3])
    ring.demand(1, 3)
    assert list(ring.fetching) == [(1, 0), (1, 3)]


def test_a_late_reader_waits_for_the_request_under_way() -> None:
    ring = roomy()
    ring.plan(READER, 1, [0])
    tokens = [ring.demand(1, 0), ring.demand(1, 0), ring.demand(1, 0)]
    assert ring.fetched == [(1, 0)]
    ring.arrive(1, 0)
    assert {ring.outcome(token) for token in tokens} == {Outcome.STORED}
    assert (ring.scheduler.counts.misses, ring.scheduler.counts.late) == (0, 3)


def test_a_reader_is_not_sent_to_the_tier_before_the_entry_is_committed() -> None:
    ring = roomy()
    token = ring.demand(1, 0)
    ring.arrive_unstored(1, 0)
    ring.collect()
    assert ring.outcome(token) is None
    ring.store(1, 0)
    ring.collect()
    assert ring.outcome(token) == Outcome.STORED


def test_a_reader_that_asks_for_what_is_there_is_sent_to_the_tier_and_counts_a_hit() -> None:
    ring = filled()
    for object_id in (0, 30):
        answer = ring.answers[ring.demand(1, object_id)]
        assert (answer.outcome, answer.was_held) == (Outcome.STORED, True)
    assert (ring.scheduler.counts.late, ring.scheduler.counts.misses) == (0, 0)


def test_what_comes_while_a_reader_waits_for_another_answer_is_late() -> None:
    ring = filled()
    assert not ring.answers[ring.demand(1, 0, was_awaited=True)].was_held
    assert ring.scheduler.counts.late == 1


def test_a_reader_gets_the_bytes_when_there_is_no_room() -> None:
    ring = filled()
    token = ring.demand(1, 99)
    assert ring.arrive(1, 99) == Placement.DIRECT
    assert ring.outcome(token) == Outcome.INLINE
    assert state(ring, 99) == ABSENT


def test_a_reader_of_what_is_being_freed_reads_the_origin() -> None:
    ring = filled()
    ring.scheduler.consumed(READER, 1, [26])
    ring.collect()
    assert ring.outcome(ring.demand(1, 26)) == Outcome.READ_ORIGIN


def test_a_miss_that_a_plan_has_come_to_meanwhile_is_kept_for_its_reader() -> None:
    ring = filled()
    ring.demand(1, 50)
    assert ring.consume(READER, 1, [26, 27]) == [(1, 51), (1, 52)]  # the cursor has gone past 50
    ring.scheduler.consumed(READER, 1, [28])
    ring.collect()
    ring.scheduler.tables[1].max_in_flight = 0  # nobody else takes the room
    ring.settle_frees()
    assert ring.arrive(1, 50) == Placement.TRANSIENT
    assert ring.holds(1) >= {50}
    ring.consume(READER, 1, [50])
    assert 50 not in ring.holds(1)


def test_what_a_reader_was_given_is_not_fetched_ahead_as_well() -> None:
    ring = filled()
    token = ring.demand(1, 60, consumer=READER)
    ring.arrive(1, 60)
    assert ring.outcome(token) == Outcome.INLINE
    ring.consume(READER, 1, [60, *range(26, 50)])
    ring.arrive_all()
    ring.consume(READER, 1, [*range(50, 60), *range(61, 75)])
    ring.arrive_all()
    assert ring.fetched.count((1, 60)) == 1
    assert (1, 75) in ring.fetched


def test_what_was_read_ahead_of_the_cursor_is_not_fetched_ahead_as_well() -> None:
    ring = filled()
    ring.consume(READER, 1, [50, 51])  # read from the origin, by workers that were faster
    ring.consume(READER, 1, [26, 27])
    assert list(ring.fetching) == [(1, 52), (1, 53)]


# ------------------------------------------------------------ what the origin does


def test_an_object_that_is_gone_is_remembered_and_asked_for_once_an_epoch() -> None:
    ring = roomy()
    ring.plan(READER, 1, [0, 1])
    token = ring.demand(1, 0)
    ring.fail(1, 0, permanent=True)
    answer = ring.answers[token]
    assert (answer.outcome, answer.code, answer.message) == (Outcome.FAILED, "object-not-found", "no such object")
    assert state(ring, 0) == FAILED
    assert ring.outcome(ring.demand(1, 0)) == Outcome.FAILED
    assert ring.fetched.count((1, 0)) == 1
    assert (1, 0) in ring.plan(READER, 1, [0, 1])


def test_an_object_that_cannot_be_had_now_is_read_by_its_reader() -> None:
    ring = roomy()
    token = ring.demand(1, 0)
    ring.fail(1, 0, permanent=False)
    assert ring.outcome(token) == Outcome.READ_ORIGIN
    assert state(ring, 0) == ABSENT
    ring.demand(1, 0)
    assert ring.fetched.count((1, 0)) == 2


@pytest.mark.parametrize("permanent", [True, False])
def test_a_failure_gives_its_room_back(permanent: bool) -> None:
    ring = roomy()
    ring.plan(READER, 1, [0])
    ring.fail(1, 0, permanent=permanent)
    assert ring.scheduler.residency.resident_bytes == 0


@pytest.mark.parametrize("permanent", [True, False])
def test_a_read_that_is_sent_to_the_origin_is_counted_there_alone(permanent: bool) -> None:
    ring = roomy()
    ring.plan(READER, 1, [0])
    ring.demand(1, 0)
    assert ring.scheduler.counts.reads == 1
    ring.fail(1, 0, permanent=permanent)
    assert ring.scheduler.counts.reads == 0
    ring.scheduler.count_reads(READER, 0, 1)
    assert (ring.scheduler.counts.reads, ring.scheduler.counts.direct_reads) == (1, 1)


def test_a_changed_object_is_served_and_not_kept() -> None:
    ring = roomy()
    token = ring.demand(1, 0)
    assert ring.arrive(1, 0, changed=True) == Placement.DIRECT
    assert ring.outcome(token) == Outcome.INLINE
    assert (ring.holds(1), ring.scheduler.residency.resident_bytes) == (set(), 0)


def test_a_changed_object_waits_for_its_reader_where_transients_are_lent_room() -> None:
    ring = narrow()
    ring.plan(READER, 1, range(26))
    assert ring.arrive(1, 0, changed=True) == Placement.TRANSIENT
    assert ring.scheduler.residency.resident_bytes == 25 * SIZE
    ring.consume(READER, 1, [0])
    assert 0 not in ring.holds(1)


@pytest.mark.parametrize("size", [1, 4 * SIZE])
def test_a_size_other_than_listed_is_what_counts(size: int) -> None:
    ring = roomy()
    ring.plan(READER, 1, [0])
    assert ring.arrive(1, 0, size=size) == Placement.RESIDENT
    assert ring.scheduler.residency.resident_bytes == size
    ring.clear(1)
    ring.settle_frees()
    assert ring.scheduler.residency.resident_bytes == 0


def test_an_object_that_grew_beyond_its_room_goes_to_its_reader_only() -> None:
    ring = roomy()
    token = ring.demand(1, 0)
    assert ring.arrive(1, 0, size=10**6) == Placement.DIRECT
    assert ring.outcome(token) == Outcome.INLINE
    assert ring.scheduler.residency.resident_bytes == 0


def test_an_object_that_grew_and_that_no_plan_expects_does_not_become_transient() -> None:
    ring = narrow()
    ring.plan(READER, 1, range(25))
    token = ring.demand(1, 99)
    assert ring.fetching[1, 99].placement == Placement.RESIDENT
    assert ring.arrive(1, 99, size=2 * SIZE) == Placement.DIRECT  # else it is freed before its reader looks
    assert ring.outcome(token) == Outcome.INLINE


def test_a_shrunken_object_that_is_as_listed_again_later_costs_what_it_costs() -> None:
    ring = roomy()
    ring.demand(1, 0)
    ring.arrive(1, 0, size=3 * SIZE, changed=True)
    ring.demand(1, 0)
    ring.arrive(1, 0, size=SIZE)
    assert ring.scheduler.residency.resident_bytes == SIZE
    ring.clear(1)
    ring.settle_frees()
    assert ring.scheduler.residency.resident_bytes == 0


def test_sizes_that_the_listing_does_not_give_are_learned() -> None:
    ring = Ring(budget=10 * 1024**2)
    ring.add(1, [None] * 20)
    ring.plan(READER, 1, range(20))
    for object_id in range(20):
        ring.arrive(1, object_id, size=1000 + object_id)
    assert ring.scheduler.residency.resident_bytes == sum(range(1000, 1020))
    ring.clear(1)
    ring.settle_frees()
    assert ring.scheduler.residency.resident_bytes == 0


# ------------------------------------------------------------ what the tier does


def test_readers_get_the_bytes_when_the_tier_refuses_them() -> None:
    ring = roomy()
    token = ring.demand(1, 0)
    ring.arrive_unstored(1, 0)
    ring.refuse(1, 0)
    assert ring.outcome(token) == Outcome.INLINE
    assert state(ring, 0) == ABSENT
    assert ring.scheduler.residency.resident_bytes == 0


def test_a_late_reader_of_the_present_epoch_is_none_of_the_next() -> None:
    """The present plan has been looked through, and is not over."""
    ring = Ring(budget=100, lookahead=15)
    ring.add(1, [60] + [10] * 8)  # the first is larger than what is lent
    ring.plan(READER, 1, [*range(1, 9), 0])
    ring.arrive_all()
    for object_id in range(1, 9):
        ring.consume(READER, 1, [object_id])
        ring.arrive_all()
    ring.upcoming(READER, 1, [6, 7, 8, 0, *range(1, 6)])
    ring.read(READER, 1, 0)
    ring.scheduler.adopt_upcoming(READER)
    ring.set_budget(1000)
    before = len(ring.fetched)
    for object_id in (6, 7, 8):
        ring.read(READER, 1, object_id)
        ring.arrive_all()
    assert (1, 0) in ring.fetched[before:]


def test_a_tier_that_holds_less_than_was_thought_frees_what_is_too_much_and_lends_room() -> None:
    ring = Ring(budget=1000 * SIZE)
    ring.add(1, [SIZE] * 100)
    ring.plan(READER, 1, range(60))
    ring.arrive_all()
    ring.set_budget(60 * SIZE)
    ring.settle_frees()
    assert ring.scheduler.residency.lent_bytes == 24 * SIZE
    assert ring.scheduler.residency.resident_bytes <= 36 * SIZE
    ring.plan(READER, 1, range(100))
    ring.arrive_all()
    assert len(ring.holds(1)) == 60


def test_an_earlier_life_that_left_too_much_is_cut_to_the_budget() -> None:
    ring = Ring(budget=10 * SIZE)
    ring.add(0, [SIZE] * 20)
    ring.scheduler.adopt(0, range(20), [SIZE] * 20)
    ring.tier = {(0, object_id): SIZE for object_id in range(20)}
    ring.set_budget(10 * SIZE)
    ring.settle_frees()
    assert len(ring.holds(0)) == 10


def test_an_entry_that_was_lost_is_fetched_again() -> None:
    ring = filled()
    ring.scheduler.end_consumer(READER)
    ring.tier.pop((1, 0))  # the store was replaced
    token = ring.lost(1, 0)
    assert ring.outcome(token) == Outcome.READ_ORIGIN
    ring.settle_frees()
    assert state(ring, 0) == ABSENT
    assert ring.scheduler.residency.resident_bytes == 25 * SIZE
    ring.demand(1, 0)
    assert ring.arrive(1, 0) == Placement.RESIDENT


def test_a_transient_that_was_lost_is_freed_by_its_reader() -> None:
    ring = filled()
    ring.tier.pop((1, 30))
    assert ring.outcome(ring.lost(1, 30)) == Outcome.READ_ORIGIN
    ring.consume(READER, 1, [30])
    assert ring.scheduler.residency.transient_bytes == 24 * SIZE  # another took its room


def test_clear_frees_residents_and_leaves_transients_to_their_readers() -> None:
    ring = filled()
    ring.clear(1)
    ring.settle_frees()
    ring.arrive_all()
    assert ring.holds(1) >= set(range(26, 50))
    assert not ring.holds(1) & set(range(26))


# ---------------------------------------------------------------- memory is short


def test_what_is_read_last_goes_first_when_memory_is_short() -> None:
    """Of an order that is read to the half: first what was read, which comes again at the next epoch; then the end of it."""
    ring = Ring(budget=1000 * SIZE)
    ring.add(1, [SIZE] * 20)
    order = list(range(20))[::-1]
    ring.plan(READER, 1, order)
    ring.arrive_all()
    ring.scheduler.position(READER, 10)
    ring.press(6 * SIZE)
    ring.settle_frees()
    kept = {object_id for _, object_id in ring.tier}
    assert kept
    assert kept <= set(order[10:16])
    assert len(kept) >= 3  # half of it is lent to what streams through


def test_what_is_read_next_after_the_epoch_stays_longer() -> None:
    ring = Ring(budget=1000 * SIZE)
    ring.add(1, [SIZE] * 8)
    ring.plan(READER, 1, range(8))
    ring.arrive_all()
    ring.scheduler.foresee(READER, np.array([5, 2, 7, 0, 1, 3, 4, 6], dtype=np.uint32))
    ring.scheduler.position(READER, 8)
    ring.press(4 * SIZE)
    ring.settle_frees()
    assert {object_id for _, object_id in ring.tier} == {5, 2}


def test_transients_go_before_residents() -> None:
    """They are only on their way; who was to read one asks for it, and is answered."""
    ring = Ring(budget=40 * SIZE)
    ring.add(1, [SIZE] * 100)
    ring.plan(READER, 1, range(100))
    ring.arrive_all()
    transients = ring.scheduler.num_transients
    assert transients
    residents = ring.scheduler.residency.resident_bytes
    ring.press(residents)
    ring.settle_frees()
    assert ring.scheduler.num_transients < transients
    token = ring.demand(1, 30, consumer=READER)
    ring.arrive_all()
    assert token in ring.answers


def test_memory_that_comes_back_is_used_again() -> None:
    ring = Ring(budget=1000 * SIZE)
    ring.add(1, [SIZE] * 100)
    ring.plan(READER, 1, range(100))
    ring.arrive_all()
    ring.press(50 * SIZE)
    ring.settle_frees()
    assert len(ring.tier) <= 50
    ring.press(1000 * SIZE)
    ring.plan(READER, 1, range(100))
    ring.arrive_all()
    assert len(ring.tier) == 100
