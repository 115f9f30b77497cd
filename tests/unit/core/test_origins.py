"""Sums over what loaders report of how they read, by origin."""

from __future__ import annotations

from prefeed.core.origins import MOST_ORIGINS, OTHERS, summed
from prefeed.types import OriginReads

QUICK = OriginReads(
    origin="/data",
    in_place=True,
    why="quick",
    open_seconds=1e-5,
    round_trip_seconds=2e-4,
    samples=10,
    files=20,
    bytes=300,
)


def test_counts_are_added_up_and_the_last_report_says_the_rest() -> None:
    slow = OriginReads(origin="/data", in_place=False, why="slow", open_seconds=0.005, samples=1, files=2, bytes=30)
    other = OriginReads(origin="s3://bucket", in_place=False)
    first, second = summed([QUICK, other], [slow])
    assert first == OriginReads(
        origin="/data", in_place=False, why="slow", open_seconds=0.005, round_trip_seconds=2e-4, samples=11, files=22, bytes=330
    )  # fmt: skip
    assert second == other


def test_an_epoch_that_measured_nothing_leaves_what_is_known() -> None:
    cached = OriginReads(origin="/data", in_place=False, why="slow", open_seconds=0.005)
    (later,) = summed([cached, OriginReads(origin="/data", in_place=False)])
    assert later == cached
    (again,) = summed([cached, OriginReads(origin="/data", in_place=True)])
    assert (again.why, again.open_seconds) == ("", 0.005)  # the reason was another one's


def test_the_number_of_origins_is_bounded() -> None:
    many = [OriginReads(origin=f"/{number}", in_place=True, samples=1) for number in range(MOST_ORIGINS + 5)]
    found = summed(many, [OriginReads(origin="/3", in_place=True, samples=1)])
    assert len(found) == MOST_ORIGINS + 1
    assert (found[-1].origin, found[-1].samples) == (OTHERS, 5)
    assert found[3].samples == 2
    assert summed(found) == found
