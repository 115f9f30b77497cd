"""One cache as one process sees it: memory, the disk behind it, claims, and a word to the server now and then."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any, Final, Protocol

from prefeed.config import MIB, Config
from prefeed.places import say_once
from prefeed.stage_cache.cache_link import CacheLink, CacheName
from prefeed.stage_cache.claims import Claims
from prefeed.store.capacity import memory_floor
from prefeed.store.read_counts import ReadCounts, counted_reads
from prefeed.store.segment import PAGE_BYTES
from prefeed.store.shared import SharedTier, SharedTierStatistics
from prefeed.system.memory import fits_in_memory
from prefeed.system.units import in_gib
from prefeed.types import Buffer
from prefeed.wire.messages import CacheOpened

__all__ = ["CacheName", "CacheStore", "Views"]

_log = logging.getLogger("prefeed")

_SKIPPED_WHEN_FULL: Final = 64
"""This number of values is not offered to a cache that had no room: room comes seldom, and encoding costs."""

_DISCARDED: Final = b"discarded"

_MARGIN_SHARE: Final = 50
"""A tier is full when no more than a fiftieth is left: its index has to grow."""


class Views(Protocol):
    """A snapshot of the cache."""

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return a view of each value, None for those not held; valid inside the snapshot only."""
        ...


