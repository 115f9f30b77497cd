"""``prefeed sync``: copies objects from one origin to another, and verifies them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from prefeed.cli import render
from prefeed.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.render import JsonObject, format_bytes, format_count, format_duration
from prefeed.cli.text import printable
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncProgress, SyncResult
from prefeed.jobs.places import locate_place, lock_job_sets
from prefeed.jobs.running import sync_and_renew
from prefeed.transfer.patterns import Rule

_RULES: Final = "prefeed.rules"
_FLAGS: Final = {"--exclude": True, "--include": False}
_MOST_FAILURES: Final = 5


class _OrderedRulesCommand(click.Command):
    """Command that keeps the order of ``--exclude`` and ``--include``, because the first match decides."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_RULES] = tuple(_rules_in(args))
        return super().parse_args(ctx, args)


def _rules_in(arguments: list[str]) -> Iterator[Rule]:
    words = iter(arguments)
    for argument in words:
        if argument == "--":
            return
        flag, equals, value = argument.partition("=")
        if flag in _FLAGS:
            pattern = value if equals else next(words, None)
            if pattern is not None:
                yield Rule(pattern, _FLAGS[flag])


@click.command(name="sync", cls=_OrderedRulesCommand)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Maximum number of concurrent copies. Default: adapts to SRC."
)
@click.option("-u", "--update", is_flag=True, help="Replace an object in DST only if the one in SRC is newer.")
@click.option("--force-update", is_flag=True, help="Copy every object, even if DST has it.")
@click.option("--perms", is_flag=True, help="Copy modes and, as root, owners of files.")
@click.option("--dirs", is_flag=True, help="Create empty directories as well.")
@click.option("--dry-run", "dry", is_flag=True, help="Show the copies and deletions without doing them.")
@click.option("--delete-src", is_flag=True, help="Delete objects from SRC once DST has the same bytes.")
@click.option("--delete-dst", is_flag=True, help="Delete objects from DST that SRC does not have.")
@click.option(
    "--exclude",
    metavar="PATTERN",
    multiple=True,
    expose_value=False,
    help="Exclude matching objects; the first matching rule decides.",
)
@click.option(
    "--include",
    metavar="PATTERN",
    multiple=True,
    expose_value=False,
    help="Include matching objects; the first matching rule decides.",
)
@click.option(
    "-x/ ", "--one-file-system/--no-one-file-system", "one_file_system", default=None,
    help="Do not enter mounts below SRC or delete in mounts below DST; or treat mounts as "
    "plain directories. Default: copy from mounts, delete in none.",
)  # fmt: skip
@click.option("-s", "--start", default="", metavar="KEY", help="First key to copy.")
@click.option("-e", "--end", default="", metavar="KEY", help="Last key to copy.")
@click.option(
    "--bwlimit",
    "bwlimit_mbit",
    type=click.IntRange(min=0),
    default=0,
    metavar="MBIT",
    help="Maximum bandwidth in Mbit/s; 0 for no limit.",
)
@click.option("--no-https", is_flag=True, help="Connect to web servers without encryption.")
@home_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, home: str | None, as_json: bool, **given: Any) -> None:
    """Copy objects from SRC that DST lacks, and verify them.

    The same command resumes after an interruption. In patterns, * and ? do not match slashes, ** does, dir/ is a directory,
    and a leading slash is the root. Exits with 1 if a copy or deletion failed.
    """
    options = SyncOptions(**given, rules=ctx.meta[_RULES])
    config = config_of(home=home)

    def would(verb: str, where: str) -> None:
        if not as_json:
            click.echo(printable(f"{verb} {where}"))

    places = locate_place(source, config), locate_place(target, config)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock_job_sets(*places))
            events = SyncEvents(would=would, note=render.say)
            if has_bar(as_json=as_json) and not options.dry:
                bar = SyncBar()
                stack.enter_context(bar.progress)
                events = SyncEvents(would=would, note=render.say, progress=bar.show)
            result = sync_and_renew(*places, options, config, events)
    except KeyboardInterrupt:
        render.say("interrupted; copied objects are kept, and the same command resumes")
        ctx.exit(EXIT_INTERRUPTED)
    if as_json:
        render.print_json(sync_object(result))
    else:
        for line in sync_lines(result, dry=options.dry):
            click.echo(printable(line))
    if not result.is_complete:
        ctx.exit(EXIT_FAILED)


# ---------------------------------------------------------------- what is printed


def sync_object(result: SyncResult) -> JsonObject:
    return {**asdict(result), "objects_per_s": result.num_copied / result.seconds if result.seconds else 0.0}


def sync_lines(result: SyncResult, *, dry: bool) -> list[str]:
    """Return the summary and the failures."""
    seconds = max(result.seconds, 1e-9)
    verb = "would be copied" if dry else "copied"
    rate = f" ({result.num_copied / seconds:,.0f} objects/s, {format_bytes(result.bytes_copied / seconds)}/s)"
    copied = f"{format_count(result.num_copied, 'object')}, {format_bytes(result.bytes_copied)} {verb}"
    parts = [
        copied if dry else f"{copied} in {format_duration(result.seconds)}{rate}",
        f"{result.num_skipped:,} already there",
    ]
    for count, where in ((result.num_deleted_dst, "destination"), (result.num_deleted_src, "source")):
        if count:
            parts.append(f"{count:,} {'would be ' if dry else ''}deleted at the {where}")
    lines = ["; ".join(parts)]
    if result.full:
        lines.append(f"the destination is full: {result.full}")
    lines += [failure.message for failure in result.failures[:_MOST_FAILURES]]
    if result.num_failed:
        lines.append(f"{format_count(result.num_failed, 'object')} failed; run the same command to try again")
    return lines


class SyncBar:
    """Progress bar on stderr, whose total grows while the origins are listed."""

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
