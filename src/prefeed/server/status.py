"""What an operator sees of the node: read in the loop's thread, handed to others as values."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from prefeed.config import Config
from prefeed.core.origins import add
from prefeed.core.plan import Plan
from prefeed.server.datasets import Dataset
from prefeed.server.loop import Loop
from prefeed.server.node import Node
from prefeed.server.sessions import Sessions
from prefeed.sources.urls import root_of, without_credentials
from prefeed.system.clock import Clock
from prefeed.types import EPOCHS_KEPT, EpochWait, OriginReads, PlanInfo, ReadCounts, ServerStatus, Statistics

MOST_LOADERS: Final = 64
"""Loaders and ranks with sums of their own; the epochs of any more are summed together."""

OTHERS: Final = ("others", None)
"""Loader and rank under which these stand."""


@dataclass(slots=True)
class EpochTotals:
    """All epochs of one loader and rank.

    Attributes:
        loader, rank: As in ``EpochWait``.
        last: The epoch that ended last.
        epochs: Their number.
        seconds: How long they took.
        waited_seconds: How much of it the loop waited.
    """

    loader: str
    rank: int | None
    last: EpochWait
    epochs: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0


class Epochs:
    """Remembers epochs.

    **Threads**: the loop's thread.
    """

    def __init__(self) -> None:
        self._last: deque[EpochWait] = deque(maxlen=EPOCHS_KEPT)
        self._of_consumers: dict[int, EpochWait] = {}
        self._totals: dict[tuple[str, int | None], EpochTotals] = {}
        self._origins: dict[str, OriginReads] = {}

    def add(self, epoch: EpochWait, consumers: Iterable[int]) -> None:
        """An epoch is over, of a loader with these consumers."""
        self._last.append(epoch)
        self._of_consumers.update(dict.fromkeys(consumers, epoch))
        key = (epoch.loader, epoch.rank)
        if key not in self._totals and len(self._totals) >= MOST_LOADERS:
            key = OTHERS
        totals = self._totals.setdefault(key, EpochTotals(*key, last=epoch))
        totals.last = epoch
        totals.epochs += 1
        totals.seconds += epoch.seconds
        totals.waited_seconds += epoch.waited_seconds
        if epoch.reads is not None:
            add(self._origins, epoch.reads)

    @property
    def last(self) -> tuple[EpochWait, ...]:
        """The last epochs, in the order in which they ended."""
        return tuple(self._last)

    @property
    def origins(self) -> tuple[OriginReads, ...]:
        """How samples were read, by origin, of all epochs together."""
        return tuple(self._origins.values())

    def last_of(self, consumer: int) -> EpochWait | None:
        """Return the last epoch of a consumer's loader; None before the first has ended."""
        return self._of_consumers.get(consumer)

    def keep(self, consumers: Collection[int]) -> None:
        """Forget what was said of consumers but these: they are gone."""
        for consumer in self._of_consumers.keys() - set(consumers):
            del self._of_consumers[consumer]

    def totals(self) -> tuple[EpochTotals, ...]:
        """Return the sums of each loader and rank; ``MOST_LOADERS`` and one at most."""
        return tuple(
            EpochTotals(t.loader, t.rank, t.last, t.epochs, t.seconds, t.waited_seconds) for t in self._totals.values()
        )


MOST_PLANS = 256
"""Plans that are told of one by one; a node has as many as loaders that are alive."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The node at one moment; any thread may read it.

    Attributes:
        status: What it does.
        statistics: What it has counted.
        plans: How far each consumer has come.
        epochs: Sums over the epochs that loaders reported.
    """

    status: ServerStatus
    statistics: Statistics
    plans: tuple[PlanInfo, ...]
    epochs: tuple[EpochTotals, ...]