class CacheStore:
    """Reads and writes the entries of one cache.

    Nothing that happens to the cache is an error here: a dropped session, a stopped server, a full tier hold nothing.

    What the cache may take is what the server said to this process, on the connection that it still has. One that has
    none writes nothing before it has asked; when there is no server to ask, what was said last still holds: no other process can
    be given the room then.

    **Threads and processes.** Any thread; forked and pickled copies open everything again, at first use.
    **Blocking.** Never waits for another process, but a second for one that writes, or was stopped while it wrote or
    opened the store, and seconds for a server that does not answer when it is asked for room.
    """

    def __init__(self, config: Config, name: CacheName, opened: CacheOpened, link: CacheLink | None = None) -> None:
        """Use ``open``."""
        self.name = name
        self._config = config
        self._here = _Here(_OpenCache.of(opened), link or CacheLink(config, name))
        self._outdated: set[bytes] = set()
        self._start()
        weakref.finalize(self, self._here.close).atexit = False
        _stores.add(self)

    def _start(self) -> None:
        """What is of one process, and not kept over a fork."""
        self._lock = threading.RLock()
        self._skip = 0
        self._room_for_more = True
        self._has_said_full = False

    @classmethod
    def open(cls, config: Config, name: CacheName) -> CacheStore:
        """Return the cache, made on the node if there was none.

        Raises:
            SessionNotFoundError, SpillingDisabledError: As the server says.
            ServerUnavailableError: There is no server, and none can be started.
        """
        link, opened = CacheLink.open(config, name)
        if name.size_bytes > opened.memory_most_bytes:
            say_once(_larger_than_there_is(name, opened.memory_most_bytes))
        return cls(config, name, opened, link)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CacheStore, (self._config, self.name, self._here.place.opened))

    @property
    def claims(self) -> Claims:
        """Who is making which entry."""
        return self._here.place.claims

    @contextmanager
    def reading(self) -> Iterator[Views]:
        """Inside it, ``get_views`` gives views that stay valid."""
        self._look_after()
        with ExitStack() as stack:
            batches: list[Views] = [stack.enter_context(tier.batch()) for tier in self._here.place.tiers]
            reading = _Reading(batches, keep=self._room_for_more, outdated=self._outdated)
            yield reading
        if reading.found_on_disk:
            self._promote(reading.found_on_disk)

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of a value, None if it is not held."""
        with self.reading() as views:
            view = views.get_views((key,))[0]
            return None if view is None else bytes(view)

    def holds(self, key: bytes) -> bool:
        """Return whether there is a value; quicker than to read it."""
        for tier in self._here.place.tiers:
            with tier.batch() as batch:
                if batch.get_view(key) is not None:
                    return True
        return False

    @property
    def takes_more(self) -> bool:
        """False for a while after there was no room."""
        if self._skip > 0:
            self._skip -= 1
            return False
        return True

    def has_room(self) -> bool:
        """Return True while samples that are made are probably kept: there is room for one more of their mean size."""
        here = self._here
        return not here.link.is_dropped and any(_has_room(tier.statistics()) for tier in here.place.tiers)

    def put(self, key: bytes, value: list[Buffer]) -> bool:
        """Store the parts of a value as one where there is room, in memory or behind it; False when there is none."""
        if self._may_write():
            tiers = self._here.place.tiers
            for tier in tiers:
                if self._put_into(tier, key, value):
                    self._note_outdated(key, in_memory=tier is tiers[0])
                    return True
            if any(tier.is_kept_busy() for tier in tiers):
                self._not_kept()
                return False
            self._say_full()
        self._skip = _SKIPPED_WHEN_FULL
        return False

    def discard(self, keys: Sequence[bytes]) -> None:
        """Overwrite entries with one that cannot be read, so that they are not found; if that fails, empty the cache."""
        if not all(self.put(key, [_DISCARDED]) for key in keys if self.holds(key)):
            self.empty()

    def empty(self) -> bool:
        """Delete all entries, for all processes; False when some could not be deleted."""
        tiers = self._here.place.tiers
        for tier in tiers:
            tier.empty()
        self._outdated.clear()
        return not any(tier.keys() for tier in tiers)

    def count_audit(self, *, failed: bool) -> None:
        """Note that a sample was recomputed and compared; of one that differs the server is told at once."""
        self._here.link.count(audits=1, audits_failed=int(failed))
        _report_at_exit()
        if failed:
            self.report(now=True)

    def count(self, hits: int, misses: int) -> None:
        """Note how reads went, beside the store, where the server looks; else for the next report."""
        if not self._here.place.reads.try_add(hits, misses):
            self._here.link.count(hits=hits, misses=misses)
            _report_at_exit()

    def report(self, *, now: bool = False) -> None:
        """Once a second, be connected, which says that the cache is in use, and tell what the server cannot see.

        Args:
            now: Tell it whatever the time, if there is anything to tell.
        """
        link = self._here.link
        if link.wants_to_report(now=now):
            with self._lock:
                self._connect()
                link.report()

    def statistics(self) -> tuple[int, int, int]:
        """Return entries in memory, entries on disk, and the mean size of one in bytes."""
        self._look_after()
        found = [tier.statistics() for tier in self._here.place.tiers]
        entries = sum(one.entries for one in found)
        mean = sum(one.value_bytes for one in found) // entries if entries else 0
        return found[0].entries, sum(one.entries for one in found[1:]), max(mean, 1) if entries else 0

    def counted_reads(self) -> tuple[int, int]:
        """Return hits and misses that processes have counted beside the store."""
        return counted_reads(Path(self._here.place.opened.memory_dir))

    def close(self) -> None:
        """Report what is left and let go; a later use opens everything again."""
        with self._lock:
            self._here.close()

    # ------------------------------------------------------------ room

    def _may_write(self) -> bool:
        """Return True when it is known what may be taken."""
        link = self._here.link
        if link.is_connected():
            return True
        with self._lock:
            self._connect()
            return link.is_connected() or link.is_alone

    def _put_into(self, tier: SharedTier, key: bytes, value: list[Buffer]) -> bool:
        while not tier.put_many([(key, value)]):
            if tier.is_kept_busy() or tier.is_out_of_space or not self._try_grow(tier, sum(map(len, value))):
                return False
        return True

    def _not_kept(self) -> None:
        """Another process keeps the turn to write: count that, and say it once."""
        self._here.link.count(not_stored=1)
        _report_at_exit()
        say_once(
            "samples are not cached for now: another process has held the write lock of a stage cache for more than a second; "
            "`prefeed stats` counts them"
        )

    def _say_full(self) -> None:
        if not self._has_said_full:
            self._has_said_full = True
            entries, on_disk, _ = self.statistics()
            taken = sum(tier.limit_bytes for tier in self._here.place.tiers) // 1024**2
            _log.info(
                "prefeed: a cache of session %d is full: %d samples in %d MiB are kept, further samples are not; raise its size"
                ", PREFEED_MEMORY or PREFEED_DISK",
                self.name.session, entries + on_disk, taken,
            )  # fmt: skip

    def _try_grow(self, tier: SharedTier, more_bytes: int) -> bool:
        """Ask the server for more room; True when there is more."""
        with self._lock:
            tiers = self._here.place.tiers
            on_disk = tier is not tiers[0]
            if tier not in tiers or (not on_disk and self._has_its_size(tier)):
                return False
            if not on_disk and not fits_in_memory(more_bytes):
                return False
            limit = self._here.link.grow(tier.limit_bytes + more_bytes, on_disk=on_disk)
            if limit <= tier.limit_bytes:
                return False
            tier.grow(limit)
            self._room_for_more = True
            return True

    def _has_its_size(self, tier: SharedTier) -> bool:
        size_bytes = self.name.size_bytes
        return size_bytes > 0 and size_bytes - PAGE_BYTES < tier.limit_bytes  # limits are whole pages

    def _note_outdated(self, key: bytes, *, in_memory: bool) -> None:
        """Know what memory holds that could not be replaced there: what lies behind it is newer."""
        if in_memory:
            self._outdated.discard(key)
        elif self._here.place.tiers[0].get(key) is not None:
            self._outdated.add(key)

    def _promote(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Take into memory what was found on disk, as far as there is room."""
        if not self._may_write():
            return
        count = self._here.place.tiers[0].put_many(items)
        self._outdated.difference_update(key for key, _ in items[:count])
        if count < len(items) and not self._here.place.tiers[0].is_kept_busy():
            self._room_for_more = False

    # ------------------------------------------------------------ where it lies

    def _look_after(self) -> None:
        """Let go of what was dropped."""
        if not self._here.place.tiers[0].is_current():
            with self._lock:
                self._here.place.close()
                self._connect(again=True)

    def _connect(self, *, again: bool = False) -> None:
        """Be connected, if that can be; the cache may lie elsewhere then, and may take more or less. With the lock held.

        Args:
            again: The cache is not where it was.
        """
        opened = self._here.link.connect(again=again)
        if opened is not None and not self._here.place.is_as(opened):
            before, self._here.place = self._here.place, _OpenCache.of(opened)
            before.close()
            self._room_for_more = True


