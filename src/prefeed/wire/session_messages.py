"""Messages about sessions and the stage caches in them; part of ``messages``."""

from __future__ import annotations

from prefeed.types import SessionInfo
from prefeed.wire.root import Message


class OpenCache(Message, frozen=True):
    """Use a stage cache of a session from now on; it is made if there is none. Answered by ``CacheOpened``.

    ``size_bytes`` is the most that its memory store may take; 0 = as much as the server can give.
    """

    session: int
    cache: int
    description: str
    size_bytes: int
    spilling: bool


class CacheOpened(Message, frozen=True):
    """Where the two stores of the cache lie, and the most that each may take now.

    ``disk_dir`` is empty without spilling; ``disk_free_bytes`` is what its file system must keep free. ``instance``
    changes when the cache was dropped and made anew. ``memory_most_bytes`` is what its memory store could be given at most.
    """

    memory_dir: str
    memory_limit_bytes: int
    disk_dir: str
    disk_limit_bytes: int
    instance: str
    disk_free_bytes: int = 0
    memory_most_bytes: int = 0


class GrowCache(Message, frozen=True):
    """Ask that a store of the cache may take so many bytes in all. Answered by ``CacheGrown``."""

    session: int
    cache: int
    wanted_bytes: int
    on_disk: bool = False


class CacheGrown(Message, frozen=True):
    """The most that each store of the cache may take now: as before when there is no more."""

    memory_limit_bytes: int
    disk_limit_bytes: int


class CacheReads(Message, frozen=True):
    """How reads of a cache went since the last report, audits (samples made anew and compared), and samples not kept."""

    session: int
    cache: int
    hits: int
    misses: int
    audits: int = 0
    audits_failed: int = 0
    not_kept: int = 0


class NewSession(Message, frozen=True):
    """Ask for a session; answered by ``SessionCreated``."""


class SessionCreated(Message, frozen=True):
    """Answer to ``NewSession``."""

    session: int


class ListSessions(Message, frozen=True):
    """Ask for ``SessionsReport``."""


class SessionsReport(Message, frozen=True):
    """Answer to ``ListSessions``."""

    sessions: tuple[SessionInfo, ...]


class DropSessions(Message, frozen=True):
    """Remove these sessions with all that is in them; none, if one of them does not exist."""

    sessions: tuple[int, ...]


class SessionsDropped(Message, frozen=True):
    """Answer to ``DropSessions``."""
