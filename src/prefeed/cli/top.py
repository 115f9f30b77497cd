"""``prefeed top``."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import shutil
import sys
import time
from dataclasses import asdict

import click
from rich.console import Console

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.options import json_option, missing_server_exits, node_config_of, node_option
from prefeed.cli.top_model import History, Look
from prefeed.cli.top_source import ServerSource
from prefeed.cli.top_view import frame
from prefeed.config import Config
from prefeed.errors import PrefeedError

_PLAIN_WIDTH = 100
"""Columns of a frame that goes into a pipe."""


@click.command(name="top")
@click.option("--once", is_flag=True, help="Print one frame as text and exit; the default without a terminal.")
@click.option(
    "--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds between updates."
)
@node_option
@json_option
@click.pass_context
def command(ctx: click.Context, once: bool, interval: float, home: str | None, as_json: bool) -> None:
    """Watch tiers, plans, rates and waits live.

    The server is only looked at, and never started: without one, this waits until there is one. Rates are those
    between two looks, also with --once and --json.
    """
    config = node_config_of(home)
    with ServerSource(backend_of(ctx), config) as source:
        if as_json or once or not sys.stdout.isatty():
            missing_server_exits(ctx)
            _print_once(source, config, interval_seconds=interval, as_json=as_json)
        else:
            _run_screen(source, config, interval_seconds=interval)


def _print_once(source: ServerSource, config: Config, *, interval_seconds: float, as_json: bool) -> None:
    history = History()
    history.add(Look(sample=source.sample()))
    time.sleep(interval_seconds)
    history.add(Look(sample=source.sample()))
    if as_json:
        render.print_json(top_object(history))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in frame(history, home=str(config.home), width=width):
        line.rstrip()
        console.print(line)


def top_object(history: History) -> render.JsonObject:
    """Return what ``--json`` prints: everything that the screen shows, as numbers."""
    sample = history.sample
    assert sample is not None
    return {
        "status": render.status_object(sample.status),
        "statistics": render.statistics_object(sample.statistics),
        "plans": [asdict(plan) for plan in sample.plans],
        "sample_sets": [asdict(row) for row in sample.sample_sets],
        "rates": None if history.rates is None else asdict(history.rates),
    }


def _run_screen(source: ServerSource, config: Config, *, interval_seconds: float) -> None:
    if importlib.util.find_spec("textual") is None:
        raise PrefeedError(
            "the live view needs Textual: pip install 'prefeed[top]'; `prefeed top --once` prints one frame without it"
        )
    logging.getLogger("prefeed").setLevel(logging.CRITICAL)  # a line of the log would tear the screen
    app = importlib.import_module("prefeed.cli.top_app").TopApp(
        source.look, home=str(config.home), interval_seconds=interval_seconds
    )
    app.run()
