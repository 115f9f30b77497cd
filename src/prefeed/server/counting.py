"""What the node counts, and the snapshot of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from prefeed.core.policy import best_hit_ratio
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
    """Since the server started.

    Attributes:
        errors: Failures by code.
    """

    hits: int = 0
    direct_reads: int = 0
    origin_requests: int = 0
    origin_bytes: int = 0
    origin_seconds: float = 0.0
    disk_reads: int = 0
    pool_reads: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def arrived(self, where: Where, size_bytes: int, seconds: float) -> None:
        """A fetch brought an object, after so long."""
        if where == Where.DISK:
            self.disk_reads += 1
        elif where == Where.POOL:
            self.pool_reads += 1
        elif where == Where.ORIGIN:
            self.asked_origin(seconds)
            self.origin_bytes += size_bytes

    def asked_origin(self, seconds: float) -> None:
        """A request to an origin has ended, one way or another."""
        self.origin_requests += 1
        self.origin_seconds += seconds


def statistics_of(counts: Counts, scheduler: Scheduler, disk: DiskTier | None, pool: PoolTier | None) -> Statistics:
    """Return a snapshot of all counts."""
    residency = scheduler.residency
    return Statistics(
        hits=counts.hits,
        late=scheduler.counts.late,
        misses=scheduler.counts.misses,
        direct_reads=counts.direct_reads,
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
        best_hit_ratio=_best_hit_ratio(scheduler),
        disk=DiskCounts() if disk is None else replace(disk.counts(), reads=counts.disk_reads),
        pool=PoolCounts() if pool is None else replace(pool.counts(), hits=counts.pool_reads),
    )


def read_counts_of(scheduler: Scheduler, consumer: int) -> ReadCounts:
    """Return how the consumer's reads went; all zero for one that is not known."""
    counts = scheduler.counts_of(consumer)
    if counts is None:
        return ReadCounts()
    return ReadCounts(
        hits=counts.hits,
        late=counts.late,
        misses=counts.misses,
        direct_reads=counts.direct_reads,
        best_hit_ratio=_best_hit_ratio(scheduler),
    )


def _best_hit_ratio(scheduler: Scheduler) -> float | None:
    """Return the most that any policy could reach; None before the first plan."""
    working_set = scheduler.working_set_bytes()
    best = best_hit_ratio(cache_bytes=scheduler.residency.budget_bytes, dataset_bytes=working_set)
    return best if working_set else None
