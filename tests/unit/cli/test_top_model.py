"""What ``prefeed top`` computes from what it sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefeed.cli.top_view import (
    KEPT,
    SORTS,
    History,
    Look,
    Sample,
    last_epochs,
    loader_name,
    next_sort,
    plan_rows,
    rates_between,
    tier_rows,
)
from prefeed.types import EpochWait, PlanInfo, ReadCounts, Statistics
from top_looks import EPOCHS, NO_SERVER, SAMPLE, later, looks

RESTARTED = replace(
    SAMPLE,
    status=replace(SAMPLE.status, pid=99, uptime_seconds=1.0),
    statistics=replace(SAMPLE.statistics, hits=5, late=0, misses=0, direct_reads=0, origin_requests=5),
)


def test_rates_are_differences_over_the_servers_own_time() -> None:
    rates = rates_between(SAMPLE, later(SAMPLE, 2.0, reads=3000, origin_requests=100, origin_bytes=8_000_000))

    assert rates is not None
    assert (rates.hits, rates.reads, rates.origin_requests, rates.origin_bytes) == (1500, 1500, 50, 4_000_000)
    assert rates.hit_bytes == 150_000_000
    assert rates.plans == {11: 1500, 12: 0, -1: 0}


def test_a_plan_that_has_just_come_counts_from_nothing() -> None:
    new = PlanInfo(consumer=5, dataset="/d", position=0, length=10, reads=ReadCounts(hits=8))
    after = later(SAMPLE, 2.0)

    rates = rates_between(SAMPLE, replace(after, plans=(*after.plans, new)))

    assert rates is not None
    assert rates.plans[5] == 4


@pytest.mark.parametrize(
    "after",
    [
        RESTARTED,
        replace(later(SAMPLE, 1.0, reads=5), status=replace(SAMPLE.status, pid=99, uptime_seconds=9000.0)),
        replace(RESTARTED, status=replace(SAMPLE.status, uptime_seconds=1.0)),  # the process id was given again
        replace(RESTARTED, status=replace(SAMPLE.status, uptime_seconds=9000.0)),
        SAMPLE,
    ],
    ids=["restarted", "another server, busier", "same pid", "counters go back", "no time has passed"],
)
def test_no_rates_across_a_restart(after: Sample) -> None:
    assert rates_between(SAMPLE, after) is None


def test_history_keeps_rates_of_one_server_only() -> None:
    history = History()
    for look in looks(5):
        history.add(look)
    assert len(history.series(lambda r: r.hits)) == 4

    history.add(Look(sample=RESTARTED))

    assert history.sample is RESTARTED
    assert history.rates is None
    assert history.series(lambda r: r.hits) == ()


def test_history_without_a_server_says_why_and_begins_again() -> None:
    history = History()
    for look in (*looks(5), NO_SERVER):
        history.add(look)

    assert (history.sample, history.trouble) == (None, NO_SERVER.trouble)

    history.add(looks(1)[0])
    assert (history.rates, history.trouble) == (None, "")


def test_history_is_bounded() -> None:
    history = History()
    for look in looks(KEPT + 20):
        history.add(look)

    assert len(history.series(lambda r: r.hits)) == KEPT


def test_tiers_without_a_budget_are_left_out() -> None:
    assert [row.name for row in tier_rows(Statistics(budget_bytes=5))] == ["memory"]
    assert [row.name for row in tier_rows(SAMPLE.statistics)] == ["memory", "disk"]


def test_plans_know_their_loader_from_its_last_epoch() -> None:
    first, second, warm_up = plan_rows(SAMPLE, None)

    assert (first.loader, second.loader, warm_up.loader) == ("ImageFolder r0", "ImageFolder r1", "warm-up")
    assert first.waited_share == pytest.approx(3 / 431)
    assert first.reads_per_second is None
    assert warm_up.hit_ratio is None
    assert first.progress == pytest.approx(412_000 / 640_583)


@pytest.mark.parametrize(
    ("sort", "firsts"),
    [("order", [11, 12, -1]), ("progress", [11, 12, -1]), ("speed", [12, 11, -1]), ("waiting", [12, 11, -1])],
)
def test_plans_are_sorted(sort, firsts: list[int]) -> None:
    rates = rates_between(SAMPLE, later(SAMPLE, 1.0))
    assert rates is not None
    rows = plan_rows(SAMPLE, replace(rates, plans={11: 1.0, 12: 9.0}), sort)

    by_position = {412_000: 11, 409_600: 12, 12_000: -1}
    assert [by_position[row.position] for row in rows] == firsts


def test_sorts_follow_each_other_in_a_ring() -> None:
    sort = SORTS[0]
    seen = [sort := next_sort(sort) for _ in SORTS]  # type: ignore[arg-type]

    assert seen == [*SORTS[1:], SORTS[0]]


def test_an_empty_plan_has_come_nowhere() -> None:
    empty = PlanInfo(consumer=1, dataset="/d", position=0, length=0)

    assert plan_rows(replace(SAMPLE, plans=(empty,)), None)[0].progress == 0


def test_of_each_loader_the_last_epoch_counts() -> None:
    assert last_epochs(EPOCHS) == [EPOCHS[3], EPOCHS[2]]
    alone = EpochWait(loader="Files", rank=None, epoch=1, batches=1, seconds=1.0, waited_seconds=0.5)
    assert loader_name(alone) == "Files"
