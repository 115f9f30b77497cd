"""What failed is tried again: soon at first, then after pauses that grow, and never for more than a tenth of the time."""

from __future__ import annotations

from prefeed.core.requests import Again


def test_the_first_try_after_a_failure_is_due_at_once_and_pauses_grow() -> None:
    again = Again()
    for pause in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        again.failed(began=0.0, now=0.0)
        assert again.is_due(pause)
        assert not pause or not again.is_due(pause - 0.01)


def test_trying_takes_at_most_a_tenth_of_the_time() -> None:
    again, now, spent = Again(), 0.0, 0.0
    while now < 10_000:
        if again.is_due(now):
            again.failed(began=now, now=now + 15.0)
            now += 15.0
            spent += 15.0
        now += 1.0
    assert spent < 0.12 * now
    assert again.num_failed > 30


def test_after_a_success_the_next_failure_is_the_first() -> None:
    again = Again()
    for _ in range(5):
        again.failed(began=0.0, now=0.0)
    assert not again.is_due(1.0)
    again.succeeded()
    assert again.is_due(0.0)
    again.failed(began=0.0, now=0.0)
    assert again.is_due(0.0)
