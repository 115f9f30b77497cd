"""Prometheus metrics of the operator. A test compares ``METRICS`` with docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge


class MetricDefinition(NamedTuple):
    """Definition of a metric.

    Attributes:
        name: Name in Prometheus. Counters end in ``_total``.
        kind: Type in Prometheus.
        labels: Names of its labels.
        help: Meaning, and how to interpret it.
    """

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str


ENDS: Final = MetricDefinition(
    "prefeed_operator_reconciliations_total",
    "counter",
    ("end",),
    "Sets that were reconciled, by result: ok, waits = something is missing, failed = a request was refused. "
    "If failed grows, read the operator's log and the conditions of the sets.",
)
WAITING: Final = MetricDefinition(
    "prefeed_operator_waiting_groups",
    "gauge",
    (),
    "Sets that have changed and were not reconciled yet. Growth means that the API server is slow.",
)
KNOWN: Final = MetricDefinition(
    "prefeed_operator_known_objects", "gauge", (), "Objects of the cluster that the operator watches."
)
METRICS: Final = (ENDS, WAITING, KNOWN)
"""All metrics of the operator, in the order of the reference page."""


class OperatorMetrics:
    """Metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ends = Counter(ENDS.name, ENDS.help, ENDS.labels, registry=self.registry)

    def ended(self, end: str) -> None:
        """Count a reconciled set by its result."""
        self._ends.labels(end).inc()

    def show(self, metric: MetricDefinition, number: Callable[[], float]) -> None:
        """Register a gauge whose value is computed at each scrape."""
        Gauge(metric.name, metric.help, metric.labels, registry=self.registry).set_function(number)
