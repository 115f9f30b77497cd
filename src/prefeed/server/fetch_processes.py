"""Processes that fetch for the server: started when there is much to fetch, more of them when they are busy, again when one dies.

::

    server ── tickets, many per packet ──→ fetch process ←─ bytes ── origin
       ↑ ←── arrivals, many per packet ──────┘   │
       │                                         ↓
       └── grants, publishes, frees ──→ segments of the memory tier

The server grants each fetch a place in the tier, the process writes the object there, and the server publishes it without
a copy. The fetches of a process that dies are returned as lost, and the server makes them itself; their places are released once
the process has ended and can write no more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from prefeed.core.requests import START, Again, wants_another_process
from prefeed.server.fetch_process import (
    FROM_PROCESS,
    PACKET_BYTES,
    Arrivals,
    Fetches,
    FetchItem,
    Limit,
    NewOrigin,
    Ping,
)
from prefeed.sources.quick_fetches import QuickOrigin
from prefeed.sources.quick_heads import WHOLE
from prefeed.store.index import Place
from prefeed.store.log import LogWriter
from prefeed.system.clock import Clock

_log = logging.getLogger("prefeed")

LARGEST_BYTES: Final = 4 * 1024**2
"""Larger objects are not for fetch processes: what an object costs beside its bytes no longer matters."""

START_AFTER: Final = 256
"""Fetches after which the first process is worth its start, which takes the processor 0.1 s."""

_BATCH_BYTES: Final = PACKET_BYTES // 4
_FETCH_BYTES: Final = 64
"""Of a fetch in a message, beside its target; rather too many."""

_TICK_SECONDS: Final = 1.0
_MOST_SILENT_TICKS: Final = 10
"""A process that says nothing for so long, while the server itself ran, is taken for dead: it may be suspended."""

_IDLE_TICKS: Final = 60
_LONG_LIFE_SECONDS: Final = 60.0

JobT = TypeVar("JobT")


class Watcher(Protocol):
    """The loop that the server waits in."""

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        """Call a function whenever the descriptor can be read."""
        ...

    def unwatch(self, fd: int) -> None:
        """Do so no more."""
        ...

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function in that many seconds."""
        ...


class Program(Protocol):
    """What fetches: a process, as ``subprocess.Popen`` has it, or a thread."""

    @property
    def pid(self) -> int:
        """Number of the process."""
        ...

    def poll(self) -> int | None:
        """Return None while it runs."""
        ...

    def kill(self) -> None:
        """End it."""
        ...

    def wait(self) -> int:
        """Wait for its end."""
        ...


class Granted:
    """An object that a process has written to a place of the tier, until it is published or released."""

    __slots__ = ("_tier", "is_ended", "key", "place")

    def __init__(self, tier: LogWriter, key: bytes, place: Place) -> None:
        self._tier = tier
        self.key = key
        self.place = place
        self.is_ended = False

    def __len__(self) -> int:
        """Return the size of the object in bytes."""
        return self.place.length

    def read(self) -> bytes | None:
        """Return a copy of the object, None if the tier was cleared since."""
        return self._tier.read(self.key, self.place)

    def release(self) -> None:
        """Give the place back, unless it was published; a second call does nothing."""
        if not self.is_ended:
            self.is_ended = True
            self._tier.release([self.place])


@dataclass(slots=True)
class Delivery(Generic[JobT]):
    """How a fetch ended: with an object in the tier, or a failure as ``quick_fetches`` names it.

    Attributes:
        job: Whose it is.
        granted: The object; None after a failure.
        version, modified_seconds, seconds, failure, object_bytes: As in ``Arrival``.
    """

    job: JobT
    granted: Granted | None
    version: str = ""
    modified_seconds: int = 0
    seconds: float = 0.0
    failure: str = ""
    object_bytes: int = 0


@dataclass(slots=True)
class _UnderWay(Generic[JobT]):
    job: JobT
    granted: Granted


