"""``prefeed stats``: shows the counts of the node server, once or until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.failure import error_object
from prefeed.cli.options import json_option, missing_server_exits, node_config_of, node_option
from prefeed.cli.watch import Rates, Sample, ServerSource, frame, rates_between, trouble
from prefeed.errors import PrefeedError

_PAUSE_SECONDS: Final = 2.0
"""Pause between two updates of ``--watch``: short for a reader, long enough that rates are steady."""

_PIPE_COLUMNS: Final = 120
"""Width of an update that is written to a pipe or a file."""


@click.command(name="stats")
@click.option(
    "--watch",
    is_flag=True,
    help="Update tiers, plans, rates and waits until Ctrl-C; with --json one object per line.",
)
@node_option
@json_option
@click.pass_context
def command(ctx: click.Context, watch: bool, home: str | None, as_json: bool) -> None:
    """Show hits, misses and the contents of the cache.

    Counts start at 0 when the server starts. For comparison, the best possible hit ratio without read-ahead in the same
    memory is shown. --watch runs until Ctrl-C; if no server runs, it waits for one.
    """
    config = node_config_of(home)
    if watch:
        with ServerSource(backend_of(ctx), config) as source:
            watch_server(source, as_json=as_json)
        return
    missing_server_exits(ctx)
    with backend_of(ctx).connect(config, autostart=False) as client:
        value = client.statistics()
        sessions = client.list_sessions() if value.sessions.caches else ()
    if as_json:
        render.print_json(render.statistics_object(value) | {"stage_caches": render.sessions_object(sessions)})
        return
    render.print_rows(*render.statistics_rows(value))
    if sessions:
        render.print_lines(render.session_lines(sessions))


def watch_server(source: ServerSource, *, as_json: bool, wait: Callable[[float], object] = time.sleep) -> None:
    """Show the state of the server until Ctrl-C.

    On a terminal each update replaces the previous one. Elsewhere an empty line follows each update. Without a server, an
    update has the reason; with ``as_json`` that is an object with ``error``.

    Args:
        source: Connection to the server.
        as_json: Print one object per line: that of ``prefeed stats --json`` with ``time`` (seconds since 1970), ``status``,
            ``plans`` and ``rates``.
        wait: Sleeps for a number of seconds.
    """
    is_screen = not as_json and sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if is_screen else _PIPE_COLUMNS)
    live = Live(console=console, auto_refresh=False) if is_screen else None
    before: Sample | None = None
    with suppress(KeyboardInterrupt), live or nullcontext():
        while True:
            try:
                sample = source.sample()
            except PrefeedError as err:
                before, value, shown = None, error_object(err), trouble(err)
            else:
                rates = rates_between(before, sample)
                before, value, shown = sample, _as_object(sample, rates), frame(sample, rates)
            if as_json:
                render.print_json({"time": round(time.time(), 3)} | value)
            elif live is not None:
                live.update(shown, refresh=True)
            else:
                console.print(shown)
                console.print()
            wait(_PAUSE_SECONDS)


def _as_object(sample: Sample, rates: Rates | None) -> dict[str, object]:
    return render.statistics_object(sample.statistics) | {
        "status": render.status_object(sample.status),
        "plans": [asdict(plan) for plan in sample.plans],
        "rates": None if rates is None else asdict(rates),
    }
