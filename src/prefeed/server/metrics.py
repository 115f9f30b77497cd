"""What Prometheus is told: names, kinds, help, and where each number comes from. Imports no library.

docs/reference/metrics.md is checked against ``METRICS`` by a test, and the dashboard's expressions are too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prefeed.server.epochs import EpochTotals
from prefeed.server.status import Observation
from prefeed.types import PlanInfo, Statistics

MOST_PLANS: Final = 64
"""Plans with series of their own: a node with more shows the first."""

MOST_CODES: Final = 64
"""Error codes with a series of their own; the rest is counted as ``others``."""

_MOST_LABEL: Final = 200
"""Characters of a label's value."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As it is shown; counters end in ``_total``.
        kind: Of Prometheus.
        labels: Names of its labels.
        help: What it counts, and how to read it.
    """

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str


METRICS: Final = (
    Metric("prefeed_build_info", "gauge", ("version",), "Always 1; the version of the server is in the label."),
    Metric("prefeed_uptime_seconds", "gauge", (), "Time since the server started."),
    Metric("prefeed_clients", "gauge", (), "Open connections: loaders, workers, commands."),
    Metric("prefeed_reads_total", "counter", ("outcome",), "Reads by how they went: hit = in a tier when asked for, late = in flight, miss = not asked for ahead of time, direct = past the server to the origin. hit ÷ all is the hit ratio."),
    Metric("prefeed_best_hit_ratio", "gauge", (), "What no policy exceeds that neither reads ahead nor knows what follows: budget ÷ data, 0 to 1; absent before the first plan. A hit ratio above it is what reading ahead brings."),
    Metric("prefeed_origin_requests_total", "counter", (), "Requests that the server made to origins, retries included."),
    Metric("prefeed_origin_bytes_total", "counter", (), "Bytes that came back from origins."),
    Metric("prefeed_origin_request_seconds_total", "counter", (), "How long these requests took, added up; ÷ requests is their mean latency."),
    Metric("prefeed_origin_requests_in_flight", "gauge", (), "Fetches under way now, also those that disk or pool will serve."),
    Metric("prefeed_origin_requests_limit", "gauge", (), "Requests that may be under way, as tuned from what was observed; absent without a plan. A limit far below PREFEED_MAX_IN_FLIGHT means that the origin is slow under load or throttles."),
    Metric("prefeed_errors_total", "counter", ("code",), "Failures by error code; each was answered by a retry or by reading the origin."),
    Metric("prefeed_tier_objects", "gauge", ("tier", "kind"), "Objects held: resident = kept for the next epoch, transient = freed once consumed."),
    Metric("prefeed_tier_bytes", "gauge", ("tier", "kind"), "Their size as stored."),
    Metric("prefeed_tier_budget_bytes", "gauge", ("tier",), "Most bytes that the tier may hold."),
    Metric("prefeed_tier_reads_total", "counter", ("tier",), "Fetches that the tier served instead of the origin."),
    Metric("prefeed_tier_corrupt_total", "counter", ("tier",), "Values found damaged, and fetched again: look at the disk or the network."),
    Metric("prefeed_tier_dropped_total", "counter", ("tier",), "Values not stored because the tier was too slow."),
    Metric("prefeed_pool_servers", "gauge", ("state",), "Servers of the pool: up, or down = left out for now, and tried again."),
    Metric("prefeed_pool_misses_total", "counter", (), "Fetches that asked the pool, and that it did not serve."),
    Metric("prefeed_pool_failures_total", "counter", (), "How often a server of the pool was left out: no answer in time, or a wrong one."),
    Metric("prefeed_pool_refused_total", "counter", (), "Objects not stored because a server of the pool had no room."),
    Metric("prefeed_pool_read_bytes_total", "counter", (), "Bytes that the pool served."),
    Metric("prefeed_pool_written_bytes_total", "counter", (), "Bytes that this node put into the pool."),
    Metric("prefeed_pool_waits_total", "counter", (), "Fetches that waited because another node was making them."),
    Metric("prefeed_pool_waits_in_vain_total", "counter", (), "Those of them that the origin had to serve all the same."),
    Metric("prefeed_sessions", "gauge", (), "Sessions of stage caches."),
    Metric("prefeed_stage_caches", "gauge", (), "Stage caches."),
    Metric("prefeed_stage_cache_bytes", "gauge", ("tier",), "What stage caches take."),
    Metric("prefeed_stage_audits_total", "counter", ("result",), "Samples that were found in a stage cache, made anew and compared: same, or different."),
    Metric("prefeed_stage_not_kept_total", "counter", (), "Samples that were made and not kept because another process kept the turn to write for a second. Grows: a process is suspended."),
    Metric("prefeed_plans", "gauge", (), "Consumers with a plan: loaders in an epoch, and warm-ups."),
    Metric("prefeed_plan_position_objects", "gauge", ("plan", "dataset"), "Objects of the plan that its loop has. Numbers of plans that have ended are used again; at most 64 are shown."),
    Metric("prefeed_plan_length_objects", "gauge", ("plan", "dataset"), "Objects of the plan."),
    Metric("prefeed_plan_ahead_bytes", "gauge", ("plan", "dataset"), "Bytes on their way, or waiting, for this plan alone. Near 0 in the middle of a plan that does not fit in memory: the origin does not keep up."),
    Metric("prefeed_plan_memory_bytes", "gauge", ("plan", "dataset"), "What the server keeps for the plan: the part of its order that is known and not read yet, and what is expected. At most 64 MiB."),
    Metric("prefeed_epochs_total", "counter", ("loader", "rank"), "Epochs that loaders have reported."),
    Metric("prefeed_epoch_seconds_total", "counter", ("loader", "rank"), "How long these took; grows when an epoch ends."),
    Metric("prefeed_epoch_waited_seconds_total", "counter", ("loader", "rank"), "How much of it the training loop waited for data."),
    Metric("prefeed_last_epoch_number", "gauge", ("loader", "rank"), "Number of the last epoch, from 1."),
    Metric("prefeed_last_epoch_seconds", "gauge", ("loader", "rank"), "How long the last epoch took."),
    Metric("prefeed_last_epoch_waited_seconds", "gauge", ("loader", "rank"), "How much of it the training loop waited for data. Divided by its length: 0.05 and more is worth a `prefeed doctor`."),
)  # fmt: skip
"""All metrics of prefeed's own, in the order in which they are shown."""

