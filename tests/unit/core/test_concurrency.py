"""How many requests may be in flight."""

from __future__ import annotations

from prefeed.core.requests import START, ConcurrencyLimit


def answer_rounds(
    limit: ConcurrencyLimit, latency_seconds: float, *, rounds: int = 1, now: float = 0.0, busy: float = 1.0
) -> None:
    for _ in range(rounds):
        for _ in range(limit.limit):
            limit.on_success(latency_seconds, num_in_flight=int(limit.limit * busy), now=now)


def test_it_grows_while_more_requests_are_not_slower() -> None:
    limit = ConcurrencyLimit(256)
    answer_rounds(limit, 0.040)
    assert limit.limit == 2 * START
    answer_rounds(limit, 0.040, rounds=5)
    assert limit.limit == 256


def test_it_does_not_grow_before_a_whole_round_has_come_back() -> None:
    limit = ConcurrencyLimit(256)
    for _ in range(START - 1):
        limit.on_success(0.040, num_in_flight=START, now=0.0)
    assert limit.limit == START


def test_a_fast_origin_needs_no_more() -> None:
    limit = ConcurrencyLimit(256)
    answer_rounds(limit, 0.0005, rounds=20)
    assert limit.limit == START


def test_it_does_not_grow_when_the_room_it_has_is_not_used() -> None:
    limit = ConcurrencyLimit(256)
    answer_rounds(limit, 0.040, rounds=20, busy=0.5)
    assert limit.limit == START


def test_it_stops_growing_when_latency_rises() -> None:
    limit = ConcurrencyLimit(256)
    answer_rounds(limit, 0.040)
    answer_rounds(limit, 0.100, rounds=10)
    assert limit.limit == 2 * START


def test_it_shrinks_when_latency_rises_far_above_the_best() -> None:
    limit = ConcurrencyLimit(256)
    answer_rounds(limit, 0.040, rounds=3)
    before = limit.limit
    answer_rounds(limit, 0.400)
    assert limit.limit == int(before * 0.7)
    answer_rounds(limit, 0.400, rounds=30)
    assert limit.limit == 16


def test_a_throttled_origin_gets_half_and_once_a_second() -> None:
    limit = ConcurrencyLimit(256)
    answer_rounds(limit, 0.040, rounds=3)
    before = limit.limit
    limit.on_throttle(now=10.0)
    assert limit.limit == before // 2
    limit.on_throttle(now=10.9)
    assert limit.limit == before // 2
    limit.on_throttle(now=11.0)
    assert limit.limit == before // 4


def test_it_does_not_grow_right_after_it_was_throttled_but_later() -> None:
    limit = ConcurrencyLimit(256)
    limit.on_throttle(now=10.0)
    answer_rounds(limit, 0.040, rounds=3, now=10.5)
    assert limit.limit == START // 2
    answer_rounds(limit, 0.040, now=11.5)
    assert limit.limit > START // 2


def test_it_recovers_from_the_floor_one_by_one() -> None:
    limit = ConcurrencyLimit(256)
    for second in range(10):
        limit.on_throttle(now=float(second))
    assert limit.limit == 1
    answer_rounds(limit, 0.040, rounds=3, now=20.0)
    assert limit.limit == 4


def test_it_keeps_within_its_bounds() -> None:
    limit = ConcurrencyLimit(8)
    assert limit.limit == 8
    answer_rounds(limit, 0.040, rounds=10)
    assert limit.limit == 8
    for second in range(10):
        limit.on_throttle(now=float(second))
    assert limit.limit == 1
    answer_rounds(limit, 0.040, rounds=40, now=20.0)
    assert limit.limit == 8
