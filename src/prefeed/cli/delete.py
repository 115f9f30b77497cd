"""``prefeed delete``, and what is printed of what it removes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import click

from prefeed.cli import render
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.render import JsonObject, format_bytes, format_count
from prefeed.cli.text import printable
from prefeed.jobs.places import held_sets, located
from prefeed.jobs.rmr import Doomed, RmrResult, relative_paths, survey
from prefeed.jobs.running import remove_named

_MOST_FAILURES: Final = 5


@click.command(name="delete")
@click.argument("url")
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option("--all", "everything", is_flag=True, help="Remove everything below URL, instead of PATH.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", "dry", is_flag=True, help="Show what would be removed.")
@click.option(
    "-x/ ", "--one-file-system/--no-one-file-system", "one_file_system", default=True,
    help="Keep the contents of mounts below URL, or remove them too. Default: keep them.",
)  # fmt: skip
@home_option
@json_option
@click.pass_context
def command(  # noqa: PLR0913 - one parameter an option
    ctx: click.Context, url: str, paths: tuple[str, ...], *, everything: bool, yes: bool, dry: bool,
    one_file_system: bool, home: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Delete data AT ITS ORIGIN, after asking: each PATH below URL, with everything in it.

    URL is a directory, s3://, gs://, az:// or sampleset://NAME. To free cache entries only, use `prefeed clear`. Links are removed, not followed; mounts below a PATH stay. The cache frees its objects of the data. Exits with 1
    when something is left.
    """
    place = located(url, config_of(home=home))
    with held_sets(place):
        root = place.url
        named = relative_paths(root, paths, everything=everything)
        doomed = survey(root, named, place.settings, one_file_system=one_file_system)
        if dry and as_json:
            render.print_json(doomed_object(root, doomed))
            return
        if not as_json or not yes:  # who is asked sees what is removed
            for line in doomed_lines(root, doomed, dry=dry):
                click.echo(line, err=not dry)
        if dry:
            return
        _require_yes(yes=yes)
        result = remove_named(place, paths, everything=everything, one_file_system=one_file_system)
    render.show(as_json, rmr_object(result), rmr_lines(result))
    if result.failures:
        ctx.exit(EXIT_FAILED)


def _require_yes(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nothing was removed: use --yes without a terminal")
    click.confirm("Remove it?", abort=True, err=True)


# ---------------------------------------------------------------- what is printed


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
        f"{total}, {format_bytes(sum(one.bytes for one in doomed))} {will} be removed at the origin permanently",
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
