"""What ``prefeed top`` shows, as numbers: looks at a server, rates between two of them, rows. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from prefeed.types import EpochWait, PlanInfo, ServerStatus, Statistics

KEPT: Final = 120
"""Rates that are remembered, for the small charts."""

SORTS: Final = ("order", "progress", "speed", "waiting")
"""Ways to sort plans: as they came; what is nearest its end, reads most, or waited most first."""

Sort = Literal["order", "progress", "speed", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSetRow:
    """One sample set: its name, its phase, and how much of it is cached, in bytes; None where nobody has counted."""

    name: str
    phase: str
    cached_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment."""

    status: ServerStatus
    statistics: Statistics
    plans: tuple[PlanInfo, ...] = ()
    sample_sets: tuple[SampleSetRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One attempt to see the server.

    Attributes:
        sample: What was seen; None when there was nothing to see.
        trouble: Why, in a sentence; empty when all is well.
    """

    sample: Sample | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What happened a second between two samples.

    Attributes:
        hits: Reads that found their object in a tier.
        reads: All reads.
        origin_requests: Requests to origins.
        origin_bytes: Bytes that came back.
        plans: Reads by consumer.
    """

    hits: float
    reads: float
    origin_requests: float
    origin_bytes: float
    plans: dict[int, float] = field(default_factory=dict)


def rates_between(before: Sample, after: Sample) -> Rates | None:
    """Return what happened a second; None when it is another server, or no time has passed on its clock."""
    seconds = after.status.uptime_seconds - before.status.uptime_seconds
    old, new = before.statistics, after.statistics
    if before.status.pid != after.status.pid or seconds <= 0 or new.reads < old.reads:
        return None
    reads_before = {plan.consumer: plan.reads.reads for plan in before.plans}
    return Rates(
        hits=(new.hits - old.hits) / seconds,
        reads=(new.reads - old.reads) / seconds,
        origin_requests=(new.origin_requests - old.origin_requests) / seconds,
        origin_bytes=(new.origin_bytes - old.origin_bytes) / seconds,
        plans={p.consumer: (p.reads.reads - reads_before.get(p.consumer, 0)) / seconds for p in after.plans},
    )


class History:
    """The samples so far: the last one, and the rates before it.

    Attributes:
        sample: The last one; None before the first, and while no server answers.
        rates: Between the last two of the same server; None before there are two.
        trouble: Why there is no sample; empty when there is.
    """

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.rates: Rates | None = None
        self.trouble = ""
        self._past: deque[Rates] = deque(maxlen=KEPT)

    def add(self, look: Look) -> None:
        """Remember one look; another server than before begins anew."""
        before, self.sample, self.trouble = self.sample, look.sample, look.trouble
        self.rates = rates_between(before, look.sample) if before and look.sample else None
        if self.rates is None:
            self._past.clear()
        else:
            self._past.append(self.rates)

    def series(self, rate: Callable[[Rates], float]) -> tuple[float, ...]:
        """Return one of the rates over time, oldest first."""
        return tuple(map(rate, self._past))


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """A tier on this node: bytes held, of how many, objects, and a remark."""

    name: str
    bytes: int
    budget_bytes: int
    objects: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A plan.

    Attributes:
        loader: Class of the loader's dataset, and its rank; what it is, as long as the loader has not said.
        dataset: Root of what it reads.
        position, length: In objects.
        reads_per_second: None before there are two samples.
        hit_ratio: Of its reads so far; None before the first.
        waited_share: Of its last epoch; None before the first has ended.
    """

    loader: str
    dataset: str
    position: int
    length: int
    reads_per_second: float | None
    hit_ratio: float | None
    waited_share: float | None

    @property
    def progress(self) -> float:
        """How far it has come, 0 to 1."""
        return self.position / self.length if self.length else 0.0


def tier_rows(statistics: Statistics) -> list[TierRow]:
    """Return the tiers that this node has itself."""
    s = statistics
    objects = s.resident_objects + s.transient_objects
    remark = f"{s.transient_objects:,} in passing" if s.transient_objects else ""
    used = s.resident_bytes + s.transient_bytes
    rows = [TierRow(name="memory", bytes=used, budget_bytes=s.budget_bytes, objects=objects, remark=remark)]
    disk = s.disk
    if disk.budget_bytes:
        remark = f"{disk.corrupt:,} damaged" if disk.corrupt else f"{disk.reads:,} reads"
        rows.append(
            TierRow(name="disk", bytes=disk.bytes, budget_bytes=disk.budget_bytes, objects=disk.objects, remark=remark)
        )
    return rows


def plan_rows(sample: Sample, rates: Rates | None, sort: Sort = "order") -> list[PlanRow]:
    """Return a row for each plan, sorted."""
    rows = [_plan_row(plan, rates) for plan in sample.plans]
    if sort == "progress":
        rows.sort(key=lambda row: -row.progress)
    elif sort == "speed":
        rows.sort(key=lambda row: -(row.reads_per_second or 0.0))
    elif sort == "waiting":
        rows.sort(key=lambda row: -(row.waited_share or 0.0))
    return rows


def next_sort(sort: Sort) -> Sort:
    """Return the way that comes after this one."""
    following: Sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
    return following


def _plan_row(plan: PlanInfo, rates: Rates | None) -> PlanRow:
    reads, last = plan.reads, plan.last_epoch
    return PlanRow(
        loader="warm-up" if plan.warm else "loader" if last is None else loader_name(last),
        dataset=plan.dataset,
        position=plan.position,
        length=plan.length,
        reads_per_second=None if rates is None or plan.warm else rates.plans.get(plan.consumer),
        hit_ratio=reads.hits / reads.reads if reads.reads else None,
        waited_share=None if last is None else last.waited_share,
    )


def last_epochs(epochs: Sequence[EpochWait]) -> list[EpochWait]:
    """Return the last epoch of each loader and rank, the one that waited most first."""
    last = {(epoch.loader, epoch.rank): epoch for epoch in epochs}
    return sorted(last.values(), key=lambda epoch: -epoch.waited_share)


def loader_name(epoch: EpochWait) -> str:
    """Return ``ImageFolder``, or ``ImageFolder r0`` where ranks train together."""
    return epoch.loader if epoch.rank is None else f"{epoch.loader} r{epoch.rank}"
