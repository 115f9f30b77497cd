"""What policies reach."""

from __future__ import annotations

import pytest

from policies import belady_misses, lru_hit_ratio


def test_lru() -> None:
    assert lru_hit_ratio(0.0) == 0.0
    assert lru_hit_ratio(0.5) == pytest.approx(0.1534, abs=1e-4)
    assert lru_hit_ratio(0.65) == pytest.approx(0.2826, abs=1e-4)
    assert lru_hit_ratio(1.0) == 1.0


@pytest.mark.parametrize(
    ("accesses", "capacity", "misses"),
    [
        ([], 2, 0),
        ([1, 1, 1], 0, 3),
        ([1, 1, 1], 1, 1),
        ([1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5], 3, 7),  # Belady's own example
        ([1, 2, 3, 3, 2, 1], 1, 5),
        ([1, 2, 1, 3, 1], 1, 3),  # what comes but once is not let in
    ],
)
def test_belady(accesses: list[int], capacity: int, misses: int) -> None:
    assert belady_misses(accesses, capacity=capacity) == misses
