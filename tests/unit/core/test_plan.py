"""One consumer's order: what is looked at, what is outstanding, how far it has come."""

from __future__ import annotations

import numpy as np
import pytest

from prefeed.core.plan import MOST_BYTES, MOST_OUTSTANDING, Plan
from ring import as_ids

ABSENT, RESIDENT = 0, 2
WANTED = np.array([state != RESIDENT for state in range(256)])


def plan_of(*ids: int) -> Plan:
    return Plan(1, 1, as_ids(ids))


def scan_all(plan: Plan, states: list[int]) -> list[tuple[int, int]]:
    found = []
    for index, object_id in plan.scan(WANTED, np.array(states, dtype=np.uint8)):
        found.append((index, object_id))
        plan.pass_entry(index, object_id)
    return found


def test_scan_passes_what_is_resident_and_repeats_what_repeats() -> None:
    plan = plan_of(2, 0, 1, 0)
    assert scan_all(plan, [ABSENT, RESIDENT, ABSENT]) == [(0, 2), (1, 0), (3, 0)]
    assert plan.cursor == len(plan)


def test_scan_that_was_stopped_continues_at_the_same_entry() -> None:
    plan = plan_of(0, 1, 2)
    states = np.array([RESIDENT, ABSENT, ABSENT], dtype=np.uint8)
    assert next(iter(plan.scan(WANTED, states))) == (1, 1)
    assert plan.cursor == 1
    assert scan_all(plan, states.tolist()) == [(1, 1), (2, 2)]


def test_scan_of_many_chunks_finds_the_few_that_are_wanted() -> None:
    plan = plan_of(*range(20_000))
    states = [RESIDENT] * 20_000
    for wanted in (0, 4095, 4096, 12_345, 19_999):
        states[wanted] = ABSENT
    assert [object_id for _, object_id in scan_all(plan, states)] == [0, 4095, 4096, 12_345, 19_999]


def test_a_read_ahead_of_the_cursor_is_skipped_once() -> None:
    plan = plan_of(5, 5)
    plan.skip_once(5)
    assert plan.take_skip(5)
    assert not plan.take_skip(5)


def test_two_reads_ahead_of_the_cursor_are_skipped_twice() -> None:
    plan = plan_of(5, 5, 5)
    plan.skip_once(5)
    plan.skip_once(5)
    assert [plan.take_skip(5) for _ in range(3)] == [True, True, False]


def test_nothing_is_to_be_skipped_once_all_was_looked_at() -> None:
    plan = plan_of(5)
    scan_all(plan, [ABSENT] * 6)
    plan.skip_once(5)
    assert not plan.take_skip(5)


def test_an_expected_report_is_taken_once() -> None:
    plan = plan_of(5, 5)
    plan.expect_report(5)
    assert [plan.take_expected_report(5) for _ in range(2)] == [True, False]


def test_outstanding_bytes_count_an_object_once_however_often_it_will_be_read() -> None:
    plan = plan_of(7, 7)
    plan.cursor = 2
    plan.add_outstanding(0, 7, 100)
    plan.add_outstanding(1, 7, 100)
    assert plan.ahead_bytes == 100
    assert plan.try_consume(7)
    assert plan.ahead_bytes == 100
    assert plan.try_consume(7)
    assert (plan.ahead_bytes, plan.try_consume(7)) == (0, False)
    plan.validate()


def test_advance_gives_up_what_it_passes_and_leaves_the_rest() -> None:
    plan = plan_of(3, 4, 3)
    plan.cursor = 3
    for index, object_id in enumerate((3, 4, 3)):
        plan.add_outstanding(index, object_id, 10)
    assert plan.advance(2) == [3, 4]
    assert plan.outstanding == {3: [2]}
    assert plan.advance(3) == [3]
    plan.validate()


def test_advance_does_not_give_up_what_was_consumed() -> None:
    plan = plan_of(3, 4)
    plan.cursor = 2
    plan.add_outstanding(0, 3, 10)
    plan.add_outstanding(1, 4, 10)
    assert plan.try_consume(3)
    assert plan.advance(2) == [4]


def test_advance_takes_the_cursor_along_and_never_goes_back_nor_beyond() -> None:
    plan = plan_of(0, 1, 2, 3)
    plan.advance(3)
    assert (plan.position, plan.cursor) == (3, 3)
    plan.advance(1)
    assert plan.position == 3
    plan.advance(99)
    assert (plan.position, plan.cursor) == (4, 4)
    plan.validate()


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_extend_appends_and_leaves_the_given_ids_alone(dtype: type[np.generic]) -> None:
    given = np.array([1, 2], dtype=dtype)
    plan = Plan(1, 1, given)
    for start in range(3, 3003, 10):
        plan.extend(as_ids(range(start, start + 10)))
    plan.extend(as_ids([]))
    assert plan.window.ids.tolist() == [1, 2, *range(3, 3003)]
    assert given.tolist() == [1, 2]


def test_extend_of_an_empty_plan() -> None:
    plan = plan_of()
    plan.extend(as_ids([]))
    plan.extend(as_ids([4]))
    assert scan_all(plan, [ABSENT] * 5) == [(0, 4)]


def test_the_end_gives_up_every_access_that_will_not_come() -> None:
    plan = plan_of(1, 2, 1)
    plan.cursor = 3
    for index, object_id in enumerate((1, 2, 1)):
        plan.add_outstanding(index, object_id, 5)
    assert sorted(plan.drop_outstanding()) == [1, 1, 2]
    assert plan.ahead_bytes == 0
    assert plan.drop_outstanding() == []
    plan.validate()


def test_what_is_expected_of_a_plan_and_noted_takes_bounded_memory() -> None:
    """A long order of few objects: all of them on their way, many times over."""
    plan = plan_of(*[1, 2, 3] * 20_000)
    while not plan.is_full:
        plan.add_outstanding(plan.cursor, 1 + plan.cursor % 3, 10)
        plan.pass_entry(plan.cursor, 1 + plan.cursor % 3)
    assert plan.cursor == MOST_OUTSTANDING
    for object_id in range(10**5):
        plan.skip_once(object_id)
        plan.expect_report(object_id)
    assert plan.memory_bytes < 64 * 1024**2 - MOST_BYTES + plan.window.nbytes
    plan.validate()


def test_a_loop_that_lags_behind_its_workers_leaves_nothing_of_what_was_read() -> None:
    plan = plan_of(*range(50_000))
    for index in range(50_000):
        plan.add_outstanding(index, index, 10)
        plan.pass_entry(index, index)
        assert plan.try_consume(index)
    assert not plan.is_full
    assert plan.memory_bytes < plan.window.nbytes + 10**7
    assert plan.advance(50_000) == []
    plan.validate()


def test_what_was_read_of_an_order_that_continues_is_dropped() -> None:
    plan = plan_of()
    for start in range(0, 10**5, 10**3):
        plan.extend(np.arange(start, start + 10**3) % 7)
        assert scan_all(plan, [RESIDENT] * 7) == []
        plan.advance(start)
    assert len(plan) == 10**5
    assert plan.rest.tolist() == [index % 7 for index in range(99 * 10**3, 10**5)]
    assert plan.memory_bytes < 10**5
    plan.validate()
