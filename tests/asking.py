"""What a client asks about sessions and stage caches, over a connection of the test's own."""

from __future__ import annotations

from collections.abc import Sequence

from prefeed.client.connection import Connection
from prefeed.client.node import NodeClient
from prefeed.types import SessionInfo
from prefeed.wire import messages as m


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
