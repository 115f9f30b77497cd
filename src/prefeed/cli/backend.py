"""Node servers as the commands use them. Tests pass a fake as click's ``obj``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from prefeed.config import Config
from prefeed.types import ServerEnd, SilentServer, WarmResult

if TYPE_CHECKING:
    from prefeed.client.node import NodeClient

WarmProgress = Callable[[WarmResult], None]


class Backend:
    """Reaches and starts node servers. Its imports are deferred, because ``prefeed warm --help`` needs no server code."""

    def connect(
        self, config: Config, *, autostart: bool | None = None, answer_seconds: float | None = None
    ) -> NodeClient:
        """Return a connection; see ``NodeClient.connect``."""
        from prefeed.client.node import NodeClient

        return NodeClient.connect(config, autostart=autostart, answer_seconds=answer_seconds)

    def start(self, config: Config) -> int:
        """Start a server in the background, wait until it replies, and return its process id."""
        from prefeed.client.launch import start_server

        return start_server(config)

    def stop(self, config: Config) -> ServerEnd:
        """End the server of the home, even if it is busy or suspended; see ``end_server``."""
        from prefeed.client.ending import end_server

        return end_server(config)

    def silent_server(self, config: Config) -> SilentServer | None:
        """Return the server that owns the home and does not reply, or None."""
        from prefeed.client.ending import silent_server

        return silent_server(config)

    def run_foreground(self, config: Config) -> int:
        """Run the server in this process until it is stopped, and return the exit code."""
        from prefeed.server.main import run_foreground
        from prefeed.sources.store_access import forget_store_environment

        forget_store_environment()
        return run_foreground(config)


def backend_of(ctx: click.Context) -> Backend:
    """Return the backend of a test, or one that reaches real servers."""
    given: Backend | None = ctx.obj
    return Backend() if given is None else given
