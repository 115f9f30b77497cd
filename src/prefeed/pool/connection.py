"""One connection to one memcached: pymemcache's client, but for what its bytes cost and how long they may take."""

from __future__ import annotations

import re
import socket
import time
from typing import Any, Final

from pymemcache.client.base import Client  # type: ignore[import-untyped]
from pymemcache.exceptions import MemcacheServerError, MemcacheUnknownError  # type: ignore[import-untyped]

from prefeed.types import Buffer

_SCRATCH_BYTES: Final = 2048
_MOST_SETTINGS_BYTES: Final = 65_536
_END: Final = b"\r\nEND\r\n"
_MOST_BYTES: Final = 1024**3
"""memcached's own maximum of an item."""

Address = str | tuple[str, int]
"""Path of a unix socket, or host and port."""


class Connection(Client):  # type: ignore[misc]
    """A client of one server that asks one question at a time.

    ``read`` and ``write`` stand for pymemcache's ``get`` and ``set``, which take 3 to 4 times the CPU time for 84 KB and
    bound each ``recv`` instead of the whole; its other commands are as they are (docs/adr/0010-pool.md).

    **Threads.** One at a time.

    **Blocking.** Each question ends, one way or another, ``timeout_seconds`` after it was asked, name resolution apart.
    """

    def __init__(self, address: Address, *, timeout_seconds: float) -> None:
        super().__init__(address, connect_timeout=timeout_seconds, timeout=timeout_seconds, default_noreply=False)
        self._timeout_seconds = timeout_seconds
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.has_answered = False
        self.sock: Any

    def read(self, key: bytes) -> memoryview | None:
        """Return the value under the key, which is the caller's own; None when there is none.

        Raises:
            OSError: The server did not answer in time, or the connection is broken.
            MemcacheError: It answered something else.
        """
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
        sock.settimeout(self._timeout_seconds)
        sock.sendall(b"get %s\r\n" % key)
        line, rest = self._read_line(sock, deadline)
        if line == b"END" and not rest:
            return None
        words = line.split(b" ")
        if len(words) != 4 or words[0] != b"VALUE" or words[1] != key or not words[3].isdigit() or len(words[3]) > 10:
            raise _unexpected(line)
        size = int(words[3])
        if size > _MOST_BYTES or len(rest) > size + len(_END):
            raise _unexpected(line)
        value = memoryview(bytearray(size + len(_END)))
        value[: len(rest)] = rest
        _fill(sock, value[len(rest) :], deadline)
        if bytes(value[size:]) != _END:
            raise _unexpected(bytes(value[size:]))
        return value[:size]

    def write(self, key: bytes, *pieces: Buffer) -> None:
        """Store the pieces, one after the other, under the key; what was there is replaced.

        Raises:
            OSError: As ``read``.
            MemcacheServerError: The server has no room, or the value is too large for it.
            MemcacheError: It answered something else.
        """
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
        size = sum(memoryview(piece).nbytes for piece in pieces)
        _send(sock, [b"set %s 0 0 %d\r\n" % (key, size), *pieces, b"\r\n"], deadline)
        line, rest = self._read_line(sock, deadline)
        if line != b"STORED" or rest:
            raise _unexpected(line)

    def item_bytes(self) -> int:
        """Return the most bytes that the server takes as one item, all told.

        Raises:
            OSError: As ``read``.
            MemcacheError: It is no memcached.
        """
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
        sock.settimeout(self._timeout_seconds)
        sock.sendall(b"stats settings\r\n")
        answer = b""
        while not answer.endswith(b"END\r\n"):
            count = _receive(sock, self._scratch, deadline)
            answer += self._scratch[:count]
            if not answer.startswith(b"STAT "[: len(answer)]) or len(answer) > _MOST_SETTINGS_BYTES:
                raise _unexpected(answer)
        found = re.search(rb"^STAT item_size_max (\d{1,10})\r$", answer, re.MULTILINE)
        if found is None:
            raise _unexpected(answer)
        return int(found[1])

    def _connect(self) -> None:
        """Connect to the first of the host's addresses that answers; pymemcache's own tries one."""
        self.close()
        if isinstance(self.server, tuple):
            self.sock = socket.create_connection(self.server, timeout=self._timeout_seconds)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(self._timeout_seconds)
            try:
                sock.connect(self.server)
            except OSError:
                sock.close()
                raise
            self.sock = sock

    def _connected(self) -> socket.socket:
        if self.sock is None:
            self._connect()
        sock: socket.socket = self.sock
        return sock

    def _read_line(self, sock: socket.socket, deadline: float) -> tuple[bytes, memoryview]:
        """Return the first line of an answer, and what came with it."""
        scratch, have = self._scratch, 0
        while True:
            have += _receive(sock, scratch[have:], deadline)
            found = bytes(scratch[:have])
            end = found.find(b"\r\n")
            if end >= 0:
                return found[:end], scratch[end + 2 : have]
            if have == len(scratch):
                raise _unexpected(found)


def _receive(sock: socket.socket, into: memoryview, deadline: float) -> int:
    sock.settimeout(_left(deadline))
    count = sock.recv_into(into)
    if count == 0:
        raise ConnectionResetError("the pool server closed the connection")
    return count


def _fill(sock: socket.socket, view: memoryview, deadline: float) -> None:
    have = 0
    while have < len(view):
        have += _receive(sock, view[have:], deadline)


def _send(sock: socket.socket, pieces: list[Buffer], deadline: float) -> None:
    views = [memoryview(piece).cast("B") for piece in pieces]
    while views:
        sock.settimeout(_left(deadline))
        sent = sock.sendmsg(views)
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if views:
            views[0] = views[0][sent:]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the pool server did not answer in time")
    return left


def _unexpected(answer: bytes) -> Any:
    if answer.startswith(b"SERVER_ERROR"):
        return MemcacheServerError(answer[:100].decode(errors="replace"))
    return MemcacheUnknownError(f"a pool server answered {answer[:60]!r}: is it a memcached?")
