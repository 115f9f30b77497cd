"""What ``prefeed pack`` prints. Pure but for the progress bar, which draws on stderr."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefeed.cli.render import JsonObject, format_bytes, format_count, format_duration
from prefeed.packing.driver import PackResult
from prefeed.packing.writing import PackProgress

_MOST_DAMAGED: Final = 5


def result_lines(result: PackResult, damaged: tuple[str, ...] | None) -> list[str]:
    """Return the summary; ``damaged`` is None when nothing was verified."""
    took = format_duration(result.seconds)
    whole = f"{format_count(result.objects, 'object')}, {format_bytes(result.bytes)}"
    files = format_count(result.data_files, "data file")
    if not result.packed:
        lines = [f"packed already: {whole} in {files}; nothing has changed"]
    elif result.kept:
        kept = f"{result.kept:,} were packed already"
        lines = [f"{format_count(result.packed, 'object')} packed in {took}, {kept}: {whole} in {files}"]
    else:
        lines = [f"{whole} packed into {files} in {took}"]
    if damaged is None:
        return lines
    if not damaged:
        return [*lines, f"verified: all {format_count(result.objects, 'object')} are as they were packed"]
    more = [f"and {len(damaged) - _MOST_DAMAGED:,} more"] if len(damaged) > _MOST_DAMAGED else []
    return [*lines, f"{format_count(len(damaged), 'object')} damaged:", *damaged[:_MOST_DAMAGED], *more]


def result_object(result: PackResult, damaged: tuple[str, ...] | None) -> JsonObject:
    return {**asdict(result), "verified": damaged is not None, "damaged": list(damaged or ())}


class Bar:
    """A progress bar on stderr: objects listed, then objects packed, then objects verified."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task("listing", total=None, note="")

    def listing(self, objects: int, num_bytes: int) -> None:
        self.progress.update(self._task, completed=objects, note=format_bytes(num_bytes))

    def stepped(self, description: str) -> PackProgress:
        """Return what shows the progress of one step."""
        done_bytes = 0

        def step(done: int, total: int, num_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += num_bytes
            note = format_bytes(done_bytes)
            self.progress.update(self._task, description=description, total=total, completed=done, note=note)

        return step
