"""``prefeed pack``: packs many small files into few large ones."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefeed.cli import render
from prefeed.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.render import JsonObject, format_bytes, format_count, format_duration
from prefeed.cli.url import absolute_url
from prefeed.config import Config, parse_bytes
from prefeed.packing.driver import PackRequest, PackResult, pack, verify
from prefeed.packing.index_existing import index_files
from prefeed.packing.order import LAYOUTS
from prefeed.packing.writing import PackProgress
from prefeed.sources.library import ManifestLibrary

_MOST_DAMAGED: Final = 5


@click.command(name="pack")
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT", required=False)
@click.option("--format", "layout", type=click.Choice(LAYOUTS), help="Format of the data files.")
@click.option(
    "--shard-size", metavar="SIZE", help="Approximate maximum size of a data file; not for lmdb. Default: 1GiB."
)
@click.option("--shuffle", "seed", type=int, metavar="SEED", help="Shuffle the samples with this seed.")
@click.option("--verify", "is_verified", is_flag=True, help="Read the packed objects back and compare checksums.")
@click.option(
    "--index", "index_only", is_flag=True, help="Only write an index, for an SRC that another program has packed."
)
@home_option
@json_option
def command(  # noqa: PLR0913 - one parameter per option
    *, source: str, out: str | None, layout: str | None, shard_size: str | None, seed: int | None, is_verified: bool,
    index_only: bool, home: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Pack many small files into few large ones, and print the URL to read them from.

    SRC is a directory or s3://, gs://, az://, http(s)://. OUT is a new directory, or s3://, gs://, az://. The same
    command resumes after an interruption. With --index, SRC contains *.tar, *.tfrecord* or an LMDB environment, and the
    index is written next to them or into the directory OUT. Exits with 1 if --verify finds damage.
    """
    ctx = click.get_current_context()
    config = config_of(home=home)
    if not index_only and (out is None or layout is None):
        missing = " and ".join(["OUT"] * (out is None) + ["--format"] * (layout is None))
        raise click.UsageError(f"give {missing}, or --index if another program has packed SRC")
    if index_only and (shard_size is not None or seed is not None):
        raise click.UsageError("--index does not pack: remove --shard-size and --shuffle")
    bar = PackBar() if has_bar(as_json=as_json) else None
    try:
        with bar.progress if bar is not None else nullcontext():
            if index_only or out is None or layout is None:
                result = _index(absolute_url(source), out, layout, config, bar)
            else:
                request = PackRequest(
                    source=absolute_url(source),
                    out=absolute_url(out),
                    layout=layout,
                    shard_bytes=0 if shard_size is None else parse_bytes(shard_size),
                    seed=seed,
                )
                result = _pack(request, config, bar)
            damaged = _verify(result, config, bar) if is_verified else None
    except KeyboardInterrupt:
        click.echo("prefeed: interrupted; packed objects are kept, and the same command resumes", err=True)
        ctx.exit(EXIT_INTERRUPTED)
    _print(result, damaged, as_json=as_json)
    if damaged:
        ctx.exit(EXIT_FAILED)


def _pack(request: PackRequest, config: Config, bar: PackBar | None) -> PackResult:
    if bar is None:
        result = pack(request, config)
    else:
        result = pack(request, config, progress=bar.stepped("packing"), listing=bar.listing)
    return _drop_listing(result, config)


def _index(source: str, out: str | None, layout: str | None, config: Config, bar: PackBar | None) -> PackResult:
    progress = None if bar is None else bar.stepped("indexing")
    directory = None if out is None else absolute_url(out)
    return _drop_listing(index_files(source, directory, config, layout=layout, progress=progress), config)


def _drop_listing(result: PackResult, config: Config) -> PackResult:
    """Drop the cached listing of a previous pack at this URL."""
    if result.packed:
        ManifestLibrary(config.home).forget(result.url)
    return result


def _verify(result: PackResult, config: Config, bar: PackBar | None) -> tuple[str, ...]:
    return verify(result.url, config, progress=None if bar is None else bar.stepped("verifying"))


def _print(result: PackResult, damaged: tuple[str, ...] | None, *, as_json: bool) -> None:
    if as_json:
        render.print_json(result_object(result, damaged))
        return
    for line in result_lines(result, damaged):
        click.echo(f"prefeed: {line}", err=True)
    click.echo(result.url)


# ---------------------------------------------------------------- what is printed


def result_lines(result: PackResult, damaged: tuple[str, ...] | None) -> list[str]:
    """Return the summary. ``damaged`` is None if --verify was not given."""
    took = format_duration(result.seconds)
    whole = f"{format_count(result.objects, 'object')}, {format_bytes(result.bytes)}"
    files = format_count(result.data_files, "data file")
    if not result.packed:
        lines = [f"already packed: {whole} in {files}; nothing has changed"]
    elif result.kept:
        kept = f"{result.kept:,} were already packed"
        lines = [f"{format_count(result.packed, 'object')} packed in {took}, {kept}: {whole} in {files}"]
    else:
        lines = [f"{whole} packed into {files} in {took}"]
    if damaged is None:
        return lines
    if not damaged:
        return [*lines, f"verified: all {format_count(result.objects, 'object')} match their checksums"]
    more = [f"and {len(damaged) - _MOST_DAMAGED:,} more"] if len(damaged) > _MOST_DAMAGED else []
    return [*lines, f"{format_count(len(damaged), 'object')} damaged:", *damaged[:_MOST_DAMAGED], *more]


def result_object(result: PackResult, damaged: tuple[str, ...] | None) -> JsonObject:
    return {**asdict(result), "verified": damaged is not None, "damaged": list(damaged or ())}


class PackBar:
    """Progress bar on stderr: objects listed, then packed, then verified."""

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
        """Return a callback that shows the progress of one step."""
        done_bytes = 0

        def step(done: int, total: int, num_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += num_bytes
            note = format_bytes(done_bytes)
            self.progress.update(self._task, description=description, total=total, completed=done, note=note)

        return step
