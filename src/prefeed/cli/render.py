"""Formats values as text and JSON. All functions are pure, except those at the end, which print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from prefeed.cli.text import printable
from prefeed.system.units import format_bytes as format_bytes
from prefeed.types import (
    ClearResult,
    DiskCounts,
    EpochWait,
    OriginReads,
    PoolCounts,
    ServerStatus,
    SessionCounts,
    SessionInfo,
    Statistics,
    WarmResult,
)

JsonObject = dict[str, object]
Row = tuple[str, str]
"""A label and its value."""

# ---------------------------------------------------------------- numbers


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 object``, ``1,234 entries``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def format_duration(seconds: float) -> str:
    """Format a duration with at most two units: ``0.4 s``, ``2 min 5 s``, ``3 h 2 min``, ``4 d 1 h``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        if whole >= size or parts:
            parts.append(f"{whole // size} {name}")
            whole %= size
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def format_ratio(ratio: float | None) -> str:
    """Format a ratio as ``87.5 %``, or None as ``-``."""
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def table(rows: Sequence[Sequence[str]], *, gap: str = "  ") -> list[str]:
    """Return lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _share(part: float, whole: float) -> str:
    return format_ratio(part / whole if whole else None)


# ---------------------------------------------------------------- one value each


def status_object(status: ServerStatus) -> JsonObject:
    return asdict(status)


def status_rows(status: ServerStatus) -> tuple[str, list[Row]]:
    """Return the title and the rows of `prefeed server status`."""
    kind = "tmpfs" if status.on_tmpfs else "on disk: no tmpfs had room"
    allowed = f", {status.max_in_flight:,} allowed" if status.max_in_flight else ""
    return f"server {status.pid}, prefeed {status.version}, up {format_duration(status.uptime_seconds)}", [
        ("home", status.home),
        ("memory directory", f"{status.store} ({kind})"),
        ("clients", f"{status.clients:,}"),
        ("plans", f"{status.plans:,}"),
        ("origin requests", f"{status.in_flight:,} in flight{allowed}"),
        *((("fetch processes", ", ".join(map(str, status.fetch_processes))),) if status.fetch_processes else ()),
        *_sessions_row(status.sessions),
        *((("metrics", status.metrics),) if status.metrics else ()),
        *(("notice", text) for text in status.notices),
    ]


def statistics_object(statistics: Statistics) -> JsonObject:
    return {**asdict(statistics), "reads": statistics.reads, "hit_ratio": statistics.hit_ratio}


def statistics_rows(statistics: Statistics) -> tuple[str, list[Row]]:
    """Return the title and the rows of `prefeed stats`. The best possible hit ratio follows the measured one."""
    s = statistics
    reads = s.reads
    used = s.resident_bytes + s.transient_bytes
    bound = "" if s.best_hit_ratio is None else f"   best possible {format_ratio(s.best_hit_ratio)}"
    rows = [
        ("hit ratio", f"{format_ratio(s.hit_ratio)}{bound}"),
        ("hits", _with_share(s.hits, reads, "in the cache when requested")),
        ("  bytes", f"{format_bytes(s.hit_bytes):>12}"),
        ("late", _with_share(s.late, reads, "in flight when requested")),
        ("misses", _with_share(s.misses, reads, "not prefetched")),
        ("direct reads", _with_share(s.direct_reads, reads, "bypassed the server")),
        ("memory tier", f"{format_bytes(used)} of {format_bytes(s.budget_bytes)} ({_share(used, s.budget_bytes)})"),
        ("  resident", f"{format_count(s.resident_objects, 'object')}, {format_bytes(s.resident_bytes)}"),
        ("  transient", f"{format_count(s.transient_objects, 'object')}, {format_bytes(s.transient_bytes)}"),
        ("origin", f"{format_count(s.origin_requests, 'request')}, {format_bytes(s.origin_bytes)}"),
    ]
    rows += _disk_rows(s.disk)
    rows += _pool_rows(s.pool)
    rows += _sessions_row(s.sessions)
    rows += _epoch_rows(s.epochs)
    rows += [("reads", f"{of.origin}: {how_read(of)}") for of in s.origins]
    rows += [(f"error {code}", f"{count:,}") for code, count in sorted(s.errors.items())]
    return format_count(reads, "read"), rows


def _with_share(count: int, reads: int, meaning: str) -> str:
    return f"{count:>12,}  {_share(count, reads):>7}  {meaning}"


def _epoch_rows(epochs: Sequence[EpochWait]) -> list[Row]:
    """Return the share of waiting in the last epoch of each loader and rank."""
    last = {(epoch.loader, epoch.rank): epoch for epoch in epochs}
    return [
        ("epoch", f"{e.epoch} of {e.loader}: {100 * e.waited_share:.1f} % of {e.seconds:.1f} s spent waiting for data")
        for e in last.values()
    ]


def how_read(reads: OriginReads) -> str:
    """Describe how samples of one origin are read, the reason, and the measurements."""
    text = ", ".join(filter(None, ("direct reads" if reads.in_place else "through the cache", reads.why)))
    measured = [
        f"{name} {_short_time(seconds)}"
        for name, seconds in (("open", reads.open_seconds), ("server round trip", reads.round_trip_seconds))
        if seconds is not None
    ]
    if measured:
        text += f" ({', '.join(measured)})"
    if reads.samples:
        size = f", {format_bytes(reads.bytes)}" if reads.bytes else ""
        files = f"about {format_count(reads.files, 'file')}{size}"
        text += f"; direct reads so far: {format_count(reads.samples, 'sample')}, {files}"
    return text


def _short_time(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs" if seconds < 1e-4 else f"{1e3 * seconds:.2f} ms"


def _disk_rows(disk: DiskCounts) -> list[Row]:
    if not disk.budget_bytes:
        return []
    of_budget = f"{format_bytes(disk.bytes)} of {format_bytes(disk.budget_bytes)}"
    rows = [
        ("disk tier", f"{format_count(disk.objects, 'object')}, {of_budget} ({_share(disk.bytes, disk.budget_bytes)})"),
        ("  reads", f"{format_count(disk.reads, 'read')} instead of origin requests"),
    ]
    if disk.corrupt:
        rows.append(("  damaged", f"{format_count(disk.corrupt, 'object')}, fetched again: check the disk"))
    if disk.dropped:
        rows.append(("  not stored", f"{format_count(disk.dropped, 'object')}: the disk is slower than the origin"))
    return rows


def _pool_rows(pool: PoolCounts) -> list[Row]:
    if not pool.servers:
        return []
    out = f", {pool.left_out} of them not used because they do not reply" if pool.left_out else ""
    rows = [
        ("pool", f"{format_count(pool.servers, 'server')}{out}"),
        ("  reads", f"{format_count(pool.hits, 'read')} instead of origin requests ({format_ratio(pool.hit_ratio)})"),
        ("  stored", f"{format_count(pool.stored, 'object')}, {format_bytes(pool.written_bytes)}"),
    ]
    if pool.waits:
        rows.append(("  waits", f"{pool.waits:,} for another node's fetch, {pool.expired_waits:,} of them expired"))
    if pool.failures:
        rows.append(
            (
                "  failures",
                f"{format_count(pool.failures, 'time')} the reply of a server was late or invalid",
            )
        )
    if pool.corrupt:
        rows.append(("  damaged", f"{format_count(pool.corrupt, 'value')}, fetched elsewhere"))
    if pool.refused:
        rows.append(("  refused", f"{format_count(pool.refused, 'object')}: a server was full"))
    if pool.dropped:
        rows.append(("  not stored", f"{format_count(pool.dropped, 'object')}: the pool is slower than the origin"))
    return rows


def _sessions_row(counts: SessionCounts) -> list[Row]:
    if not counts.sessions:
        return []
    text = f"{format_count(counts.sessions, 'session')}, {format_count(counts.caches, 'cache')}"
    on_disk = f", {format_bytes(counts.disk_bytes)} on disk" if counts.disk_bytes else ""
    rows = [("stage caches", f"{text}, {format_bytes(counts.memory_bytes)} in memory{on_disk}")]
    if counts.audits:
        made = format_count(counts.audits, "sample")
        rows.append(("  audits", f"{made} recomputed and compared, {counts.audits_failed:,} differed"))
    if counts.not_stored:
        rows.append(
            (
                "  not stored",
                f"{format_count(counts.not_stored, 'sample')}: another process held the write lock; check for a suspended process",
            )
        )
    return rows


def sessions_object(sessions: Sequence[SessionInfo]) -> list[JsonObject]:
    return [_session_object(session) for session in sessions]


def _session_object(session: SessionInfo) -> JsonObject:
    caches = [
        {**asdict(cache), "average_bytes": cache.average_bytes, "hit_ratio": cache.hit_ratio}
        for cache in session.caches
    ]
    return {**asdict(session), "caches": caches}


_SESSION_COLUMNS: Final = (
    "session", "cache", "in memory", "on disk", "average size", "hit ratio", "NUMA node", "description",
)  # fmt: skip


def session_lines(sessions: Sequence[SessionInfo]) -> list[str]:
    """Return a table with one line per cache, and one line per session without caches."""
    rows = [row for session in sessions for row in _session_rows(session)]
    widths = [max(map(len, column)) for column in zip(_SESSION_COLUMNS, *rows, strict=True)]
    aligned = (
        [*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]]
        for row in (_SESSION_COLUMNS, *rows)
    )
    return ["  ".join(cells).rstrip() for cells in aligned]


def _session_rows(session: SessionInfo) -> list[tuple[str, ...]]:
    node = "-" if session.numa_node is None else str(session.numa_node)
    if not session.caches:
        return [(str(session.session), "-", "-", "-", "-", "-", node, "")]
    return [
        (
            str(session.session),
            str(cache.cache),
            f"{cache.memory_entries:,}",
            f"{cache.disk_entries:,}",
            format_bytes(cache.average_bytes) if cache.average_bytes else "-",
            format_ratio(cache.hit_ratio),
            node,
            cache.description,
        )
        for cache in session.caches
    ]


def warm_object(result: WarmResult) -> JsonObject:
    return asdict(result)


def warm_lines(result: WarmResult) -> list[str]:
    total = f"{format_count(result.objects, 'object')}, {format_bytes(result.bytes)}"
    took = format_duration(result.seconds)
    rate = f" ({result.fetched / result.seconds:,.0f} objects/s)" if result.fetched and result.seconds else ""
    if result.resident == result.objects:
        first = f"{total}: all in the cache"
    else:
        first = f"{total}: {result.resident:,} in the cache ({_share(result.resident, result.objects)})"
    lines = [f"{first}; {result.fetched:,} fetched now in {took}{rate}"]
    if result.on_disk:
        lines.append(f"{format_count(result.on_disk, 'object')} more on disk")
    left = result.objects - result.resident - result.on_disk - result.failed
    if left > 0:
        lines.append(f"{format_count(left, 'object')} did not fit; a larger PREFEED_MEMORY holds more")
    return lines


def warm_failure(result: WarmResult) -> str:
    return (
        f"{result.failed:,} of {format_count(result.objects, 'object')} could not be fetched; `prefeed stats` shows why"
    )


def clear_object(result: ClearResult) -> JsonObject:
    return asdict(result)


def clear_lines(result: ClearResult) -> list[str]:
    if not result.entries:
        return ["nothing to free: no object of it is cached"]
    noun = format_count(result.entries, "entry")
    return [f"{noun} freed, {format_bytes(result.bytes)}"]


# ---------------------------------------------------------------- output


def print_json(value: Mapping[str, object]) -> None:
    """Write one JSON object on one line to stdout."""
    click.echo(json.dumps(value, default=str))


def show(as_json: bool, value: Mapping[str, object], lines: Iterable[str]) -> None:
    """Print a value as one JSON object, or as lines."""
    if as_json:
        print_json(value)
    else:
        print_lines(lines)


def say(line: str) -> None:
    """Print a progress message or a note to stderr."""
    click.echo(printable(f"prefeed: {line}"), err=True)


def print_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout."""
    for line in lines:
        click.echo(line)


def row_lines(title: str, rows: Iterable[Row]) -> list[Text]:
    """Format a title and aligned rows, one line each."""
    rows = list(rows)
    width = max((len(label) for label, _ in rows), default=0)
    body = [Text.assemble((f"  {label:<{width}}", "dim"), f"  {value}") for label, value in rows]
    return [Text(title, style="bold"), *body]


def print_rows(title: str, rows: Iterable[Row]) -> None:
    """Print a title and aligned rows, one line each, with colours only on a terminal."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in row_lines(title, rows):
        console.print(line)
