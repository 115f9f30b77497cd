"""``prefeed job``: sync, warm-up, rmr and clear, at once or as recorded jobs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from prefeed.cli import job_view, render, warm
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.job_records import apply, describe, list_jobs, terminate_jobs, work
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.text import printable
from prefeed.config import Config
from prefeed.jobs.clearing import clear as clear_entries
from prefeed.jobs.options import SyncEvents, SyncOptions
from prefeed.jobs.places import held_sets, located
from prefeed.jobs.rmr import relative_paths, survey
from prefeed.jobs.warming import SEQUENCE, STRATEGIES, WarmEvents, WarmupOptions, warm_up
from prefeed.jobs.work import WorkEvents, remove_named, sync_and_renew
from prefeed.transfer.patterns import Rule

EXIT_INTERRUPTED: Final = 130
_RULES: Final = "prefeed.rules"
_FLAGS: Final = {"--exclude": True, "--include": False}


@click.group(name="job")
def command() -> None:
    """Copy, warm, free and remove data sets.

    SRC, DST and URL are directories, s3://, gs://, az://, http(s):// or sampleset://NAME. Credentials come from
    credentials.json in the home or from the environment, never from a URL.
    """


for _recorded in (apply, describe, list_jobs, terminate_jobs, work):
    command.add_command(_recorded)


class _InOrder(click.Command):
    """A command that knows in which order ``--exclude`` and ``--include`` were given: the first that matches counts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_RULES] = tuple(_rules_in(args))
        return super().parse_args(ctx, args)


def _rules_in(arguments: list[str]) -> Iterator[Rule]:
    for at, argument in enumerate(arguments):
        if argument == "--":
            return
        flag, equals, value = argument.partition("=")
        if flag in _FLAGS and equals:
            yield Rule(value, _FLAGS[flag])
        elif flag in _FLAGS and at + 1 < len(arguments):
            yield Rule(arguments[at + 1], _FLAGS[flag])


@command.command(cls=_InOrder)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Maximum objects at a time. Default: as many as SRC answers well."
)
@click.option("-u", "--update", is_flag=True, help="Replace an object in DST only when SRC has a newer one.")
@click.option("-f", "--force-update", is_flag=True, help="Copy every object, whatever DST has.")
@click.option("--check", is_flag=True, help="Read and compare objects that look the same.")
@click.option("--perms", is_flag=True, help="Keep modes and, as root, owners of files.")
@click.option("--dirs", is_flag=True, help="Create empty directories, too.")
@click.option("--dry", is_flag=True, help="Show what would be done.")
@click.option("--delete-src", is_flag=True, help="Remove from SRC what DST has, byte for byte.")
@click.option("--delete-dst", is_flag=True, help="Remove from DST what SRC does not have.")
@click.option(
    "--exclude", metavar="PATTERN", multiple=True, expose_value=False, help="Leave out; the first match counts."
)
@click.option("--include", metavar="PATTERN", multiple=True, expose_value=False, help="Take; the first match counts.")
@click.option(
    "-x/ ", "--one-file-system/--no-one-file-system", "one_file_system", default=None,
    help="Enter no mounts below SRC, delete in none below DST; or treat them as plain directories. "
    "Default: copy from them, delete in none.",
)  # fmt: skip
@click.option("-s", "--start", default="", metavar="KEY", help="First key.")
@click.option("-e", "--end", default="", metavar="KEY", help="Last key.")
@click.option(
    "--bwlimit", "bwlimit_mbit", type=click.IntRange(min=0), default=0, metavar="MBIT", help="Most Mbit/s; 0: no limit."
)
@click.option("--no-https", is_flag=True, help="Speak to web servers without encryption.")
@home_option
@json_option
@click.pass_context
def sync(ctx: click.Context, /, source: str, target: str, home: str | None, as_json: bool, **given: Any) -> None:
    """Copy to DST what SRC has and DST lacks, verified; the same command resumes after an interruption.

    Patterns: * and ? stop at slashes, ** does not, dir/ is a directory, a leading slash is the root. Exits with 1 when
    something failed.
    """
    options = SyncOptions(**given, rules=ctx.meta[_RULES])
    config = config_of(home=home)

    def would(verb: str, where: str) -> None:
        if not as_json:
            click.echo(printable(f"{verb} {where}"))

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(held_sets((source, target), config))
            events = SyncEvents(would=would, note=_say)
            if _has_bar(config, as_json=as_json) and not options.dry:
                bar = job_view.SyncBar()
                stack.enter_context(bar.progress)
                events = SyncEvents(would=would, note=_say, progress=bar.show)
            result = sync_and_renew(source, target, options, config, events)
    except KeyboardInterrupt:
        _say("interrupted; what was copied stays, and the same command goes on")
        ctx.exit(EXIT_INTERRUPTED)
    if as_json:
        render.print_json(job_view.sync_object(result))
    else:
        for line in job_view.sync_lines(result, dry=options.dry):
            click.echo(printable(line))
    if not result.is_complete:
        ctx.exit(EXIT_FAILED)


