"""``DatasetCache``: the cache and the session that a stage uses, with the arguments of MindSpore's class of that name."""

from __future__ import annotations

import copy
import logging
import operator
import os
import time
from dataclasses import dataclass
from typing import Any, Final

from prefeed.client.node import NodeClient
from prefeed.config import Config, config_for_port, settings_of
from prefeed.core.requests import Again
from prefeed.errors import (
    CacheInUseError,
    CacheNotInUseError,
    PrefeedError,
    SessionNotFoundError,
    SpillingDisabledError,
)
from prefeed.stage_cache.cache_store import CacheName, CacheStore

_log = logging.getLogger("prefeed")

_MAX_SESSION: Final = 2**32 - 1
_MAX_SIZE: Final = 2**64 - 1
_MAX_COUNT: Final = 2**31 - 1
_MIB: Final = 1024**2
_LOCAL_HOST: Final = "127.0.0.1"
_DEFAULT_PORT: Final = 50052


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What a cache holds, and how its reads went; a snapshot.

    Attributes:
        avg_cache_sz: Mean size of an entry in bytes; 0 without entries.
        num_mem_cached: Entries in memory.
        num_disk_cached: Entries on disk; one that was taken back into memory counts there too.
        hits: Samples that were found, in all processes together, since the cache was made in memory; also those that
            another process made while this one waited for them.
        misses: Samples that were made.
    """

    avg_cache_sz: int
    num_mem_cached: int
    num_disk_cached: int
    hits: int
    misses: int

    @property
    def hit_ratio(self) -> float | None:
        """Share of samples that were found; None before the first."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None


