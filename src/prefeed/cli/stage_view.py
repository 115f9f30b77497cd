"""What ``prefeed stage`` and ``prefeed unstage`` print. Pure but for the progress bar, which draws on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from prefeed.cli.render import JsonObject, format_bytes, format_count, format_duration
from prefeed.cli.text import printable
from prefeed.copying.copies import COMPLETE, COPYING, GONE, INTERRUPTED, PARTIAL, REMOVING, CopyRecord
from prefeed.copying.staging import StagePlan, StageResult
from prefeed.transfer.engine import CopyProgress

_MOST_FAILURES: Final = 5
_COLUMNS: Final = ("source", "path", "state", "files", "size", "when")
_MEANINGS: Final = {
    COPYING: "copying now",
    REMOVING: "being removed",
    COMPLETE: "complete",
    INTERRUPTED: "interrupted; stage it again to go on",
    GONE: "gone; stage it anew, or unstage it to forget it",
}


def plan_lines(plan: StagePlan, *, place: str) -> list[str]:
    """Return what is said before the copying begins; nothing when all fits and nothing is removed."""
    lines = []
    if plan.num_left:
        fits = plan.num_objects - plan.num_left
        rest = "the others are links to the origin" if plan.has_links else "the others are left out"
        lines.append(
            f"{fits:,} of {format_count(plan.num_objects, 'file')} "
            f"({format_bytes(plan.total_bytes - plan.left_bytes)} of {format_bytes(plan.total_bytes)}) fit in {place}: "
            f"{plan.why}; {rest}; each GiB saves {format_count(plan.opens_per_gib, 'open')} an epoch"
        )
    if plan.num_removed:
        lines.append(f"{format_count(plan.num_removed, 'file')} removed from the copy: the origin has them no more")
    return lines


def result_lines(result: StageResult) -> list[str]:
    """Return the summary, and what did not go well."""
    record, summary = result.record, result.summary
    seconds = max(summary.seconds, 1e-9)
    rate = f" ({summary.num_copied / seconds:,.0f} files/s, {format_bytes(summary.bytes_copied / seconds)}/s)"
    took = f"{format_bytes(summary.bytes_copied)} copied in {format_duration(summary.seconds)}{rate}"
    copied = f"{format_count(summary.num_copied, 'file')}, {took}" if summary.num_copied else "nothing copied"
    held = f"{format_count(record.num_files, 'file')}, {format_bytes(record.bytes)} are there"
    linked = f", {format_count(record.num_linked, 'link')} to the origin" if record.num_linked else ""
    lines = [f"{copied}; {held}{linked}"]
    if summary.full is not None:
        lines.append(f"no room for more: {summary.full}")
    lines += [failure.message for failure in result.failures[:_MOST_FAILURES]]
    if len(result.failures) > _MOST_FAILURES:
        lines.append(f"and {len(result.failures) - _MOST_FAILURES:,} more could not be copied")
    if not result.is_usable:
        missing = format_count(record.num_missing, "file")
        lines.append(f"{missing} missing, so there is no path to train from; the same command tries again")
    return lines


def result_object(result: StageResult) -> JsonObject:
    return {
        "path": str(result.record.data) if result.is_usable else None,
        **asdict(result.record),
        "copied": result.summary.num_copied,
        "copied_bytes": result.summary.bytes_copied,
        "kept": result.plan.num_kept,
        "removed": result.plan.num_removed,
        "seconds": result.summary.seconds,
        "full": result.summary.full,
        "failures": [asdict(failure) for failure in result.failures],
    }


def copies_object(copies: Sequence[CopyRecord]) -> JsonObject:
    return {"copies": [{**asdict(copy), "path": str(copy.data)} for copy in copies]}


def copies_lines(copies: Sequence[CopyRecord]) -> list[str]:
    """Return a table, one line a copy."""
    if not copies:
        return ["nothing is staged"]
    rows = [_COLUMNS, *(_row(copy) for copy in copies)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(copy: CopyRecord) -> tuple[str, ...]:
    when = datetime.fromtimestamp(copy.finished or copy.started).astimezone().strftime("%Y-%m-%d %H:%M")
    size = format_bytes(copy.bytes)
    return (printable(copy.source), printable(copy.data), _state(copy), f"{copy.num_files:,}", size, when)


def _state(copy: CopyRecord) -> str:
    if copy.state != PARTIAL:
        return _MEANINGS.get(copy.state, copy.state)
    parts = [f"{copy.num_linked:,} linked"] if copy.num_linked else []
    parts += [f"{copy.num_missing:,} missing"] if copy.num_missing else []
    return f"partial: {', '.join(parts)}" if parts else "partial"


def removed_lines(copies: Sequence[CopyRecord]) -> list[str]:
    if not copies:
        return ["nothing is staged"]
    return [
        f"{printable(copy.data)}: {format_count(copy.num_files, 'file')}, {format_bytes(copy.bytes)} freed"
        for copy in copies
    ]


class Bar:
    """A progress bar on stderr: files listed, then bytes copied."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
            TextColumn("{task.fields[note]}"), TimeRemainingColumn(),
        )  # fmt: skip
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task("listing", total=None, note="")
        self._num_files = 0

    def listing(self, objects: int, num_bytes: int) -> None:
        self.progress.update(self._task, completed=num_bytes, note=format_count(objects, "file"))

    def planned(self, plan: StagePlan) -> None:
        self._num_files = plan.num_to_copy
        self.progress.reset(self._task, description="copying", total=plan.bytes_to_copy, completed=0)

    def copying(self, so_far: CopyProgress) -> None:
        note = f"{so_far.num_copied:,} of {format_count(self._num_files, 'file')}"
        self.progress.update(self._task, completed=so_far.bytes_copied, note=note)
