"""``prefeed tune``, and what is printed of it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from prefeed.cli import render
from prefeed.cli.failure import EXIT_FAILED, VERBOSE_TRACEBACKS
from prefeed.cli.options import json_option
from prefeed.cli.render import format_bytes
from prefeed.diagnose.tune.report import Trial, Tuning, sentences
from prefeed.diagnose.tune.search import Settings, size_text
from prefeed.diagnose.tune.tuning import DEFAULT_BUDGET_SECONDS, tune
from prefeed.errors import PrefeedError

_NOT_THE_USERS: Final = (
    str(Path(__file__).parents[1]) + os.sep,
    os.path.dirname(click.__file__) + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
    "<frozen ",
)
"""Beginnings of the names of files whose lines in a traceback say nothing about the user's code."""

_COLUMNS: Final = ("batches/s", "samples/s", "spread", "waited", "memory", "busy")


@click.command(name="tune", context_settings={"allow_interspersed_args": False})
@click.option("--budget", type=click.FloatRange(min=1), default=DEFAULT_BUDGET_SECONDS, show_default=True,
              metavar="SECONDS", help="Total time for all trials.")  # fmt: skip
@click.option(
    "--device", metavar="NAME", help="Where batches are copied to. Default: this machine's accelerator, if any."
)
@json_option
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(*, budget: float, device: str | None, as_json: bool, target: str, arguments: tuple[str, ...]) -> None:
    """Find the fastest settings of a DataLoader, by trials.

    TARGET is module:make_loader, with a module that can be imported from the working directory, or train.py:make_loader.
    The function returns a DataLoader, or a loader and a step: a function that is given a batch, and trains. The words
    after TARGET are its arguments, as text; they are in sys.argv, too.

    Tries numbers of workers, of batches made ahead, pinned memory, threads and lookahead for as long as the budget lasts, and
    prints the line to paste, or advises no change when the gain is within the noise.
    """
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), _users_errors(target):
        loader, step = _loader_and_step(target, arguments)
        with _progress(budget, is_shown=not as_json and sys.stderr.isatty()) as say:
            tuning = tune(loader, step, budget=budget, device=device, say=say)
    render.show(
        as_json, {**msgspec.to_builtins(tuning), "leave_it": tuning.leave_it, "text": str(tuning)}, tuning_lines(tuning)
    )


@contextlib.contextmanager
def _users_errors(target: str) -> Iterator[None]:
    """Print what the user's code raises with its own part of the traceback, and end with 1; with ``-vv`` all of it."""
    ctx = click.get_current_context()
    try:
        yield
    except (PrefeedError, click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as err:
        if ctx.meta.get("prefeed.verbose", 0) >= VERBOSE_TRACEBACKS:
            raise
        told = traceback.TracebackException.from_exception(err)
        _leave_out_ours(told)
        click.echo("".join(told.format()), nl=False, err=True)
        click.echo(
            f"prefeed: nothing was tuned: {target}, its loader or its step raised {type(err).__name__}", err=True
        )
        ctx.exit(EXIT_FAILED)


def _leave_out_ours(told: traceback.TracebackException) -> None:
    """Leave out of a traceback, and of those that led to it, what is not the user's: prefeed, click, the import system."""
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if not frame.filename.startswith(_NOT_THE_USERS)]
    )
    for before in filter(None, (told.__cause__, told.__context__)):
        _leave_out_ours(before)


