"""The numbers that Prometheus is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from observed import EMPTY, FULL, PLAN
from prefeed.server.metrics import METRICS, MOST_CODES, MOST_PLANS, PlanNumbers, label, seen_of
from prefeed.server.status import Observation
from prefeed.types import PlanInfo, Statistics


def numbers_of(seen: Observation) -> dict[tuple[str, ...], float]:
    values = seen_of(seen, PlanNumbers())
    return {(metric.name, *labels): number for metric in METRICS for labels, number in metric.numbers(values).items()}


def test_every_metric_has_a_number_and_every_number_its_labels() -> None:
    labels = {metric.name: len(metric.labels) for metric in METRICS}
    found = numbers_of(FULL)

    assert {name for name, *_ in found} == set(labels)
    assert {name: len(rest) for name, *rest in found} == labels


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (("prefeed_build_info", "1.2"), 1),
        (("prefeed_reads_total", "hit"), 90),
        (("prefeed_reads_total", "late"), 5),
        (("prefeed_reads_total", "miss"), 4),
        (("prefeed_reads_total", "direct"), 1),
        (("prefeed_origin_requests_total",), 11),
        (("prefeed_origin_bytes_total",), 12),
        (("prefeed_origin_requests_in_flight",), 3),
        (("prefeed_origin_requests_limit",), 64),
        (("prefeed_errors_total", "entry-lost"), 2),
        (("prefeed_tier_objects", "memory", "transient"), 15),
        (("prefeed_tier_bytes", "memory", "resident"), 14),
        (("prefeed_tier_budget_bytes", "disk"), 23),
        (("prefeed_tier_reads_total", "pool"), 31),
        (("prefeed_tier_corrupt_total", "disk"), 25),
        (("prefeed_tier_dropped_total", "pool"), 36),
        (("prefeed_pool_servers", "up"), 3),
        (("prefeed_pool_servers", "down"), 1),
        (("prefeed_pool_waits_expired_total",), 40),
        (("prefeed_stage_cache_bytes", "disk"), 4),
        (("prefeed_plan_position_objects", "0", "s3://bucket/train"), 5),
        (("prefeed_plan_length_objects", "0", "s3://bucket/train"), 20),
        (("prefeed_plan_ahead_bytes", "0", "s3://bucket/train"), 99),
        (("prefeed_plan_memory_bytes", "0", "s3://bucket/train"), 4096),
        (("prefeed_epoch_waited_seconds_total", "Files", "1"), 10),
        (("prefeed_last_epoch_waited_seconds", "Files", "1"), 2),
        (("prefeed_last_epoch_number", "Files", "1"), 4),
        (("prefeed_origin_direct_reads", "/mnt/a"), 1),
        (("prefeed_origin_direct_reads", "/mnt/b"), 0),
        (("prefeed_origin_open_wait_seconds", "/mnt/a"), 0.25),
        (("prefeed_server_round_trip_seconds", "/mnt/a"), 0.5),
        (("prefeed_direct_samples_total", "/mnt/a"), 41),
        (("prefeed_direct_files_total", "/mnt/a"), 42),
        (("prefeed_direct_bytes_total", "/mnt/a"), 43),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, tuple) else str(value),
)
def test_numbers_are_the_nodes(key: tuple[str, ...], number: float) -> None:
    assert numbers_of(FULL)[key] == number


def test_what_a_node_has_not_has_no_series() -> None:
    names = {name for name, *_ in numbers_of(EMPTY)}

    assert not {name for name in names if name.startswith(("prefeed_pool", "prefeed_plan_", "prefeed_epoch"))}
    assert not names & {"prefeed_best_hit_ratio", "prefeed_origin_requests_limit", "prefeed_tier_reads_total"}
    assert "prefeed_reads_total" in names
    assert ("prefeed_origin_open_wait_seconds", "/mnt/b") not in numbers_of(FULL)  # none was measured


def plans(*consumers: int) -> list[PlanInfo]:
    return [replace(PLAN, consumer=consumer) for consumer in consumers]


def test_a_plan_keeps_its_number_while_others_come_and_go() -> None:
    numbers = PlanNumbers()
    assert [n for n, _ in numbers.of(plans(100, 200, 300))] == [0, 1, 2]
    assert [n for n, _ in numbers.of(plans(200, 300))] == [1, 2]
    assert [(n, plan.consumer) for n, plan in numbers.of(plans(200, 300, 400, 500))] == [
        (1, 200), (2, 300), (0, 400), (3, 500),
    ]  # fmt: skip


def test_however_many_loaders_come_and_go_series_are_bounded() -> None:
    numbers, seen = PlanNumbers(), set()
    for start in range(0, 1000, 50):
        seen |= {number for number, _ in numbers.of(plans(*range(start, start + 100)))}
    assert seen == set(range(MOST_PLANS))


def test_codes_beyond_the_most_are_counted_together() -> None:
    errors = {f"code-{number}": 1 for number in range(MOST_CODES + 5)}
    found = numbers_of(replace(EMPTY, statistics=Statistics(errors=errors)))

    shown = {rest[0]: number for (name, *rest), number in found.items() if name == "prefeed_errors_total"}
    assert len(shown) == MOST_CODES + 1
    assert (shown["others"], sum(shown.values())) == (5, MOST_CODES + 5)


def test_labels_are_short_and_printable() -> None:
    assert label("/mnt/\udcff") == "/mnt/\\udcff"
    assert label("a" * 500) == "a" * 199 + "…"
