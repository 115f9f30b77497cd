"""``prefeed stage``. The path to train from is all that it writes to stdout: ``train.py $(prefeed stage /mnt/photos)``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from prefeed.cli import render, stage_view
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.text import printable
from prefeed.config import Config, parse_bytes
from prefeed.copying.copies import MEMORY, list_copies, place_of
from prefeed.copying.staging import StageEvents, StagePlan, StageRequest, StageResult, stage
from prefeed.errors import ConfigError
from prefeed.jobs.places import refuse_credentials
from prefeed.store.capacity import is_tmpfs

EXIT_INTERRUPTED: Final = 130


@click.command(name="stage")
@click.argument("source", metavar="SRC", required=False)
@click.option("--to", default=MEMORY, metavar="memory|DIR", help="Where the copy goes; memory = PREFEED_MEMORY_DIR.")
@click.option("--size", metavar="SIZE", help="Size limit of the copy, such as 30G.")
@click.option(
    "--order", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="File with paths, one per line, to copy first when not everything fits. Default: small files first.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="Copy a part of an object store when not everything fits.")
@click.option("--list", "list_only", is_flag=True, help="List the copies.")
@home_option
@json_option
def command(
    *, source: str | None, to: str, size: str | None, order: Path | None, partial: bool, list_only: bool,
    home: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Copy a data set into memory or onto a fast disk, and print the path to train from.

    SRC is a directory or s3://, gs://, az://, http(s)://. The same command resumes after an interruption, and renews what
    has changed at the origin. When a directory does not fit, the files that do are copied and the others are symbolic
    links to it, so that every path can be read. Exits with 1 when a file could not be copied.
    """
    ctx = click.get_current_context()
    config = config_of(home=home)
    if (source is None) != list_only:
        raise click.UsageError("give either SRC or --list")
    if source is None:
        _print_list(config, as_json=as_json)
        return
    refuse_credentials(source)
    request = StageRequest(
        url=source,
        place=place_of(to, config),
        size_bytes=None if size is None else parse_bytes(size),
        order=None if order is None else _read_lines(order),
        allow_partial=partial,
    )
    if to == MEMORY and not is_tmpfs(request.place):
        _say(f"{request.place} is not a tmpfs: the copy will lie on disk")
    try:
        result = _staged(request, config, as_json=as_json)
    except KeyboardInterrupt:
        _say("interrupted; what was copied stays, and the same command goes on")
        ctx.exit(EXIT_INTERRUPTED)
    _print_result(result, as_json=as_json)
    if result.failures or not result.is_usable:
        ctx.exit(EXIT_FAILED)


def _staged(request: StageRequest, config: Config, *, as_json: bool) -> StageResult:
    def planned(plan: StagePlan) -> None:
        for line in stage_view.plan_lines(plan, place=str(request.place)):
            _say(line)

    if as_json or not config.progress or not sys.stderr.isatty():
        return stage(request, config, StageEvents(waiting=_say_waiting, planned=planned))
    bar = stage_view.Bar()

    def planned_with_bar(plan: StagePlan) -> None:
        planned(plan)
        bar.planned(plan)

    events = StageEvents(waiting=_say_waiting, listing=bar.listing, planned=planned_with_bar, copying=bar.copying)
    with bar.progress:
        return stage(request, config, events)


def _read_lines(file: Path) -> list[str]:
    """Return lines as the names of files that they are: any bytes but newlines."""
    try:
        return os.fsdecode(file.read_bytes()).split("\n")
    except OSError as err:
        raise ConfigError(f"{file} cannot be read: {err.strerror}") from err


def _print_list(config: Config, *, as_json: bool) -> None:
    copies = list_copies(config)
    if as_json:
        render.print_json(stage_view.copies_object(copies))
    else:
        render.print_lines(stage_view.copies_lines(copies))


def _print_result(result: StageResult, *, as_json: bool) -> None:
    if as_json:
        render.print_json(stage_view.result_object(result))
    for line in stage_view.result_lines(result):
        _say(line)
    if result.is_usable and not as_json:
        click.echo(os.fsencode(result.record.data))


def _say_waiting(pid: int) -> None:
    _say(f"process {pid} copies the same; waiting for it")


def _say(line: str) -> None:
    click.echo(printable(f"prefeed: {line}"), err=True)
