"""``prefeed logs``: the log of the node server."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import click

from prefeed.cli import render
from prefeed.cli.options import json_option, node_config_of, node_option
from prefeed.config import Config
from prefeed.errors import ServerError
from prefeed.system.trust import open_own

_NAME: Final = "server.log"
_LINES: Final = 200
_MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of bytes that are read from the end of a log."""


@click.command(name="logs")
@node_option
@json_option
def command(home: str | None, as_json: bool) -> None:
    """Show the log of the node server.

    Prints the last 200 lines; --json adds the path. The log is kept after the server has ended. A server that was started
    with --foreground logs to stderr instead.
    """
    path, text = newest_log(node_config_of(home))
    shown = text.splitlines()[-_LINES:]
    render.show(as_json, {"path": str(path), "lines": shown}, shown)


def newest_log(config: Config) -> tuple[Path, str]:
    """Return the path and the end of the newest log of the home's servers.

    Raises:
        ServerError: The home has no log.
    """
    found: list[tuple[float, Path, bytes]] = []
    for directory in dict.fromkeys((*config.runtime_dirs, *config.common_runtime_dirs)):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            within = open_own(directory)
            held.callback(os.close, within)
            log = held.enter_context(
                open(os.open(_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=within), "rb")
            )
            about = os.fstat(log.fileno())
            log.seek(max(0, about.st_size - _MAX_BYTES))
            found.append((about.st_mtime, directory / _NAME, log.read()))
    if not found:
        raise ServerError(
            f"{config.home} has no log, because no server was started in the background; start one with `prefeed server start`"
        )
    _, path, data = max(found)
    return path, data.decode(errors="replace")
