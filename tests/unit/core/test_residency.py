"""The byte budget."""

from __future__ import annotations

import pytest

from prefeed.core.inventory import MIN_LENT_OBJECTS, Residency


def test_nothing_is_lent_while_everything_fits() -> None:
    residency = Residency(1000)
    residency.plan_lending(990, 10)
    assert residency.lent_bytes == 0
    assert residency.try_reserve_resident(1000)
    assert not residency.try_reserve_resident(1)
    residency.validate()


@pytest.mark.parametrize(
    ("budget", "mean", "lent"),
    [
        pytest.param(1_000_000, 10, 10_000, id="one percent"),
        pytest.param(10_000, 100, MIN_LENT_OBJECTS * 100, id="some objects at least"),
        pytest.param(1000, 100, 500, id="half at most"),
    ],
)
def test_what_does_not_fit_streams_through_a_small_part(budget: int, mean: int, lent: int) -> None:
    residency = Residency(budget)
    residency.plan_lending(budget * 2, mean)
    assert residency.lent_bytes == lent


def test_residents_leave_the_lent_part_alone() -> None:
    residency = Residency(1000)
    residency.plan_lending(2000, 10)
    assert residency.lent_bytes == 240
    assert residency.try_reserve_resident(760)
    assert not residency.try_reserve_resident(1)
    assert residency.try_reserve_transient(240)
    assert not residency.try_reserve_transient(1)
    residency.release_transient(240)
    assert residency.try_reserve_transient(1)
    residency.validate()


def test_room_that_is_lent_now_is_not_given_to_residents_when_the_lent_part_shrinks() -> None:
    residency = Residency(1000)
    residency.plan_lending(2000, 10)
    assert residency.try_reserve_transient(200)
    residency.plan_lending(10, 10)
    assert not residency.try_reserve_resident(801)
    assert residency.try_reserve_resident(800)
    residency.validate()


def test_transients_get_nothing_where_residents_left_nothing() -> None:
    residency = Residency(1000)
    assert residency.try_reserve_resident(1000)
    residency.plan_lending(2000, 10)
    assert not residency.try_reserve_transient(1)


def test_a_budget_below_what_is_reserved_gives_nothing_more_until_enough_is_back() -> None:
    residency = Residency(1000)
    residency.try_reserve_resident(300)
    residency.budget_bytes = 200
    assert not residency.try_reserve_resident(1)
    residency.release_resident(150)
    assert residency.try_reserve_resident(50)
    residency.validate()


def test_more_is_given_back_than_was_taken() -> None:
    residency = Residency(1000)
    with pytest.raises(AssertionError):
        residency.release_resident(1)
    with pytest.raises(AssertionError):
        Residency(1000).release_transient(1)


@pytest.mark.parametrize(
    ("demanded", "keeps", "lent", "always"),
    [
        pytest.param(0, False, 10_000, 2400, id="all of it when nobody keeps"),
        pytest.param(100, True, 5000, 2400, id="half when there is room"),
        pytest.param(6000, True, 4000, 2400, id="what is left by those that keep"),
        pytest.param(9000, True, 2400, 2400, id="as much as ever when they leave less"),
        pytest.param(90_000, True, 2400, 2400, id="as much as ever when not even they fit"),
    ],
)
def test_what_is_read_once_is_always_lent_room(demanded: int, keeps: bool, lent: int, always: int) -> None:
    residency = Residency(10_000)
    residency.plan_lending(demanded, 100, keeps=keeps, streams=True)
    assert (residency.lent_bytes, residency.always_lent_bytes) == (lent, always)
    residency.validate()


def test_residents_may_take_what_is_not_always_lent_if_they_were_there_before() -> None:
    residency = Residency(1000)
    assert residency.try_reserve_resident(700)
    residency.plan_lending(0, 10, keeps=False, streams=True)
    assert (residency.lent_bytes, residency.always_lent_bytes) == (1000, 240)
    assert not residency.try_reserve_resident(1)
    assert residency.try_reserve_transient(300)
    assert residency.could_lend(700)
    assert not residency.could_lend(701)
    assert not residency.try_reserve_transient(1)
    residency.validate()
