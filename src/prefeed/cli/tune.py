"""``prefeed tune``: calls the user's function that makes the loader, and prints the report."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from prefeed.cli import render
from prefeed.cli.failure import EXIT_FAILED, VERBOSE_TRACEBACKS
from prefeed.cli.options import json_option
from prefeed.diagnose.report import table
from prefeed.diagnose.tune import DEFAULT_BUDGET_SECONDS, tune
from prefeed.errors import PrefeedError

_FOREIGN: Final = tuple(
    f"{Path(file).parent}{os.sep}" for file in (Path(__file__).parent, click.__file__, importlib.__file__)
)
"""Directories of files whose lines in a traceback say nothing about the user's code."""


@click.command(name="tune", context_settings={"allow_interspersed_args": False})
@click.option("--budget", type=click.FloatRange(min=1), default=DEFAULT_BUDGET_SECONDS, show_default=True,
              metavar="SECONDS", help="Limit the time of all trials together.")  # fmt: skip
@click.option(
    "--device", metavar="NAME", help="Copy batches to this device. Default: the accelerator, if there is one."
)
@json_option
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(*, budget: float, device: str | None, as_json: bool, target: str, arguments: tuple[str, ...]) -> None:
    """Find the fastest settings of a DataLoader, by trials.

    TARGET is train.py:make_loader, or module:make_loader with a module that can be imported from the working directory. The
    function returns a DataLoader, or a loader and a step: a function that trains with one batch. The words after TARGET are
    its arguments, as text; sys.argv has them, too.

    Tries numbers of workers, batches ahead, pinned memory and threads until the budget ends, and prints the line to paste,
    or "Leave it" if the gain is within the noise.
    """
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), _users_errors(target):
        loader, step = _loader_and_step(target, arguments)
        report = tune(loader, step, budget=budget, device=device, say=lambda text: render.say(f"tune: {text}"))
    render.show(as_json, msgspec.to_builtins(report), [*table(report), "", *report.text.splitlines()])


@contextlib.contextmanager
def _users_errors(target: str) -> Iterator[None]:
    """Print the user's part of the traceback of an error and exit with 1; with ``-vv`` raise it."""
    ctx = click.get_current_context()
    try:
        yield
    except (PrefeedError, click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as err:
        if ctx.meta.get("prefeed.verbose", 0) >= VERBOSE_TRACEBACKS:
            raise
        whole = traceback.TracebackException.from_exception(err)
        part: traceback.TracebackException | None = whole
        while part is not None:
            frames = [frame for frame in part.stack if not frame.filename.startswith((*_FOREIGN, "<frozen "))]
            part.stack = traceback.StackSummary.from_list(frames)
            part = part.__cause__ or part.__context__
        click.echo("".join(whole.format()), nl=False, err=True)
        message = f"nothing was tuned: {target}, its loader or its step raised {type(err).__name__}"
        click.echo(f"prefeed: {message}", err=True)
        ctx.exit(EXIT_FAILED)


def _loader_and_step(target: str, arguments: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return the loader and the step that the user's function makes."""
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise click.UsageError(f"{target!r} names no function: write module:make_loader, or train.py:make_loader")
    sys.argv = [place, *arguments]
    module = _import(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise click.UsageError(f"{target}: {module.__name__} has no function {name}")
    signature = inspect.signature(function)
    given = arguments if signature.parameters else ()  # a function without parameters reads sys.argv
    try:
        signature.bind(*given)
    except TypeError as err:
        raise click.UsageError(f"{target}{signature} was given {len(given)} arguments: {err}") from err
    made = function(*given)
    loader, step = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not hasattr(loader, "num_workers") or not (step is None or callable(step)):
        kinds = ", ".join(type(part).__name__ for part in (made if isinstance(made, tuple) else (made,)))
        raise click.UsageError(f"{target} returned {kinds}; return a DataLoader, or a loader and a step")
    return loader, step


def _import(place: str) -> Any:
    """Import a module or a file, under a name by which spawned workers can import it, too."""
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
