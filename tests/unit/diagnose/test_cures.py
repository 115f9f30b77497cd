"""What each cure is predicted to gain."""

from __future__ import annotations

import pytest

from prefeed.diagnose.doctor.verdict import Cure, cures_of
from unit.diagnose.measured import costs, loader, measurement, timing


def cure(name: str, perfect: float = 10.0, **changes: object) -> Cure:
    return next(found for found in cures_of(measurement(**changes), perfect) if found.name == name)


def test_cheapest_first() -> None:
    everything = measurement(
        cached=timing(0.3),
        workers={8: timing(0.5)},
        staged=timing(0.2),
        costs=costs(to_device=0.1, jpeg_saved=0.1),
    )
    names = [found.name for found in cures_of(everything, 10.0)]
    assert names == ["cache", "workers", "device prefetch", "stage cache", "fast decode", "packing"]


def test_what_was_not_tried_is_not_offered() -> None:
    assert [found.name for found in cures_of(measurement(costs=costs(opening=None)), 10.0)] == []


def test_a_cache_that_holds_everything() -> None:
    found = cure("cache", first=timing(0.4), cached=timing(0.25))
    assert (found.speedup, found.first_speedup) == (4.0, 2.5)
    assert "(0.1 GB)" in found.what  # 1000 samples, ten of which take 1 MB


def test_a_cache_that_holds_a_part() -> None:
    """What does not fit is fetched ahead in every epoch, as everything is in the first."""
    found = cure("cache", loader=loader(memory_bytes=25_000_000), first=timing(0.4), cached=timing(0.2))
    assert found.speedup == pytest.approx(1 / (0.25 * 0.2 + 0.75 * 0.4))
    assert "0.1 GB; 25 % of it fits" in found.what


def test_the_best_number_of_workers() -> None:
    found = cure("workers", workers={4: timing(0.6), 8: timing(0.5), 32: timing(0.7)})
    assert (found.speedup, found.how.split(";")[0]) == (2.0, "DataLoader(..., num_workers=8)")


def test_what_is_computed_is_divided_among_the_workers() -> None:
    assert cure("fast decode", costs=costs(jpeg_saved=0.4)).speedup == pytest.approx(1 / 0.8)
    assert not cure("fast decode", costs=costs(jpeg_saved=0.4)).is_measured
    assert cure("packing").speedup == pytest.approx(1 / 0.4)


def test_no_cure_beats_perfect_loading() -> None:
    assert cure("packing", costs=costs(opening=100.0)).speedup == pytest.approx(10.0)
    assert cure("packing", perfect=2.0).speedup == 2.0


def test_an_estimate_is_no_better_than_what_was_measured_of_more() -> None:
    """Files in memory need no opens, and samples from a stage cache neither opens nor decoding."""
    assert cure("packing", cached=timing(1 / 1.6)).speedup == pytest.approx(1.6)
    assert cure("packing", cached=timing(1 / 1.6), staged=timing(1 / 1.4)).speedup == pytest.approx(1.4)
    assert cure("packing", cached=timing(0.2)).speedup == pytest.approx(1 / 0.4)
    jpegs = costs(jpeg_saved=1.6)
    assert cure("fast decode", costs=jpegs, staged=timing(0.5)).speedup == pytest.approx(1 / 0.5)
    assert cure("fast decode", costs=jpegs, cached=timing(0.9)).speedup == pytest.approx(1 / 0.2)


def test_what_is_not_waited_for_gains_nothing() -> None:
    found = cure("fast decode", as_is=timing(1.0, waited=0.1), costs=costs(jpeg_saved=1.0))
    assert found.speedup == pytest.approx(1 / 0.9)


def test_a_stage_cache_larger_than_memory_says_so() -> None:
    found = cure("stage cache", staged=timing(0.2), staged_bytes=2_000_000)
    assert "(2.0 GB; with spilling, because only 1.0 GB of memory are free)" in found.what
