"""What ``prefeed sampleset`` prints. Pure but for the progress bar, which draws on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from prefeed.cli.render import JsonObject, Row, format_bytes, format_count, format_ratio
from prefeed.cli.text import printable
from prefeed.sampleset.applying import Applied
from prefeed.sampleset.explaining import Explained
from prefeed.sampleset.records import SampleSet
from prefeed.sampleset.status import SampleSetStatus

_COLUMNS: Final = ("NAME", "TOTAL SIZE", "CACHED SIZE", "AVAIL SPACE", "RUNTIME", "PHASE", "AGE")

Seen = tuple[SampleSet, SampleSetStatus]


def applied_lines(applied: Sequence[Applied]) -> list[str]:
    return [f"{each.kind.lower()} {each.name} {each.action}" for each in applied]


def applied_object(applied: Sequence[Applied], seen: Sequence[Seen]) -> JsonObject:
    return {
        "applied": [{"kind": each.kind, "name": each.name, "action": each.action} for each in applied],
        "samplesets": [_set_object(*each) for each in seen],
    }


def sets_lines(seen: Sequence[Seen], *, now: float) -> list[str]:
    """Return a table, or one line when there is none."""
    if not seen:
        return ["there are no sample sets; apply one with `prefeed sampleset apply -f FILE`"]
    rows = [_COLUMNS, *(_row(found, status, now) for found, status in seen)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(found: SampleSet, status: SampleSetStatus, now: float) -> tuple[str, ...]:
    return (
        found.name,
        _size(status.total_bytes),
        _size(status.cached_bytes),
        _size(status.free_bytes if status.tiers else None),
        f"{status.num_ready}/{status.partitions}",
        status.phase,
        format_age(now - found.created),
    )


def sets_object(seen: Sequence[Seen]) -> JsonObject:
    return {"samplesets": [_set_object(*each) for each in seen]}


def _set_object(found: SampleSet, status: SampleSetStatus) -> JsonObject:
    """Return the original's fields of a status, sizes in bytes, and what is ours beside them."""
    return {
        "name": found.name,
        "namespace": found.namespace,
        "created": datetime.fromtimestamp(found.created, UTC).isoformat(timespec="seconds"),
        "source": found.source_url,
        "origin": found.read_url,
        "home": str(found.home),
        "status": {
            "phase": status.phase,
            "cacheStatus": {
                "totalSize": status.total_bytes,
                "totalFiles": status.total_files,
                "cachedSize": status.cached_bytes,
                "cachedFiles": status.cached_files,
                "diskSize": status.disk_bytes,
                "diskUsed": status.used_bytes,
                "diskAvail": status.free_bytes,
                "diskUsageRate": status.used_bytes / status.disk_bytes if status.disk_bytes else None,
                "errorMessage": status.error,
            },
            "runtimeStatus": {
                "runtimeReady": f"{status.num_ready}/{status.partitions}",
                "specReplicas": status.partitions,
                "readyReplicas": status.num_ready,
            },
            "jobsName": {"syncJobName": status.sync_job, "warmupJobName": status.warmup_job},
        },
        "tiers": [asdict(tier) for tier in status.tiers],
        "pid": status.pid,
    }


def described_object(found: SampleSet, status: SampleSetStatus, explained: Sequence[Explained]) -> JsonObject:
    return {
        **_set_object(found, status),
        "spec": found.spec.document,
        "fields": [asdict(each) for each in explained],
    }


def described_rows(found: SampleSet, status: SampleSetStatus, *, now: float) -> list[Row]:
    """Return what is known of a set now."""
    rows = [
        ("phase", status.phase),
        *((("error", printable(status.error)),) if status.error else ()),
        ("namespace", found.namespace),
        ("age", format_age(now - found.created)),
        ("source", printable(found.source_url)),
        ("read at", printable(found.read_url)),
        ("total", _total(status)),
        ("cached", _cached(status)),
        ("nodes", f"{status.num_ready} of {status.partitions} that this node knows of"),
        ("server", f"process {status.pid}" if status.pid else "none runs; the first reader starts it"),
        ("home", str(found.home)),
    ]
    for tier in status.tiers:
        used = f"{format_bytes(tier.used_bytes)} of {format_bytes(tier.budget_bytes)}, {format_bytes(tier.free_bytes)} free"
        rows.append((f"{tier.kind} tier", f"{used}, {tier.path}"))
    rows += [("sync job", status.sync_job)] if status.sync_job else []
    rows += [("warm-up job", status.warmup_job)] if status.warmup_job else []
    return rows


def explained_lines(explained: Sequence[Explained]) -> list[str]:
    return [printable(f"  {each.field}: {each.value}\n      {each.meaning}") for each in explained]


def _total(status: SampleSetStatus) -> str:
    if status.total_bytes is None or status.total_files is None:
        return "not known yet"
    unknown = ", without those whose size the source does not tell" if status.has_unknown_sizes else ""
    return f"{format_count(status.total_files, 'file')}, {format_bytes(status.total_bytes)}{unknown}"


def _cached(status: SampleSetStatus) -> str:
    share = status.cached_files / status.total_files if status.total_files else None
    files = format_count(status.cached_files, "file")
    return f"{files}, {format_bytes(status.cached_bytes)} ({format_ratio(share)} of the files)"


def _size(number: int | None) -> str:
    return "-" if number is None else format_bytes(number)


def format_age(seconds: float) -> str:
    """Return ``12s``, ``5m``, ``3h``, ``8d``, as kubectl has it."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= size * (2 if unit == "m" else 1):
            return f"{whole // size}{unit}"
    return f"{whole}s"


class Bar:
    """What is being done for one set, on stderr: objects listed, files copied."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn("{task.description}"), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task(f"{name}: starting", total=None, note="")

    def listing(self, objects: int, num_bytes: int) -> None:
        self._show("listing", f"{format_count(objects, 'object')}, {format_bytes(num_bytes)}")

    def copying(self, files: int, num_bytes: int) -> None:
        self._show("copying", f"{format_count(files, 'file')}, {format_bytes(num_bytes)}")

    def _show(self, what: str, note: str) -> None:
        self.progress.update(self._task, description=what, note=note)
