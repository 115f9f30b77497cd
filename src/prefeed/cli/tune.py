"""``prefeed tune``: calls the user's function that creates the loader, tunes the loader and prints the report."""

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
"""Directories whose files are left out of tracebacks, because they are not the user's code."""


@click.command(name="tune", context_settings={"allow_interspersed_args": False})
@click.option("--budget", type=click.FloatRange(min=1), default=DEFAULT_BUDGET_SECONDS, show_default=True,
              metavar="SECONDS", help="Maximum time of all trials together.")  # fmt: skip
@click.option("--device", metavar="NAME", help="Device to copy batches to. Default: the accelerator, if available.")
@json_option
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(*, budget: float, device: str | None, as_json: bool, target: str, arguments: tuple[str, ...]) -> None:
    """Find the fastest settings of a DataLoader by measurement.

    TARGET is train.py:make_loader, or module:make_loader with a module that can be imported from the working directory. The
    function returns a DataLoader, or a loader and a step: a function that trains with one batch. The words after TARGET are
    passed to the function as strings, and are in sys.argv as well.

    Tries numbers of workers, prefetched batches, pinned memory and threads until the budget is used up. Prints the settings
    to paste, or "Leave it" if the gain is within the noise.
    """
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), _users_errors(target):
        loader, step = _loader_and_step(target, arguments)
        report = tune(loader, step, budget=budget, device=device, say=lambda text: render.say(f"tune: {text}"))
    render.show(as_json, msgspec.to_builtins(report), [*table(report), "", *report.text.splitlines()])


@contextlib.contextmanager
def _users_errors(target: str) -> Iterator[None]:
    """Print the user's part of the traceback of an error and exit with 1. With ``-vv``, raise the error."""
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
        message = f"cannot tune: {target}, its loader or its step raised {type(err).__name__}"
        click.echo(f"prefeed: {message}", err=True)
        ctx.exit(EXIT_FAILED)


def _loader_and_step(target: str, arguments: tuple[str, ...]) -> tuple[Any, Callable[[Any], Any] | None]:
    """Call the user's function and return its loader and its step."""
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise click.UsageError(f"{target!r} is not a function: write module:make_loader, or train.py:make_loader")
    sys.argv = [place, *arguments]
    module = _import(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise click.UsageError(f"{target}: {module.__name__} has no function {name}")
    signature = inspect.signature(function)
    given = arguments if signature.parameters else ()  # A function without parameters reads sys.argv.
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
    """Import a module or a file, under a name that spawned workers can import as well."""
    path = Path(place)
    is_file = place.endswith(".py")
    if is_file and not path.is_file():
        raise click.UsageError(f"no such file: {place}")
    sys.path.insert(0, str(path.parent.absolute()) if is_file else os.getcwd())
    module = path.stem if is_file else place
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name is None or not f"{module}.".startswith(f"{err.name}."):
            raise  # The module exists, but one of its imports does not.
        raise click.UsageError(f"cannot find module {module!r} in {os.getcwd()} or sys.path") from err
