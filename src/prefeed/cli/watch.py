"""Screen of ``prefeed stats --watch``: tiers, plans, rates and waits of one node server.

``ServerSource`` keeps a connection and returns a ``Sample`` per update; it never starts a server. ``rates_between`` compares
two samples, and ``frame`` renders them with rich. ``cli/stats.py`` runs the loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefeed.cli.backend import Backend
from prefeed.cli.render import format_bytes, format_count, format_duration, format_ratio, how_read
from prefeed.cli.text import printable
from prefeed.config import Config
from prefeed.errors import PrefeedError
from prefeed.types import EpochWait, PlanInfo, ServerStatus, Statistics

if TYPE_CHECKING:
    from prefeed.client.node import NodeClient

ANSWER_SECONDS: Final = 5.0
"""Maximum wait for a reply, in seconds, before the screen reports that the server does not reply."""

_BAR: Final = 16
_MAX_DATA: Final = 40
_WAITS_MUCH: Final = 0.05
"""Share of an epoch from which a wait is shown in yellow, and twice of it in red. ``prefeed doctor`` uses the same limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """State of a server at one moment."""

    status: ServerStatus
    statistics: Statistics
    plans: tuple[PlanInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Events per second between two samples.

    Attributes:
        hits: Reads that found their object in a tier.
        hit_bytes: Bytes of these reads.
        reads: All reads.
        origin_requests: Requests to origins.
        origin_bytes: Bytes received from origins.
        plans: Reads by consumer.
    """

    hits: float
    hit_bytes: float
    reads: float
    origin_requests: float
    origin_bytes: float
    plans: dict[int, float] = field(default_factory=dict)


def rates_between(before: Sample | None, after: Sample) -> Rates | None:
    """Compute the rates between two samples.

    Returns:
        None if the samples are of different servers, or the server's clock has not advanced.
    """
    if before is None or before.status.pid != after.status.pid:
        return None
    seconds = after.status.uptime_seconds - before.status.uptime_seconds
    old, new = before.statistics, after.statistics
    if seconds <= 0 or new.reads < old.reads:
        return None
    reads_before = {plan.consumer: plan.reads.reads for plan in before.plans}
    return Rates(
        hits=(new.hits - old.hits) / seconds,
        hit_bytes=(new.hit_bytes - old.hit_bytes) / seconds,
        reads=(new.reads - old.reads) / seconds,
        origin_requests=(new.origin_requests - old.origin_requests) / seconds,
        origin_bytes=(new.origin_bytes - old.origin_bytes) / seconds,
        plans={p.consumer: (p.reads.reads - reads_before.get(p.consumer, 0)) / seconds for p in after.plans},
    )


class ServerSource:
    """Connection to the server of a home that is replaced when the server is.

    **Ownership**: the creator closes it; also a context manager. **Threads**: one at a time.
    **Blocking**: at most ``ANSWER_SECONDS`` per request.
    """

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._config = config
        self._client: NodeClient | None = None

    def sample(self) -> Sample:
        """Query the server.

        Raises:
            ServerUnavailableError: No server runs, or it does not answer. The next call connects again.
        """
        if self._client is None:
            self._client = self._backend.connect(self._config, autostart=False, answer_seconds=ANSWER_SECONDS)
        client = self._client
        try:
            return Sample(status=client.status(), statistics=client.statistics(), plans=client.plans())
        except PrefeedError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ---------------------------------------------------------------- the screen


def frame(sample: Sample, rates: Rates | None) -> RenderableType:
    """Render a sample; sections without content are left out."""
    sections = (
        ("Rates", _rates(sample, rates)),
        ("Tiers", _tiers(sample.statistics)),
        ("Plans", _plans(sample.plans, rates)),
        ("Waits of the last epochs", _epochs(sample.statistics.epochs)),
        ("Origins", _origins(sample.statistics)),
        ("Errors and notices", _errors(sample)),
    )
    parts: list[RenderableType] = [_header(sample.status)]
    for title, table in sections:
        if table.row_count:
            parts += [Text(title, style="bold"), table]
    return Group(*parts)


def trouble(err: PrefeedError) -> RenderableType:
    """Render the reason why no sample is available."""
    return Text(f"{time.strftime('%H:%M:%S')}  {printable(str(err))}", style="yellow")


def _header(status: ServerStatus) -> Text:
    limit = f" of {status.max_in_flight:,}" if status.max_in_flight else ""
    return Text.assemble(
        f"{time.strftime('%H:%M:%S')}  ", (f"server {status.pid}", "bold"),
        f"  up {format_duration(status.uptime_seconds)}, {format_count(status.clients, 'client')}, "
        f"{status.in_flight:,}{limit} requests in flight  ", (printable(status.home), "dim"),
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip


def _grid(columns: str) -> Table:
    """Create a table without lines.

    Args:
        columns: A letter per column: ``l`` and ``r`` for the side of the text, ``f`` for text that is cut if space is short.
    """
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for column in columns:
        table.add_column(justify="right" if column == "r" else "left", no_wrap=column != "f", overflow="ellipsis")
    return table


def _cut(text: str) -> Text:
    """Return text for a column of kind ``f``, which takes one line."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def _rates(sample: Sample, rates: Rates | None) -> Table:
    counts, table = sample.statistics, _grid("lrrf")
    hits = origin = ("-", "-")
    if rates is not None:
        hits = f"{rates.reads:,.0f} reads/s", f"{format_bytes(round(rates.hit_bytes))}/s"
        origin = f"{rates.origin_requests:,.0f} requests/s", f"{format_bytes(round(rates.origin_bytes))}/s"
    now = f"{format_ratio(rates.hits / rates.reads)} hits now, " if rates is not None and rates.reads else ""
    best = "" if counts.best_hit_ratio is None else f" (best without read-ahead {format_ratio(counts.best_hit_ratio)})"
    table.add_row("cache", *hits, _cut(f"{now}{format_ratio(counts.hit_ratio)} of {counts.reads:,} reads{best}"))
    total = f"{counts.origin_requests:,} requests, {format_bytes(counts.origin_bytes)} in total"
    table.add_row("origin", *origin, _cut(total))
    return table


def _tiers(statistics: Statistics) -> Table:
    s, disk, pool, table = statistics, statistics.disk, statistics.pool, _grid("llrf")

    def add(name: str, used: int, budget: int, text: str) -> None:
        share = used / budget if budget else 0.0
        of_budget = f"{format_bytes(used)} of {format_bytes(budget)}, {text}"
        table.add_row(name, Bar(1.0, 0.0, share, width=_BAR, color="green"), format_ratio(share), _cut(of_budget))

    transient = f", {s.transient_objects:,} transient" if s.transient_objects else ""
    held = format_count(s.resident_objects + s.transient_objects, "object")
    add("memory", s.resident_bytes + s.transient_bytes, s.budget_bytes, f"{held}{transient}")
    if disk.budget_bytes:
        damaged = f", {disk.corrupt:,} damaged" if disk.corrupt else ""
        text = f"{format_count(disk.objects, 'object')}, {format_count(disk.reads, 'read')}{damaged}"
        add("disk", disk.bytes, disk.budget_bytes, text)
    if pool.servers:
        up = pool.servers - pool.left_out
        found = f"{format_count(pool.hits, 'read')}, {pool.stored:,} stored"
        state = Bar(pool.servers, 0, up, width=_BAR, color="green" if up == pool.servers else "red")
        table.add_row("pool", state, format_ratio(pool.hit_ratio), _cut(f"{up} of {pool.servers} servers up, {found}"))
    return table


def _plans(plans: Sequence[PlanInfo], rates: Rates | None) -> Table:
    table = _grid("fflrrrr")
    if plans:
        table.add_row(*(Text(head, style="dim") for head in (
            "loader", "data", "", "position", "reads/s", "hits", "waited",
        )))  # fmt: skip
    for plan in plans:
        last, speed = plan.last_epoch, None if rates is None or plan.warm else rates.plans.get(plan.consumer)
        table.add_row(
            _cut("warm-up" if plan.warm else "loader" if last is None else _loader(last)),
            _cut(_end_of(plan.dataset)),
            Bar(plan.length or 1, 0, plan.position, width=_BAR // 2, color="blue"),
            f"{plan.position:,}/{plan.length:,}",
            "-" if speed is None else f"{speed:,.0f}",
            format_ratio(plan.reads.hits / plan.reads.reads if plan.reads.reads else None),
            Text("-") if last is None else Text(format_ratio(last.waited_share), _style_of(last.waited_share)),
        )
    return table


def _epochs(epochs: Sequence[EpochWait]) -> Table:
    """List the last epoch of each loader and rank, the one that waited most first."""
    table = _grid("flrl")
    last = {(epoch.loader, epoch.rank): epoch for epoch in epochs}
    for epoch in sorted(last.values(), key=lambda epoch: -epoch.waited_share):
        share = epoch.waited_share
        of_epoch = f"of {format_duration(epoch.seconds)} in epoch {epoch.epoch}"
        bar = Bar(1.0, 0.0, share, width=_BAR, color=_style_of(share))
        table.add_row(_cut(_loader(epoch)), bar, Text(format_ratio(share), _style_of(share)), of_epoch)
    return table


def _origins(statistics: Statistics) -> Table:
    table = _grid("lf")
    for reads in statistics.origins:
        table.add_row(_end_of(reads.origin), _cut(how_read(reads)))
    return table


def _errors(sample: Sample) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for line in _error_lines(sample):
        table.add_row(line)
    return table


def _error_lines(sample: Sample) -> Iterator[Text]:
    for code, count in sorted(sample.statistics.errors.items(), key=lambda item: -item[1]):
        yield Text(f"{count:,} {code}", style="red")
    for notice in sample.status.notices:
        yield Text(printable(notice), style="yellow")


def _loader(epoch: EpochWait) -> str:
    return epoch.loader if epoch.rank is None else f"{epoch.loader} rank {epoch.rank}"


def _end_of(url: str) -> str:
    """Return the end of a URL that is too long, because the end of a path identifies it best."""
    text = printable(url)
    return text if len(text) <= _MAX_DATA else f"…{text[1 - _MAX_DATA :]}"


def _style_of(share: float) -> str:
    return "red" if share >= 2 * _WAITS_MUCH else "yellow" if share >= _WAITS_MUCH else "green"
