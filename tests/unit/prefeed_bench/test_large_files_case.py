"""Figures of the benchmark of large files: rates on slow storage, and what files in the page cache cost."""

from __future__ import annotations

import pytest

from prefeed_bench.cases.large_files import Passes, figures
from prefeed_bench.errors import BenchFailedError


def passes(first: float, second: float, *, checksum: int = 7) -> Passes:
    """Return two passes over 100 MB that took these seconds, and half as much of the processor."""
    return [
        {"bytes": 10**8, "seconds": seconds, "cpu_seconds": seconds / 2, "checksum": checksum}
        for seconds in (first, second)
    ]


def test_rates_and_their_ratios() -> None:
    found = figures(passes(2.0, 2.0), passes(1.0, 0.1), passes(0.1, 0.1), passes(0.1, 0.12))
    assert found == pytest.approx(
        {
            "plain_first_mb_s": 50, "plain_second_mb_s": 50, "prefeed_first_mb_s": 100, "prefeed_second_mb_s": 1000,
            "cold_of_plain": 2, "second_of_plain": 20, "cached_over_plain": 1.2, "cached_cpu_over_plain": 1.2,
        }
    )  # fmt: skip


def test_other_bytes_are_no_result() -> None:
    with pytest.raises(BenchFailedError, match="different bytes"):
        figures(passes(1, 1), passes(1, 1), passes(1, 1), passes(1, 1, checksum=8))
