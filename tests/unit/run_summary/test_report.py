"""Lines of the run summary, from counts without a program."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from prefeed.run_summary.counters import OPENED, REFUSED, SERVED
from prefeed.run_summary.report import facts_of, lines_of


def key_of(*parts: str) -> str:
    return "\t".join(parts)


STREAM = "an IterableDataset has no order to know beforehand"


def lines(
    counts: Mapping[str, int], *, num_loops: int = 1, program: str = "python train.py", seconds: float = 20.0
) -> list[str]:
    return lines_of(facts_of(dict(counts), num_loops, program=program.split(), seconds=seconds))


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ({}, "no loaders served"),
        (
            {key_of(SERVED, "a (A, rank 0)"): 1, key_of(SERVED, "a (A, rank 1)"): 1, key_of(SERVED, "b"): 1},
            "2 loaders served: a (A), b",
        ),
        (
            {key_of(SERVED, "a"): 4, key_of(REFUSED, "b, rank 3", STREAM): 2, key_of(REFUSED, "b, rank 1", STREAM): 2},
            f"1 loader served: a; 1 not: b: {STREAM}",
        ),
        ({key_of(REFUSED, "a", "one"): 1, key_of(REFUSED, "a", "two"): 1}, "no loaders served; 1 not: a: one / two"),
        ({key_of(SERVED, "a"): 1, key_of(REFUSED, "a", "not ready"): 1}, "1 loader served: a"),
    ],
)
def test_loaders(counts: Mapping[str, int], line: str) -> None:
    assert lines(counts) == [line]


def test_reads_are_counted_once_and_the_ratio_is_over_all() -> None:
    counts = {"hits": 75, "late_or_missed": 15, "direct_reads": 10, "cache_bytes": 2048, "origin_bytes": 100}
    assert lines(counts)[1:] == [
        "100 reads: 75 hits (75.0 %), 15 late or missed, 10 direct; 2.0 KiB from the cache, 100 B from the origin"
    ]
    assert lines({"direct_reads": 4, "reads_in_own_threads": 3})[2] == (
        "3 direct reads in threads of its own: PREFEED_READS=all answers them"
    )


def test_times() -> None:
    times = {"loop_ns": 20 * 10**9, "waited_ns": 5 * 10**9}
    assert lines(times)[1:] == ["waited 25.0 % of 20.0 s for data; epochs took 100 % of the program's 20.0 s"]
    assert lines(times, num_loops=2)[1:] == [
        "waited 25.0 % of 20.0 s of 2 processes for data; epochs took 50 % of the program's 20.0 s"
    ]
    late = times | {"start_ns": 24 * 10**9, "start_waits": 50}
    assert lines(late, num_loops=2)[2:] == ["12.0 s passed before the first epoch"]
    assert lines(late, num_loops=2, seconds=130.0)[2:] == []
    assert "with 5,000 waits, as a scan of names or sizes" in lines(late | {"start_waits": 5000}, num_loops=2)[2]


def test_calls_that_bypassed_the_cache() -> None:
    calls = {("open", "in samples"): 2, ("PIL.Image.open", "outside of samples"): 1000}
    assert lines({key_of(OPENED, *call): number for call, number in calls.items()})[1:] == [
        "opens that bypassed the cache: PIL.Image.open outside of samples 1,000, open in samples 2"
    ]


def test_a_url_that_was_not_read_is_named_without_its_key() -> None:
    program = "python train.py --data=s3://key:secret@bucket/a?x=1"
    (line,) = lines({}, program=program)[1:]
    assert line.startswith(
        "nothing of s3://bucket/a was read through prefeed: use prefeed.datasets, `prefeed mount s3://bucket/a DIR`"
    )
    assert len(lines({"hits": 1}, program=program)) == 2
