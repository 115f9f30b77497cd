"""Client of the pool: maps keys to memcached servers, and excludes servers that fail.

``ServerRing`` selects the server of a key by rendezvous hashing. ``PoolServer`` holds the connections of one server. A server that fails is
excluded, and a thread of the ring probes it until it responds again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from pymemcache.client.rendezvous import RendezvousHash  # type: ignore[import-untyped]
from pymemcache.exceptions import MemcacheError, MemcacheServerError  # type: ignore[import-untyped]
from xxhash import xxh3_64_intdigest

from prefeed.pool.connection import Address, MemcachedConnection
from prefeed.pool.values import DEFAULT_ITEM_BYTES, OVERHEAD_BYTES
from prefeed.system.clock import Clock
from prefeed.types import Buffer

_MOST_READS: Final = 4
"""Maximum number of concurrent reads per server. More are no faster and cost processor time."""

_MOST_IDLE_WRITERS: Final = 4
"""Maximum number of idle connections for writes, because memcached accepts only 1,024 connections by default."""

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_FULL_SECONDS: Final = 5.0
"""Delay before the next write to a server that was full."""

_FAILURES: Final = (OSError, MemcacheError, UnicodeError)
"""Failures of a request. An invalid host name raises ``UnicodeError``."""

_log = logging.getLogger("prefeed")

T = TypeVar("T")


class Stored(Enum):
    """Result of a write."""

    YES = "yes"
    FULL = "full"
    NO = "no"


class PoolServer:
    """A memcached server with its connections and its state.

    A server that times out, disconnects or sends an invalid reply is excluded at once, until ``probe`` succeeds. Therefore a dead server costs
    the process one time-out, and then one per pause. The pause grows from 1 to 30 s until a request succeeds.

    **Threads.** Any. At most four reads run at a time. Writes do not wait for them, because other nodes may wait for the writes.

    **Processes.** Connections belong to the process that opened them. A forked child opens its own.

    Args:
        name: Name in the setting ``pool``.
        address: Address of the socket.
        timeout_seconds: Time limit of a request, and of the wait for a connection before it.
        clock: Clock in seconds.
        changed: Callback after the server was excluded or included.
    """

    def __init__(
        self, name: str, address: Address, *, timeout_seconds: float, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self.name = name
        self.item_bytes: int = DEFAULT_ITEM_BYTES
        self.failures: int = 0
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._tell = changed
        self._lock = threading.Lock()
        self._forget_connections()
        self._is_out = False
        self._is_closed = False
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._probe_at = clock()
        self._full_until = -float("inf")
        self._is_full = False

    @property
    def is_out(self) -> bool:
        """True while the server is excluded."""
        return self._is_out

    @property
    def probe_at(self) -> float:
        """Time of the next ``probe``; infinite while the server works."""
        return self._probe_at

    def read(self, key: bytes) -> memoryview | None:
        """Return the value of a key; None if it does not exist or the server fails."""
        return self._ask(lambda connection: connection.read(key), None)

    def read_many(self, keys: Sequence[bytes], *, expected_bytes: int) -> dict[bytes, memoryview]:
        """Return the values of the keys that exist; no values if the server fails."""
        return self._ask(lambda connection: connection.read_many(keys, expected_bytes=expected_bytes), {})

    def write(self, key: bytes, *pieces: Buffer) -> Stored:
        """Store the concatenated pieces under a key."""
        if self._clock() < self._full_until:
            return Stored.FULL
        is_trial = self._is_full

        def ask(connection: MemcachedConnection) -> Stored:
            try:
                connection.write(key, *pieces)
            except MemcacheServerError:
                self._full_until, self._is_full = self._clock() + _FULL_SECONDS, True
                return Stored.FULL
            if is_trial:  # a request that began after the refusal
                self._is_full = False
            return Stored.YES

        return self._ask_at_once(ask, Stored.NO)

    def add(self, key: bytes, value: bytes, *, seconds: int) -> bool:
        """Store a value that expires after ``seconds``, unless the key exists. Return False if it exists.

        A full server is not queried until it has stored a value again, because nodes would wait for a value that cannot be stored.
        """
        if self._is_full:
            return True

        def ask(connection: MemcachedConnection) -> bool:
            try:
                return connection.add(key, value, seconds=seconds)
            except MemcacheServerError:
                return True

        return self._ask(ask, True)

    def probe(self) -> None:
        """Query the maximum item size, and include the server again if it replies. Takes at most the time-out."""
        self._probe_at = float("inf")
        connection = self._connection()
        try:
            self.item_bytes = connection.item_bytes()
        except _FAILURES as err:
            self._fail(err, is_probe=True)
        else:
            self._come_back()
        finally:
            connection.close()

    def close(self) -> None:
        """Close all connections. Later requests are not sent."""
        with self._lock:
            self._is_closed = self._is_out = True
        self._close_idle()

    # ------------------------------------------------------------ requests

    def _ask(self, question: Callable[[MemcachedConnection], T], otherwise: T) -> T:
        """Send a request over one of the read connections, once one is free."""
        if self._pid != os.getpid():
            self._forget_connections()
        if self._is_out:
            return otherwise
        turns = self._turns
        try:
            connection = turns.get(timeout=self._timeout_seconds)
        except Empty:
            return otherwise
        try:
            return self._ask_over(connection, question, otherwise)
        finally:
            turns.put(connection)
            if self._is_closed:
                self._close_idle()

    def _ask_at_once(self, question: Callable[[MemcachedConnection], T], otherwise: T) -> T:
        if self._pid != os.getpid():
            self._forget_connections()
        writers = self._writers
        try:
            connection = writers.pop()
        except IndexError:
            connection = self._connection()
        try:
            return self._ask_over(connection, question, otherwise)
        finally:
            if len(writers) < _MOST_IDLE_WRITERS:
                writers.append(connection)
            else:
                connection.close()
            if self._is_closed:
                self._close_idle()

    def _ask_over(
        self, connection: MemcachedConnection, question: Callable[[MemcachedConnection], T], otherwise: T
    ) -> T:
        while not self._is_out:
            was_used = connection.has_answered
            try:
                answer = question(connection)
            except _FAILURES as err:
                connection.close()
                if was_used and isinstance(err, ConnectionError):
                    continue  # the server closed the idle connection, for example because it was restarted
                self._fail(err)
                break
            connection.has_answered = True
            self._pause_seconds = _FIRST_PAUSE_SECONDS
            return answer
        return otherwise

    def _connection(self) -> MemcachedConnection:
        return MemcachedConnection(self._address, timeout_seconds=self._timeout_seconds)

    def _forget_connections(self) -> None:
        """Create new connections, because those of a parent process belong to the parent."""
        self._turns: SimpleQueue[MemcachedConnection] = SimpleQueue()
        for _ in range(_MOST_READS):
            self._turns.put(self._connection())
        self._writers: deque[MemcachedConnection] = deque()
        self._pid = os.getpid()

    def _close_idle(self) -> None:
        """Close idle connections. The next request connects again."""
        idle: list[MemcachedConnection] = []
        with contextlib.suppress(Empty):
            while True:
                idle.append(self._turns.get_nowait())
        for connection in idle:
            connection.close()
            self._turns.put(connection)
        with contextlib.suppress(IndexError):
            while True:
                self._writers.pop().close()

    # ------------------------------------------------------------ failures

    def _fail(self, err: Exception, *, is_probe: bool = False) -> None:
        with self._lock:
            is_new = not self._is_out
            if self._is_closed or not (is_new or is_probe):
                return  # another concurrent request has failed before
            self._is_out = True
            self._probe_at = self._clock() + self._pause_seconds
            self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds)
            self.failures += is_new
        self._close_idle()  # they were opened before the failure and may be dead too
        if is_new:
            _log.warning("prefeed: pool server %s is left out for now: %s", self.name, str(err) or type(err).__name__)
        self._tell()

    def _come_back(self) -> None:
        with self._lock:
            was_out = self._is_out
            self._is_out = self._is_closed
        if was_out:
            _log.info("prefeed: pool server %s answers again", self.name)
        self._tell()


_LEAST_PART_BYTES: Final = 4096
_MOST_TIME_OUTS: Final = 3
"""Time-outs that a request may take: one to connect and two for the reply. Name resolution is not limited."""


class ServerRing:
    """Set of servers that share the keys by rendezvous hashing.

    The keys of an excluded server move to the other servers; no other key moves. All nodes with the same servers in their settings, in any
    order, map a key to the same server.

    **Ownership.** ``close`` ends the thread that probes excluded servers, and closes all connections.

    **Threads.** Any.

    Args:
        addresses: ``host:port``, ``[::1]:port`` or the path of a unix socket, without duplicates.
        timeout_seconds: Time limit of a request.
        clock: Clock in seconds.
    """

    def __init__(self, addresses: Sequence[str], *, timeout_seconds: float, clock: Clock) -> None:
        self.longest_question_seconds: float = _MOST_TIME_OUTS * timeout_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._is_closing = False
        self.servers: tuple[PoolServer, ...] = tuple(
            PoolServer(name, parse_address(name), timeout_seconds=timeout_seconds, clock=clock, changed=self._notice)
            for name in addresses
        )
        self._by_name = {server.name: server for server in self.servers}
        self._hash = _rendezvous(self._by_name)
        self._watch = threading.Thread(target=self._probe, name="prefeed-pool-watch", daemon=True)
        self._watch.start()

    def server_of(self, key: bytes) -> PoolServer | None:
        """Return the server of a key; None if all servers are excluded."""
        name = self._hash.get_node(key.decode())
        return None if name is None else self._by_name[name]

    @property
    def num_out(self) -> int:
        """Number of excluded servers."""
        return sum(server.is_out for server in self.servers)

    @property
    def part_bytes(self) -> int:
        """Maximum size of a part, in bytes, that every server accepts."""
        least = min((server.item_bytes for server in self.servers), default=DEFAULT_ITEM_BYTES)
        return max(_LEAST_PART_BYTES, min(least, DEFAULT_ITEM_BYTES) - OVERHEAD_BYTES)

    def close(self) -> None:
        """Stop the probes and close all connections. Wait for a request in progress, but not for name resolution."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        for server in self.servers:
            server.close()
        self._watch.join(self.longest_question_seconds)

    def _notice(self) -> None:
        """Map the keys again after a server was excluded or included."""
        with self._changed:
            self._hash = _rendezvous(server.name for server in self.servers if not server.is_out)
            self._changed.notify()

    def _probe(self) -> None:
        while (server := self._next_due()) is not None:
            server.probe()

    def _next_due(self) -> PoolServer | None:
        """Wait until a probe is due and return the server; None once the ring closes."""
        with self._changed:
            while not self._is_closing:
                first = min(self.servers, key=lambda server: server.probe_at)
                left = first.probe_at - self._clock()
                if left <= 0:
                    return first
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        return None


def _rendezvous(names: Iterable[str]) -> RendezvousHash:
    # pymemcache's own hash function is Python: 20 times as slow (2026-11).
    return RendezvousHash(sorted(names), hash_function=lambda text, seed: xxh3_64_intdigest(text.encode(), seed))


def parse_address(text: str) -> str | tuple[str, int]:
    """Convert an entry of the setting ``pool``, which is valid, to the address of a socket."""
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
