"""Sessions and stage caches of the node: made, listed, given room, and dropped. Never on the way of a read or a write.

client ──OpenCache──→ limits ──→ objects get what is left          its processes ──entries──→ the cache's two stores
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefeed.core.shares import CHUNK_BYTES
from prefeed.errors import SessionNotFoundError, SpillingDisabledError, StoreError
from prefeed.server.node import Node
from prefeed.server.tier_budget import CacheKey, Record, Room
from prefeed.types import CacheInfo, SessionCounts, SessionInfo
from prefeed.wire.endpoint import place_of
from prefeed.wire.messages import CacheGrown, CacheOpened, CacheReads, GrowCache, OpenCache

DEFAULT_SESSION: Final = 0
"""Made by itself; its caches go when they are not used and others need the room."""

_SMALLEST_FIRST_BYTES: Final = 4 * 1024**2
_MAX_ID: Final = 2**32 - 1
_DESCRIPTION_CHARACTERS: Final = 500
_NODES: Final = Path("/sys/devices/system/node")


@dataclass(slots=True)
class _Cache:
    record: Record
    last_use: int
    clients: set[Hashable] = field(default_factory=set)
    hits: int = 0  # as was reported by those who could not count them beside the store
    misses: int = 0


class Sessions:
    """All sessions of the node.

    Args:
        memory: Room for caches in memory.
        disk: The same on disk; None when the node has no disk tier.

    **Ownership**: directories of sessions and caches belong to this; entries to the processes that write them.
    **Threads**: the loop's.
    """

    def __init__(self, memory: Room, disk: Room | None) -> None:
        self._memory = memory
        self._disk = disk
        self._sessions: dict[int, dict[int, _Cache]] = {}
        self._uses = 0
        self._counted = dict.fromkeys(("audits", "audits_failed", "not_stored"), 0)
        for room in self._rooms():
            self._find_in(room)
        self._fit(memory)

    def share_memory_with(self, node: Node) -> None:
        """Divide the memory with the objects of the node from now on: they get what no cache was given."""
        self._memory.bind(objects_bytes=lambda: node.tier_bytes, resize_objects=node.resize_tier)

    def press_memory(self, budget_bytes: int) -> int:
        """Objects and caches together may take so much from now on; returns what is left for the objects.

        Caches grow no more beyond that. If they have it all, those of the default session that are not used go, the oldest first.
        """
        shares = self._memory.shares
        shares.budget_bytes = budget_bytes
        if shares.objects_limit_bytes < shares.objects_share_bytes:
            self.settle()
            for key, cache in self._idle():
                if shares.objects_limit_bytes >= shares.objects_share_bytes:
                    break
                if not cache.clients and self._memory.limit_of(key) and not self._memory.is_in_use(key):
                    self._remove_from(self._memory, key)
        return shares.objects_limit_bytes

    @property
    def memory_bytes(self) -> int:
        """What caches have taken of memory."""
        return sum(self._memory.files.taken_bytes(key) for key, _ in self._caches())

    @property
    def damage(self) -> list[str]:
        """What was wrong with caches that were found, a sentence each."""
        return [text for room in self._rooms() for text in room.damage]

    @property
    def disk(self) -> Room | None:
        """The room on disk, for who divides it with the caches; None when the node has no disk tier."""
        return self._disk

    # ------------------------------------------------------------ sessions

    def new_session(self) -> int:
        """Return the id of a session made now.

        Raises:
            StoreError: There is no room even for its directory.
        """
        session = DEFAULT_SESSION
        while session == DEFAULT_SESSION or session in self._sessions:
            session = 1 + secrets.randbelow(_MAX_ID)
        self._memory.files.make_session(session)
        self._sessions[session] = {}
        return session

    def list_sessions(self) -> tuple[SessionInfo, ...]:
        """Return all sessions with their caches, by id."""
        node = only_numa_node()
        return tuple(
            SessionInfo(
                session=session,
                caches=tuple(self._info((session, cache)) for cache in sorted(caches)),
                numa_node=node,
            )
            for session, caches in sorted(self._sessions.items())
        )

    def drop_sessions(self, sessions: Iterable[int]) -> None:
        """Remove sessions with all that is in them; processes that have them open keep what they see, and continue without.

        Raises:
            SessionNotFoundError: One of them does not exist; none is removed.
        """
        dropped = set(sessions)
        for session in sorted(dropped - {DEFAULT_SESSION}):
            self._require_session(session)
        for session in dropped & set(self._sessions):
            keys = [(session, cache) for cache in self._sessions.pop(session)]
            for room in self._rooms():
                room.drop(keys)
                room.files.remove_session(session)
                room.reclaim()

    # ------------------------------------------------------------ caches

    def open_cache(self, client: Hashable, asked: OpenCache) -> CacheOpened:
        """The client uses a cache from now on; it is made if there is none.

        Raises:
            SessionNotFoundError: There is no such session.
            SpillingDisabledError: It is to spill, and the node has no disk tier.
            StoreError: There is no room even for its directory.
        """
        key = session, number = asked.session, asked.cache
        size_bytes, spilling = asked.size_bytes, asked.spilling
        _require_ids(key, size_bytes)
        if spilling and self._disk is None:
            raise SpillingDisabledError(
                "this node has no disk tier to spill to: start its server with PREFEED_DISK set to a size, such as 100GiB, "
                "or to auto (`cache_admin --start -s DIR` does so), or use spilling=False"
            )
        caches = (
            self._sessions.setdefault(session, {}) if session == DEFAULT_SESSION else self._require_session(session)
        )
        cache, is_new = caches.get(number), number not in caches
        if cache is None:
            record = Record(
                description=asked.description[:_DESCRIPTION_CHARACTERS], size_bytes=size_bytes, spilling=spilling,
                instance=secrets.token_hex(8),
            )  # fmt: skip
            cache = caches[number] = _Cache(record, 0)
        else:
            record = cache.record
            record.size_bytes = max(record.size_bytes, size_bytes) if record.size_bytes and size_bytes else 0
            record.spilling = record.spilling or spilling
        is_first, is_user = not cache.clients, client in cache.clients
        cache.clients.add(client)
        self._use(key, cache)
        disk = self._disk if record.spilling else None
        if is_first:
            self._give_first(self._memory, key, record.size_bytes)
        if disk is not None and (is_first or not disk.limit_of(key)):
            self._give_first(disk, key, 0)
        try:
            self._write(key, cache)
        except StoreError:
            if is_new:
                self._remove(key)
            elif not is_user:
                self._leave(client, key, cache)
            raise
        return CacheOpened(
            memory_dir=str(self._memory.files.path(key)),
            memory_limit_bytes=self._memory.limit_of(key),
            disk_dir="" if disk is None else str(disk.files.path(key)),
            disk_limit_bytes=0 if disk is None else disk.limit_of(key),
            instance=record.instance,
            disk_free_bytes=0 if disk is None else disk.floor_bytes,
            memory_most_bytes=self._memory.limit_of(key) + self._memory.free_bytes(key),
            place=place_of(self._memory.files.path(key)),
        )

    def grow_cache(self, client: Hashable, asked: GrowCache) -> CacheGrown:
        """Let a store of the cache take so much in all, or as much as there is room for; half of what is free, as a rule.

        Raises:
            SessionNotFoundError: The cache was dropped.
        """
        key, wanted_bytes, on_disk = (asked.session, asked.cache), asked.wanted_bytes, asked.on_disk
        cache = self._require_cache(key)
        cache.clients.add(client)
        room = self._disk if on_disk else self._memory
        if room is not None and wanted_bytes > (limit := room.limit_of(key)):
            least = max(wanted_bytes, limit + CHUNK_BYTES)
            most = cache.record.size_bytes if cache.record.size_bytes and not on_disk else room.shares.budget_bytes
            self._make_room(room, key, min(least, most) - limit)
            # Each step makes all who write remap the file, and find its pages again: better few large ones.
            wanted = min(max(least, limit + room.free_bytes(key) // 2), most)
            if room.raise_limit(key, wanted) > limit:
                self._write(key, cache)
        disk_limit = 0 if self._disk is None else self._disk.limit_of(key)
        return CacheGrown(memory_limit_bytes=self._memory.limit_of(key), disk_limit_bytes=disk_limit)

    def count(self, told: CacheReads) -> None:
        """Note how reads of a cache went, audits, and samples not kept; of one that was dropped, only these two."""
        for name in self._counted:
            self._counted[name] += getattr(told, name)
        cache = self._sessions.get(told.session, {}).get(told.cache)
        if cache is not None:
            cache.hits += told.hits
            cache.misses += told.misses

    # ------------------------------------------------------------ clients come and go

    def leave(self, client: Hashable) -> None:
        """A client is gone; caches that are not used any more keep only the room that their files take."""
        for key, cache in self._caches():
            if client in cache.clients:
                self._leave(client, key, cache)

    @property
    def has_unsettled(self) -> bool:
        """True while caches without clients, or dropped ones, hold room because some process has them open."""
        return any(room.waits_for_others for room in self._rooms()) or any(
            not cache.clients and room.limit_of(key) > room.files.taken_bytes(key)
            for key, cache in self._caches()
            for room in self._rooms()
        )

    def settle(self) -> None:
        """Take room back that no process can write to any more."""
        for room in self._rooms():
            room.reclaim()
        for key, cache in self._caches():
            if not cache.clients:
                self._settle(key, cache)

    @property
    def would_be_lost(self) -> bool:
        """True when something that is kept until somebody drops it would end with the server."""
        return any(
            self._disk is None
            or not self._disk.files.holds_session(session)
            or any(self._memory.files.has_store((session, cache)) for cache in caches)
            for session, caches in self._sessions.items()
            if session != DEFAULT_SESSION
        )

    @property
    def counts(self) -> SessionCounts:
        """How many there are, and what they take."""
        keys = [key for key, _ in self._caches()]
        return SessionCounts(
            sessions=len(self._sessions),
            caches=len(keys),
            memory_bytes=self.memory_bytes,
            disk_bytes=0 if self._disk is None else sum(map(self._disk.files.taken_bytes, keys)),
            **self._counted,
        )

    def remove_memory(self) -> None:
        """The server ends: what lies in memory goes, what lies on disk stays."""
        self._memory.files.remove_all()

    def close(self) -> None:
        """Let go of everything; what lies in the directories stays."""
        for room in self._rooms():
            room.close()

    # ------------------------------------------------------------ start-up

    def _find_in(self, room: Room) -> None:
        found = []
        for session in room.files.scan():
            caches = self._sessions.setdefault(session, {})
            for number, record, used_ns in room.files.scan_caches(session):
                known = caches.setdefault(number, _Cache(record, used_ns))
                known.last_use = max(known.last_use, used_ns)
                room.find((session, number), record.limit_bytes)
                found.append((session, number))
        for rank, (_, cache) in enumerate(sorted(self._caches(), key=lambda item: item[1].last_use)):
            cache.last_use = self._uses = rank

    def _fit(self, room: Room) -> None:
        """What an earlier server left may be more than there is room for now: the least recently used go."""
        oldest = sorted(self._caches(), key=lambda item: (item[0][0] != DEFAULT_SESSION, item[1].last_use))
        for key, _ in oldest:
            if room.shares.objects_limit_bytes >= room.shares.objects_share_bytes:
                return
            if room.limit_of(key):
                self._remove_from(room, key)

    # ------------------------------------------------------------ room

    def _give_first(self, room: Room, key: CacheKey, size_bytes: int) -> None:
        """Give a cache that was not used its limit: all of its size, or half of what there is."""
        self._make_room(room, key, max(0, (size_bytes or CHUNK_BYTES) - room.limit_of(key)))
        free = room.free_bytes(key)
        half = room.limit_of(key) + max(free // 2, min(free, _SMALLEST_FIRST_BYTES))
        room.raise_limit(key, size_bytes or half)

    def _make_room(self, room: Room, key: CacheKey, missing_bytes: int) -> None:
        """Take back unused room, then drop unused caches of the default session, oldest first."""
        if room.free_bytes(key) >= missing_bytes:
            return
        self.settle()
        for other, cache in self._idle():
            if room.free_bytes(key) >= missing_bytes:
                return
            if other != key and not cache.clients and room.limit_of(other) and not room.is_in_use(other):
                self._remove_from(room, other)

    def _idle(self) -> list[tuple[CacheKey, _Cache]]:
        """Return caches that may be dropped where they are not used, the oldest first."""
        idle = (item for item in self._caches() if item[0][0] == DEFAULT_SESSION)
        return sorted(idle, key=lambda item: item[1].last_use)

    def _remove_from(self, room: Room, key: CacheKey) -> None:
        """Remove the part of a cache that lies in this room, and the cache when it has no other."""
        room.drop([key])
        room.files.remove_cache(key)
        if not any(other.files.path(key).is_dir() for other in self._rooms()):
            del self._sessions[key[0]][key[1]]

    def _remove(self, key: CacheKey) -> None:
        """There is no such cache any more."""
        del self._sessions[key[0]][key[1]]
        for room in self._rooms():
            room.drop([key])
            room.files.remove_cache(key)
            room.reclaim()

    def _leave(self, client: Hashable, key: CacheKey, cache: _Cache) -> None:
        cache.clients.discard(client)
        if not cache.clients:
            self._use(key, cache)
            self._settle(key, cache)

    def _settle(self, key: CacheKey, cache: _Cache) -> None:
        for room in self._rooms():
            if room.limit_of(key) and room.settle(key):
                cache.record.limit_bytes = room.limit_of(key)

    def _write(self, key: CacheKey, cache: _Cache) -> None:
        for room in self._rooms():
            if room is self._memory or cache.record.spilling:
                cache.record.limit_bytes = room.limit_of(key)
                room.files.write(key, cache.record)

    # ------------------------------------------------------------ inside

    def _rooms(self) -> tuple[Room, ...]:
        return (self._memory,) if self._disk is None else (self._memory, self._disk)

    def _caches(self) -> Iterator[tuple[CacheKey, _Cache]]:
        for session, caches in list(self._sessions.items()):
            for number, cache in list(caches.items()):
                yield (session, number), cache

    def _use(self, key: CacheKey, cache: _Cache) -> None:
        self._uses += 1
        cache.last_use = self._uses
        for room in self._rooms():
            room.files.touch(key)

    def _require_session(self, session: int) -> dict[int, _Cache]:
        if session not in self._sessions:
            raise SessionNotFoundError(
                f"session {session} not found: make one with `cache_admin -g`; "
                "sessions without a part on disk end with their server",
                session=session,
            )
        return self._sessions[session]

    def _require_cache(self, key: CacheKey) -> _Cache:
        cache = self._sessions.get(key[0], {}).get(key[1])
        if cache is None:
            raise SessionNotFoundError(f"session {key[0]} has no cache {key[1]} any more: it was dropped")
        return cache

    def _info(self, key: CacheKey) -> CacheInfo:
        cache = self._sessions[key[0]][key[1]]
        in_memory = self._memory.contents_of(key)
        on_disk = (0, 0) if self._disk is None else self._disk.contents_of(key, on_disk=True)
        hits, misses = self._memory.reads_of(key)
        return CacheInfo(
            cache=key[1],
            description=cache.record.description,
            memory_entries=in_memory[0],
            memory_bytes=in_memory[1],
            disk_entries=on_disk[0],
            disk_bytes=on_disk[1],
            hits=hits + cache.hits,
            misses=misses + cache.misses,
            size_bytes=cache.record.size_bytes,
            spilling=cache.record.spilling,
            clients=len(cache.clients),
        )


def only_numa_node(nodes: Path = _NODES) -> int | None:
    """Return the machine's NUMA node when it has one only; None when memory may lie on any of several."""
    try:
        found = [name for name in os.listdir(nodes) if name.startswith("node") and name[4:].isdecimal()]
    except OSError:
        return None
    return int(found[0][4:]) if len(found) == 1 else None


def _require_ids(key: CacheKey, size_bytes: int) -> None:
    if not all(0 <= number <= _MAX_ID for number in key) or size_bytes < 0:
        raise SessionNotFoundError(f"session and cache are 0 to {_MAX_ID}, sizes not negative: {key}, {size_bytes}")
