"""One server of the pool as this process sees it: its connections, and whether it is left out."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeVar

from pymemcache.exceptions import MemcacheError, MemcacheServerError  # type: ignore[import-untyped]

from prefeed.clock import Clock
from prefeed.pool.connection import Address, Connection
from prefeed.pool.values import DEFAULT_ITEM_BYTES
from prefeed.types import Buffer

_MOST_CONNECTIONS: Final = 4
"""Reads under way to one server: measured, more than that are no faster, and cost each other CPU time."""

_MOST_IDLE: Final = 8
"""Connections that are kept: a memcached takes 1,024 of all nodes together unless told otherwise."""

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_FULL_SECONDS: Final = 5.0
"""A server that has no room is offered nothing for so long."""

_FAILURES: Final = (OSError, MemcacheError, ValueError, LookupError)
"""The last two are what pymemcache makes of some answers of what is no memcached."""

_log = logging.getLogger("prefeed")

T = TypeVar("T")


class Stored(Enum):
    """What became of a value that was to be stored."""

    YES = "yes"
    FULL = "full"
    NO = "no"


class PoolServer:
    """A memcached, and what is known of it.

    A server that does not answer in time, breaks off or answers something else is left out at once: requests that wait
    for a connection are let go, and no other is made until ``probe`` finds that it answers again. So it costs the whole
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
        self.item_bytes = DEFAULT_ITEM_BYTES
        self.failures = 0
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._tell = changed
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._num_open = 0
        self._pid = os.getpid()
        self._is_out = False
        self._is_closed = False
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._probe_at = clock()
        self._full_until = -float("inf")

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

    def write(self, key: bytes, *pieces: Buffer) -> Stored:
        """Store a value, made of these pieces."""
        if self._clock() < self._full_until:
            return Stored.FULL

        def ask(connection: Connection) -> Stored:
            try:
                connection.write(key, *pieces)
            except MemcacheServerError:
                self._full_until = self._clock() + _FULL_SECONDS
                return Stored.FULL
            return Stored.YES

        return self._ask(ask, Stored.NO, waits_its_turn=False)

    def add(self, key: bytes, value: bytes, *, seconds: int) -> bool:
        """Return False if there is a value under the key; else there is this one, for that long, if the server takes it."""

        def ask(connection: Connection) -> bool:
            try:
                return bool(connection.add(key, value, expire=seconds))
            except MemcacheServerError:
                return True

        return self._ask(ask, True)

    def probe(self) -> None:
        """Ask what it takes, and so whether it answers; takes at most the time-out."""
        self._probe_at = float("inf")
        connection = Connection(self._address, timeout_seconds=self._timeout_seconds)
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
        with self._changed:
            self._is_closed = self._is_out = True
            self._let_go()

    # ------------------------------------------------------------ asking

    def _ask(self, question: Callable[[Connection], T], otherwise: T, *, waits_its_turn: bool = True) -> T:
        while (connection := self._take(waits_its_turn)) is not None:
            was_used = connection.has_answered
            try:
                answer = question(connection)
            except _FAILURES as err:
                self._drop(connection)
                if was_used and isinstance(err, ConnectionError) and self._forget_idle():
                    continue  # the server closed it while it was idle: it was started again, say
                self._fail(err)
                return otherwise
            connection.has_answered = True
            self._give_back(connection)
            return answer
        return otherwise

    def _take(self, waits_its_turn: bool) -> Connection | None:
        with self._changed:
            self._notice_fork()
            if waits_its_turn and not self._changed.wait_for(self._can_ask, self._timeout_seconds):
                return None
            if self._is_out:
                return None
            if self._idle:
                return self._idle.pop()
            self._num_open += 1
        return Connection(self._address, timeout_seconds=self._timeout_seconds)

    def _can_ask(self) -> bool:
        return bool(self._is_out or self._idle or self._num_open < _MOST_CONNECTIONS)

    def _give_back(self, connection: Connection) -> None:
        with self._changed:
            self._pause_seconds = _FIRST_PAUSE_SECONDS
            if not self._is_out and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                self._changed.notify()
                return
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        with self._changed:
            self._num_open -= 1
            self._changed.notify()

    def _forget_idle(self) -> bool:
        """Close the connections that are idle, for they are as old; True while it may be asked once more."""
        with self._changed:
            self._let_go()
            return not self._is_out

    def _let_go(self) -> None:
        for connection in self._idle:
            connection.close()
        self._num_open -= len(self._idle)
        self._idle.clear()
        self._changed.notify_all()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._num_open = os.getpid(), 0
            self._idle = []

    # ------------------------------------------------------------ left out, and back

    def _fail(self, err: Exception, *, is_probe: bool = False) -> None:
        with self._changed:
            is_new = not self._is_out
            if self._is_closed or not (is_new or is_probe):
                return  # one of several that were under way when the first one failed
            self._is_out = True
            self._probe_at = self._clock() + self._pause_seconds
            self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds)
            self._let_go()
            self.failures += is_new
        if is_new:
            _log.warning("prefeed: pool server %s is left out for now: %s", self.name, str(err) or type(err).__name__)
        self._tell()

    def _come_back(self) -> None:
        with self._changed:
            was_out = self._is_out
            self._is_out = self._is_closed
        if was_out:
            _log.info("prefeed: pool server %s answers again", self.name)
        self._tell()