@dataclass(frozen=True, slots=True, eq=False)
class _OpenCache:
    """Where a cache lies, and what is open of it here; never changed, but replaced as a whole."""

    opened: CacheOpened
    tiers: tuple[SharedTier, ...]
    claims: Claims
    reads: ReadCounts

    @classmethod
    def of(cls, opened: CacheOpened) -> _OpenCache:
        floor = memory_floor(opened.memory_dir)
        tiers = [SharedTier(opened.memory_dir, limit_bytes=opened.memory_limit_bytes, min_free_bytes=floor)]
        if opened.disk_dir:
            floor = opened.disk_free_bytes
            tiers.append(
                SharedTier(opened.disk_dir, limit_bytes=opened.disk_limit_bytes, on_disk=True, min_free_bytes=floor)
            )
        return cls(opened, tuple(tiers), Claims(opened.memory_dir), ReadCounts(opened.memory_dir))

    def is_as(self, opened: CacheOpened) -> bool:
        """Return whether it is where the server says now, and takes no other room: it may have grown since."""
        limits = (opened.memory_limit_bytes, opened.disk_limit_bytes)
        return opened == self.opened and all(
            tier.limit_bytes == limit for tier, limit in zip(self.tiers, limits, strict=False)
        )

    def close(self) -> None:
        """Let go of it; a later use opens it again."""
        for tier in self.tiers:
            tier.close()
        self.claims.close()
        self.reads.close()


class _Here:
    """What a process has open of a cache; closed with the cache, or when no one has it any more."""

    def __init__(self, place: _OpenCache, link: CacheLink) -> None:
        self.place = place
        self.link = link

    def close(self) -> None:
        """Report what is left, and let go of all of it."""
        if self.link.has_unreported:
            self.link.connect()
            self.link.report()
        self.link.disconnect()
        self.place.close()


class _Reading:
    """Memory first, then disk; what is found there is kept, if wanted, for memory to take in."""

    def __init__(self, batches: list[Views], *, keep: bool, outdated: set[bytes]) -> None:
        self.found_on_disk: list[tuple[bytes, bytes]] = []
        self._batches = batches
        self._keep = keep
        self._outdated = outdated

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        views = self._batches[0].get_views(keys)
        for batch in self._batches[1:]:
            absent = [at for at, view in enumerate(views) if view is None or keys[at] in self._outdated]
            found = batch.get_views([keys[at] for at in absent]) if absent else []
            for at, view in zip(absent, found, strict=True):
                if view is None:
                    continue  # what memory has, outdated or not, is all there is
                views[at] = view
                if self._keep:
                    self.found_on_disk.append((keys[at], bytes(view)))
        return views


def _has_room(tier: SharedTierStatistics) -> bool:
    limit = tier.limit_bytes
    return tier.stored_bytes + tier.stored_bytes // max(1, tier.entries) + limit // _MARGIN_SHARE <= limit


def _larger_than_there_is(name: CacheName, most_bytes: int) -> str:
    """Return what to say of a cache that was asked for with more memory than the server can give it."""
    size = name.size_bytes // MIB
    rest = "go to disk" if name.spilling else "are made each time"
    to_disk = "" if name.spilling else ", or let the rest go to disk (spilling=True, PREFEED_DISK)"
    return (
        f"a cache of session {name.session} was asked for with size={size}, which is in MB: {in_gib(name.size_bytes)}. The node "
        f"server has {in_gib(most_bytes)} of memory for it; samples beyond that {rest}. Ask for size={most_bytes // MIB} or less, "
        f"give the server more memory (PREFEED_MEMORY){to_disk}"
    )


_stores: Final[weakref.WeakSet[CacheStore]] = weakref.WeakSet()
_exit: util.Finalize | None = None


def _report_at_exit() -> None:
    """Let this process report what is left when it ends; a worker of ``multiprocessing`` calls nothing else then."""
    global _exit
    if _exit is None or not _exit.still_active():  # a forked worker forgets what its parent has registered
        _exit = util.Finalize(None, _report_all, exitpriority=0)


def _report_all() -> None:
    for store in list(_stores):
        if store._here.link.has_unreported:
            store.report(now=True)


def _start_in_child() -> None:
    """A forked child has read nothing, is connected to nothing, and no thread of its parent holds a lock in it."""
    global _exit
    _exit = None
    for store in list(_stores):
        store._start()
        store._here.link.start_anew()


os.register_at_fork(after_in_child=_start_in_child)
