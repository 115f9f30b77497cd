"""One thread that owns the state: sockets, wake-ups from other threads, timers. No callbacks into user code."""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import resource
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefeed.errors import ServerError
from prefeed.sources.store_access import StoreAccess
from prefeed.sources.views import View
from prefeed.system.clock import Clock
from prefeed.wire.endpoint import SOCKET, listen_in, peer_process
from prefeed.wire.frames import FrameReader, encode
from prefeed.wire.messages import AnyMessage, Message

_RECEIVE_BYTES = 256 * 1024
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Error numbers of a process, or a machine, that has all the files open that it may have."""

_RESERVED_DESCRIPTORS = 8
_FEW_DESCRIPTORS = 128
_ACCEPT_AGAIN_SECONDS = 1.0
_MOST_ROUNDS = 64
"""Looks at all connections after which what was to come after reading comes, however much is still sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How the client that asks reaches its origins.

    Attributes:
        view: What it sees of file systems; None: what this server sees.
        access: How it reaches the object store; None: as the home's own file says.
        shares_network: Addresses of the machine itself, and short names, mean to it what they mean to this server.
    """

    view: View | None = None
    access: StoreAccess | None = None
    shares_network: bool = True


def allow_descriptors(*, all_of_them: bool) -> None:
    """Raise the limit of descriptors to what the system allows, or to less: then clients still get in, for example to stop the server.

    Each catalogue holds nine, each client and each request one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_bounded = most != resource.RLIM_INFINITY and not all_of_them
    some = max(most // 2, most - _RESERVED_DESCRIPTORS) if is_bounded else most
    resource.setrlimit(resource.RLIMIT_NOFILE, (some, most))


def few_descriptors() -> str:
    """Describe a limit of descriptors that is too low for several loaders; empty if it is high enough."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= _FEW_DESCRIPTORS:
        return ""
    return (
        f"the node server may have only {most} file descriptors: some datasets and clients will not be served; restart it with a "
        f"higher limit (`prefeed server stop`, `ulimit -n {_FEW_DESCRIPTORS}`)"
    )


def lack_of_descriptors() -> str:
    """Describe to a client that the server can open nothing more, and the limit."""
    return (
        f"the node server (pid {os.getpid()}) has no file descriptors left: it may have "
        f"{resource.getrlimit(resource.RLIMIT_NOFILE)[1]}; end it with `prefeed server stop` and raise the limit (`ulimit -n`) "
        "where it is started"
    )


@contextlib.contextmanager
def _with_reserved_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_descriptors(all_of_them=True)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Connection:
    """One client."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader: FrameReader = FrameReader()
        self.outgoing: bytearray = bytearray()
        self.is_greeted = False
        self.is_open = True
        self.root: int | None = None  # descriptor of the client's root directory, until its first word is read
        self.is_cut_short = False  # there was no descriptor for that
        self.view: View | None = None  # what the client sees, if that is not what this process sees
        self.shares_network = True
        self.descriptors: Sequence[int] = ()  # that go with the next bytes

    def reach(self, options: dict[str, str] | None, proxies: dict[str, str]) -> Reach:
        """Return how the client reaches its origins, with these options of its store, if it has told any."""
        access = None if options is None else StoreAccess(options=options, proxies=proxies)
        return Reach(view=self.view, access=access, shares_network=self.shares_network)


class Loop:
    """Waits for sockets, wake-ups and timers, and hands each to the owner.

    Args:
        directory: Where to listen; a socket left by a dead server is replaced.
        clock: Seconds.
        on_message: A client said something.
        on_closed: A client is gone.

    **Threads**: everything belongs to the thread that calls ``run_once``, but ``wake`` and ``call_soon``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        on_message: Callable[[Connection, AnyMessage], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self.connections: set[Connection] = set()
        self._path = directory / SOCKET
        self._clock = clock
        self._on_message = on_message
        self._on_closed = on_closed
        self._selector = selectors.DefaultSelector()
        self._listener = listen_in(directory)
        self._listener.setblocking(False)
        self._identity = _identity(self._path)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Callable[[], None]] = deque()
        self._after_reading: list[tuple[int, Callable[[], None]]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._event, selectors.EVENT_READ, None)

    def run_once(self, most_seconds: float | None) -> None:
        """Wait for the next event, at most that long, and hand on everything that is there."""
        ready = self._selector.select(self._timeout(most_seconds))
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Connection):
                self._serve(key.data, events)
            elif key.data is not None:
                key.data()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
        while self._calls:
            self._calls.popleft()()
        if self._after_reading:
            self._count_round(is_quiet=not ready)
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def wake(self) -> None:
        """Let ``run_once`` return; any thread may call it."""
        os.eventfd_write(self._event, 1)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run the function in the loop's thread; any thread may call it."""
        self._calls.append(function)
        self.wake()

    def call_after_reading(self, function: Callable[[], None]) -> None:
        """Run the function once all that was sent to this server before now is read, by whomever it was sent.

        What a client sends on two connections is read in any order: one of them may have been looked at before, and
        read after. In the loop's thread only.
        """
        self._after_reading.append((_MOST_ROUNDS, function))

    def _count_round(self, *, is_quiet: bool) -> None:
        waiting, self._after_reading = self._after_reading, []
        for rounds, function in waiting:
            if is_quiet or rounds == 0:
                function()
            else:
                self._after_reading.append((rounds - 1, function))

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Run the function in that many seconds."""
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._numbers), function))

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        """Call a function whenever the descriptor can be read."""
        self._selector.register(fd, selectors.EVENT_READ, act)

    def unwatch(self, fd: int) -> None:
        """Do so no more; what this turn has seen of it already may still be acted upon."""
        self._selector.unregister(fd)

    def send(self, connection: Connection, message: Message) -> None:
        """Queue the message and send what the socket takes now."""
        if not connection.is_open:
            return
        connection.outgoing += encode(message)
        self._flush(connection)

    def close_connection(self, connection: Connection) -> None:
        """Forget the client, once."""
        if connection.is_open:
            connection.is_open = False
            self.connections.discard(connection)
            self._selector.unregister(connection.sock)
            connection.sock.close()
            if connection.root is not None:
                os.close(connection.root)
                connection.root = None
            self._on_closed(connection)

    def owns_socket(self) -> bool:
        """True while the socket file is the one this server made: it may have been removed, or replaced."""
        return _identity(self._path) == self._identity

    def close(self) -> None:
        """Stop listening, close every client, remove the socket file if it is ours."""
        if self.owns_socket():
            self._path.unlink()
        for connection in list(self.connections):
            self.close_connection(connection)
        self._selector.close()
        self._listener.close()
        os.close(self._event)

    def _timeout(self, most_seconds: float | None) -> float | None:
        if self._calls or self._after_reading:
            return 0
        if not self._timers:
            return most_seconds
        due = max(0.0, self._timers[0][0] - self._clock())
        return due if most_seconds is None else min(due, most_seconds)

    def _accept(self) -> None:
        try:
            with _with_reserved_descriptors():
                sock, _ = self._listener.accept()
        except OSError as err:  # it is gone already, or there are no descriptors left: the others are still served
            if err.errno in NO_DESCRIPTORS:
                self._selector.unregister(self._listener)  # it would be ready all the time
                self.call_later(_ACCEPT_AGAIN_SECONDS, self._listen_again)
            return
        if peer_process(sock)[1] != os.geteuid():
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock)
        self.connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _listen_again(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def _serve(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        if events & selectors.EVENT_READ and connection.is_open:
            with contextlib.nullcontext() if connection.is_greeted else _with_reserved_descriptors():
                self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(_RECEIVE_BYTES) if connection.is_greeted else _receive_first(connection)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close_connection(connection)
            return
        try:
            for message in connection.reader.feed(data):
                if not connection.is_open:
                    return  # its end has been told: what it said after that would never be undone
                self._on_message(connection, message)
        except ServerError:
            self.close_connection(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            if connection.outgoing and connection.descriptors:
                sent = socket.send_fds(connection.sock, [connection.outgoing], connection.descriptors)
                connection.descriptors = ()
            else:
                sent = connection.sock.send(connection.outgoing) if connection.outgoing else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close_connection(connection)
            return
        del connection.outgoing[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if self._selector.get_key(connection.sock).events != wanted:
            self._selector.modify(connection.sock, wanted, connection)


def _receive_first(connection: Connection) -> bytes:
    """Return what a client says before it is greeted, and take the descriptor that comes with it; of more none is kept."""
    data, descriptors, flags, _ = socket.recv_fds(connection.sock, _RECEIVE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    connection.is_cut_short = bool(flags & socket.MSG_CTRUNC)
    for descriptor in descriptors:
        if connection.root is None:
            connection.root = descriptor
        else:
            os.close(descriptor)
    return data


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
