"""The servers of the pool as this process sees them: which one has a key, and which are left out and asked again when."""

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

from prefeed.pool.connection import Address, Connection
from prefeed.pool.values import DEFAULT_ITEM_BYTES, OVERHEAD_BYTES
from prefeed.system.clock import Clock
from prefeed.types import Buffer

_MOST_READS: Final = 4
"""Under way to one server: measured, more than that are no faster, and cost each other CPU time."""

_MOST_IDLE_WRITERS: Final = 4
"""Connections that are kept: a memcached takes 1,024 of all nodes together unless told otherwise."""

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_FULL_SECONDS: Final = 5.0
"""A server that has no room is offered nothing for so long."""

_FAILURES: Final = (OSError, MemcacheError, UnicodeError)
"""The last is what a host's name ends in that cannot be one."""

_log = logging.getLogger("prefeed")

T = TypeVar("T")


class Stored(Enum):
    """What became of a value that was to be stored."""

    YES = "yes"
    FULL = "full"
    NO = "no"


class PoolServer:
    """A memcached, and what is known of it.

    A server that does not answer in time, breaks off or answers something else is left out at once: no other request is
    made until ``probe`` finds that it answers again. So it costs the whole
    process one time-out, and then one a pause, which grows from 1 to 30 s until a request has been answered.

    **Threads.** Any thread may ask. Four reads are under way at most; writes do not wait for them: other nodes may.

    **Processes.** Connections belong to the process that made them: a forked child makes its own.

    Args:
        name: As the user wrote it.
        address: Where it is.
        timeout_seconds: How long a question may take, and before it the wait for a connection.
        clock: Seconds.
        changed: Called when it is left out, or asked again.
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
        """True while the server is left out."""
        return self._is_out

    @property
    def probe_at(self) -> float:
        """When ``probe`` is due, by the clock; never while nothing is wrong."""
        return self._probe_at

    def read(self, key: bytes) -> memoryview | None:
        """Return the value under the key; None when there is none, or the server cannot tell."""
        return self._ask(lambda connection: connection.read(key), None)

    def read_many(self, keys: Sequence[bytes], *, expected_bytes: int) -> dict[bytes, memoryview]:
        """Return the values under those of the keys that have one; none when the server cannot tell."""
        return self._ask(lambda connection: connection.read_many(keys, expected_bytes=expected_bytes), {})

    def write(self, key: bytes, *pieces: Buffer) -> Stored:
        """Store a value, made of these pieces."""
        if self._clock() < self._full_until:
            return Stored.FULL
        is_trial = self._is_full

        def ask(connection: Connection) -> Stored:
            try:
                connection.write(key, *pieces)
            except MemcacheServerError:
                self._full_until, self._is_full = self._clock() + _FULL_SECONDS, True
                return Stored.FULL
            if is_trial:  # not one that was on its way already when another was refused
                self._is_full = False
            return Stored.YES

        return self._ask_at_once(ask, Stored.NO)

    def add(self, key: bytes, value: bytes, *, seconds: int) -> bool:
        """Return False if there is a value under the key; else there is this one, for that long, if the server takes it.

        One that has no room is not asked, until it has stored something again: what others are to wait for would not come.
        """
        if self._is_full:
            return True

        def ask(connection: Connection) -> bool:
            try:
                return connection.add(key, value, seconds=seconds)
            except MemcacheServerError:
                return True

        return self._ask(ask, True)

    def probe(self) -> None:
        """Ask what it takes, and so whether it answers; takes at most the time-out."""
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
        """Let go of the connections; nothing is asked any more."""
        with self._lock:
            self._is_closed = self._is_out = True
        self._close_idle()

    # ------------------------------------------------------------ asking

    def _ask(self, question: Callable[[Connection], T], otherwise: T) -> T:
        """Ask when it is this thread's turn."""
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

    def _ask_at_once(self, question: Callable[[Connection], T], otherwise: T) -> T:
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

    def _ask_over(self, connection: Connection, question: Callable[[Connection], T], otherwise: T) -> T:
        while not self._is_out:
            was_used = connection.has_answered
            try:
                answer = question(connection)
            except _FAILURES as err:
                connection.close()
                if was_used and isinstance(err, ConnectionError):
                    continue  # the server closed it while it was idle: it was started again, say
                self._fail(err)
                break
            connection.has_answered = True
            self._pause_seconds = _FIRST_PAUSE_SECONDS
            return answer
        return otherwise

    def _connection(self) -> Connection:
        return Connection(self._address, timeout_seconds=self._timeout_seconds)

    def _forget_connections(self) -> None:
        """Begin with none: those that a parent process made are the parent's."""
        self._turns: SimpleQueue[Connection] = SimpleQueue()
        for _ in range(_MOST_READS):
            self._turns.put(self._connection())
        self._writers: deque[Connection] = deque()
        self._pid = os.getpid()

    def _close_idle(self) -> None:
        """Close connections that are not used now; the next question connects again."""
        idle: list[Connection] = []
        with contextlib.suppress(Empty):
            while True:
                idle.append(self._turns.get_nowait())
        for connection in idle:
            connection.close()
            self._turns.put(connection)
        with contextlib.suppress(IndexError):
            while True:
                self._writers.pop().close()

    # ------------------------------------------------------------ left out, and back

    def _fail(self, err: Exception, *, is_probe: bool = False) -> None:
        with self._lock:
            is_new = not self._is_out
            if self._is_closed or not (is_new or is_probe):
                return  # one of several that were under way when the first one failed
            self._is_out = True
            self._probe_at = self._clock() + self._pause_seconds
            self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds)
            self.failures += is_new
        self._close_idle()  # they are as old as the one that failed, and may be as dead
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
"""That a question takes: one to connect, two to be answered, and what it takes to resolve a name."""


class Ring:
    """Servers that share keys by rendezvous hashing: one that is left out gives its keys to the others, and no other moves.

    Every node that has the same servers in its settings, in whatever order, finds a key at the same one.

    **Ownership.** ``close`` ends its thread, which asks again those that were left out, and lets go of all connections.

    **Threads.** Any.

    Args:
        addresses: ``host:port``, ``[::1]:port`` or the path of a unix socket, each once.
        timeout_seconds: How long one request may take.
        clock: Seconds.
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
        """Return the server that has the key, among those that answer; None when none does."""
        name = self._hash.get_node(key.decode())
        return None if name is None else self._by_name[name]

    @property
    def num_out(self) -> int:
        """How many servers are left out."""
        return sum(server.is_out for server in self.servers)

    @property
    def part_bytes(self) -> int:
        """Most bytes of a part, such that each server takes it."""
        least = min((server.item_bytes for server in self.servers), default=DEFAULT_ITEM_BYTES)
        return max(_LEAST_PART_BYTES, min(least, DEFAULT_ITEM_BYTES) - OVERHEAD_BYTES)

    def close(self) -> None:
        """Ask no more; waits for a question under way, but not for a name to be resolved."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        for server in self.servers:
            server.close()
        self._watch.join(self.longest_question_seconds)

    # ------------------------------------------------------------ inside

    def _notice(self) -> None:
        """A server is left out, or answers: others have its keys now, or it has them again."""
        with self._changed:
            self._hash = _rendezvous(server.name for server in self.servers if not server.is_out)
            self._changed.notify()

    def _probe(self) -> None:
        while (server := self._next_due()) is not None:
            server.probe()

    def _next_due(self) -> PoolServer | None:
        """Wait until a server is to be asked; None when the ring closes."""
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
    """Return the address that the setting ``pool`` names, as sockets want it; the setting was checked before."""
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
