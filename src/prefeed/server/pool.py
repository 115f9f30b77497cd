"""The pool tier: what other nodes have fetched, in memcached servers that all of them share.

memory ─absent→ disk ─absent→ pool ─absent→ claim ─mine→ origin ──bytes──→ memory tier, disk
                               │              │ another node's               └─→ waiting ──→ pool
                               └──bytes──→    └─ look again, for a short time
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Final, NamedTuple

from prefeed.pool.servers import PoolServer, ServerRing, Stored
from prefeed.pool.values import HEADER_BYTES, claim, claimed_by, is_whole, pool_key, read_header, split
from prefeed.store.log import value_size
from prefeed.system.clock import Clock
from prefeed.types import Buffer, PoolCounts

_MOST_WAITING_BYTES: Final = 128 * 1024**2
_MOST_WRITERS: Final = 32
"""Other nodes wait for what is written. With 4, busy fetchers left it waiting for up to a second (2026-11)."""

_CLAIM_SECONDS: Final = 5
"""A claim is gone then, whatever became of the node that made it."""

_WAIT_SECONDS: Final = 1.0
"""The longest that a fetch ahead waits for another node's."""

_URGENT_WAIT_SECONDS: Final = 0.3
"""And one for which a reader may be waiting."""

_RECENT: Final = 1 / 32
"""Weight of one answer in the share of those that were found."""

_RICH: Final = 0.8

_TIMEOUT_SECONDS: Final = 0.5
"""Maximum duration of one request. A pool in the same network answers in a millisecond; a fetch from the origin is quicker than a
longer wait."""

_FIRST_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.05
_PAUSE_GROWTH: Final = 1.5


class _PooledEntry(NamedTuple):
    """An entry's key, the one that it has in the pool, and the server that has it."""

    key: bytes
    name: bytes
    server: PoolServer


class _Claimed:
    """Another node is about to ask the origin."""


class _Unusable:
    """Something is there, and it is not the object: damaged, without a part, or this node's own claim."""


_CLAIMED: Final = _Claimed()
_UNUSABLE: Final = _Unusable()


