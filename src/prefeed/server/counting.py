"""What the node counts, and the snapshot of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from prefeed.core.schedule import Scheduler
from prefeed.core.table import RESIDENT
from prefeed.server.disk import DiskTier
from prefeed.types import DiskCounts, PoolCounts, ReadCounts, Statistics

if TYPE_CHECKING:  # only a server with a pool needs pymemcache
    from prefeed.server.pool import PoolTier


class Where(Enum):
    """Which place answered a fetch; memory: the node had it, for another dataset."""

    MEMORY = "memory"
    DISK = "disk"
    POOL = "pool"
    ORIGIN = "origin"


@dataclass(slots=True)
class Counts:
    """What fetches brought and readers took since the server started, in bytes; how reads went the scheduler counts.

    Attributes:
        fetched: Objects by the place that answered, if it was no origin.
        errors: Failures by code.
        hit_bytes: What readers took from the tier.
    """

    hit_bytes: int = 0
    origin_requests: int = 0
    origin_bytes: int = 0
    origin_seconds: float = 0.0
    fetched: Counter[Where] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def arrived(self, where: Where, size_bytes: int, seconds: float) -> None:
        """A fetch brought an object, after so long."""
        if where is Where.ORIGIN:
            self.origin_requests += 1
            self.origin_seconds += seconds
            self.origin_bytes += size_bytes
        else:
            self.fetched[where] += 1

    def asked_origin(self, seconds: float) -> None:
        """A request to an origin has ended, one way or another."""
        self.origin_requests += 1
        self.origin_seconds += seconds


def statistics_of(counts: Counts, scheduler: Scheduler, disk: DiskTier | None, pool: PoolTier | None) -> Statistics:
    """Return a snapshot of all counts."""
    residency = scheduler.residency
    return Statistics(
        **asdict(_beside_the_best(scheduler.counts, scheduler)),
        hit_bytes=counts.hit_bytes,
        origin_requests=counts.origin_requests,
        origin_bytes=counts.origin_bytes,
        origin_seconds=counts.origin_seconds,
        resident_objects=sum(table.num_in(RESIDENT) for table in scheduler.tables.values())
        - scheduler.holdings.num_guests,
        resident_bytes=residency.resident_bytes,
        transient_objects=scheduler.num_transients,
        transient_bytes=residency.transient_bytes,
        budget_bytes=residency.budget_bytes,
        errors=dict(counts.errors),
        disk=DiskCounts() if disk is None else replace(disk.counts(), reads=counts.fetched[Where.DISK]),
        pool=PoolCounts() if pool is None else replace(pool.counts(), hits=counts.fetched[Where.POOL]),
    )


def read_counts_of(scheduler: Scheduler, consumer: int) -> ReadCounts:
    """Return how the consumer's reads went; all zero for one that is not known."""
    counts = scheduler.counts_of(consumer)
    return ReadCounts() if counts is None else _beside_the_best(counts, scheduler)


def _beside_the_best(counts: ReadCounts, scheduler: Scheduler) -> ReadCounts:
    """Return the counts with the most that any policy could reach; None before the first plan."""
    # With a fresh shuffle per epoch no policy beats the part of the data that fits (ADR 2).
    working_set, budget = scheduler.working_set_bytes(), scheduler.residency.budget_bytes
    return replace(counts, best_hit_ratio=min(1.0, budget / working_set) if working_set > 0 else None)