def _loader_and_step(target: str, arguments: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return what the user's function makes."""
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise click.UsageError(f"{target!r} names no function: write module:make_loader, or train.py:make_loader")
    sys.argv = [place, *arguments]
    made = _call(_function(_module(place), name, target), arguments, target)
    loader, step = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not hasattr(loader, "num_workers") or not (step is None or callable(step)):
        raise click.UsageError(f"{target} returned {_kinds(made)}; return a DataLoader, or a loader and a step")
    return loader, step


def _module(place: str) -> Any:
    """Import a module, under a name by which started workers can import it, too."""
    path = Path(place)
    is_file = place.endswith(".py")
    if is_file and not path.is_file():
        raise click.UsageError(f"there is no file {place}")
    sys.path.insert(0, str(path.parent.absolute()) if is_file else os.getcwd())
    module = path.stem if is_file else place
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name is None or not f"{module}.".startswith(f"{err.name}."):
            raise  # something that the module needs
        raise click.UsageError(f"there is no module {module!r} to import from {os.getcwd()}") from err


def _function(module: Any, name: str, target: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise click.UsageError(f"{target}: {module.__name__} has no function {name}")
    found: Callable[..., Any] = function
    return found


def _call(function: Callable[..., Any], arguments: tuple[str, ...], target: str) -> Any:
    """Call it with the arguments; with none when it takes none: it reads ``sys.argv``."""
    signature = inspect.signature(function)
    given = arguments if signature.parameters else ()
    try:
        signature.bind(*given)
    except TypeError as err:
        raise click.UsageError(f"{target}{signature} was given {len(given)} arguments: {err}") from err
    return function(*given)


def _kinds(made: Any) -> str:
    parts = made if isinstance(made, tuple) else (made,)
    return ", ".join(type(part).__name__ for part in parts)


@contextlib.contextmanager
def _progress(budget_seconds: float, *, is_shown: bool) -> Iterator[Callable[[str], None]]:
    """Give what shows on stderr what is tried, and how much of the time has passed."""
    if not is_shown:
        yield lambda text: None
        return
    columns = (BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} s"), TextColumn("{task.description}"))
    began = time.monotonic()
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=budget_seconds)
        yield lambda text: progress.update(task, description=text, completed=time.monotonic() - began)


# ---------------------------------------------------------------- what is printed


def tuning_lines(tuning: Tuning) -> Iterator[str]:
    """Yield a table of what was tried, and below it what to do."""
    yield from _table(tuning)
    yield ""
    yield from sentences(tuning)


def _table(tuning: Tuning) -> Iterator[str]:
    names = _names_of(tuning)
    rows = [_cells(trial) for trial in tuning.trials if trial.batches_s is not None]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    left = max(len(name) for name in ("setting", *names))
    yield _line("setting".ljust(left), _COLUMNS, widths)
    cells = iter(rows)
    for name, trial in zip(names, tuning.trials, strict=True):
        if trial.batches_s is not None:
            yield _line(name.ljust(left), next(cells), widths)
        if trial.reason is not None:
            yield f"  {name.ljust(left)}  {trial.reason}"


def _names_of(tuning: Tuning) -> list[str]:
    marks = {tuning.present: " (present)", tuning.settings: " (best)"}
    if tuning.leave_it:
        marks = {tuning.present: " (present)"}
    return [setting_text(trial.settings) + marks.get(trial.settings, "") for trial in tuning.trials]


def _line(name: str, cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(["", name, *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])


def setting_text(settings: Settings) -> str:
    """Return ``4 workers x 2``, and what else is set."""
    workers = "1 worker" if settings.num_workers == 1 else f"{settings.num_workers} workers"
    parts = [f"{workers} x {settings.prefetch_factor}" if settings.num_workers else workers]
    if settings.pin_memory:
        parts.append("pinned")
    if settings.threads is not None:
        parts.append("1 thread" if settings.threads == 1 else f"{settings.threads} threads")
    if settings.lookahead is not None:
        parts.append(f"lookahead {size_text(settings.lookahead)}, first epoch")
    return ", ".join(parts)


def _cells(trial: Trial) -> tuple[str, ...]:
    return (
        _number(trial.batches_s),
        _number(trial.samples_s),
        "-" if trial.spread is None else f"± {100 * trial.spread:.0f} %",
        f"{100 * trial.waited_share:.0f} %",
        format_bytes(trial.memory_bytes) if trial.memory_bytes else "-",
        f"{trial.cpus:.1f}",
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
