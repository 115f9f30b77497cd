"""What ``prefeed job`` prints. Pure but for the progress bars, which draw on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from prefeed.cli.render import JsonObject, Row, format_bytes, format_count, format_duration
from prefeed.cli.text import printable
from prefeed.jobs.options import SyncProgress, SyncResult
from prefeed.jobs.records import JobRecord
from prefeed.jobs.rmr import Doomed, RmrResult

_MOST_FAILURES: Final = 5
_COLUMNS: Final = ("name", "type", "set", "phase", "age", "message")


def sync_object(result: SyncResult) -> JsonObject:
    return {**asdict(result), "objects_per_s": result.num_copied / result.seconds if result.seconds else 0.0}


def sync_lines(result: SyncResult, *, dry: bool) -> list[str]:
    """Return the summary, and what did not go well."""
    seconds = max(result.seconds, 1e-9)
    verb = "would be copied" if dry else "copied"
    rate = f" ({result.num_copied / seconds:,.0f} objects/s, {format_bytes(result.bytes_copied / seconds)}/s)"
    copied = f"{format_count(result.num_copied, 'object')}, {format_bytes(result.bytes_copied)} {verb}"
    parts = [
        copied if dry else f"{copied} in {format_duration(result.seconds)}{rate}",
        f"{result.num_skipped:,} there already",
    ]
    for count, where in ((result.num_deleted_dst, "destination"), (result.num_deleted_src, "source")):
        if count:
            parts.append(f"{count:,} {'would be ' if dry else ''}deleted at the {where}")
    lines = ["; ".join(parts)]
    if result.full:
        lines.append(f"no room for more: {result.full}")
    lines += [failure.message for failure in result.failures[:_MOST_FAILURES]]
    if result.num_failed:
        lines.append(f"{format_count(result.num_failed, 'object')} failed; the same command tries again")
    return lines


def doomed_lines(root: str, doomed: Sequence[Doomed], *, dry: bool = False) -> list[str]:
    """Return what would be removed, one line a path."""
    lines = [
        f"{printable(root.rstrip('/'))}/{printable(one.path)}: {format_count(one.num_files, 'file')}, {format_bytes(one.bytes)}"
        for one in doomed
    ]
    lines += [
        f"{printable(root.rstrip('/'))}/{printable(mount)} is a mount, and stays"
        for one in doomed for mount in one.mounts
    ]  # fmt: skip
    total = format_count(sum(one.num_files for one in doomed), "file")
    will = "would" if dry else "will"
    return [
        *lines,
        f"{total}, {format_bytes(sum(one.bytes for one in doomed))} {will} be removed at the origin, for good",
    ]


def doomed_object(root: str, doomed: Sequence[Doomed]) -> JsonObject:
    return {"root": root, "would_remove": [asdict(one) for one in doomed]}


def rmr_object(result: RmrResult) -> JsonObject:
    return {"removed": result.num_removed, "bytes": result.bytes_removed, "failures": result.failures}


def rmr_lines(result: RmrResult) -> list[str]:
    lines = [f"{format_count(result.num_removed, 'file')}, {format_bytes(result.bytes_removed)} removed"]
    lines += [printable(failure) for failure in result.failures[:_MOST_FAILURES]]
    if len(result.failures) > _MOST_FAILURES:
        lines.append(f"and {len(result.failures) - _MOST_FAILURES:,} more could not be removed")
    return lines


def record_object(record: JobRecord) -> JsonObject:
    return asdict(record)


def table_lines(records: Iterable[JobRecord], now: float) -> list[str]:
    """Return a table, one line a job."""
    rows = [_COLUMNS, *(_row(record, now) for record in records)]
    if len(rows) == 1:
        return ["no jobs"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(record: JobRecord, now: float) -> tuple[str, ...]:
    age = format_duration(max(0.0, now - record.created))
    return (record.id, record.type, record.sample_set or "-", record.phase, age, printable(record.message))


def record_rows(record: JobRecord) -> tuple[str, list[Row]]:
    """Return title and rows of all that is known of a job."""
    rows: list[Row] = [
        ("type", record.type),
        ("sample set", record.sample_set or "-"),
        ("phase", record.phase),
        ("message", printable(record.message) or "-"),
        ("created", _when(record.created)),
        ("started", _when(record.started)),
        ("finished", _when(record.finished)),
        (
            "process",
            f"{record.process.pid} of {record.process.place}" if record.process.host else str(record.process.pid),
        ),
    ]
    rows += [(name, _counted(name, value)) for name, value in record.result.items() if value not in ("", [], None)]
    rows += [("spec" if not at else "", line) for at, line in enumerate(_yaml_lines(record.spec))]
    return record.id, rows


def _counted(name: str, value: Any) -> str:
    if name == "seconds":
        return format_duration(value)
    return format_bytes(value) if "bytes" in name else printable(value)


def _yaml_lines(spec: Any) -> list[str]:
    return printable(yaml.safe_dump(dict(spec), sort_keys=False)).splitlines()


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else "-"


class SyncBar:
    """A progress bar on stderr: what is to be copied grows while the listings go on."""

    def __init__(self) -> None:
        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"),
            TransferSpeedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task("copying", total=None, note="")

    def show(self, so_far: SyncProgress) -> None:
        note = f"{so_far.copying.num_copied:,} of {so_far.num_to_copy:,} copied, {so_far.num_listed:,} listed"
        self.progress.update(
            self._task, total=so_far.bytes_to_copy or None, completed=so_far.copying.bytes_copied, note=note
        )
