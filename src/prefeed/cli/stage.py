"""``prefeed stage``: copies data sets into memory or onto a fast disk.

Prints only the path to train from to stdout, so that ``train.py $(prefeed stage /mnt/photos)`` works.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from prefeed.cli import render
from prefeed.cli.commands import Commands
from prefeed.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.render import JsonObject, format_bytes, format_count, format_duration
from prefeed.cli.text import printable
from prefeed.config import Config, parse_bytes
from prefeed.copying.copies import (
    COMPLETE,
    COPYING,
    GONE,
    INTERRUPTED,
    MEMORY,
    PARTIAL,
    REMOVING,
    CopyRecord,
    find_copies,
    list_copies,
    resolve_place,
    unstage,
)
from prefeed.copying.staging import StageEvents, StagePlan, StageRequest, StageResult, stage
from prefeed.errors import ConfigError
from prefeed.jobs.places import refuse_credentials
from prefeed.store.capacity import is_tmpfs
from prefeed.transfer.engine import CopyProgress

_MOST_FAILURES: Final = 5
_COLUMNS: Final = ("source", "path", "state", "files", "size", "when")
_MEANINGS: Final = {
    COPYING: "copying now",
    REMOVING: "being removed",
    COMPLETE: "complete",
    INTERRUPTED: "interrupted; stage it again to resume",
    GONE: "missing; stage it again, or delete it to remove this line",
}


COPY: Final = "copy"


class _StageGroup(Commands):
    """Group with a default command: ``prefeed stage SRC`` means ``prefeed stage copy SRC``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [word for word in args if word not in ("-v", "-vv", "--verbose")]
        names = {*self.list_commands(ctx), *ctx.help_option_names}
        if words and words[0] not in names:
            args = [COPY, *args]
        return super().parse_args(ctx, args)


@click.group(name="stage", cls=_StageGroup)
def command() -> None:
    """Copy a data set into memory or onto a fast disk.

    `prefeed stage SRC` means `prefeed stage copy SRC`. Write ./NAME for a directory with the name of one of these commands.
    """


