"""Objects, or parts of them, over HTTP/1.1, many at a time in one thread, received into buffers that are used again at once.

It does one thing: a GET whose answer is 200, or of a part 206, and has the expected number of bytes. Any other answer is reported as a
failure, or as ``ODD``, and the library behind ``ObjectStoreSource`` asks again: redirects, encodings, answers without a length.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from prefeed.sources.quick_heads import NO_HEAD, WHOLE, parse_head
from prefeed.sources.tls import tls_context

_HEAD_BYTES: Final = 4096
"""A buffer is so much larger than the object: the head of the answer comes first."""

_MOST_KEPT_BYTES: Final = 16 * 1024**2
"""Buffers that are kept for later answers, together: those of answers under way are in the processor's caches, others are not."""

ODD: Final = "odd"
"""An answer that this client does not take. The library may."""

# What ``store_errors.translate`` understands.
BROKEN_OFF: Final = "IncompleteBody"
TIMED_OUT: Final = "kind: Timeout"
NOT_CONNECTED: Final = "kind: Connect"
INTERRUPTED: Final = "kind: Interrupted"
STATUS: Final = "status code: %d"
MISSING: Final = STATUS % 404

_NO_LIMIT: Final = 1 << 30
_MOST_EVENTS: Final = 64
_CONNECT_SECONDS: Final = 5.0
_RESOLVED_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.25
_HEAD_ENDS: Final = b"\r\n\r\n"
_TOLD_STATUSES: Final = frozenset({404, 410, 429, *range(500, 600)})
"""Failures by their number; what others mean, such as 401 of a store, may stand in their text."""

_BUSY: Final = frozenset({errno.EINPROGRESS, errno.EAGAIN, errno.EALREADY})


class QuickOrigin(msgspec.Struct, frozen=True, array_like=True):
    """A web server, and how it is asked.

    Attributes:
        url: Root of the objects: each has connections and a limit of its own.
        is_encrypted: HTTPS.
        host: Name or address, without brackets.
        port: TCP port.
        headers: Lines of each request, each with its end; they may hold a secret.
        timeout_seconds: For one request, from its begin to the last byte.
        ca_bundle: File or directory of certificates to trust; empty: those of the machine.
    """

    url: str
    is_encrypted: bool
    host: str
    port: int
    headers: bytes
    timeout_seconds: float
    ca_bundle: str = ""

    def __repr__(self) -> str:
        return f"<QuickOrigin {self.url}>"


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """How a fetch ended.

    Attributes:
        number: As the caller numbered it.
        version: Its etag, else ``""``.
        modified_seconds: Its time, since 1970, where there is no etag; 0 when the server told none.
        seconds: How long it took.
        failure: Why there is no object, as ``store_errors.translate`` takes it, or ``ODD``; empty when there is one.
        object_bytes: Of a part: size of the whole object.
    """

    number: int
    version: str = ""
    modified_seconds: int = 0
    seconds: float = 0.0
    failure: str = ""
    object_bytes: int = 0


Keep = Callable[[int, memoryview], None]
"""Called with the number of a fetch and its object, which is valid during the call."""


class _Fetch:
    """One request, and since when it is under way."""

    __slots__ = ("began", "connection", "first", "is_again", "number", "origin", "room", "size", "target")

    def __init__(self, number: int, origin: _Origin, target: bytes, size: int, first: int) -> None:
        self.number = number
        self.first = first  # byte of the object, or WHOLE
        self.origin = origin
        self.target = target
        self.size = size
        self.room = _HEAD_BYTES + size
        self.began = 0.0
        self.is_again = False
        self.connection: _Connection | None = None


class _Origin:
    """A server, the connections to it that are idle, and the fetches that wait: for their turn, or until its name is resolved."""

    __slots__ = (
        "addresses", "context", "idle", "is_beginning", "is_resolving", "limit", "num_begun", "told", "unresolved", "until",
        "waiting",
    )  # fmt: skip

    def __init__(self, told: QuickOrigin) -> None:
        self.told = told
        self.limit = _NO_LIMIT
        self.num_begun = 0
        self.waiting: deque[_Fetch] = deque()
        self.idle: list[_Connection] = []
        self.addresses: list[tuple[Any, ...]] = []
        self.until = 0.0
        self.is_beginning = False
        self.is_resolving = False
        self.unresolved: list[_Fetch] = []
        self.context: Any = None  # of TLS