Row = tuple[str, tuple[str, ...], float]
"""Name of a metric, values of its labels, number."""


class PlanNumbers:
    """Gives each plan a small number that stays its own: series are bounded, however many loaders come and go."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, plans: Sequence[PlanInfo]) -> list[tuple[int, PlanInfo]]:
        """Return the plans with their numbers, ``MOST_PLANS`` of them at most; numbers of others are free again."""
        present = {plan.consumer for plan in plans}
        self._numbers = {consumer: number for consumer, number in self._numbers.items() if consumer in present}
        free = iter(sorted(set(range(MOST_PLANS)) - set(self._numbers.values())))
        for plan in plans:
            if plan.consumer not in self._numbers and (number := next(free, None)) is not None:
                self._numbers[plan.consumer] = number
        return [(self._numbers[plan.consumer], plan) for plan in plans if plan.consumer in self._numbers]


def rows(seen: Observation, numbers: PlanNumbers) -> Iterator[Row]:
    """Yield every number of the observation."""
    status, statistics = seen.status, seen.statistics
    yield "prefeed_build_info", (status.version,), 1
    yield "prefeed_uptime_seconds", (), status.uptime_seconds
    yield "prefeed_clients", (), status.clients
    yield from _reads(statistics)
    yield "prefeed_origin_requests_total", (), statistics.origin_requests
    yield "prefeed_origin_bytes_total", (), statistics.origin_bytes
    yield "prefeed_origin_request_seconds_total", (), statistics.origin_seconds
    yield "prefeed_origin_requests_in_flight", (), status.in_flight
    if status.max_in_flight:
        yield "prefeed_origin_requests_limit", (), status.max_in_flight
    yield from _errors(statistics.errors)
    yield from _memory(statistics)
    yield from _disk(statistics)
    yield from _pool(statistics)
    yield from _stage_caches(statistics)
    yield "prefeed_plans", (), status.plans
    for number, plan in numbers.of(seen.plans):
        yield from _plan(str(number), plan)
    for totals in seen.epochs:
        yield from _epochs(totals)


def label(text: str) -> str:
    """Return a text that can be the value of a label: short, and valid UTF-8 whatever bytes a path has."""
    shown = text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 1]}…"
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def _reads(statistics: Statistics) -> Iterator[Row]:
    yield "prefeed_reads_total", ("hit",), statistics.hits
    yield "prefeed_reads_total", ("late",), statistics.late
    yield "prefeed_reads_total", ("miss",), statistics.misses
    yield "prefeed_reads_total", ("direct",), statistics.direct_reads
    if statistics.best_hit_ratio is not None:
        yield "prefeed_best_hit_ratio", (), statistics.best_hit_ratio


def _errors(errors: dict[str, int]) -> Iterator[Row]:
    by_code = list(errors.items())
    for code, count in by_code[:MOST_CODES]:
        yield "prefeed_errors_total", (label(code),), count
    if rest := by_code[MOST_CODES:]:
        yield "prefeed_errors_total", ("others",), sum(count for _, count in rest)


def _memory(statistics: Statistics) -> Iterator[Row]:
    yield "prefeed_tier_objects", ("memory", "resident"), statistics.resident_objects
    yield "prefeed_tier_objects", ("memory", "transient"), statistics.transient_objects
    yield "prefeed_tier_bytes", ("memory", "resident"), statistics.resident_bytes
    yield "prefeed_tier_bytes", ("memory", "transient"), statistics.transient_bytes
    yield "prefeed_tier_budget_bytes", ("memory",), statistics.budget_bytes


def _disk(statistics: Statistics) -> Iterator[Row]:
    disk = statistics.disk
    if not disk.budget_bytes:
        return
    yield "prefeed_tier_objects", ("disk", "resident"), disk.objects
    yield "prefeed_tier_bytes", ("disk", "resident"), disk.bytes
    yield "prefeed_tier_budget_bytes", ("disk",), disk.budget_bytes
    yield "prefeed_tier_reads_total", ("disk",), disk.reads
    yield "prefeed_tier_corrupt_total", ("disk",), disk.corrupt
    yield "prefeed_tier_dropped_total", ("disk",), disk.dropped


def _pool(statistics: Statistics) -> Iterator[Row]:
    pool = statistics.pool
    if not pool.servers:
        return
    yield "prefeed_tier_reads_total", ("pool",), pool.hits
    yield "prefeed_tier_corrupt_total", ("pool",), pool.corrupt
    yield "prefeed_tier_dropped_total", ("pool",), pool.dropped
    yield "prefeed_pool_servers", ("up",), pool.servers - pool.left_out
    yield "prefeed_pool_servers", ("down",), pool.left_out
    yield "prefeed_pool_misses_total", (), pool.misses
    yield "prefeed_pool_failures_total", (), pool.failures
    yield "prefeed_pool_refused_total", (), pool.refused
    yield "prefeed_pool_read_bytes_total", (), pool.read_bytes
    yield "prefeed_pool_written_bytes_total", (), pool.written_bytes
    yield "prefeed_pool_waits_total", (), pool.waits
    yield "prefeed_pool_waits_in_vain_total", (), pool.waits_in_vain


def _stage_caches(statistics: Statistics) -> Iterator[Row]:
    counts = statistics.sessions
    yield "prefeed_sessions", (), counts.sessions
    yield "prefeed_stage_caches", (), counts.caches
    yield "prefeed_stage_cache_bytes", ("memory",), counts.memory_bytes
    yield "prefeed_stage_cache_bytes", ("disk",), counts.disk_bytes
    yield "prefeed_stage_audits_total", ("same",), counts.audits - counts.audits_failed
    yield "prefeed_stage_audits_total", ("different",), counts.audits_failed
    yield "prefeed_stage_not_kept_total", (), counts.not_kept


def _plan(number: str, plan: PlanInfo) -> Iterator[Row]:
    labels = (number, label(plan.dataset))
    yield "prefeed_plan_position_objects", labels, plan.position
    yield "prefeed_plan_length_objects", labels, plan.length
    yield "prefeed_plan_ahead_bytes", labels, plan.ahead_bytes
    yield "prefeed_plan_memory_bytes", labels, plan.memory_bytes


def _epochs(totals: EpochTotals) -> Iterator[Row]:
    labels = (label(totals.loader), "" if totals.rank is None else str(totals.rank))
    yield "prefeed_epochs_total", labels, totals.epochs
    yield "prefeed_epoch_seconds_total", labels, totals.seconds
    yield "prefeed_epoch_waited_seconds_total", labels, totals.waited_seconds
    yield "prefeed_last_epoch_number", labels, totals.last.epoch
    yield "prefeed_last_epoch_seconds", labels, totals.last.seconds
    yield "prefeed_last_epoch_waited_seconds", labels, totals.last.waited_seconds
