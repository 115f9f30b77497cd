"""Messages and exit codes of failed commands."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from prefeed.cli.text import mask_secrets, printable
from prefeed.errors import PrefeedError, ServerUnavailableError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_SERVER: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "success",
    EXIT_FAILED: "the command failed, entirely or in part",
    EXIT_USAGE: "wrong usage; the command did nothing",
    EXIT_NO_SERVER: "no node server runs, and the command does not start one (`stats`, `server status`)",
    EXIT_INTERRUPTED: "interrupted, for example with Ctrl-C",
    EXIT_TERMINATED: "terminated by SIGTERM, or by `prefeed job stop`",
}
"""Meanings of the exit codes of all commands but `run` and `cache_admin`. Also listed in ``docs/reference/commands.md``."""

VERBOSE_TRACEBACKS: Final = 2


@contextlib.contextmanager
def report_errors(ctx: click.Context, words: Sequence[str] = ()) -> Iterator[None]:
    """Report an error as ``prefeed: <message>`` on stderr and an exit code. With ``-vv``, raise errors of prefeed.

    A command run with ``--json`` also prints one object with ``error`` on stdout. Credentials in URLs are mask_secrets.

    Args:
        ctx: Context of the ``prefeed`` command.
        words: Command line, for errors that are raised before the options are parsed.
    """
    try:
        yield
    except PrefeedError as err:
        if ctx.meta.get("prefeed.verbose", 0) >= VERBOSE_TRACEBACKS:
            raise
        if ctx.meta.get("prefeed.json"):
            click.echo(mask_secrets(json.dumps(error_object(err), default=str)))
        click.echo(printable(mask_secrets(f"prefeed: {err}")), err=True)
        if isinstance(err, ServerUnavailableError) and (hint := ctx.meta.get("prefeed.no_server_hint")):
            click.echo(printable(f"prefeed: {hint}"), err=True)
        ctx.exit(ctx.meta.get("prefeed.exit_codes", {}).get(type(err), EXIT_FAILED))
    except click.ClickException as err:
        message = mask_secrets(_in_our_form(err.format_message()))
        if ctx.meta.get("prefeed.json") or _wants_json(err, words):
            click.echo(json.dumps(_object("wrong-usage", message)))
        click.echo(printable(f"prefeed: {message}"), err=True)
        if isinstance(err, click.UsageError) and err.ctx is not None:
            click.echo(f"{err.ctx.get_usage()}\nTry '{err.ctx.command_path} --help' for help.", err=True)
        ctx.exit(err.exit_code)
    except click.Abort:
        click.echo("prefeed: aborted; nothing was changed", err=True)
        ctx.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        click.echo("prefeed: interrupted", err=True)
        ctx.exit(EXIT_INTERRUPTED)


def error_object(err: PrefeedError) -> dict[str, object]:
    """Return the object that ``--json`` prints for an error."""
    return _object(err.code, err.message, retryable=err.retryable, details=err.details)


def _object(
    code: str, message: str, *, retryable: bool = False, details: Mapping[str, object] | None = None
) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "retryable": retryable, "details": dict(details or {})}}


def _wants_json(err: click.ClickException, words: Sequence[str]) -> bool:
    """Return True if the command line has ``--json`` and its command prints JSON, although parsing has failed."""
    found = getattr(err, "ctx", None)
    if "--json" not in words or found is None:
        return False
    command = found.command
    return isinstance(command, click.Group) or any(param.name == "as_json" for param in command.params)


_OF_CLICK: Final = ("No such ", "Missing ", "Invalid ", "Got ", "Could not ")


def _in_our_form(message: str) -> str:
    """Change a message of click to the form of ours: lower case at the start, no full stop at the end."""
    if not message.startswith(_OF_CLICK):
        return message
    return message[0].lower() + message[1:].removesuffix(".")
