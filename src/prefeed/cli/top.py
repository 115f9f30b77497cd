"""``prefeed top``, and its looks at the node server: by the usual protocol, never starting one; now and then at the sample sets."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Console

from prefeed.cli import render
from prefeed.cli.backend import Backend, Client, backend_of
from prefeed.cli.options import json_option, missing_server_exits, node_config_of, node_option
from prefeed.cli.top_view import History, Look, Sample, SampleSetRow, frame
from prefeed.config import Config
from prefeed.errors import PrefeedError
from prefeed.sampleset import records
from prefeed.sampleset.status import observe
from prefeed.system.clock import Clock

_PLAIN_WIDTH = 100
"""Columns of a frame that goes into a pipe."""

ANSWER_SECONDS = 5.0
"""A server that says nothing for so long is shown as one that does not answer."""

_LEAST_PAUSE_SECONDS: Final = 5.0
_MOST_SHARE: Final = 0.05
"""Share of the time that may go into looking: it takes about a second for a million objects."""


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

    This never starts a server: without one, it waits until there is one. Rates are measured between two updates, also
    with --once and --json.
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


# ---------------------------------------------------------------- looks


class ServerSource:
    """Keeps a connection to the home's server, and finds another server when that one is gone.

    **Ownership**: its maker closes it; also a context manager. **Threads**: one at a time.
    **Blocking**: ``look`` for ``ANSWER_SECONDS`` at most, then says so.
    """

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._config = config
        self._client: Client | None = None
        self._sample_sets = SampleSets(config, clock=time.monotonic)

    def look(self) -> Look:
        """Return what the server does now, or why that is not known."""
        try:
            return Look(sample=self.sample())
        except PrefeedError as err:
            return Look(trouble=str(err))

    def sample(self) -> Sample:
        """Return what the server does now.

        Raises:
            ServerUnavailableError: There is none, or it does not answer.
        """
        if self._client is None:
            self._client = self._backend.connect(self._config, autostart=False, answer_seconds=ANSWER_SECONDS)
        try:
            client = self._client
            return Sample(
                status=client.status(),
                statistics=client.statistics(),
                plans=client.plans(),
                sample_sets=self._sample_sets.rows(),
            )
        except PrefeedError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        client, self._client = self._client, None
        if client is not None:
            client.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Poller:
    """Looks again and again in a thread of its own.

    Args:
        look: Returns a look; may block.
        show: Given each look; called in that thread.
        interval_seconds: Pause between two looks.

    **Threads**: a daemon, which ends soon after ``stop``; ``stop`` does not wait for a look that hangs.
    """

    def __init__(self, look: Callable[[], Look], show: Callable[[Look], None], *, interval_seconds: float) -> None:
        self.is_paused = False
        self._look = look
        self._show = show
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()

    def start(self) -> None:
        """Look from now on."""
        threading.Thread(target=self._run, name="prefeed-top", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self.is_paused:
                look = self._look()
                if not self._stopped.is_set():
                    self._show(look)
            self._stopped.wait(self._interval_seconds)


class SampleSets:
    """Looks at the home's sample sets, now and then.

    Args:
        clock: Seconds.

    **Threads**: one at a time. **Blocking**: as long as ``observe`` takes, for each set.
    """

    def __init__(self, config: Config, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._rows: tuple[SampleSetRow, ...] = ()
        self._next = clock()

    def rows(self) -> tuple[SampleSetRow, ...]:
        """Return the sample sets by name, as they were when they were last looked at."""
        started = self._clock()
        if started >= self._next:
            self._rows = tuple(_rows(self._config))
            took = self._clock() - started
            self._next = self._clock() + max(_LEAST_PAUSE_SECONDS, took / _MOST_SHARE)
        return self._rows


def _rows(config: Config) -> Iterator[SampleSetRow]:
    for name in sorted(records.names(config)):
        with contextlib.suppress(PrefeedError, OSError):  # removed meanwhile, or its record is damaged
            status = observe(records.find(name, config), config)
            yield SampleSetRow(
                name=name, phase=status.phase, cached_bytes=status.cached_bytes, total_bytes=status.total_bytes
            )
