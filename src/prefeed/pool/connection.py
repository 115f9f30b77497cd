"""Client of one memcached server, with a time limit per command.

pymemcache's client takes 3 to 4 times the processor time for values of 84 KB, and limits each ``recv`` instead of the whole reply
(docs/adr/0010-pool.md). This module uses its exceptions.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from pymemcache.exceptions import MemcacheServerError, MemcacheUnknownError  # type: ignore[import-untyped]

from prefeed.types import Buffer

_SCRATCH_BYTES: Final = 2048
_MOST_SETTINGS_BYTES: Final = 65_536
_LINE_BYTES: Final = 512
"""Maximum length of a line of a reply."""

_END: Final = b"\r\nEND\r\n"
_MOST_BYTES: Final = 1024**3
"""Largest item size that memcached supports."""

_TOO_LATE: Final = "no answer in time"

Address = str | tuple[str, int]
"""Path of a unix socket, or host and port."""


class MemcachedConnection:
    """Client of one memcached server. It sends one request at a time.

    **Threads.** One at a time.

    **Blocking.** A request ends within ``timeout_seconds``, or twice that time if the reply arrives slowly. Connecting takes up to
    ``timeout_seconds`` in addition, without name resolution.

    Attributes:
        has_answered: Whether the server has replied since the connection was opened.
    """

    def __init__(self, address: Address, *, timeout_seconds: float) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._sock: socket.socket | None = None
        self.has_answered: bool = False

    def read(self, key: bytes) -> memoryview | None:
        """Return a copy of the value of a key, or None.

        Raises:
            OSError: The server did not reply in time, or the connection failed.
            MemcacheError: The reply is invalid.
        """
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
        sock.sendall(b"get %s\r\n" % key)
        line, rest = self._read_line(sock, deadline)
        if line == b"END" and not rest:
            return None
        found, size = _parse_value(line)
        if found != key or len(rest) > size + len(_END):
            raise _unexpected(line)
        value = memoryview(bytearray(size + len(_END)))
        value[: len(rest)] = rest
        _fill(sock, value[len(rest) :], deadline)
        if bytes(value[size:]) != _END:
            raise _unexpected(bytes(value[size:]))
        return value[:size]

    def read_many(self, keys: Sequence[bytes], *, expected_bytes: int) -> dict[bytes, memoryview]:
        """Return the values of the keys that exist, as views of one new buffer.

        A single request with few system calls takes a third of the processor time of separate calls of ``read``.

        Args:
            keys: At least one key, without duplicates.
            expected_bytes: Estimated sum of the values' sizes, in bytes.

        Raises:
            OSError, MemcacheError: As ``read``.
        """
        answer = MemcachedReply(expected_bytes + len(keys) * _LINE_BYTES)
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
        _send(sock, [b"get %s\r\n" % b" ".join(keys)], deadline)
        wanted, places = set(keys), {}
        while (line := answer.take_line(sock, deadline)) != b"END":
            key, size = _parse_value(line)
            if key not in wanted:
                raise _unexpected(line)
            wanted.remove(key)
            places[key] = answer.take_value(sock, size, deadline)
        if answer.has_more:
            raise _unexpected(line)
        return {key: answer.view(place) for key, place in places.items()}

    def write(self, key: bytes, *pieces: Buffer) -> None:
        """Store the concatenated pieces under a key, and replace an existing value.

        Raises:
            OSError: As for ``read``.
            MemcacheServerError: The server is full, or the value is too large.
            MemcacheError: The reply is invalid.
        """
        line = self._store(b"set", key, 0, pieces)
        if line != b"STORED":
            raise _unexpected(line)

    def add(self, key: bytes, value: bytes, *, seconds: int) -> bool:
        """Store a value that expires after ``seconds``, unless the key exists. Return whether it was stored.

        Raises:
            As for ``write``.
        """
        line = self._store(b"add", key, seconds, (value,))
        if line not in (b"STORED", b"NOT_STORED"):
            raise _unexpected(line)
        return line == b"STORED"

    def item_bytes(self) -> int:
        """Return the server's maximum item size in bytes.

        Raises:
            OSError: As for ``read``.
            MemcacheError: The server is not memcached.
        """
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
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

    def close(self) -> None:
        """Close the connection. The next request connects again."""
        sock, self._sock = self._sock, None
        self.has_answered = False
        if sock is not None:
            sock.close()

    def _connected(self) -> socket.socket:
        """Return the socket. Connect to the first address of the host that accepts, if necessary.

        The kernel enforces the time-out, because a time-out of Python costs a ``poll`` and two switches of the interpreter lock per call:
        a third of the processor time of a busy server (2026-11).
        """
        if self._sock is not None:
            return self._sock
        if isinstance(self._address, tuple):
            sock = socket.create_connection(self._address, timeout=self._timeout_seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(self._timeout_seconds)
            try:
                sock.connect(self._address)
            except OSError:
                sock.close()
                raise
        sock.settimeout(None)
        limit = struct.pack("@ll", *divmod(int(self._timeout_seconds * 1e6), 10**6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, limit)
        self._sock = sock
        return sock

    def _store(self, command: bytes, key: bytes, seconds: int, pieces: Sequence[Buffer]) -> bytes:
        """Send a storage command and return the line of the reply."""
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
        size = sum(memoryview(piece).nbytes for piece in pieces)
        _send(sock, [b"%s %s 0 %d %d\r\n" % (command, key, seconds, size), *pieces, b"\r\n"], deadline)
        line, rest = self._read_line(sock, deadline)
        if rest:
            raise _unexpected(line)
        return line

    def _read_line(self, sock: socket.socket, deadline: float) -> tuple[bytes, memoryview]:
        """Return the first line of a reply, and the bytes after it that have arrived."""
        scratch, have = self._scratch, 0
        while True:
            have += _receive(sock, scratch[have:], deadline)
            found = bytes(scratch[:have])
            end = found.find(b"\r\n")
            if end >= 0:
                return found[:end], scratch[end + 2 : have]
            if have == len(scratch):
                raise _unexpected(found)


class MemcachedReply:
    """Parser of a reply with many values, over one buffer."""

    def __init__(self, size_bytes: int) -> None:
        self._buffer = np.empty(size_bytes, dtype=np.uint8)  # bytearray would write zeros first
        self._have = 0
        self._at = 0

    @property
    def has_more(self) -> bool:
        """True if received bytes were not parsed."""
        return self._have > self._at

    def take_line(self, sock: socket.socket, deadline: float) -> bytes:
        """Parse the next line."""
        while True:
            part = self._buffer[self._at : min(self._have, self._at + _LINE_BYTES)].tobytes()
            end = part.find(b"\r\n")
            if end >= 0:
                self._at += end + 2
                return part[:end]
            if len(part) == _LINE_BYTES:
                raise _unexpected(part)
            self._receive(sock, self._at + _LINE_BYTES, deadline)

    def take_value(self, sock: socket.socket, size: int, deadline: float) -> slice:
        """Parse a value of ``size`` bytes and its line end. Return its position in the buffer."""
        end = self._at + size
        while self._have < end + 2:
            self._receive(sock, end + 2, deadline)
        if self._buffer[end : end + 2].tobytes() != b"\r\n":
            raise _unexpected(self._buffer[end : end + 2].tobytes())
        found = slice(self._at, end)
        self._at = end + 2
        return found

    def view(self, place: slice) -> memoryview:
        """Return the bytes at a position."""
        return memoryview(self._buffer)[place]  # type: ignore[arg-type]

    def _receive(self, sock: socket.socket, needed: int, deadline: float) -> None:
        if needed > len(self._buffer):
            larger = np.empty(needed + len(self._buffer), dtype=np.uint8)
            larger[: self._have] = self._buffer[: self._have]
            self._buffer = larger
        self._have += _receive(sock, memoryview(self._buffer)[self._have :], deadline)  # type: ignore[arg-type]


def _parse_value(line: bytes) -> tuple[bytes, int]:
    """Parse the line before a value: its key and its size in bytes."""
    words = line.split(b" ")
    if len(words) != 4 or words[0] != b"VALUE" or not words[3].isdigit() or len(words[3]) > 10:
        raise _unexpected(line)
    size = int(words[3])
    if size > _MOST_BYTES:
        raise _unexpected(line)
    return words[1], size


def _receive(sock: socket.socket, into: memoryview, deadline: float, flags: int = 0) -> int:
    if time.monotonic() >= deadline:
        raise TimeoutError(_TOO_LATE)
    try:
        count = sock.recv_into(into, 0, flags)
    except BlockingIOError as err:
        raise TimeoutError(_TOO_LATE) from err
    if count == 0:
        raise ConnectionResetError("the pool server closed the connection")
    return count


def _fill(sock: socket.socket, view: memoryview, deadline: float) -> None:
    have = 0
    while have < len(view):
        have += _receive(sock, view[have:], deadline, socket.MSG_WAITALL)


def _send(sock: socket.socket, pieces: list[Buffer], deadline: float) -> None:
    views = [memoryview(piece).cast("B") for piece in pieces]
    while views:
        if time.monotonic() >= deadline:
            raise TimeoutError(_TOO_LATE)
        try:
            sent = sock.sendmsg(views)
        except BlockingIOError as err:
            raise TimeoutError(_TOO_LATE) from err
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if views:
            views[0] = views[0][sent:]


def _unexpected(answer: bytes) -> Any:
    if answer.startswith(b"SERVER_ERROR"):
        return MemcacheServerError(answer[:100].decode(errors="replace"))
    return MemcacheUnknownError(f"a pool server answered {answer[:60]!r}: is it a memcached?")
