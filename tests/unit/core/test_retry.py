"""When a failed fetch is tried again."""

from __future__ import annotations

import pytest

from prefeed.core.requests import RetryPolicy

POLICY = RetryPolicy(first_delay_seconds=0.1, max_delay_seconds=10.0, deadline_seconds=120.0)


@pytest.mark.parametrize(("attempts", "bound"), [(1, 0.1), (2, 0.2), (3, 0.4), (7, 6.4), (8, 10.0), (5000, 10.0)])
def test_the_pause_doubles_up_to_a_bound(attempts: int, bound: float) -> None:
    shortest = POLICY.next_delay(attempts=attempts, elapsed_seconds=0.0, jitter=0.0)
    longest = POLICY.next_delay(attempts=attempts, elapsed_seconds=0.0, jitter=1.0)
    assert shortest == pytest.approx(bound / 2)
    assert longest == pytest.approx(bound)


def test_a_fetch_is_given_up_when_the_next_try_would_come_after_the_deadline() -> None:
    assert POLICY.next_delay(attempts=8, elapsed_seconds=110.0, jitter=1.0) == pytest.approx(10.0)
    assert POLICY.next_delay(attempts=8, elapsed_seconds=110.1, jitter=1.0) is None
    assert RetryPolicy(deadline_seconds=0.0).next_delay(attempts=1, elapsed_seconds=0.0, jitter=0.0) is None
