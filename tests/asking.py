"""What a client asks about sessions and stage caches, over a connection of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from prefeed.client.connection import Connection
from prefeed.client.node import NodeClient
from prefeed.errors import ServerError
from prefeed.types import SessionInfo
from prefeed.wire import messages as m

Server = TypeVar("Server")
Client = TypeVar("Client")


def first_client(start: Callable[[], Server], connect: Callable[[Server], Client]) -> tuple[Server, Client]:
    """Start servers that end soon when they are idle, until a client has come to one in time."""
    while True:
        server = start()
        try:
            return server, connect(server)
        except ServerError:
            continue


def new_session(connection: Connection) -> int:
    return NodeClient(connection).new_session()


def list_sessions(connection: Connection) -> tuple[SessionInfo, ...]:
    return NodeClient(connection).list_sessions()


def drop_sessions(connection: Connection, sessions: Sequence[int]) -> None:
    NodeClient(connection).drop_sessions(sessions)


def open_cache(
    connection: Connection, session: int, cache: int, *, description: str, size_bytes: int = 0, spilling: bool = False
) -> m.CacheOpened:
    return connection.request(m.OpenCache(session, cache, description, size_bytes, spilling), m.CacheOpened)


def grow_cache(
    connection: Connection, session: int, cache: int, wanted_bytes: int, *, on_disk: bool = False
) -> m.CacheGrown:
    return connection.request(m.GrowCache(session, cache, wanted_bytes, on_disk), m.CacheGrown)
