"""Node servers as the commands use them. Tests pass a fake as click's ``obj``."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import click

from prefeed.config import Config
from prefeed.types import (
    ClearResult,
    ListingProgress,
    PlanInfo,
    ServerEnd,
    ServerStatus,
    SessionInfo,
    SilentServer,
    Statistics,
    WarmResult,
)

WarmProgress = Callable[[WarmResult], None]


class Client(Protocol):
    """A connection to the node server."""

    def status(self) -> ServerStatus: ...

    def statistics(self) -> Statistics: ...

    def plans(self) -> tuple[PlanInfo, ...]: ...

    def warm(
        self,
        url: str,
        *,
        listing_age: float = 0.0,
        progress: WarmProgress | None = None,
        listing: ListingProgress | None = None,
    ) -> WarmResult: ...

    def clear(self, url: str | None) -> ClearResult: ...

    def list_sessions(self) -> tuple[SessionInfo, ...]: ...

    def stop(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Backend(Protocol):
    """Reaches and starts node servers."""

    def connect(self, config: Config, *, autostart: bool | None = None, answer_seconds: float | None = None) -> Client:
        """Return a connection; see ``NodeClient.connect``."""
        ...

    def start(self, config: Config) -> int:
        """Start a server in the background, wait until it replies, and return its process id."""
        ...

    def stop(self, config: Config) -> ServerEnd:
        """End the server of the home, even if it is busy or suspended; see ``end_server``."""
        ...

    def silent_server(self, config: Config) -> SilentServer | None:
        """Find the server that owns the home and does not reply.

        Returns:
            None if no server owns the home.
        """
        ...

    def run_foreground(self, config: Config) -> int:
        """Run the server in this process until it is stopped, and return the exit code."""
        ...


class NodeBackend:
    """Backend of the ``prefeed`` command. Its imports are deferred, because ``prefeed warm --help`` needs no server code."""

    def connect(self, config: Config, *, autostart: bool | None = None, answer_seconds: float | None = None) -> Client:
        from prefeed.client.node import NodeClient

        return NodeClient.connect(config, autostart=autostart, answer_seconds=answer_seconds)

    def start(self, config: Config) -> int:
        from prefeed.client.launch import start_server

        return start_server(config)

    def stop(self, config: Config) -> ServerEnd:
        from prefeed.client.ending import end_server

        return end_server(config)

    def silent_server(self, config: Config) -> SilentServer | None:
        from prefeed.client.ending import silent_server

        return silent_server(config)

    def run_foreground(self, config: Config) -> int:
        from prefeed.server.main import run_foreground
        from prefeed.sources.store_access import forget_store_environment

        forget_store_environment()

        return run_foreground(config)


def backend_of(ctx: click.Context) -> Backend:
    """Return the backend of a test, or ``NodeBackend``."""
    given: Backend | None = ctx.obj
    return NodeBackend() if given is None else given