class DatasetCache:
    """A cache in a session of the node server, for one stage of one pipeline.

    Pipelines that are the same up to the cache, in the same session, share its entries, whichever process they run in
    and whatever comes after it.

    Args:
        session_id: From ``cache_admin -g``.
        size: Most that its entries may take in memory, in MB (2**20 bytes); 0: what the node can spare. More than the node server
            has is said, once, and what it has is taken.
        spilling: Values that do not fit into memory go to the node's disk tier.
        hostname: ``127.0.0.1``; anything else is refused: a cache is on the host that it serves.
        port: Names the server, as in ``cache_admin -p``; default: the environment's MS_CACHE_PORT, or 50052.
        num_connections: Checked and of no effect: entries are mapped into the reading process, so there is nothing to connect.
        prefetch_size: Checked and of no effect: there is nothing to prefetch.
        config: Settings; defaults to those in force in the process.

    Raises:
        TypeError, ValueError: An argument cannot be used; the message says which and why.

    **Threads and processes.** May be used after a fork and pickled to a spawned worker. One thread at a time.
    """

    def __init__(
        self,
        session_id: int,
        size: int = 0,
        spilling: bool = False,
        hostname: str | None = None,
        port: int | None = None,
        num_connections: int | None = None,
        prefetch_size: int | None = None,
        *,
        config: Config | None = None,
    ) -> None:  # fmt: skip
        self.session_id: int = _whole_number("session_id", session_id, 1, _MAX_SESSION)
        self.size: int = _whole_number("size", size, 0, _MAX_SIZE)
        if not isinstance(spilling, bool):
            raise TypeError(f"spilling must be True or False, not {spilling!r}")
        self.spilling = spilling
        self.hostname: str = _host(hostname)
        self.port: int = _port(port)
        self.num_connections: int = _count("num_connections", num_connections, 12)
        self.prefetch_size: int = _count("prefetch_size", prefetch_size, 20)
        self._config = config_for_port(settings_of(config), self.port)
        self._store: CacheStore | None = None
        self._cache: int | None = None
        self._again = Again()
        self._said = ""

    def __repr__(self) -> str:
        room = "" if not self.size else f", {self.size:,} MiB at most"
        disk = ", spilling to disk" if self.spilling else ""
        where = "the default session" if not self.session_id else f"session {self.session_id}"
        return f"<{type(self).__name__} of {where}{room}{disk}>"

    @classmethod
    def default(cls, config: Config | None = None) -> DatasetCache:
        """Return a cache of the default session, which needs not be made and goes when its room is wanted."""
        cache = cls.__new__(cls)
        cache.session_id, cache.size, cache.spilling = 0, 0, settings_of(config).disk.size_bytes != 0
        cache.hostname, cache.port, cache.num_connections, cache.prefetch_size = _LOCAL_HOST, _DEFAULT_PORT, 12, 20
        cache._config = settings_of(config)
        cache._store, cache._cache = None, None
        cache._again, cache._said = Again(), ""
        return cache

    @property
    def revalidates(self) -> bool:
        """Whether files are asked each time whether they have changed; else once a process."""
        return self._config.revalidate

    def get_stat(self) -> CacheStatistics:
        """Return what the cache holds: nothing where it was dropped, or could not be opened.

        Raises:
            CacheNotInUseError: No pipeline uses it yet.
        """
        store = self._store
        if self._cache is None:
            raise CacheNotInUseError("this cache is not in use yet: pass it to prefeed.cached first")
        if store is None:
            return CacheStatistics(avg_cache_sz=0, num_mem_cached=0, num_disk_cached=0, hits=0, misses=0)
        store.report(now=True)
        in_memory, on_disk, mean_bytes = store.statistics()
        hits, misses = self._reads(store)
        return CacheStatistics(
            avg_cache_sz=mean_bytes, num_mem_cached=in_memory, num_disk_cached=on_disk, hits=hits, misses=misses
        )

    def use_for(self, cache: int, description: str) -> CacheStore | None:
        """Open it for a stage; None, with a line in the log, when the node cannot have it: samples are then made again.

        Args:
            cache: 32 bits that stand for the stage and all below it.
            description: For people.

        Raises:
            CacheInUseError: It is used for another stage already.
            SessionNotFoundError: There is no such session.
            SpillingDisabledError: The server has no disk tier.
        """
        if self._cache is not None and self._cache != cache:
            raise CacheInUseError(
                f"this cache of session {self.session_id} is used for another pipeline already: make another "
                f"DatasetCache({self.session_id}) for {description}"
            )
        if self._store is None and self._config.enabled:
            name = CacheName(
                session=self.session_id, cache=cache, description=description,
                size_bytes=self.size * _MIB, spilling=self.spilling,
            )  # fmt: skip
            self._store = self._open(name)
        self._cache = cache
        return self._store

    @property
    def may_be_tried_again(self) -> bool:
        """Whether ``use_for`` could not open it, and may be able to by now."""
        return (
            self._cache is not None
            and self._store is None
            and self._config.enabled
            and self._again.is_due(time.monotonic())
        )

    def again(self) -> DatasetCache:
        """Return another one with the same arguments, for another stage."""
        other = copy.copy(self)
        other._store = other._cache = None
        other._again, other._said = Again(), ""
        return other

    def close(self) -> None:
        """Let go of what this process has open; entries stay."""
        if self._store is not None:
            self._store.close()

    def __deepcopy__(self, memo: Any) -> DatasetCache:
        """A copy is the same cache."""
        return self

    def _open(self, name: CacheName) -> CacheStore | None:
        began = time.monotonic()
        try:
            store = CacheStore.open(self._config, name)
        except (SessionNotFoundError, SpillingDisabledError):
            raise
        except (PrefeedError, OSError) as err:
            self._again.failed(began=began, now=time.monotonic())
            if str(err) != self._said:
                self._said = str(err)
                _log.warning("prefeed: samples are not cached: %s (later epochs try again)", str(err))
            return None
        if self._said:
            self._said = ""
            _log.warning("prefeed: samples are cached from now on")
        return store

    def _reads(self, store: CacheStore) -> tuple[int, int]:
        """Return hits and misses of all processes: as the server knows them, or else as they counted themselves."""
        try:
            with NodeClient.connect(self._config, autostart=False) as node:
                caches = [(one.session, cache) for one in node.list_sessions() for cache in one.caches]
        except (PrefeedError, OSError):
            return store.counted_reads()
        found = (cache for session, cache in caches if (session, cache.cache) == (self.session_id, self._cache))
        return next(((cache.hits, cache.misses) for cache in found), (0, 0))


def _whole_number(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"argument {name} with value {value!r} is not of type int")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"argument {name} with value {number} is not within the required interval [{least}, {most}]")
    return number


def _count(name: str, value: Any, default: int) -> int:
    return default if value is None else _whole_number(name, value, 1, _MAX_COUNT)


def _host(value: Any) -> str:
    if value is None:
        value = os.environ.get("MS_CACHE_HOST", _LOCAL_HOST)
    if not isinstance(value, str):
        raise TypeError(f"argument hostname with value {value!r} is not of type str")
    if value != _LOCAL_HOST:
        raise ValueError(f"hostname {value!r}: a cache serves only its own host, use {_LOCAL_HOST}")
    return value


def _port(value: Any) -> int:
    if value is None:
        given = os.environ.get("MS_CACHE_PORT", str(_DEFAULT_PORT))
        value = int(given) if given.isdigit() else 0
    return _whole_number("port", value, 1025, 65535)
