"""What one process has to say to the server about one cache, and to ask it: never for long, and only if there is one."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.client.connection import Connection
from prefeed.config import Config
from prefeed.errors import PrefeedError, ServerError, SessionNotFoundError
from prefeed.system.trust import require_protected
from prefeed.wire.endpoint import place_of
from prefeed.wire.messages import CacheGrown, CacheOpened, CacheReads, GrowCache, OpenCache

_log = logging.getLogger("prefeed")

_FIRST_ANSWER_SECONDS: Final = 60.0
"""For a cache that is opened the first time: unused caches may have to be removed for it."""

_ANSWER_SECONDS: Final = 2.0
"""The training loop waits for these answers: a server that hangs, or was stopped, is not worth more."""

_MOST_BYTES: Final = 2**63 - 1
"""More does not fit into a message, nor onto any machine."""

_RETRY_SECONDS: Final = 5.0
_LONGEST_RETRY_SECONDS: Final = 60.0
_REPORT_SECONDS: Final = 1.0
_REPORT_READS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheName:
    """Which cache.

    Attributes:
        session: Its session; 0 is the default one.
        cache: 32 bits that stand for everything below it.
        description: For people.
        size_bytes: Most bytes in memory; 0: what the node can spare.
        spilling: Values that do not fit into memory go to disk.
    """

    session: int
    cache: int
    description: str
    size_bytes: int = 0
    spilling: bool = False


class CacheLink:
    """One process's connection to the server for one cache, and the reads that are to be reported on it.

    While it is connected the cache is in use, and its limits stay. A server that does not answer is left alone for a
    while, each time longer.

    **Threads and processes.** Any thread may count, and ask ``is_connected``; otherwise one at a time. A forked child calls
    ``start_anew``.
    **Blocking.** Two seconds at most, which may be twice: for the server's greeting and for its answer.

    Attributes:
        is_alone: There was no server when one was looked for the last time.
        is_dropped: The session was dropped; that is for good.
    """

    def __init__(self, config: Config, name: CacheName) -> None:
        self.is_dropped: bool = False
        self._config = config
        self._name = name
        self.start_anew()

    def start_anew(self) -> None:
        """This is another process: connected to nothing, and it has read nothing."""
        self.is_alone: bool = False
        self._connection: Connection | None = None
        self._retry_at = 0.0
        self._retry_seconds = _RETRY_SECONDS
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._report_at = 0.0

    @classmethod
    def open(cls, config: Config, name: CacheName) -> tuple[CacheLink, CacheOpened]:
        """Return a link that is connected, to a server that is started if need be, and what it said of the cache.

        Raises:
            SessionNotFoundError, SpillingDisabledError: As the server says.
            ServerUnavailableError: There is no server, and none can be started.
        """
        link = cls(config, name)
        connection = Connection.open(config)
        try:
            opened = _open(connection, name, within_seconds=_FIRST_ANSWER_SECONDS)
            connection.expect_answers_within(_ANSWER_SECONDS)
        except BaseException:
            connection.close()
            raise
        link._connection = connection
        return link, opened

    # ------------------------------------------------------------ room

    def is_connected(self) -> bool:
        """Return whether the server that this was connected to is there; costs a system call, and no wait."""
        connection = self._connection
        return connection is not None and connection.is_alive()

    def connect(self, *, again: bool = False) -> CacheOpened | None:
        """Open the cache, and return what the server said; None when nothing is new, or to be heard.

        Args:
            again: Even if it is connected: the cache is not where it was.
        """
        if self.is_dropped or time.monotonic() < self._retry_at or (self.is_connected() and not again):
            return None
        self.disconnect()
        try:
            self._connection = Connection.try_open(self._config, answer_seconds=_ANSWER_SECONDS)
            self.is_alone = self._connection is None
            if self._connection is None:
                return None  # that costs next to nothing: it may be looked for again at once
            opened = _open(self._connection, self._name)
        except SessionNotFoundError:
            self.is_dropped = True
            self.disconnect()
            _log.warning("prefeed: session %d was dropped: samples are recomputed from now on", self._name.session)
        except (PrefeedError, OSError):
            self.is_alone = False
            self._leave_alone()
        else:
            self._retry_seconds = _RETRY_SECONDS
            self._retry_at = time.monotonic() + _RETRY_SECONDS if again else 0.0
            return opened
        return None

    def grow(self, wanted_bytes: int, *, on_disk: bool) -> int:
        """Ask for a larger limit, and return what it is then; 0 when the server cannot be asked."""
        connection = self._connection
        if connection is None:
            return 0
        try:
            question = GrowCache(self._name.session, self._name.cache, wanted_bytes, on_disk)
            grown = connection.request(question, CacheGrown)
        except PrefeedError:
            self._leave_alone()
            return 0
        return grown.disk_limit_bytes if on_disk else grown.memory_limit_bytes

    def disconnect(self) -> None:
        """Let go of the connection: the cache is no longer in use here."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ------------------------------------------------------------ reads

    def count(self, **counts: int) -> None:
        """Note how reads went, or audits, or what was not kept: by the names that ``CacheReads`` has for them."""
        with self._counting:
            self._counts.update(counts)

    @property
    def has_unreported(self) -> bool:
        """Whether anything was counted that the server does not know."""
        return any(self._counts.values())

    def wants_to_report(self, *, now: bool) -> bool:
        """Return whether it is time to say something; ``now``: there is, when there is something to say."""
        return (
            time.monotonic() >= self._report_at
            or (now and self.has_unreported)
            or (self._counts["hits"] + self._counts["misses"] >= _REPORT_READS and self._connection is not None)
        )

    def report(self) -> None:
        """Tell the server what was counted since the last time; what cannot be told waits."""
        self._report_at = time.monotonic() + _REPORT_SECONDS
        connection = self._connection
        if connection is None or not self.has_unreported:
            return
        with self._counting:
            counted, self._counts = self._counts, Counter()
        try:
            connection.send(CacheReads(self._name.session, self._name.cache, **counted))
        except PrefeedError:
            with self._counting:
                self._counts.update(counted)
            self.disconnect()

    def _leave_alone(self) -> None:
        self.disconnect()
        self._retry_at = time.monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)


def _open(connection: Connection, name: CacheName, *, within_seconds: float | None = None) -> CacheOpened:
    """Return where a cache lies and what it may take; the connection uses it until it is closed.

    A cache that exists keeps what it holds. Of several sizes that were asked for the largest holds; 0 is the largest. It spills
    when one of those who opened it asked for that.

    Raises:
        SessionNotFoundError, SpillingDisabledError: As the server says.
        ServerUnavailableError: The server is gone.
        ServerError: This process finds another directory where the server keeps the cache, or none.
        UnsafeDirectoryError: Somebody else could have put something into the cache.
    """
    size_bytes = min(name.size_bytes, _MOST_BYTES)
    question = OpenCache(name.session, name.cache, name.description, size_bytes, name.spilling)
    opened = connection.request(question, CacheOpened, within_seconds=within_seconds)
    for directory in filter(None, (opened.memory_dir, opened.disk_dir)):
        require_protected(directory)
    if any(opened.place) and place_of(Path(opened.memory_dir)) != opened.place:
        raise ServerError(
            f"the node server keeps the cache in {opened.memory_dir}, and this process finds another directory there, or none: in a "
            "container share /dev/shm, or what PREFEED_MEMORY_DIR names, with the server's"
        )
    return opened
