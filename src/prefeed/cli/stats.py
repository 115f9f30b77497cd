"""``prefeed stats``: the counts of the node server, once or again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.failure import error_object
from prefeed.cli.options import json_option, missing_server_exits, node_config_of, node_option
from prefeed.cli.text import printable
from prefeed.cli.top import ServerSource
from prefeed.cli.top_view import History, Look, Rates
from prefeed.errors import PrefeedError

_PAUSE_SECONDS: Final = 2.0
"""Pause between two updates of ``--watch``: short for a reader, long enough that rates are steady."""

_CLEARED: Final = "\x1b[H\x1b[2J"


@click.command(name="stats")
@click.option("--watch", is_flag=True, help="Show them again and again, until Ctrl-C; with --json one object per line.")
@node_option
@json_option
@click.pass_context
def command(ctx: click.Context, watch: bool, home: str | None, as_json: bool) -> None:
    """Show hits, misses and the contents of the cache.

    Counts begin when the server starts. The best hit ratio without read-ahead with this much memory is shown beside
    the measured one. --watch never ends by itself: without a server, it waits until there is one.
    """
    config = node_config_of(home)
    if watch:
        with ServerSource(backend_of(ctx), config) as source:
            watch_counts(source, as_json=as_json)
        return
    missing_server_exits(ctx)
    with backend_of(ctx).connect(config, autostart=False) as client:
        value = client.statistics()
    if as_json:
        render.print_json(render.statistics_object(value))
    else:
        render.print_rows(*render.statistics_rows(value))


def watch_counts(source: ServerSource, *, as_json: bool, wait: Callable[[float], object] = time.sleep) -> None:
    """Print the counts again and again, and return after Ctrl-C.

    On a terminal each update replaces the one before. Elsewhere updates follow each other, with an empty line between them.
    An update without a server says why; with ``as_json`` it is an object with ``error``.

    Args:
        source: Where the counts come from.
        as_json: One object per line: that of ``prefeed stats --json``, with ``time`` (seconds since 1970) and ``rates``.
        wait: Given the pause.
    """
    history = History()
    is_screen = not as_json and sys.stdout.isatty()
    with suppress(KeyboardInterrupt):
        while True:
            error = _look(source, history)
            if as_json:
                render.print_json({"time": round(time.time(), 3)} | _object(history, error))
            else:
                _print(_lines(history), is_screen=is_screen)
            wait(_PAUSE_SECONDS)


def _look(source: ServerSource, history: History) -> dict[str, object]:
    """Add a look to the history; return the error as an object, an empty one if there was none."""
    try:
        history.add(Look(sample=source.sample()))
    except PrefeedError as err:
        history.add(Look(trouble=str(err)))
        return error_object(err)
    return {}


def _object(history: History, error: dict[str, object]) -> dict[str, object]:
    if history.sample is None:
        return error
    rates = None if history.rates is None else asdict(history.rates)
    return render.statistics_object(history.sample.statistics) | {"rates": rates}


def _lines(history: History) -> list[Text]:
    clock = f"{time.strftime('%H:%M:%S')}  "
    if history.sample is None:
        return [Text(clock + printable(history.trouble))]
    title, rows = render.statistics_rows(history.sample.statistics)
    rows.insert(0, ("now", _now(history.rates)))
    return render.row_lines(clock + title, rows)


def _now(rates: Rates | None) -> str:
    if rates is None:
        return "-"
    share = f", {render.format_ratio(rates.hits / rates.reads)} of them hits" if rates.reads else ""
    origin = f"{rates.origin_requests:,.0f} origin requests/s, {render.format_bytes(round(rates.origin_bytes))}/s"
    return f"{rates.reads:,.0f} reads/s{share}; {origin}"


def _print(lines: list[Text], *, is_screen: bool) -> None:
    console = Console(file=sys.stdout, highlight=False, soft_wrap=not is_screen)
    if not is_screen:
        for line in [*lines, Text("")]:
            console.print(line)
        return
    with console.capture() as captured:
        for line in lines[: max(1, console.height - 1)]:
            console.print(line, no_wrap=True, overflow="ellipsis")
    sys.stdout.write(_CLEARED + captured.get())
    sys.stdout.flush()