@command.command()
@click.argument("url")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--strategy", type=click.Choice(STRATEGIES), default=SEQUENCE, show_default=True, help="The order.")
@click.option("--seed", type=int, default=0, help="Seed of the random order.")
@click.option("--partitions", type=click.IntRange(min=1), default=1, help="Number of nodes that share the work.")
@click.option("--partition", type=click.IntRange(min=0), default=0, help="Number of this node among them, from 0.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with paths, one per line, in the order wanted.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="Maximum objects at a time. Default: as many as URL answers well."
)
@click.option(
    "--refresh", is_flag=True, help="List the origin now, even if PREFEED_LISTING_AGE allows an older listing."
)
@home_option
@json_option
@click.pass_context
def warmup(
    ctx: click.Context, /, url: str, paths: tuple[str, ...], home: str | None, as_json: bool, **given: Any
) -> None:
    """Fill the memory and disk tiers of the node, in the order given.

    PATH is an object or a directory below URL; without a PATH, everything below URL. Exits with 1 when an object could not be fetched.
    """
    config = config_of(home=home)
    options = WarmupOptions(paths=paths, **given)
    with held_sets((url,), config):
        if _has_bar(config, as_json=as_json):
            bar = warm.Bar()
            with bar.progress:
                events = WarmEvents(listing=bar.listing, progress=bar.warming, note=_say)
                result = warm_up(url, options, config, events)
        else:
            result = warm_up(url, options, config, WarmEvents(note=_say))
    warm.print_result(ctx, result, as_json=as_json)


@command.command()
@click.argument("url")
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option("--all", "everything", is_flag=True, help="Remove everything below URL, instead of PATH.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry", is_flag=True, help="Show what would be removed.")
@click.option(
    "-x/ ", "--one-file-system/--no-one-file-system", "one_file_system", default=True,
    help="Leave what is mounted below URL, or remove it too. Default: leave it.",
)  # fmt: skip
@home_option
@json_option
@click.pass_context
def rmr(  # noqa: PLR0913 - one parameter an option
    ctx: click.Context, url: str, paths: tuple[str, ...], *, everything: bool, yes: bool, dry: bool,
    one_file_system: bool, home: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Remove data AT ITS ORIGIN: each PATH below URL, with everything in it.

    Links are removed, not followed; mounts below a PATH stay. The cache frees what it holds of the data. Exits with 1
    when something is left.
    """
    config = config_of(home=home)
    with held_sets((url,), config):
        root, settings = located(url, config)
        named = relative_paths(root, paths, everything=everything)
        doomed = survey(root, named, settings, one_file_system=one_file_system)
        if dry and as_json:
            render.print_json(job_view.doomed_object(root, doomed))
            return
        if not as_json:
            for line in job_view.doomed_lines(root, doomed, dry=dry):
                click.echo(line, err=not dry)
        if dry:
            return
        _require_yes(yes=yes)
        result = remove_named(
            url, paths, config, events=WorkEvents(), everything=everything, one_file_system=one_file_system
        )
    if as_json:
        render.print_json(job_view.rmr_object(result))
    else:
        render.print_lines(job_view.rmr_lines(result))
    if result.failures:
        ctx.exit(EXIT_FAILED)


@command.command()
@click.argument("url", required=False)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--all", "everything", is_flag=True, help="Free everything that this home holds, instead of URL.")
@home_option
@json_option
def clear(url: str | None, paths: tuple[str, ...], *, everything: bool, home: str | None, as_json: bool) -> None:
    """Free what the memory and disk tiers hold of URL, or of each PATH below it.

    The data at the origin is never touched.
    """
    if (url is None) != everything:
        raise click.UsageError("give either URL or --all")
    result = clear_entries(url, paths, config_of(home=home))
    if as_json:
        render.print_json(render.clear_object(result))
    else:
        render.print_lines(render.clear_lines(result))


def _require_yes(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nothing was removed: say --yes where nobody can be asked")
    click.confirm("Remove it?", abort=True, err=True)


def _has_bar(config: Config, *, as_json: bool) -> bool:
    return config.progress and not as_json and sys.stderr.isatty()


def _say(line: str) -> None:
    click.echo(printable(f"prefeed: {line}"), err=True)