@command.command(name=COPY)
@click.argument("source", metavar="SRC")
@click.option(
    "--to", default=MEMORY, metavar="memory|DIR", help="Destination of the copy; memory is PREFEED_MEMORY_DIR."
)
@click.option("--size", metavar="SIZE", help="Size limit of the copy, such as 30G.")
@click.option(
    "--order", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="File with the paths to copy first if not everything fits, one per line. Default: small files first.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="Allow a partial copy of an object store that does not fit.")
@home_option
@json_option
def copy(
    *, source: str, to: str, size: str | None, order: Path | None, partial: bool, home: str | None, as_json: bool
) -> None:
    """Copy a data set into memory or onto a fast disk, and print the path to train from.

    SRC is a directory or s3://, gs://, az://, http(s)://. The same command resumes after an interruption, and copies
    files again that have changed at the origin. If a directory does not fit, some files are copied and the others become
    symbolic links to the origin, so that every path can be read. Exits with 1 if a file could not be copied, or none fits.
    """
    ctx = click.get_current_context()
    config = config_of(home=home)
    refuse_credentials(source)
    request = StageRequest(
        url=source,
        place=resolve_place(to, config),
        size_bytes=None if size is None else parse_bytes(size),
        order=None if order is None else _read_lines(order),
        allow_partial=partial,
    )
    if to == MEMORY and not is_tmpfs(request.place):
        render.say(f"{request.place} is not a tmpfs: the copy will be on disk")
    try:
        result = _staged(request, config, as_json=as_json)
    except KeyboardInterrupt:
        render.say("interrupted; copied objects are kept, and the same command resumes")
        ctx.exit(EXIT_INTERRUPTED)
    _print_result(result, as_json=as_json)
    if result.failures or not result.is_usable:
        ctx.exit(EXIT_FAILED)


def _staged(request: StageRequest, config: Config, *, as_json: bool) -> StageResult:
    def planned(plan: StagePlan) -> None:
        for line in plan_lines(plan, place=str(request.place)):
            render.say(line)

    if not has_bar(as_json=as_json):
        return stage(request, config, StageEvents(waiting=_say_waiting, planned=planned))
    bar = StageBar()

    def planned_with_bar(plan: StagePlan) -> None:
        planned(plan)
        bar.planned(plan)

    events = StageEvents(waiting=_say_waiting, listing=bar.listing, planned=planned_with_bar, copying=bar.copying)
    with bar.progress:
        return stage(request, config, events)


def _read_lines(file: Path) -> list[str]:
    """Read file names, one per line. A name may contain any bytes except newlines."""
    try:
        return os.fsdecode(file.read_bytes()).split("\n")
    except OSError as err:
        raise ConfigError(f"{file} cannot be read: {err.strerror}") from err


def _print_result(result: StageResult, *, as_json: bool) -> None:
    if as_json:
        render.print_json(result_object(result))
    for line in result_lines(result):
        render.say(line)
    if result.is_usable and not as_json:
        click.echo(os.fsencode(result.record.data))


def _say_waiting(pid: int) -> None:
    render.say(f"process {pid} is making the same copy; waiting for it")


@command.command(name="list")
@home_option
@json_option
def list_(home: str | None, as_json: bool) -> None:
    """List all copies with their paths and states."""
    copies = list_copies(config_of(home=home))
    render.show(as_json, copies_object(copies), copies_lines(copies))


@command.command()
@click.argument("what", metavar="SRC|PATH", required=False)
@click.option("--all", "everything", is_flag=True, help="Delete all copies.")
@home_option
@json_option
def delete(what: str | None, everything: bool, home: str | None, as_json: bool) -> None:
    """Delete copies that `prefeed stage` has made.

    SRC is the origin, PATH the path that `prefeed stage` printed. Everything below PATH is deleted, including files of
    other programs. Data at the origin and other files outside the copy are not changed.
    """
    if (what is None) != everything:
        raise click.UsageError("name SRC or PATH, or use --all")
    if what is not None:
        refuse_credentials(what)
    config = config_of(home=home)
    copies = list_copies(config) if what is None else find_copies(what, config)
    for each in copies:
        unstage(each, config)
    render.show(as_json, {"deleted": copies_object(copies)["copies"]}, removed_lines(copies))


# ---------------------------------------------------------------- what is printed


def plan_lines(plan: StagePlan, *, place: str) -> list[str]:
    """Return the notes that precede copying, about files that do not fit and files that are removed."""
    lines = []
    if plan.num_left:
        fits = plan.num_objects - plan.num_left
        rest = "the others are links to the origin" if plan.has_links else "the others are left out"
        lines.append(
            f"{fits:,} of {format_count(plan.num_objects, 'file')} "
            f"({format_bytes(plan.total_bytes - plan.left_bytes)} of {format_bytes(plan.total_bytes)}) fit in {place}: "
            f"{plan.why}; {rest}; each GiB saves {format_count(plan.opens_per_gib, 'open')} per epoch"
        )
    if plan.num_removed:
        lines.append(f"{format_count(plan.num_removed, 'file')} removed from the copy: the origin no longer has them")
    return lines


def result_lines(result: StageResult) -> list[str]:
    """Return the summary and the failures."""
    record, summary = result.record, result.summary
    seconds = max(summary.seconds, 1e-9)
    rate = f" ({summary.num_copied / seconds:,.0f} files/s, {format_bytes(summary.bytes_copied / seconds)}/s)"
    took = f"{format_bytes(summary.bytes_copied)} copied in {format_duration(summary.seconds)}{rate}"
    copied = f"{format_count(summary.num_copied, 'file')}, {took}" if summary.num_copied else "nothing copied"
    held = f"{format_count(record.num_files, 'file')}, {format_bytes(record.bytes)} in the copy"
    linked = f", {format_count(record.num_linked, 'link')} to the origin" if record.num_linked else ""
    lines = [f"{copied}; {held}{linked}"]
    if summary.full is not None:
        lines.append(f"the destination is full: {summary.full}")
    lines += [failure.message for failure in result.failures[:_MOST_FAILURES]]
    if len(result.failures) > _MOST_FAILURES:
        lines.append(f"and {len(result.failures) - _MOST_FAILURES:,} more could not be copied")
    if not result.is_usable:
        missing = format_count(record.num_missing, "file")
        lines.append(f"{missing} missing, so the copy cannot be used; run the same command to try again")
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
    """Return a table with one line per copy."""
    if not copies:
        return ["nothing is staged"]
    rows = [_COLUMNS, *(_row(copy) for copy in copies)]
    return render.table(rows)


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


class StageBar:
    """Progress bar on stderr: files listed, then bytes copied."""

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
