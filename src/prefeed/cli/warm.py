"""``prefeed warm`` and ``prefeed clear``."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefeed.cli import render
from prefeed.cli.backend import Client, backend_of
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.url import located
from prefeed.types import WarmResult


@click.command(name="warm")
@click.argument("url")
@click.option(
    "--refresh", is_flag=True, help="List the origin now, even if PREFEED_LISTING_AGE allows an older listing."
)
@home_option
@json_option
@click.pass_context
def command(ctx: click.Context, url: str, refresh: bool, home: str | None, as_json: bool) -> None:
    """Fill the cache from a URL before training starts.

    URL is a directory, s3://, gs://, az://, http(s):// or sampleset://NAME; with blocks+ before it large objects are
    cached in blocks, as prefeed.open reads them. Fills memory, then the disk tier, until everything is
    in one of them or both are full. Exits with 1 when an object could not be fetched.
    """
    where, config = located(url, config_of(home=home))
    with backend_of(ctx).connect(config) as client:
        show_progress = has_bar(config, as_json=as_json)
        listing_age = 0.0 if refresh else config.listing_age
        result = _warm(client, where, listing_age=listing_age, show_progress=show_progress)
    print_result(ctx, result, as_json=as_json)


@click.command(name="clear")
@click.argument("url", required=False)
@click.option("--all", "everything", is_flag=True, help="Free all objects of this home.")
@home_option
@json_option
@click.pass_context
def clear(ctx: click.Context, url: str | None, everything: bool, home: str | None, as_json: bool) -> None:
    """Free the cached objects of a URL, or all objects.

    URL may be the name of a sample set, sampleset://NAME/PATH. The data at the origin is never touched. Stage caches stay too: `prefeed session drop` removes those.
    Objects in a pool stay as well: other nodes use them, and they are never out of date.
    """
    if (url is None) != everything:
        raise click.UsageError("give either a URL or --all")
    where, config = (None, config_of(home=home)) if url is None else located(url, config_of(home=home))
    with backend_of(ctx).connect(config) as client:
        result = client.clear(where)
    render.show(as_json, render.clear_object(result), render.clear_lines(result))


def print_result(ctx: click.Context, result: WarmResult, *, as_json: bool) -> None:
    """Print how a warm-up ended; the exit code says whether all could be fetched."""
    render.show(as_json, render.warm_object(result), render.warm_lines(result))
    if result.failed:
        click.echo(f"prefeed: {render.warm_failure(result)}", err=True)
        ctx.exit(EXIT_FAILED)


class Bar:
    """A progress bar on stderr: objects listed, then objects warmed."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task("listing", total=None, note="")

    def listing(self, objects: int, num_bytes: int) -> None:
        self.progress.update(self._task, completed=objects, note=render.format_bytes(num_bytes))

    def warming(self, so_far: WarmResult) -> None:
        self.progress.update(
            self._task,
            description="warming",
            total=so_far.objects,
            completed=so_far.resident + so_far.on_disk + so_far.failed,
            note=f"{so_far.fetched / so_far.seconds:,.0f}/s" if so_far.seconds else "",
        )


def _warm(client: Client, url: str, *, listing_age: float, show_progress: bool) -> WarmResult:
    if not show_progress:
        return client.warm(url, listing_age=listing_age)
    bar = Bar()
    with bar.progress:
        return client.warm(url, listing_age=listing_age, progress=bar.warming, listing=bar.listing)
