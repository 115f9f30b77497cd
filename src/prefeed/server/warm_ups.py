"""Filling the tier on request: a plan that no reader follows, and reports of how far it has come."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from prefeed.clock import Clock
from prefeed.server.datasets import Dataset
from prefeed.server.node import Node
from prefeed.types import WarmResult

_REPORT_SECONDS = 0.1
"""Pause between two reports of one warm-up."""

Report = Callable[[WarmResult, bool], None]
"""Told how far it has come, and whether that is the end."""


@dataclass(slots=True)
class _WarmUp:
    report: Report
    dataset: Dataset
    started: float
    residents_before: int


class WarmUps:
    """The warm-ups under way.

    **Threads**: the loop's thread.
    """

    def __init__(self, node: Node, *, clock: Clock, call_later: Callable[[float, Callable[[], None]], None]) -> None:
        self._node = node
        self._clock = clock
        self._call_later = call_later
        self._warm_ups: dict[int, _WarmUp] = {}
        self._consumers = itertools.count(-1, -1)  # clients' own are positive

    def begin(self, dataset: Dataset, report: Report) -> int:
        """Fill the tier with the dataset until all is in it or it is full; return the consumer's number."""
        consumer = next(self._consumers)
        ids = np.arange(dataset.manifest.num_objects, dtype=np.uint32)
        before = len(self._node.registry.resident_ids(dataset.number))
        self._warm_ups[consumer] = _WarmUp(report, dataset, self._clock(), before)
        self._node.scheduler.register_plan(consumer, dataset.number, ids, warm=True)
        if len(self._warm_ups) == 1:
            self._call_later(_REPORT_SECONDS, self._report_regularly)
        return consumer

    def abandon(self, consumer: int) -> None:
        """Whoever asked is gone."""
        if self._warm_ups.pop(consumer, None) is not None:
            self._node.scheduler.end_consumer(consumer)

    def report_done(self) -> None:
        """Report those that are over; called whenever all that followed from the last events was done."""
        for consumer in [c for c, warm_up in self._warm_ups.items() if self._is_done(c, warm_up)]:
            warm_up = self._warm_ups.pop(consumer)
            warm_up.report(self._result(warm_up), True)
            self._node.scheduler.end_consumer(consumer)

    def _report_regularly(self) -> None:
        for warm_up in list(self._warm_ups.values()):
            warm_up.report(self._result(warm_up), False)
        if self._warm_ups:
            self._call_later(_REPORT_SECONDS, self._report_regularly)

    def _is_done(self, consumer: int, warm_up: _WarmUp) -> bool:
        in_flight = self._node.scheduler.tables[warm_up.dataset.number].in_flight
        return in_flight == 0 and not self._node.scheduler.has_work(consumer)

    def _result(self, warm_up: _WarmUp) -> WarmResult:
        dataset = warm_up.dataset
        resident = len(self._node.registry.resident_ids(dataset.number))
        return WarmResult(
            objects=dataset.manifest.num_objects,
            bytes=dataset.manifest.total_bytes,
            resident=resident,
            fetched=resident - warm_up.residents_before,
            failed=len(self._node.scheduler.tables[dataset.number].failures),
            seconds=self._clock() - warm_up.started,
        )
