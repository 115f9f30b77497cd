"""One cache as one process sees it: memory, the disk behind it, claims, and a word to the server now and then."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from prefeed.client.connection import Connection
from prefeed.client.sessions import grow_cache, open_cache, report_reads
from prefeed.config import Config
from prefeed.errors import PrefeedError, SessionNotFoundError
from prefeed.stage.claims import Claims
from prefeed.store.shared import SharedTier
from prefeed.wire.messages import CacheOpened

_log = logging.getLogger("prefeed")

_RECONNECT_SECONDS: Final = 5.0
_REPORT_EVERY: Final = 64
_SKIPPED_WHEN_FULL: Final = 64
"""So many values are not offered to a cache that had no room: room comes seldom, and encoding costs."""

_NEARLY_FULL: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheName:
    """Which cache.

    Attributes:
        session: Its session; 0 is the default one.
        cache: 32 bits that stand for everything below it.
        description: For people.
        size_bytes: Most bytes in memory; 0: what the node can spare.
        spilling: What has no room in memory goes to disk.
    """

    session: int
    cache: int
    description: str
    size_bytes: int = 0
    spilling: bool = False


class Views(Protocol):
    """A snapshot of the cache."""

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return a view of each value, None for those not held; valid inside the snapshot only."""
        ...


class CacheStore:
    """Reads and writes the entries of one cache.

    Nothing that happens to the cache is an error here: a dropped session, a stopped server, a full tier hold nothing.

    **Threads and processes.** Any thread; forked and pickled copies open everything anew, at first use.
    **Blocking.** Never waits for another process, but for LMDB's write lock while one commits, and for a server that
    is asked for more room.
    """

    def __init__(self, config: Config, name: CacheName, opened: CacheOpened) -> None:
        """Use ``open``."""
        self.name = name
        self._config = config
        self._hits = self._misses = 0
        self._open_here = _OpenHere()
        weakref.finalize(self, self._open_here.close).atexit = False
        self._start(opened)

    @classmethod
    def open(cls, config: Config, name: CacheName) -> CacheStore:
        """Return the cache, made on the node if there was none.

        Raises:
            SessionNotFoundError, SpillingDisabledError: As the server says.
            ServerUnavailableError: There is no server, and none can be started.
        """
        connection = Connection.open(config)
        try:
            opened = _open(connection, name)
        except BaseException:
            connection.close()
            raise
        store = cls(config, name, opened)
        store._open_here.connection = connection
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return (CacheStore, (self._config, self.name, self._opened))

    @contextmanager
    def reading(self) -> Iterator[Views]:
        """Inside it, ``get_views`` gives views that stay valid."""
        self._look_after()
        with ExitStack() as stack:
            batches: list[Views] = [stack.enter_context(tier.batch()) for tier in self._tiers]
            reading = _Reading(batches, keep=self._room_for_more)
            yield reading
        self._promote(reading.found_on_disk)

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of a value, None if it is not held."""
        with self.reading() as views:
            view = views.get_views((key,))[0]
            return None if view is None else bytes(view)

    @property
    def takes_more(self) -> bool:
        """False for a while after there was no room."""
        if self._skip > 0:
            self._skip -= 1
            return False
        return True

    def has_room(self) -> bool:
        """Return True while most of what is offered will be kept."""
        return any(tier.statistics().stored_bytes < _NEARLY_FULL * tier.limit_bytes for tier in self._tiers)

    def put(self, key: bytes, value: memoryview) -> bool:
        """Store a value where there is room, in memory or behind it; False when there is none."""
        for tier in self._tiers:
            item = [(key, value)]
            if tier.put_many(item) or (self._try_grow(tier, len(value)) and tier.put_many(item)):
                return True
        self._skip = _SKIPPED_WHEN_FULL
        return False

    def count(self, hits: int, misses: int) -> None:
        """Note how reads went; the server is told now and then."""
        with self._here():
            self._hits += hits
            self._misses += misses
        if self._hits + self._misses >= _REPORT_EVERY:
            self.report()

    def report(self) -> None:
        """Tell the server how reads went since the last report; without a server, that waits."""
        with self._here():
            if not self._hits and not self._misses:
                return
            connection = self._connect()
            if connection is None:
                return
            try:
                report_reads(connection, self.name.session, self.name.cache, hits=self._hits, misses=self._misses)
                self._hits = self._misses = 0
            except PrefeedError:
                self._disconnect()

    def statistics(self) -> tuple[int, int, int]:
        """Return entries in memory, entries on disk, and the mean size of one in bytes."""
        found = [tier.statistics() for tier in self._tiers]
        entries = sum(one.entries for one in found)
        mean = sum(one.value_bytes for one in found) // entries if entries else 0
        return found[0].entries, sum(one.entries for one in found[1:]), max(mean, 1) if entries else 0

    def close(self) -> None:
        """Report what is left and let go; a later use opens everything again."""
        if self._pid == os.getpid():
            self.report()
        self._open_here.close()

    # ------------------------------------------------------------ inside

    def _start(self, opened: CacheOpened) -> None:
        self._opened = opened
        self._open_here.close()
        tiers = [SharedTier(opened.memory_dir, limit_bytes=opened.memory_limit_bytes)]
        if opened.disk_dir:
            floor = opened.disk_free_bytes
            tiers.append(
                SharedTier(opened.disk_dir, limit_bytes=opened.disk_limit_bytes, on_disk=True, min_free_bytes=floor)
            )
        self.claims = Claims(opened.memory_dir)
        self._tiers = tiers
        self._open_here.parts = [*tiers, self.claims]
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._retry_at = 0.0
        self._hits = self._misses = 0  # what a forked child's parent counted is its parent's
        self._skip = 0
        self._room_for_more = True
        self._is_dropped = False

    def _look_after(self) -> None:
        """Let go of what was dropped."""
        with self._here():
            if not self._tiers[0].is_current():
                for tier in self._tiers:
                    tier.close()
                self.claims.close()
                self._connect(again=True)

    def _here(self) -> threading.RLock:
        """Return the lock of this process; a forked child leaves alone what is its parent's."""
        if self._pid != os.getpid():
            self._start(self._opened)
        return self._lock

    def _promote(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Take into memory what was found on disk, as far as there is room."""
        if items and self._tiers[0].put_many(items) < len(items):
            self._room_for_more = False

    def _try_grow(self, tier: SharedTier, more_bytes: int) -> bool:
        """Ask the server for more room; True when there is more."""
        with self._here():
            connection = self._connect()
            if connection is None or tier not in self._tiers:
                return False
            on_disk = tier is not self._tiers[0]
            try:
                wanted = tier.limit_bytes + more_bytes
                grown = grow_cache(connection, self.name.session, self.name.cache, wanted, on_disk=on_disk)
            except PrefeedError:
                self._disconnect()
                return False
            limit = grown.disk_limit_bytes if on_disk else grown.memory_limit_bytes
            if limit <= tier.limit_bytes:
                return False
            tier.grow(limit)
            self._room_for_more = True
            return True

    def _connect(self, *, again: bool = False) -> Connection | None:
        """Return the connection of this process; one that is made anew opens the cache anew: it may lie elsewhere.

        Args:
            again: The cache is not where it was.
        """
        found = self._open_here.connection
        if self._is_dropped or (found is not None and not again) or time.monotonic() < self._retry_at:
            return found
        self._disconnect()
        try:
            connection = Connection.open(self._config, autostart=False)
        except (PrefeedError, OSError):
            return None
        try:
            opened = _open(connection, self.name)
        except PrefeedError as err:
            connection.close()
            if isinstance(err, SessionNotFoundError):
                self._is_dropped = True
                _log.warning("prefeed: session %d was dropped: samples are made anew from now on", self.name.session)
            return None
        if opened != self._opened:
            hits, misses = self._hits, self._misses
            self._start(opened)
            self._hits, self._misses = hits, misses
        self._open_here.connection = connection
        return connection

    def _disconnect(self) -> None:
        connection, self._open_here.connection = self._open_here.connection, None
        if connection is not None:
            connection.close()
        self._retry_at = time.monotonic() + _RECONNECT_SECONDS


class _OpenHere:
    """What a process has open of a cache; closed with the cache, or when nobody has it any more."""

    def __init__(self) -> None:
        self.parts: list[SharedTier | Claims] = []
        self.connection: Connection | None = None

    def close(self) -> None:
        """Let go of all of it."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        for part in self.parts:
            part.close()


class _Reading:
    """Memory first, then disk; what is found there is kept, if wanted, for memory to take in."""

    def __init__(self, batches: list[Views], *, keep: bool) -> None:
        self.found_on_disk: list[tuple[bytes, bytes]] = []
        self._batches = batches
        self._keep = keep

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        views = self._batches[0].get_views(keys)
        for batch in self._batches[1:]:
            absent = [at for at, view in enumerate(views) if view is None]
            found = batch.get_views([keys[at] for at in absent]) if absent else []
            for at, view in zip(absent, found, strict=True):
                views[at] = view
                if view is not None and self._keep:
                    self.found_on_disk.append((keys[at], bytes(view)))
        return views


def _open(connection: Connection, name: CacheName) -> CacheOpened:
    return open_cache(
        connection, name.session, name.cache, description=name.description, size_bytes=name.size_bytes,
        spilling=name.spilling,
    )  # fmt: skip
