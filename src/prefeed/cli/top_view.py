"""What ``prefeed top`` shows: looks at a server, rates between two of them, rows; then one frame as lines of styled text. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rich.text import Text

from prefeed.cli.render import format_bytes, format_count, format_duration, format_ratio, how_read
from prefeed.cli.text import printable
from prefeed.types import EpochWait, OriginReads, PlanInfo, PoolCounts, ServerStatus, Statistics

KEPT: Final = 120
"""Rates that are remembered, for the small charts."""

SORTS: Final = ("order", "progress", "speed", "waiting")
"""Ways to sort plans: as they came; what is nearest its end, reads most, or waited most first."""

Sort = Literal["order", "progress", "speed", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSetRow:
    """One sample set: its name, its phase, and how much of it is cached, in bytes; None if it was not counted."""

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
        hit_bytes: Bytes that these took, of whole objects and of parts.
        reads: All reads.
        origin_requests: Requests to origins.
        origin_bytes: Bytes that came back.
        plans: Reads by consumer.
    """

    hits: float
    reads: float
    origin_requests: float
    origin_bytes: float
    hit_bytes: float = 0.0
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
        hit_bytes=(new.hit_bytes - old.hit_bytes) / seconds,
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
        self.trouble: str = ""
        self._past: deque[Rates] = deque(maxlen=KEPT)

    def add(self, look: Look) -> None:
        """Remember one look; a look at another server starts the history again."""
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
    remark = f"{s.transient_objects:,} transient" if s.transient_objects else ""
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


# ---------------------------------------------------------------- a frame

SECTIONS: Final = ("trouble", "tiers", "rates", "plans", "waits", "origins", "sets", "errors")
"""Names of the parts of a frame, top to bottom."""

NARROWEST: Final = 60
"""Columns that a frame has at least: on a narrower terminal lines are cut."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_LABEL: Final = 9
_BAR: Final = 16
_SMALL_BAR: Final = 8
_LARGE_BAR: Final = 30
_NAME: Final = 44
"""Columns that loader and data get before the bar grows."""

_WAITS_MUCH: Final = 0.05
"""Share of an epoch from which waiting is worth a look: ``prefeed doctor`` draws the line there too."""

_PLAN_COLUMNS: Final = ("position", "reads/s", "hits", "best", "waited")
_PLAN_WIDTHS: Final = (13, 9, 7, 7, 8)
_THOUSANDS: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the frame: what it is called, and its lines."""

    name: str
    title: str
    lines: tuple[Text, ...]


def header(history: History, *, home: str, width: int, is_paused: bool = False) -> Text:
    """Return the first line: which server, since when, for how many."""
    left = Text.assemble(
        ("prefeed top", "bold"), ("  paused" if is_paused else "", "bold yellow"), f"  {printable(home)}"
    )
    sample = history.sample
    right = Text("no server", style="bold red")
    if sample is not None:
        status = sample.status
        clients = format_count(status.clients, "client")
        right = Text(f"pid {status.pid}, up {format_duration(status.uptime_seconds)}, {clients}", style="dim")
    left.truncate(max(0, width - len(right) - 2), overflow="ellipsis")
    return Text.assemble(left, " " * max(1, width - left.cell_len - right.cell_len), right)


def sections(history: History, *, width: int, sort: Sort = "order") -> list[Section]:
    """Return the parts of the frame, top to bottom; one that says why, when there is no server.

    Lines are cut at the width, but for sentences.
    """
    width = max(width, NARROWEST)
    sample = history.sample
    if sample is None:
        return [Section("trouble", "", (Text(history.trouble, style="yellow"), Text("trying again", style="dim")))]
    statistics = sample.statistics
    return [
        Section("tiers", "Tiers", _cut(_tiers(statistics), width)),
        Section("rates", _rates_title(sample), _cut(_rates(history, width), width)),
        Section("plans", _plans_title(sample, sort), _cut(_plans(sample, history.rates, sort, width), width)),
        Section("waits", "Waiting in the last epochs", _cut(_waits(statistics.epochs), width)),
        Section("origins", "Where samples are read", _cut(_origins(statistics.origins, width), width)),
        Section("sets", "Sample sets", _cut(_sets(sample.sample_sets), width)),
        Section("errors", "Errors and notices", tuple(_errors(sample))),
    ]