_CONNECTING, _SHAKING_HANDS, _READY = range(3)
_NO_BUFFER: Final = bytearray()


class _Connection:
    """A socket, and the fetch that it is used for."""

    __slots__ = (
        "address", "body", "buffer", "connect_by", "end", "events", "fd", "fetch", "filled", "head", "idle_since", "num_served",
        "origin", "sock", "stage", "unsent",
    )  # fmt: skip

    def __init__(self, origin: _Origin, sock: Any, address: int, connect_by: float) -> None:
        self.origin = origin
        self.sock = sock
        self.fd: int = sock.fileno()
        self.address = address
        self.connect_by = connect_by
        self.stage = _CONNECTING
        self.fetch: _Fetch | None = None
        self.events = 0
        self.unsent = b""
        self.buffer = _NO_BUFFER
        self.filled = self.body = self.end = 0  # in the buffer: up to where, the body's begin and its end; 0: not known
        self.head = NO_HEAD
        self.num_served = 0
        self.idle_since = 0.0


class QuickClient:
    """Fetches objects, as many at a time as it is given.

    **Threads and processes.** One thread calls everything; names are resolved in threads of their own.
    **Ownership.** ``close`` closes the connections.
    **Blocking.** Only ``step`` waits.

    Args:
        keep: Takes each object, in ``step``. An OSError of it is the failure of that fetch.
        origins: Servers that are known, by number.

    Attributes:
        num_under_way: Fetches that have not ended.
    """

    def __init__(self, keep: Keep, origins: dict[int, QuickOrigin] | None = None) -> None:
        self.num_under_way: int = 0
        self._keep = keep
        self._buffers: list[bytearray] = []
        self._kept_bytes = 0
        self._origins = {number: _Origin(told) for number, told in (origins or {}).items()}
        self._fetches: dict[int, _Fetch] = {}  # in the order in which they began
        self._connections: dict[int, _Connection] = {}
        self._connecting: dict[int, _Connection] = {}
        self._arrivals: list[Arrival] = []
        self._epoll = select.epoll()
        self._resolved: deque[tuple[_Origin, list[tuple[Any, ...]]]] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._event, select.EPOLLIN)
        self._look_at = 0.0
        self._not_yet: tuple[type[OSError], ...] = (BlockingIOError,)
        self._untrusted: tuple[type[OSError], ...] = ()

    def watch(self, fd: int) -> None:
        """Let ``step`` return when a descriptor of the caller can be read."""
        self._epoll.register(fd, select.EPOLLIN)

    def add_origin(self, number: int, origin: QuickOrigin) -> None:
        """Make a server known by a number."""
        self._origins[number] = _Origin(origin)

    def limit(self, number: int, most: int) -> None:
        """Limit the requests to a server that are under way; urgent ones do not count, the others wait for their turn."""
        origin = self._origins[number]
        origin.limit = most
        self._begin_waiting(origin)

    def fetch(
        self,
        number: int,
        origin: int,
        target: bytes,
        size_bytes: int,
        *,
        first: int = WHOLE,
        is_urgent: bool = False,
    ) -> None:
        """Fetch an object, or a part of it.

        Args:
            number: What its arrival is to be called; no other fetch under way is called so.
            origin: Number of the server.
            target: What the request names: a path that is percent-encoded.
            size_bytes: Size of the object, or of the part: answers of another one are odd.
            first: First byte of the part; ``WHOLE``: the whole object.
            is_urgent: It does not wait for its turn.
        """
        fetch = _Fetch(number, self._origins[origin], target, size_bytes, first)
        self.num_under_way += 1
        if is_urgent:
            self._begin(fetch)
        else:
            fetch.origin.waiting.append(fetch)
            self._begin_waiting(fetch.origin)

    def step(self, timeout_seconds: float) -> list[Arrival]:
        """Wait for something to happen, a moment at most while fetches are under way; return those that have ended."""
        if self._arrivals:
            timeout_seconds = 0.0
        elif self.num_under_way:
            timeout_seconds = min(timeout_seconds, _LOOK_SECONDS)
        for fd, events in self._epoll.poll(timeout_seconds, _MOST_EVENTS):
            connection = self._connections.get(fd)
            if connection is not None:
                self._serve(connection, events)
            elif fd == self._event:
                os.eventfd_read(self._event)
                self._take_resolved()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._end_late_ones(now)
        arrivals, self._arrivals = self._arrivals, []
        self.num_under_way -= len(arrivals)
        return arrivals

    def close(self) -> None:
        """Break off everything under way."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._epoll.close()
        os.close(self._event)

    # ---------------------------------------------------------------- connections

    def _begin_waiting(self, origin: _Origin) -> None:
        if origin.is_beginning:  # one that fails at once makes room for the next: a loop, not a recursion
            return
        origin.is_beginning = True
        try:
            while origin.waiting and origin.num_begun < origin.limit:
                self._begin(origin.waiting.popleft())
        finally:
            origin.is_beginning = False

    def _begin(self, fetch: _Fetch) -> None:
        if not fetch.is_again:
            fetch.began = time.monotonic()
            fetch.origin.num_begun += 1
            self._fetches[fetch.number] = fetch
        idle = fetch.origin.idle
        if idle and not fetch.is_again:
            self._ask(idle.pop(), fetch)
        else:
            self._connect(fetch, 0)

    def _connect(self, fetch: _Fetch, address: int) -> None:
        """Open a connection for a fetch, to an address of its server by number; the next ones are tried when it fails."""
        origin, now = fetch.origin, time.monotonic()
        if now > origin.until and not self._has_addresses(origin, now):
            origin.unresolved.append(fetch)
            return
        for number in range(address, len(origin.addresses)):
            family, at = origin.addresses[number]
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            except OSError:  # no descriptor is left, or the kernel has no such family
                continue
            if sock.connect_ex(at) not in (0, *_BUSY):
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(origin, sock, number, now + min(origin.told.timeout_seconds, _CONNECT_SECONDS))
            connection.fetch = fetch
            fetch.connection = connection
            self._connections[connection.fd] = self._connecting[connection.fd] = connection
            self._listen(connection, select.EPOLLOUT)
            return
        origin.until = 0.0
        self._end(fetch, NOT_CONNECTED)

    def _has_addresses(self, origin: _Origin, now: float) -> bool:
        """Return whether the addresses of a server are known; else they will be."""
        try:
            found = _addresses(origin.told, socket.AI_NUMERICHOST)
        except OSError:
            if not origin.is_resolving:
                origin.is_resolving = True
                threading.Thread(target=self._resolve, args=(origin,), name="prefeed-name", daemon=True).start()
            return False
        origin.addresses, origin.until = found, now + _RESOLVED_SECONDS
        return True

    def _resolve(self, origin: _Origin) -> None:
        found: list[tuple[Any, ...]] = []
        try:
            found = _addresses(origin.told, 0)
        except OSError:
            pass
        finally:
            self._resolved.append((origin, found))
            os.eventfd_write(self._event, 1)

    def _take_resolved(self) -> None:
        while self._resolved:
            origin, addresses = self._resolved.popleft()
            origin.addresses = addresses
            origin.is_resolving = False
            origin.until = time.monotonic() + _RESOLVED_SECONDS if origin.addresses else 0.0
            waiting, origin.unresolved = origin.unresolved, []
            for fetch in waiting:
                if fetch.number not in self._fetches:
                    continue
                if origin.addresses:
                    self._connect(fetch, 0)
                else:
                    self._end(fetch, NOT_CONNECTED)

    def _serve(self, connection: _Connection, events: int) -> None:
        if connection.stage == _READY:
            if events & select.EPOLLOUT:
                self._send(connection)
            if events & ~select.EPOLLOUT and connection.fd in self._connections:
                self._receive(connection)
        elif connection.stage == _CONNECTING:
            self._connected(connection)
        else:
            self._shake_hands(connection)

    def _connected(self, connection: _Connection) -> None:
        if connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._connect_elsewhere(connection)
            return
        if not connection.origin.told.is_encrypted:
            self._is_ready(connection)
            return
        try:
            connection.sock = self._wrapped(connection)
        except OSError:
            self._fail(connection, ODD)
        else:
            connection.stage = _SHAKING_HANDS
            self._shake_hands(connection)

    def _connect_elsewhere(self, connection: _Connection) -> None:
        fetch, address = connection.fetch, connection.address
        self._drop(connection)
        if fetch is not None:
            self._connect(fetch, address + 1)

    def _wrapped(self, connection: _Connection) -> Any:
        origin = connection.origin
        if origin.context is None:
            import ssl  # noqa: PLC0415 - 10 ms that plain HTTP does without

            self._not_yet = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
            self._untrusted = (ssl.SSLError,)
            origin.context = tls_context(origin.told.ca_bundle)
            origin.context.set_alpn_protocols(["http/1.1"])
        self._epoll.unregister(connection.fd)
        connection.events = 0
        return origin.context.wrap_socket(
            connection.sock, server_hostname=origin.told.host, do_handshake_on_connect=False
        )

    def _shake_hands(self, connection: _Connection) -> None:
        try:
            connection.sock.do_handshake()
        except self._not_yet as err:
            wants_write = type(err).__name__ == "SSLWantWriteError"
            self._listen(connection, select.EPOLLOUT if wants_write else select.EPOLLIN)
        except self._untrusted:
            self._fail(connection, ODD)  # the library says what is wrong with it
        except OSError:
            self._fail(connection, NOT_CONNECTED)
        else:
            self._is_ready(connection)

    def _is_ready(self, connection: _Connection) -> None:
        connection.stage = _READY
        self._connecting.pop(connection.fd, None)
        if connection.fetch is not None:
            self._ask(connection, connection.fetch)

    def _listen(self, connection: _Connection, events: int) -> None:
        if connection.events == 0:
            self._epoll.register(connection.fd, events)
        elif connection.events != events:
            self._epoll.modify(connection.fd, events)
        connection.events = events

    def _drop(self, connection: _Connection) -> None:
        """Close a connection; its fetch is not ended by that."""
        if self._connections.pop(connection.fd, None) is None:
            return
        self._connecting.pop(connection.fd, None)
        if connection in connection.origin.idle:
            connection.origin.idle.remove(connection)
        if connection.events:
            self._epoll.unregister(connection.fd)
        connection.sock.close()
        self._give_back(connection)
        if connection.fetch is not None:
            connection.fetch.connection = None
            connection.fetch = None

    def _take_buffer(self, connection: _Connection, size_bytes: int) -> None:
        buffer = self._buffers.pop() if self._buffers else _NO_BUFFER
        self._kept_bytes -= len(buffer)
        connection.buffer = buffer if len(buffer) >= size_bytes else bytearray(size_bytes)

    def _give_back(self, connection: _Connection) -> None:
        buffer, connection.buffer = connection.buffer, _NO_BUFFER
        if buffer and self._kept_bytes + len(buffer) <= _MOST_KEPT_BYTES:
            self._buffers.append(buffer)
            self._kept_bytes += len(buffer)

    # ---------------------------------------------------------------- a request

    def _ask(self, connection: _Connection, fetch: _Fetch) -> None:
        connection.fetch, fetch.connection = fetch, connection
        connection.filled, connection.body, connection.end = 0, 0, 0
        self._take_buffer(connection, fetch.room)
        part = b"" if fetch.first == WHOLE else b"Range: bytes=%d-%d\r\n" % (fetch.first, fetch.first + fetch.size - 1)
        connection.unsent = b"GET %b HTTP/1.1\r\n%b%b\r\n" % (fetch.target, fetch.origin.told.headers, part)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        try:
            sent = connection.sock.send(connection.unsent) if connection.unsent else 0
        except self._not_yet:
            sent = 0
        except OSError:
            self._broken(connection)
            return
        connection.unsent = connection.unsent[sent:]
        events = select.EPOLLIN | select.EPOLLOUT if connection.unsent else select.EPOLLIN
        if connection.events != events:
            self._listen(connection, events)

    def _receive(self, connection: _Connection) -> None:
        fetch = connection.fetch
        if fetch is None:  # the server has closed it, or says what was not asked
            self._drop(connection)
            return
        while True:
            try:
                got = connection.sock.recv_into(memoryview(connection.buffer)[connection.filled : fetch.room])
            except self._not_yet:
                return
            except OSError:
                got = 0
            if not got:
                self._broken(connection)
                return
            connection.filled += got
            if (connection.body or self._read_head(connection, fetch)) and connection.filled >= connection.end:
                self._arrived(connection, fetch)
                return
            if connection.fetch is not fetch:
                return
            if connection.filled == fetch.room:
                self._fail(connection, ODD)
                return
            if not fetch.origin.told.is_encrypted:  # of TLS, all must be taken that was decrypted
                return

    def _read_head(self, connection: _Connection, fetch: _Fetch) -> bool:
        """Read the head of the answer, if all of it is there; False when it is not, or the fetch has ended by it."""
        ends = connection.buffer.find(_HEAD_ENDS, 0, connection.filled)
        if ends < 0:
            return False
        head = parse_head(bytes(memoryview(connection.buffer)[: ends + 2]), fetch.first, fetch.size)
        if not head.is_wanted:
            self._fail(connection, STATUS % head.status if head.status in _TOLD_STATUSES else ODD)
            return False
        connection.head = head
        connection.body = ends + len(_HEAD_ENDS)
        connection.end = connection.body + fetch.size
        return connection.end <= fetch.room

    def _arrived(self, connection: _Connection, fetch: _Fetch) -> None:
        if connection.filled > connection.end:  # more than was announced: nothing of it is to be trusted
            self._fail(connection, ODD)
            return
        now, head, failure = time.monotonic(), connection.head, ""
        try:
            self._keep(fetch.number, memoryview(connection.buffer)[connection.body : connection.end])
        except OSError:
            failure = ODD
        self._give_back(connection)
        self._ended(
            fetch,
            Arrival(
                fetch.number, head.version, head.modified_seconds, now - fetch.began, failure,
                object_bytes=head.object_bytes,
            ),
        )  # fmt: skip
        connection.fetch = fetch.connection = None
        connection.num_served += 1
        if head.keeps:
            connection.idle_since = now
            connection.origin.idle.append(connection)
        else:
            self._drop(connection)
        self._begin_waiting(connection.origin)

    def _broken(self, connection: _Connection) -> None:
        """The connection has ended before the answer. A server may close one that was idle: then another one is opened."""
        fetch = connection.fetch
        has_answer = fetch is not None and connection.filled > 0
        if fetch is not None and connection.num_served and not has_answer and not fetch.is_again:
            self._drop(connection)
            fetch.is_again = True
            self._begin(fetch)
        else:
            self._fail(connection, BROKEN_OFF if connection.body else INTERRUPTED)

    def _fail(self, connection: _Connection, failure: str) -> None:
        fetch = connection.fetch
        self._drop(connection)
        if fetch is not None:
            self._end(fetch, failure)

    def _end(self, fetch: _Fetch, failure: str) -> None:
        self._ended(fetch, Arrival(fetch.number, seconds=time.monotonic() - fetch.began, failure=failure))
        self._begin_waiting(fetch.origin)

    def _ended(self, fetch: _Fetch, arrival: Arrival) -> None:
        del self._fetches[fetch.number]
        fetch.origin.num_begun -= 1
        self._arrivals.append(arrival)

    def _end_late_ones(self, now: float) -> None:
        for connection in [one for one in self._connecting.values() if one.connect_by <= now]:
            if connection.stage == _CONNECTING:
                self._connect_elsewhere(connection)
            else:
                self._fail(connection, TIMED_OUT)
        for fetch in [one for one in self._fetches.values() if one.began + one.origin.told.timeout_seconds <= now]:
            if fetch.connection is not None:
                self._drop(fetch.connection)
            self._end(fetch, TIMED_OUT)
        for origin in self._origins.values():
            while origin.idle and origin.idle[0].idle_since + _IDLE_SECONDS <= now:
                self._drop(origin.idle[0])


def _addresses(origin: QuickOrigin, flags: int) -> list[tuple[Any, ...]]:
    """Return families and addresses of a server.

    Raises:
        OSError: There are none.
    """
    found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((family, at) for family, _, _, _, at in found))
