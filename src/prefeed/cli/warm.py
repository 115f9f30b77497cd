"""``prefeed warm`` and ``prefeed clear``: fill and empty the cache."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prefeed.cli import render
from prefeed.cli.backend import Backend, backend_of
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.url import located
from prefeed.config import Config
from prefeed.errors import ServerUnavailableError
from prefeed.jobs.clearing import clear as clear_below
from prefeed.jobs.places import locate_place as place_of
from prefeed.jobs.places import lock_job_sets, refuse_credentials
from prefeed.jobs.warming import SEQUENCE, STRATEGIES, WarmEvents, WarmupOptions, warm_object, warm_up
from prefeed.sources.signed_urls import query_of
from prefeed.sources.urls import unwrapped
from prefeed.types import WarmResult

if TYPE_CHECKING:
    from prefeed.client.node import NodeClient

_MAX_SERVERS: Final = 3
"""Number of servers that may die during a warm-up before it fails."""


@click.command(name="warm")
@click.argument("url")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the paths to fetch, in this order, one per line.",
)  # fmt: skip
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default=SEQUENCE, show_default=True, help="Order of the fetches."
)
@click.option("--seed", type=int, default=0, help="Seed of the random order.")
@click.option("--partitions", type=click.IntRange(min=1), default=1, help="Number of nodes that share the work.")
@click.option("--partition", type=click.IntRange(min=0), default=0, help="Index of this node among them, from 0.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Maximum number of concurrent fetches. Default: adapts to URL."
)
@home_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, url: str, paths: tuple[str, ...], home: str | None, as_json: bool, **given: Any
) -> None:
    """Fill the cache from a URL before training starts.

    URL is a directory, s3://, gs://, az://, http(s):// or sampleset://NAME; with the prefix blocks+ large
    objects are cached in blocks, as prefeed.open reads them. A URL with a query, such as a presigned URL, is one object, cached
    in blocks. PATH is an object or a directory below URL; without PATH, everything below URL is fetched. Fills memory, then the
    disk tier, until everything is cached or both are full. Exits with 1 if an object could not be fetched.
    """
    config = config_of(home=home)
    options = WarmupOptions(paths=paths, **given)
    show_progress = has_bar(as_json=as_json)
    if query_of(url):
        if options != WarmupOptions():
            raise click.UsageError("a URL with a query is one object: remove paths and options")
        refuse_credentials(url.partition("?")[0])
        result = _warm_object(unwrapped(url), config, show_progress=show_progress)
    elif replace(options, seed=0) != WarmupOptions():
        result = _warm_in_order(url, options, config, show_progress=show_progress)
    else:
        where, config = located(url, config)
        result = _warm_everything(backend_of(ctx), where, config, show_progress=show_progress)
    print_result(ctx, result, as_json=as_json)


@click.command(name="clear")
@click.argument("url", required=False)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--all", "everything", is_flag=True, help="Free all cached objects of this home.")
@home_option
@json_option
@click.pass_context
def clear(
    ctx: click.Context, url: str | None, paths: tuple[str, ...], everything: bool, home: str | None, as_json: bool
) -> None:
    """Free the cached objects of a URL, or all objects.

    With PATH, only objects below URL/PATH are freed. URL may be a sample set, sampleset://NAME. Data at the origin is never
    changed. Stage caches are kept; `cache_admin -d` frees these. Objects in a pool are kept, because other nodes use them.
    """
    if (url is None) != everything:
        raise click.UsageError("name a URL, or use --all")
    config = config_of(home=home)
    if url is not None and paths:
        result = clear_below(place_of(url, config), paths)
    else:
        where, config = (None, config) if url is None else located(url, config)
        with backend_of(ctx).connect(config) as client:
            result = client.clear(where)
    render.show(as_json, render.clear_object(result), render.clear_lines(result))


def print_result(ctx: click.Context, result: WarmResult, *, as_json: bool) -> None:
    """Print the result of a warm-up, and exit with 1 if objects could not be fetched."""
    render.show(as_json, render.warm_object(result), render.warm_lines(result))
    if result.failed:
        click.echo(f"prefeed: {render.warm_failure(result)}", err=True)
        ctx.exit(EXIT_FAILED)


class WarmBar:
    """Progress bar on stderr: objects listed, then fetched."""

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


def _warm_everything(backend: Backend, url: str, config: Config, *, show_progress: bool) -> WarmResult:
    """Fetch everything below a URL, continuing with another server if one dies."""
    for is_last in (*[False] * (_MAX_SERVERS - 1), True):
        with backend.connect(config) as client:
            try:
                return _warm(client, url, listing_age=config.listing_age, show_progress=show_progress)
            except ServerUnavailableError:
                if is_last:
                    raise
        render.say("the node server has ended; the warm-up continues with a new one")
    raise AssertionError


def _warm(client: NodeClient, url: str, *, listing_age: float, show_progress: bool) -> WarmResult:
    if not show_progress:
        return client.warm(url, listing_age=listing_age)
    bar = WarmBar()
    with bar.progress:
        return client.warm(url, listing_age=listing_age, progress=bar.warming, listing=bar.listing)


def _warm_object(url: str, config: Config, *, show_progress: bool) -> WarmResult:
    """Fetch the object of a URL with a query."""
    if not show_progress:
        return warm_object(url, config)
    bar = WarmBar()
    with bar.progress:
        return warm_object(url, config, WarmEvents(progress=bar.warming, note=render.say))


def _warm_in_order(url: str, options: WarmupOptions, config: Config, *, show_progress: bool) -> WarmResult:
    """Fetch the selected objects in the selected order, continuing with another server if one dies."""
    place = place_of(url, config)
    bar = WarmBar() if show_progress else None
    with lock_job_sets(place), bar.progress if bar is not None else nullcontext():
        events = WarmEvents(note=render.say)
        if bar is not None:
            events = WarmEvents(listing=bar.listing, progress=bar.warming, note=render.say)
        return warm_up(place, options, events)
