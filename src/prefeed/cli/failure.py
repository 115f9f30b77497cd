"""What a failed command says and how it ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Final

import click

from prefeed.cli.text import printable
from prefeed.errors import PrefeedError, ServerUnavailableError

EXIT_FAILED: Final = 1
EXIT_NO_SERVER: Final = 3
EXIT_INTERRUPTED: Final = 130

VERBOSE_TRACEBACKS: Final = 2


@contextlib.contextmanager
def reported(ctx: click.Context) -> Iterator[None]:
    """Turn a PrefeedError into ``prefeed: <message>`` on stderr and an exit code; with ``-vv`` let it through.

    A command run with ``--json`` also prints one object with ``error`` on stdout.
    """
    try:
        yield
    except PrefeedError as err:
        if ctx.meta.get("prefeed.verbose", 0) >= VERBOSE_TRACEBACKS:
            raise
        if ctx.meta.get("prefeed.json"):
            click.echo(json.dumps(error_object(err), default=str))
        click.echo(printable(f"prefeed: {err}"), err=True)
        if isinstance(err, ServerUnavailableError) and (hint := ctx.meta.get("prefeed.no_server_hint")):
            click.echo(printable(f"prefeed: {hint}"), err=True)
        ctx.exit(ctx.meta.get("prefeed.exit_codes", {}).get(type(err), EXIT_FAILED))


def error_object(err: PrefeedError) -> dict[str, object]:
    """Return what ``--json`` prints for an error."""
    return {
        "error": {"code": err.code, "message": err.message, "retryable": err.retryable, "details": err.details},
    }
