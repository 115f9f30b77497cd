"""What a failed command says and how it ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from prefeed.cli.text import masked, printable
from prefeed.errors import PrefeedError, ServerUnavailableError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_SERVER: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "success",
    EXIT_FAILED: "the command failed, or a part of its work did",
    EXIT_USAGE: "wrong usage: nothing was done",
    EXIT_NO_SERVER: "no node server runs, and the command starts none (`stats`, `server status`)",
    EXIT_INTERRUPTED: "interrupted, as with Ctrl-C",
    EXIT_TERMINATED: "terminated by SIGTERM, or by `prefeed job stop`",
}
"""Exit codes of all commands but `run` and `cache_admin`; ``docs/reference/commands.md`` shows them."""

VERBOSE_TRACEBACKS: Final = 2


@contextlib.contextmanager
def reported(ctx: click.Context, words: Sequence[str] = ()) -> Iterator[None]:
    """Turn an error into ``prefeed: <message>`` on stderr and an exit code; with ``-vv`` let one of prefeed through.

    A command run with ``--json`` also prints one object with ``error`` on stdout. Credentials in URLs are masked.

    Args:
        ctx: Of the ``prefeed`` command.
        words: The command line, for errors that come before options are understood.
    """
    try:
        yield
    except PrefeedError as err:
        if ctx.meta.get("prefeed.verbose", 0) >= VERBOSE_TRACEBACKS:
            raise
        if ctx.meta.get("prefeed.json"):
            click.echo(masked(json.dumps(error_object(err), default=str)))
        click.echo(printable(masked(f"prefeed: {err}")), err=True)
        if isinstance(err, ServerUnavailableError) and (hint := ctx.meta.get("prefeed.no_server_hint")):
            click.echo(printable(f"prefeed: {hint}"), err=True)
        ctx.exit(ctx.meta.get("prefeed.exit_codes", {}).get(type(err), EXIT_FAILED))
    except click.ClickException as err:
        message = masked(_begun_small(err.format_message()))
        if ctx.meta.get("prefeed.json") or _wants_json(err, words):
            click.echo(json.dumps(_object("wrong-usage", message)))
        click.echo(printable(f"prefeed: {message}"), err=True)
        if isinstance(err, click.UsageError) and err.ctx is not None:
            click.echo(f"{err.ctx.get_usage()}\nTry '{err.ctx.command_path} --help' for help.", err=True)
        ctx.exit(err.exit_code)
    except click.Abort:
        click.echo("prefeed: nothing was done", err=True)
        ctx.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        click.echo("prefeed: interrupted", err=True)
        ctx.exit(EXIT_INTERRUPTED)


def error_object(err: PrefeedError) -> dict[str, object]:
    """Return what ``--json`` prints for an error."""
    return _object(err.code, err.message, retryable=err.retryable, details=err.details)


def _object(
    code: str, message: str, *, retryable: bool = False, details: Mapping[str, object] | None = None
) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "retryable": retryable, "details": dict(details or {})}}


def _wants_json(err: click.ClickException, words: Sequence[str]) -> bool:
    """Return whether ``--json`` was given to a command that prints JSON, although its options were not understood."""
    found = getattr(err, "ctx", None)
    if "--json" not in words or found is None:
        return False
    command = found.command
    return isinstance(command, click.Group) or any(param.name == "as_json" for param in command.params)


_OF_CLICK: Final = ("No such ", "Missing ", "Invalid ", "Got ", "Could not ")


def _begun_small(message: str) -> str:
    """Return a message of click as ours are: with a small letter at its begin, and without a full stop at its end."""
    if not message.startswith(_OF_CLICK):
        return message
    return message[0].lower() + message[1:].removesuffix(".")
