"""``prefeed pack``: packs many small files into few large ones."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefeed.cli import render
from prefeed.cli.failure import EXIT_INTERRUPTED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.render import format_bytes, format_count, format_duration
from prefeed.cli.url import absolute_url
from prefeed.config import parse_bytes
from prefeed.packing.driver import PackRequest, PackResult, pack
from prefeed.packing.order import LAYOUTS
from prefeed.sources.library import ManifestLibrary


@click.command(name="pack")
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT")
@click.option("--format", "layout", type=click.Choice(LAYOUTS), required=True, help="Format of the data files.")
@click.option(
    "--shard-size", metavar="SIZE", help="Approximate maximum size of a data file; not for lmdb. Default: 1GiB."
)
@click.option("--shuffle", "seed", type=int, metavar="SEED", help="Shuffle the samples with this seed.")
@home_option
@json_option
def command(
    *, source: str, out: str, layout: str, shard_size: str | None, seed: int | None, home: str | None, as_json: bool
) -> None:
    """Pack many small files into few large ones, and print the URL to read them from.

    SRC is a directory or s3://, gs://, az://, http(s)://. OUT is a new directory, or s3://, gs://, az://. The same
    command resumes after an interruption.
    """
    config = config_of(home=home)
    request = PackRequest(
        source=absolute_url(source), out=absolute_url(out), layout=layout,
        shard_bytes=0 if shard_size is None else parse_bytes(shard_size), seed=seed,
    )  # fmt: skip
    bar = PackBar() if has_bar(as_json=as_json) else None
    try:
        with bar.progress if bar is not None else nullcontext():
            result = (
                pack(request, config)
                if bar is None
                else pack(request, config, progress=bar.packing, listing=bar.listing)
            )
    except KeyboardInterrupt:
        click.echo("prefeed: interrupted; packed objects are kept, and the same command resumes", err=True)
        click.get_current_context().exit(EXIT_INTERRUPTED)
    if result.packed:
        ManifestLibrary(config.home).forget(result.url)  # the listing of a previous pack at this URL
    if as_json:
        render.print_json(asdict(result))
        return
    click.echo(f"prefeed: {summary_of(result)}", err=True)
    click.echo(result.url)


def summary_of(result: PackResult) -> str:
    """Return the sentence that is printed at the end."""
    took = format_duration(result.seconds)
    whole = f"{format_count(result.objects, 'object')}, {format_bytes(result.bytes)}"
    files = format_count(result.data_files, "data file")
    if not result.packed:
        return f"already packed: {whole} in {files}; nothing has changed"
    if result.kept:
        packed = format_count(result.packed, "object")
        return f"{packed} packed in {took}, {result.kept:,} were already packed: {whole} in {files}"
    return f"{whole} packed into {files} in {took}"


class PackBar:
    """Progress bar on stderr: objects listed, then packed."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task("listing", total=None, note="")
        self._done_bytes = 0

    def listing(self, objects: int, num_bytes: int) -> None:
        self.progress.update(self._task, completed=objects, note=format_bytes(num_bytes))

    def packing(self, done: int, total: int, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        note = format_bytes(self._done_bytes)
        self.progress.update(self._task, description="packing", total=total, completed=done, note=note)