class Observer:
    """Looks at the whole server.

    Attributes:
        epochs: What loaders have reported.
        memory_notice: Returns why less memory was granted than was asked for.

    **Threads**: the loop's thread.
    """

    def __init__(
        self, config: Config, *, clock: Clock, store_dir: Path, on_tmpfs: bool, notices: tuple[str, ...],
        metrics_url: str,
    ) -> None:  # fmt: skip
        self.epochs: Epochs = Epochs()
        self._config = config
        self._clock = clock
        self._started = clock()
        self._store_dir = store_dir
        self._on_tmpfs = on_tmpfs
        self._notices = notices
        self.memory_notice: Callable[[], str | None] = lambda: None
        self._metrics_url = metrics_url
        self._version = version("prefeed")
        self._loop: Loop
        self._node: Node
        self._sessions: Sessions

    def bind(self, loop: Loop, node: Node, sessions: Sessions) -> None:
        """Look at these; once, before the first question."""
        self._loop, self._node, self._sessions = loop, node, sessions

    def observe(self) -> Observation:
        """Return all of it."""
        return Observation(self.status(), self.statistics(), self.plans(), self.epochs.totals())

    @property
    def notices(self) -> tuple[str, ...]:
        """What differs from what was asked for, now."""
        memory = self.memory_notice()
        return self._notices if memory is None else (*self._notices, memory)

    def status(self) -> ServerStatus:
        """Return what the server does now."""
        scheduler, datasets = self._node.scheduler, self._node.datasets
        limits = [datasets[number].limit.limit for number in scheduler.live_datasets() if number in datasets]
        return ServerStatus(
            pid=os.getpid(),
            version=self._version,
            home=str(self._config.home),
            store=str(self._store_dir),
            on_tmpfs=self._on_tmpfs,
            uptime_seconds=self._clock() - self._started,
            clients=len(self._loop.connections),
            plans=scheduler.num_plans,
            in_flight=scheduler.num_in_flight,
            max_in_flight=max(limits, default=0),
            notices=self.notices,
            sessions=self._sessions.counts,
            metrics=self._metrics_url,
            fetch_processes=self._node.fetchers.process_ids,
        )

    def statistics(self) -> Statistics:
        """Return what it has counted since it started."""
        found, caches = self._node.statistics(), self._sessions.counts
        failed = {"stage-audit-failed": caches.audits_failed} if caches.audits_failed else {}
        return replace(
            found,
            direct_reads=found.direct_reads + sum(reads.files for reads in self.epochs.origins),
            errors={**found.errors, **failed},
            sessions=caches,
            epochs=self.epochs.last,
            origins=self.epochs.origins,
        )

    def plans(self) -> tuple[PlanInfo, ...]:
        """Return how far every consumer has come."""
        return read_plans(self._node, self.epochs)


def read_plans(node: Node, epochs: Epochs) -> tuple[PlanInfo, ...]:
    """Return how far every consumer has come, in the order in which they came; ``MOST_PLANS`` at most.

    Epochs of consumers that are gone are forgotten.
    """
    plans = node.scheduler.plans()
    epochs.keep({plan.consumer for plan, _ in plans})
    return tuple(_info(node, epochs, plan, has_next=has_next) for plan, has_next in plans[:MOST_PLANS])


def _info(node: Node, epochs: Epochs, plan: Plan, *, has_next: bool) -> PlanInfo:
    return PlanInfo(
        consumer=plan.consumer,
        dataset=_root(node.datasets[plan.dataset]),
        position=plan.cursor if plan.warm else plan.position,  # a warm-up stands where the scheduler looks
        length=len(plan),
        ahead_objects=len(plan.outstanding),
        ahead_bytes=plan.ahead_bytes,
        reads=node.scheduler.counts_of(plan.consumer) or ReadCounts(),
        warm=plan.warm,
        has_next=has_next,
        memory_bytes=plan.memory_bytes,
        last_epoch=epochs.last_of(plan.consumer),
    )


def _root(dataset: Dataset) -> str:
    """Return where its objects lie."""
    catalogue = dataset.catalogue
    return without_credentials(dataset.source.url) if catalogue is None else root_of(catalogue)
