"""Sessions and stage caches, as a client asks for them. The server is never on the way of a read or a write."""

from __future__ import annotations

from typing import Final

from prefeed.client.connection import Connection
from prefeed.system.trust import require_kept
from prefeed.types import SessionInfo
from prefeed.wire import messages as m

_MOST_BYTES: Final = 2**63 - 1
"""More does not fit into a message, nor onto any machine."""


def open_cache(
    connection: Connection,
    session: int,
    cache: int,
    *,
    description: str,
    size_bytes: int = 0,
    spilling: bool = False,
    within_seconds: float | None = None,
) -> m.CacheOpened:
    """Return where a cache lies and what it may take; this connection uses it until it is closed.

    A cache that exists already keeps what it holds. When it was opened with another size, the larger limit of the two
    holds; 0 is the largest. It spills when one of those who opened it asked for that.

    Args:
        connection: To the node server; after its restart, open again with the new one.
        session: 0 is the default session, which is always there.
        cache: 32-bit id of what lies below the cache.
        description: The stage, for people.
        size_bytes: Most bytes that the memory store may take, all of its files together; 0 = what there is.
        spilling: Let what does not fit into memory go to disk.
        within_seconds: A server that says nothing for so long is taken for dead; defaults to the connection's.

    Raises:
        SessionNotFoundError: There is no such session; the message says how to make one.
        SpillingDisabledError: The node has no disk tier; the message says how to have one.
        ServerUnavailableError: The server is gone.
        UnsafeDirectoryError: Somebody else could have put something into the cache.
    """
    question = m.OpenCache(session, cache, description, min(size_bytes, _MOST_BYTES), spilling)
    opened = connection.request(question, m.CacheOpened, within_seconds=within_seconds)
    for directory in filter(None, (opened.memory_dir, opened.disk_dir)):
        require_kept(directory)
    return opened


def grow_cache(
    connection: Connection, session: int, cache: int, wanted_bytes: int, *, on_disk: bool = False
) -> m.CacheGrown:
    """Ask for a larger limit and return both limits, which are as before when there is no more to be had.

    Args:
        connection: To the node server.
        session: Of the cache.
        cache: Its id.
        wanted_bytes: The limit that is wanted, in all; more may be given, so that few ask again.
        on_disk: Ask for the disk store, not for the memory store.

    Raises:
        SessionNotFoundError: The cache was dropped.
        ServerUnavailableError: The server is gone.
    """
    return connection.request(m.GrowCache(session, cache, wanted_bytes, on_disk), m.CacheGrown)


def report_reads(
    connection: Connection,
    session: int,
    cache: int,
    hits: int,
    misses: int,
    *,
    audits: int = 0,
    audits_failed: int = 0,
    not_kept: int = 0,
) -> None:
    """Tell the server how reads and audits went since the last report, and what was not kept; nobody answers.

    Raises:
        ServerUnavailableError: The server is gone.
    """
    connection.send(m.CacheReads(session, cache, hits, misses, audits, audits_failed, not_kept))


def list_sessions(connection: Connection) -> tuple[SessionInfo, ...]:
    """Return all sessions of the node, by id, with their caches."""
    return connection.request(m.ListSessions(), m.SessionsReport).sessions
