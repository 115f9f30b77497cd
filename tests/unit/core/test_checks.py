"""Which files are asked whether they changed, ahead of their reader."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefeed.core.checks import FIRST_BATCH, CheckAhead, CheckPace, Published
from prefeed.core.plan import Ids
from prefeed.core.table import ABSENT, FAILED, FETCHING, FREEING, RESIDENT, TRANSIENT

Flags = npt.NDArray[np.bool_]


def residents(count: int) -> npt.NDArray[np.uint8]:
    return np.full(count, RESIDENT, dtype=np.uint8)


def as_published(flags: Flags) -> Published:
    def published(ids: Ids) -> Flags:
        found: Flags = flags[ids]
        return found

    return published


def none_of(count: int) -> Published:
    return as_published(np.zeros(count, dtype=bool))


def test_ids_come_in_the_order_of_the_plan_a_batch_at_a_time() -> None:
    checks = CheckAhead(np.array([5, 2, 0, 4, 1, 3]))
    assert checks.next_batch(4, residents(6), none_of(6)).tolist() == [5, 2, 0, 4]
    assert checks.next_batch(64, residents(6), none_of(6)).tolist() == [1, 3]
    assert checks.next_batch(64, residents(6), none_of(6)).tolist() == []


@pytest.mark.parametrize(
    ("state", "is_checked"),
    [
        pytest.param(ABSENT, False, id="absent"),
        pytest.param(FETCHING, False, id="fetching"),
        pytest.param(RESIDENT, True, id="resident"),
        pytest.param(TRANSIENT, True, id="transient"),
        pytest.param(FAILED, False, id="failed"),
        pytest.param(FREEING, False, id="freeing"),
    ],
)
def test_only_what_the_tier_holds_is_checked(state: int, is_checked: bool) -> None:
    states = np.array([state], dtype=np.uint8)
    assert len(CheckAhead(np.array([0])).next_batch(64, states, none_of(1))) == is_checked


def test_what_is_published_needs_no_check() -> None:
    published = as_published(np.arange(10) % 2 == 0)
    assert CheckAhead(np.arange(10)).next_batch(64, residents(10), published).tolist() == [1, 3, 5, 7, 9]


def test_nothing_is_looked_at_far_ahead_of_the_reader() -> None:
    checks = CheckAhead(np.arange(100), ahead=10)
    assert checks.next_batch(64, residents(100), none_of(100)).tolist() == list(range(10))
    assert checks.next_batch(64, residents(100), none_of(100)).tolist() == []
    checks.advance(3)
    assert checks.next_batch(64, residents(100), none_of(100)).tolist() == [10, 11, 12]
    checks.advance(1)  # a position never goes back
    assert checks.next_batch(64, residents(100), none_of(100)).tolist() == []


def test_what_the_reader_has_passed_is_not_checked() -> None:
    checks = CheckAhead(np.arange(100))
    checks.advance(98)
    assert checks.next_batch(64, residents(100), none_of(100)).tolist() == [98, 99]
    checks.advance(1000)
    assert checks.next_batch(64, residents(100), none_of(100)).tolist() == []


def test_an_object_is_checked_once_at_a_time() -> None:
    checks = CheckAhead(np.array([1, 1, 0, 1, 0]))
    assert checks.next_batch(2, residents(2), none_of(2)).tolist() == [1, 0]
    assert checks.next_batch(64, residents(2), none_of(2)).tolist() == []


def test_what_was_checked_and_not_published_may_be_checked_again_further_on() -> None:
    checks = CheckAhead(np.array([1, 0, 1]), ahead=2)
    assert checks.next_batch(64, residents(2), none_of(2)).tolist() == [1, 0]
    checks.done(np.array([0, 1, 77]))
    checks.advance(1)
    assert checks.next_batch(64, residents(2), none_of(2)).tolist() == [1]


def test_a_batch_takes_some_milliseconds_whatever_a_question_takes() -> None:
    pace = CheckPace()
    assert pace.batch == FIRST_BATCH
    pace.observe(0.0, 16)  # no clock is that quick
    pace.observe(1.0, 0)
    assert pace.batch == FIRST_BATCH
    for _ in range(50):
        pace.observe(pace.batch * 0.02, pace.batch)
    assert pace.batch == 1
    for _ in range(50):
        pace.observe(pace.batch * 0.001, pace.batch)
    assert pace.batch == pytest.approx(5, abs=1)
    for _ in range(50):
        pace.observe(pace.batch * 3e-6, pace.batch)
    assert pace.batch == 64


def test_only_objects_in_the_tier_are_asked_for() -> None:
    states = np.full(5000, ABSENT, dtype=np.uint8)
    states[[7, 4000]] = RESIDENT
    asked: list[int] = []

    def published(ids: Ids) -> Flags:
        asked.extend(ids.tolist())
        return np.zeros(len(ids), dtype=bool)

    checks = CheckAhead(np.arange(5000), ahead=5000)
    assert checks.next_batch(64, states, published).tolist() == [7, 4000]
    assert asked == [7, 4000]


@given(
    ids=st.lists(st.integers(0, 30), max_size=80),
    flags=st.lists(st.booleans(), min_size=31, max_size=31),
    ahead=st.integers(1, 50),
    batch=st.integers(1, 8),
    steps=st.lists(st.integers(0, 90), max_size=10),
)
def test_each_entry_ahead_is_published_or_under_way(
    ids: list[int], flags: list[bool], ahead: int, batch: int, steps: list[int]
) -> None:
    checks = CheckAhead(np.array(ids, dtype=np.int64), ahead=ahead)
    published = np.array(flags)
    taken: list[int] = []
    position = 0
    for step in [*steps, 0]:
        checks.advance(step)
        position = max(position, step)
        while len(found := checks.next_batch(batch, residents(31), as_published(published))):
            assert len(found) <= batch
            taken += found.tolist()
        assert all(published[i] or i in taken for i in ids[position : position + ahead])
    assert len(taken) == len(set(taken))
    assert not any(published[i] for i in taken)