class PoolTier:
    """Objects in the pool, under their entry keys: equal keys mean equal bytes, whichever node stored them.

    Nothing that happens to the pool is an error of a read: what cannot be read is absent, what cannot be stored is not.

    **Ownership.** The servers are the user's. Nothing is ever deleted from them.

    **Threads.** Any. What was offered is written by threads of the tier's own.

    **Blocking.** ``read`` takes at most a time-out for each part and server that fails, and a second where another node
    has said that it fetches the object; ``offer`` does not wait; ``close`` waits for requests under way, three time-outs at most.

    Args:
        addresses: Servers, as the setting ``pool`` has them.
        timeout_seconds: How long one request to a server may take.
        clock: Seconds.
    """

    def __init__(self, addresses: Sequence[str], *, clock: Clock, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._ring = ServerRing(addresses, timeout_seconds=timeout_seconds, clock=clock)
        self._clock = clock
        self._id = secrets.token_bytes(8)
        # Of threads that do not wait for each other: may miss one now and then.
        self._counts: dict[str, int] = dict.fromkeys((field.name for field in fields(PoolCounts)), 0)
        self._recent = 0.0
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._waiting: dict[bytes, Buffer] = {}
        self._waiting_bytes = 0
        self._writers: list[threading.Thread] = []
        self._num_idle = 0

    # ------------------------------------------------------------ reading

    def read(self, key: bytes, *, is_urgent: Callable[[], bool] = lambda: False) -> Buffer | None:
        """Return an object's bytes; None when the pool does not have them, and the caller is to ask the origin.

        Then other nodes have been told that this one does so. Who comes second waits for the first: for a second, or
        less than a third of one while a reader may be waiting.

        Args:
            key: Entry key, 16 bytes.
            is_urgent: Whether a reader may be waiting.
        """
        name = pool_key(key)
        server = self._ring.server_of(name)
        found = None if server is None else self._find(_PooledEntry(key, name, server), is_urgent)
        if found is None:
            self._counts["misses"] += 1
            self._recent *= 1 - _RECENT
        else:
            self._count_hit(found)
        return found

    def read_many(self, keys: Sequence[bytes], *, expected_bytes: int) -> dict[bytes, Buffer]:
        """Return the bytes of those objects that the pool has in one part; ``read`` is for the others.

        Nothing is told, nothing is waited for, and misses are not counted.

        Args:
            keys: Entry keys, each once.
            expected_bytes: About what they take together.
        """
        by_server: dict[PoolServer, dict[bytes, bytes]] = {}
        for key in keys:
            name = pool_key(key)
            if (server := self._ring.server_of(name)) is not None:
                by_server.setdefault(server, {})[name] = key
        found: dict[bytes, Buffer] = {}
        for server, wanted in by_server.items():
            values = server.read_many(list(wanted), expected_bytes=expected_bytes * len(wanted) // len(keys))
            for name, value in values.items():
                if (data := self._alone(wanted[name], value)) is not None:
                    found[wanted[name]] = data
        return found

    @property
    def is_rich(self) -> bool:
        """True while it has most of what it is asked for."""
        return self._recent > _RICH

    def counts(self) -> PoolCounts:
        """Return a snapshot."""
        servers = self._ring.servers
        found = {
            "servers": len(servers),
            "left_out": self._ring.num_out,
            "failures": sum(one.failures for one in servers),
        }
        return PoolCounts(**{**self._counts, **found})

    # ------------------------------------------------------------ writing

    def offer(self, key: bytes, data: Buffer) -> None:
        """Let the bytes be stored some time, if there is room; what comes while 128 MiB wait is dropped."""
        size = value_size(data)
        with self._changed:
            if key in self._waiting or self._ring.num_out == len(self._ring.servers):
                return
            if self._waiting and self._waiting_bytes + size > _MOST_WAITING_BYTES:
                self._counts["dropped"] += 1
                return
            self._waiting[key] = data
            self._waiting_bytes += size
            if (
                len(self._waiting) > self._num_idle
                and len(self._writers) < _MOST_WRITERS
                and not self._closing.is_set()
            ):
                self._start_writer()
            self._changed.notify()

    def close(self) -> None:
        """Ask no more; what waits to be written is lost."""
        self._closing.set()
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()
        self._ring.close()
        deadline = time.monotonic() + self._ring.longest_question_seconds
        for writer in self._writers:
            writer.join(max(0.0, deadline - time.monotonic()))

    # ------------------------------------------------------------ one object

    def _count_hit(self, data: Buffer) -> None:
        size = value_size(data)  # first: a call between the two halves of an addition lets other threads in
        self._counts["hits"] += 1
        self._counts["read_bytes"] += size
        self._recent += _RECENT * (1 - self._recent)

    def _alone(self, key: bytes, value: memoryview) -> Buffer | None:
        """Return the object if the value is all of it; what is wrong with another one ``read`` finds out, and counts."""
        header = read_header(value, key, 0)
        if header is None or header.num_parts > 1:
            return None
        data = value[HEADER_BYTES:]
        if not is_whole(data, header):
            return None
        self._count_hit(data)
        return data

    def _find(self, place: _PooledEntry, is_urgent: Callable[[], bool]) -> Buffer | None:
        found = self._look(place)
        if found is None and not self._claim(place):
            found = self._look(place)  # somebody was faster
        if isinstance(found, _Claimed):
            found = self._await(place, is_urgent)
        return None if isinstance(found, _Unusable) else found

    def _look(self, place: _PooledEntry) -> Buffer | _Claimed | _Unusable | None:
        value = place.server.read(place.name)
        if value is None:
            return None
        owner = claimed_by(value)
        if owner is None:
            return self._assemble(place.key, value)
        return _UNUSABLE if owner == self._id else _CLAIMED

    def _assemble(self, key: bytes, first: memoryview) -> Buffer | _Unusable:
        header = read_header(first, key, 0)
        if header is None:
            return self._wrong()
        parts = [first[HEADER_BYTES:]]
        for part in range(1, header.num_parts):
            name = pool_key(key, part)
            server = self._ring.server_of(name)
            value = None if server is None else server.read(name)
            if value is None:
                return _UNUSABLE
            if read_header(value, key, part) != header._replace(part=part):
                return self._wrong()
            parts.append(value[HEADER_BYTES:])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data if is_whole(data, header) else self._wrong()

    def _wrong(self) -> _Unusable:
        self._counts["corrupt"] += 1
        return _UNUSABLE

    def _claim(self, place: _PooledEntry) -> bool:
        """Say that this node asks the origin; False when another one has said so, or has stored the object."""
        return place.server.add(place.name, claim(self._id), seconds=_CLAIM_SECONDS)

    def _await(self, place: _PooledEntry, is_urgent: Callable[[], bool]) -> Buffer | None:
        """Look again and again; nothing when the claim is gone, or the time is over."""
        self._counts["waits"] += 1
        began, pause = self._clock(), _FIRST_PAUSE_SECONDS
        found: Buffer | _Claimed | _Unusable | None = _CLAIMED
        while isinstance(found, _Claimed) and self._may_wait(self._clock() - began, is_urgent()):
            self._closing.wait(pause)
            found = self._look(place)
            pause = min(_LONGEST_PAUSE_SECONDS, pause * _PAUSE_GROWTH)
        data = None if isinstance(found, _Claimed | _Unusable) else found
        self._counts["expired_waits"] += data is None
        return data

    def _may_wait(self, waited_seconds: float, is_urgent: bool) -> bool:
        return not self._closing.is_set() and waited_seconds < (_URGENT_WAIT_SECONDS if is_urgent else _WAIT_SECONDS)

    # ------------------------------------------------------------ the writers

    def _start_writer(self) -> None:
        writer = threading.Thread(target=self._write, name=f"prefeed-pool-{len(self._writers)}", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads are to be had: those that there are do it, or none
            writer.start()
            self._writers.append(writer)

    def _write(self) -> None:
        while (taken := self._take()) is not None:
            key, data = taken
            outcome = self._store(key, data)
            if outcome == Stored.YES:
                self._counts["stored"] += 1
            self._counts["refused"] += outcome == Stored.FULL

    def _take(self) -> tuple[bytes, Buffer] | None:
        with self._changed:
            self._num_idle += 1
            self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
            self._num_idle -= 1
            if self._closing.is_set():
                return None
            key = next(iter(self._waiting))
            data = self._waiting.pop(key)
            self._waiting_bytes -= value_size(data)
            return key, data

    def _store(self, key: bytes, data: Buffer) -> Stored:
        """Store the parts, the first one last; stop at the first one that is not stored."""
        for header, part in split(key, data, self._ring.part_bytes - HEADER_BYTES):
            name = pool_key(key, header.part)
            server = self._ring.server_of(name)
            outcome = Stored.NO if server is None else server.write(name, header.to_bytes(), part)
            if outcome != Stored.YES:
                return outcome
            self._counts["written_bytes"] += part.nbytes
        return Stored.YES