def frame(history: History, *, home: str, width: int, sort: Sort = "order") -> list[Text]:
    """Return the whole frame; parts with nothing in them are left out."""
    lines = [header(history, home=home, width=width)]
    for section in sections(history, width=width, sort=sort):
        if section.lines:
            lines += [title_line(section.title, width), *section.lines] if section.title else section.lines
    return lines


def title_line(title: str, width: int) -> Text:
    """Return the line above a section."""
    return Text.assemble((title, "bold"), " ", ("─" * max(0, width - len(title) - 1), "dim"))


# ---------------------------------------------------------------- small pictures


def bar(share: float, width: int, style: str = "green") -> Text:
    """Return a bar that is filled to a share of its width, to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[rest] if rest else "")
    return Text.assemble((filled, style), ("·" * (width - len(filled)), "dim"))


def sparkline(series: Sequence[float], width: int) -> str:
    """Return the last numbers of a series as heights; the largest of them is the highest."""
    shown = series[-width:]
    largest = max(shown, default=0.0)
    if largest <= 0:
        return _HEIGHTS[0] * len(shown)
    top = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round(number / largest * top)] for number in shown)


def short_count(number: int) -> str:
    """Return ``999``, ``12.3k``, ``1.28M``: at most five characters."""
    for size, letter in _THOUSANDS:
        if number >= size:
            scaled = number / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{letter}"
    return str(number)


def tail(text: str, width: int) -> str:
    """Return the end of a text that is too long: the end of a path says most."""
    text = printable(text)
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}" if width > 0 else ""


# ---------------------------------------------------------------- sections


def _cut(lines: Iterable[Text], width: int) -> tuple[Text, ...]:
    shown = tuple(lines)
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return shown


def _pool(pool: PoolCounts) -> Text:
    up = pool.servers - pool.left_out
    wrong = f", {pool.corrupt:,} damaged" if pool.corrupt else ""
    return Text.assemble(
        (f"{'pool':<{_LABEL}}", "cyan"), bar(up / pool.servers, _BAR, "green" if up == pool.servers else "red"),
        f" {up} of {format_count(pool.servers, 'server')} up  {short_count(pool.hits)} reads, "
        f"{format_ratio(pool.hit_ratio)} found  ", (f"{short_count(pool.stored)} stored{wrong}", "dim"),
    )  # fmt: skip


def _tiers(statistics: Statistics) -> Iterable[Text]:
    for row in tier_rows(statistics):
        yield _tier(row)
    if statistics.pool.servers:
        yield _pool(statistics.pool)


def _tier(row: TierRow) -> Text:
    share = row.bytes / row.budget_bytes if row.budget_bytes else 0.0
    of_budget = f"{format_bytes(row.bytes)} of {format_bytes(row.budget_bytes)}"
    remark = f", {row.remark}" if row.remark else ""
    return Text.assemble(
        (f"{row.name:<{_LABEL}}", "cyan"), bar(share, _BAR), f" {format_ratio(share):>7}  {of_budget}  ",
        (f"{short_count(row.objects)} objects{remark}", "dim"),
    )  # fmt: skip


def _rates_title(sample: Sample) -> str:
    status = sample.status
    limit = f" of {status.max_in_flight:,}" if status.max_in_flight else ""
    return f"Rates ({status.in_flight:,}{limit} requests in flight)"


def _rates(history: History, width: int) -> Iterable[Text]:
    rates = history.rates
    shown = (
        ("hits", None if rates is None else f"{rates.hits:,.0f}/s", lambda r: r.hits),
        ("", None if rates is None else f"{format_bytes(rates.hit_bytes)}/s", lambda r: r.hit_bytes),
        ("origin", None if rates is None else f"{rates.origin_requests:,.0f} req/s", lambda r: r.origin_requests),
        ("", None if rates is None else f"{format_bytes(rates.origin_bytes)}/s", lambda r: r.origin_bytes),
    )
    for name, text, rate in shown:
        chart = sparkline(history.series(rate), width - _LABEL - 15)
        yield Text.assemble((f"{name:<{_LABEL}}", "cyan"), f"{text or '-':>13}  ", (chart, "blue"))
    sample = history.sample
    if sample is not None:
        counts = sample.statistics
        yield Text.assemble(
            (f"{'in all':<{_LABEL}}", "cyan"), f"{format_bytes(counts.hit_bytes)} by {short_count(counts.hits)} hits, "
            f"{format_bytes(counts.origin_bytes)} by {short_count(counts.origin_requests)} requests to origins",
        )  # fmt: skip


def _plans_title(sample: Sample, sort: Sort) -> str:
    by = "" if sort == "order" else f", by {sort}"
    return f"Plans ({len(sample.plans)}{by})"


def _plans(sample: Sample, rates: Rates | None, sort: Sort, width: int) -> Iterable[Text]:
    rows = plan_rows(sample, rates, sort)
    if not rows:
        return
    free = width - 1 - sum(_PLAN_WIDTHS)
    bar_width = min(_LARGE_BAR, max(_SMALL_BAR, free - _NAME))
    name_width = free - bar_width
    heads = "".join(f"{name:>{size}}" for name, size in zip(_PLAN_COLUMNS, _PLAN_WIDTHS, strict=True))
    yield Text(f"{'loader, data':<{name_width}} {'':<{bar_width}}{heads}", style="dim")
    for row in rows:
        best = None if row.hit_ratio is None else sample.statistics.best_hit_ratio
        yield _plan(row, best, name_width, bar_width)


def _plan(row: PlanRow, best: float | None, name_width: int, bar_width: int) -> Text:
    name = Text(row.loader, style="cyan")
    name.truncate(name_width, overflow="ellipsis")
    dataset = tail(row.dataset, name_width - name.cell_len - 1)
    pad = " " * (name_width - name.cell_len - 1 - len(dataset))
    position = f"{short_count(row.position)}/{short_count(row.length)}"
    speed = "-" if row.reads_per_second is None else short_count(round(row.reads_per_second))
    cells = (position, speed, _percent(row.hit_ratio), _percent(best))
    text = "".join(f"{cell:>{size}}" for cell, size in zip(cells, _PLAN_WIDTHS, strict=False))
    waited = f"{_percent(row.waited_share):>{_PLAN_WIDTHS[-1]}}"
    style = _style_of(row.waited_share)
    return Text.assemble(name, " ", dataset, pad, " ", bar(row.progress, bar_width), text, (waited, style))


def _waits(epochs: Sequence[EpochWait]) -> Iterable[Text]:
    for epoch in last_epochs(epochs):
        share = epoch.waited_share
        yield Text.assemble(
            bar(share, _SMALL_BAR, _style_of(share)), f" {format_ratio(share):>7} of ",
            f"{format_duration(epoch.seconds):<11} epoch {epoch.epoch} of ", (loader_name(epoch), "cyan"),
        )  # fmt: skip


def _origins(origins: Sequence[OriginReads], width: int) -> Iterable[Text]:
    for reads in origins:
        name = tail(reads.origin, width // 3)
        yield Text.assemble((name, "cyan"), f": {how_read(reads)}")


def _sets(rows: Sequence[SampleSetRow]) -> Iterable[Text]:
    for row in rows:
        counted = (
            ""
            if row.total_bytes is None
            else f"{format_bytes(row.cached_bytes or 0)} of {format_bytes(row.total_bytes)}"
        )
        share = (row.cached_bytes or 0) / row.total_bytes if row.total_bytes else 0.0
        yield Text.assemble(
            (f"{row.name:<24}", "cyan"), f" {row.phase:<13} ", bar(share, _SMALL_BAR), f"  {counted}"
        )  # fmt: skip


def _errors(sample: Sample) -> Iterable[Text]:
    errors = sorted(sample.statistics.errors.items(), key=lambda item: -item[1])
    for code, count in errors:
        yield Text.assemble((f"{count:>9,} ", "red"), code)
    for notice in sample.status.notices:
        yield Text(printable(notice), style="yellow", no_wrap=False)


def _style_of(share: float | None) -> str:
    if share is None:
        return "dim"
    return "red" if share >= 2 * _WAITS_MUCH else "yellow" if share >= _WAITS_MUCH else "green"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