@dataclass(slots=True, eq=False)
class _Process(Generic[JobT]):
    """One process, as the server knows it."""

    program: Program
    sock: socket.socket
    began: float
    is_ready: bool = False
    limits: dict[int, int] = field(default_factory=dict)  # as it was told, by number of the origin
    under_way: dict[int, _UnderWay[JobT]] = field(default_factory=dict)
    batch: list[FetchItem] = field(default_factory=list)
    batch_bytes: int = 0
    outgoing: deque[bytes] = field(default_factory=deque)
    told: tuple[QuickOrigin, int] | None = (
        None  # the origin of the last fetch, and its number; None: limits have changed
    )
    silent_ticks: int = 0
    cpu_seconds: float = 0.0
    cpu_at_tick: float = 0.0


class FetchProcesses(Generic[JobT]):
    """The processes, what is under way in them, and what came from them.

    **Threads and processes.** The loop's thread calls everything. A process ends with the server, however that ends.
    **Ownership.** ``close`` ends the processes; objects may be released after it.
    **Blocking.** Never, but ``close``, for the time that killed processes take to go.

    Attributes:
        is_urgent: A reader waits for something of what is asked for.
        begins_at_once: What is started can be asked at once.
        first_limit: Requests to a server that may be under way until ``limit`` says otherwise.
    """

    begins_at_once = False
    first_limit = START

    def __init__(self, tier: LogWriter, *, number: int | None, watcher: Watcher, clock: Clock) -> None:
        """Start none yet.

        Args:
            tier: Grants places.
            number: How many processes; None: one when there is much to fetch, up to one per two cores when they are busy.
            watcher: Waits for their messages.
            clock: Seconds.
        """
        self._tier = tier
        cores = len(os.sched_getaffinity(0))
        self._most = max(1, cores // 2) if number is None else number
        self._least = 1 if number is None else number
        self._start_after = START_AFTER if number is None else 1
        self._watcher = watcher
        self._clock = clock
        self._again = Again()
        self._processes: list[_Process[JobT]] = []
        self._ready: list[_Process[JobT]] = []
        self._ended: list[tuple[Program, list[Granted]]] = []  # with places that they may still write to
        self._origins: dict[QuickOrigin, int] = {}
        self._deliveries: deque[Delivery[JobT]] = deque()
        self._limits: dict[QuickOrigin, int] = {}
        self._lost: list[JobT] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer = bytearray(PACKET_BYTES)
        self._next_number = 0
        self._num_asked = 0
        self._idle_ticks = 0
        self._is_ticking = False
        self._is_closed = False
        self.is_urgent = False
        if number is not None and number > cores:
            _log.info("prefeed: fetch_processes is %d, and the machine has %d cores", number, cores)

    @property
    def num_ready(self) -> int:
        """Processes that fetch."""
        return len(self._ready)

    @property
    def process_ids(self) -> list[int]:
        """Processes that were started and have not ended."""
        return [process.program.pid for process in self._processes]

    @property
    def ready_ids(self) -> tuple[int, ...]:
        """Those of them that fetch."""
        return tuple(process.program.pid for process in self._ready)

    def expect(self, num_objects: int) -> None:
        """``num_objects`` may be asked for soon: if that is worth a process, it is ready by then."""
        if num_objects >= self._start_after and not self._is_closed:
            self._num_asked = max(self._num_asked, self._start_after)
            self._idle_ticks = 0
            self._start_first()

    def limit(self, origin: QuickOrigin, most: int) -> None:
        """Limit the requests to a server that are under way, in all processes together."""
        if self._limits.get(origin) != most:
            self._limits[origin] = most
            self._share_anew()

    def try_fetch(
        self,
        origin: QuickOrigin,
        target: bytes,
        size_bytes: int,
        job: JobT,
        *,
        key: bytes,
        is_transient: bool = False,
        is_demanded: bool = False,
        first: int = WHOLE,
    ) -> bool:
        """Let a process fetch an object, from ``flush`` on; False where no process or no room is, or the object is too large.

        Args:
            origin: Who is asked.
            target: What is asked for.
            size_bytes: Size of the object, or of the part, as listed.
            job: Comes back with its delivery, or as lost.
            key: Of its entry in the tier.
            is_transient: It is freed after it was read.
            is_demanded: A reader waits for it: it goes before the limit.
            first: First byte of a part; ``WHOLE``: the whole object.
        """
        if size_bytes > LARGEST_BYTES or self._is_closed:
            return False
        self._num_asked += 1
        self._idle_ticks = 0
        if self._num_asked >= self._start_after:
            self._start_first()
        if not self._ready or (place := self._tier.grant(size_bytes, transient=is_transient)) is None:
            return False
        process = self._ready[0] if len(self._ready) == 1 else min(self._ready, key=lambda one: len(one.under_way))
        number = self._next_number
        self._next_number += 1
        process.under_way[number] = _UnderWay(job, Granted(self._tier, key, place))
        known = self._number_of(origin, process)
        item = (number, known, target, key, place.segment, place.offset, size_bytes, is_demanded, first)
        process.batch.append(item)
        process.batch_bytes += len(target) + _FETCH_BYTES
        if process.batch_bytes > _BATCH_BYTES:
            self._send_batch(process)
        return True

    def flush(self) -> None:
        """Send what was asked for since."""
        for process in list(self._processes):
            self._send_batch(process)

    def take(self, most: int) -> list[Delivery[JobT]]:
        """Return at most ``most`` arrivals; the caller publishes or releases each object."""
        return [self._deliveries.popleft() for _ in range(min(most, len(self._deliveries)))]

    def take_lost(self) -> list[JobT]:
        """Return the jobs of processes that have died: they are not being fetched any more."""
        lost, self._lost = self._lost, []
        return lost

    @property
    def has_results(self) -> bool:
        """True while ``take`` or ``take_lost`` would return something."""
        return bool(self._deliveries or self._lost)

    def close(self) -> None:
        """End the processes; what is under way is abandoned."""
        self._is_closed = True
        for process in list(self._processes):
            self._let_go(process)
        for program, places in self._ended:
            program.wait()
            _release_all(places)
        self._ended.clear()
        _release_all(
            [delivery.granted for delivery in self.take(len(self._deliveries)) if delivery.granted is not None]
        )

    # ---------------------------------------------------------------- to the processes

    def _share_anew(self) -> None:
        """Limits have changed, or the processes that share them: each process is told with the next fetch."""
        for process in self._processes:
            process.told = None

    def _number_of(self, origin: QuickOrigin, process: _Process[JobT]) -> int:
        """Return the number by which the process knows an origin; what it is to be told of it goes before the next fetches."""
        if process.told is not None and process.told[0] is origin:
            return process.told[1]
        number = self._origins.setdefault(origin, len(self._origins))
        if number not in process.limits:
            process.limits[number] = 0
            process.outgoing.append(self._encode(NewOrigin(number, origin)))
        share = -(-self._limits.get(origin, self.first_limit) // len(self._ready))
        if share != process.limits[number]:
            process.limits[number] = share
            process.outgoing.append(self._encode(Limit(number, share)))
        process.told = (origin, number)
        return number

    def _send_batch(self, process: _Process[JobT]) -> None:
        if process.batch:
            process.outgoing.append(self._encode(Fetches(process.batch, self.is_urgent)))
            process.batch, process.batch_bytes = [], 0
        try:
            while process.outgoing:
                process.sock.send(process.outgoing[0])
                process.outgoing.popleft()
        except BlockingIOError:
            return  # again with the next batch, or tick
        except OSError:
            self._died(process)

    # ---------------------------------------------------------------- from the processes

    def _receive(self, process: _Process[JobT]) -> None:
        while process in self._processes:
            try:
                size = process.sock.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                self._died(process)
                return
            self._take_in(process, FROM_PROCESS.decode(memoryview(self._buffer)[:size]))

    def _take_in(self, process: _Process[JobT], message: Arrivals) -> None:
        process.silent_ticks = 0
        if not process.is_ready:
            process.is_ready = True
            self._ready.append(process)
            self._share_anew()
        process.cpu_seconds = message.cpu_seconds
        for arrival in message.arrivals:
            done = process.under_way.pop(arrival.number)
            if arrival.failure:
                done.granted.release()
            self._deliveries.append(
                Delivery(
                    done.job,
                    None if arrival.failure else done.granted,
                    arrival.version,
                    arrival.modified_seconds,
                    arrival.seconds,
                    arrival.failure,
                    arrival.object_bytes,
                )
            )

    # ---------------------------------------------------------------- their lives

    def _start_first(self) -> None:
        """Start those that there are at least."""
        while len(self._processes) < self._least and self._start():
            pass

    def _start(self) -> bool:
        """Start one more, unless the last one has died too soon, or could not be started; return whether it was."""
        now = self._clock()
        if not self._again.is_due(now):
            return False
        try:
            process = self._started()
        except OSError as err:
            self._again.failed(began=now, now=now)
            if self._again.num_failed == 1:
                num_left = len(self._processes)
                rest = f"{num_left} running" if num_left else "the server fetches itself"
                _log.warning(
                    "prefeed: no %sfetch process can be started (%s): %s", "further " * bool(num_left), err, rest
                )
            return False
        self._processes.append(process)
        if process.is_ready:
            self._ready.append(process)
            self._share_anew()
        self._watcher.watch(process.sock.fileno(), lambda: self._receive(process))
        if not self._is_ticking:
            self._is_ticking = True
            self._watcher.call_later(_TICK_SECONDS, self._tick)
        return True

    def _started(self) -> _Process[JobT]:
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(ours.close)
            ours.setblocking(False)
            with theirs:
                program = self._begun(theirs)
            undo.pop_all()
        return _Process(program, ours, self._clock(), is_ready=self.begins_at_once)

    def _begun(self, sock: socket.socket) -> Program:
        """Return what fetches, begun; it takes copies of the descriptors."""
        given = [sock.fileno(), *self._tier.segments]
        return subprocess.Popen(
            [sys.executable, "-m", "prefeed.server.fetch_process", *map(str, given)],
            stdin=subprocess.DEVNULL, pass_fds=given,
        )  # fmt: skip

    def _died(self, process: _Process[JobT]) -> None:
        """A process has ended by itself, or is taken for dead."""
        now = self._clock()
        if now - process.began > _LONG_LIFE_SECONDS:
            self._again.succeeded()
        self._again.failed(began=now, now=now)
        num_lost = len(process.under_way)
        self._let_go(process)
        _log.warning(
            "prefeed: fetch process %d has ended; the server makes its %d fetches", process.program.pid, num_lost
        )

    def _let_go(self, process: _Process[JobT]) -> None:
        """End a process; what was under way in it is lost."""
        self._processes.remove(process)
        if process.is_ready:
            self._ready.remove(process)
            self._share_anew()
        self._watcher.unwatch(process.sock.fileno())
        process.sock.close()
        process.program.kill()
        self._ended.append((process.program, [lost.granted for lost in process.under_way.values()]))
        self._lost += [lost.job for lost in process.under_way.values()]
        process.under_way.clear()

    def _tick(self) -> None:
        """Look after the processes, once a second while there are any."""
        self._is_ticking = False
        ended, self._ended = self._ended, []
        for program, places in ended:
            if program.poll() is None:
                self._ended.append((program, places))
            else:
                _release_all(places)
        if self._is_closed:
            return
        self._idle_ticks += 1
        shares = []
        for process in list(self._processes):
            process.silent_ticks += 1
            shares.append((process.cpu_seconds - process.cpu_at_tick) / _TICK_SECONDS)
            process.cpu_at_tick = process.cpu_seconds
            if process.silent_ticks > _MOST_SILENT_TICKS:
                self._died(process)
                continue
            process.outgoing.append(self._encode(Ping()))
            self._send_batch(process)
        if self._idle_ticks > _IDLE_TICKS:
            self._num_asked = 0
            for process in [one for one in self._processes if not one.under_way]:
                self._let_go(process)
        elif wants_another_process(shares, most=self._most):
            self._start()
        if self._processes or self._ended:
            self._is_ticking = True
            self._watcher.call_later(_TICK_SECONDS, self._tick)


def _release_all(places: Sequence[Granted]) -> None:
    for granted in places:
        granted.release()
