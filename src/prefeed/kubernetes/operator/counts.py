"""What Prometheus is told about the operator. docs/reference/metrics.md is checked against ``METRICS`` by a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metric(NamedTuple):
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


ENDS: Final = Metric(
    "prefeed_operator_reconciliations_total",
    "counter",
    ("end",),
    "Sets that were reconciled, by result: ok, waits = something is missing, failed = a request was refused. "
    "If failed grows, read the operator's log and the conditions of the sets.",
)
WAITING: Final = Metric(
    "prefeed_operator_waiting_groups",
    "gauge",
    (),
    "Sets that have changed and were not reconciled yet. Growth means that the API server is slow.",
)
KNOWN: Final = Metric(
    "prefeed_operator_known_objects", "gauge", (), "Objects of the cluster that the operator watches."
)
METRICS: Final = (ENDS, WAITING, KNOWN)
"""All metrics of the operator, in the order in which the page has them."""


class Counts:
    """The metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ends = Counter(ENDS.name, ENDS.help, ENDS.labels, registry=self.registry)

    def ended(self, end: str) -> None:
        """Count the end of work at a set."""
        self._ends.labels(end).inc()

    def show(self, metric: Metric, number: Callable[[], float]) -> None:
        """Show a number whenever it is asked for."""
        Gauge(metric.name, metric.help, metric.labels, registry=self.registry).set_function(number)
