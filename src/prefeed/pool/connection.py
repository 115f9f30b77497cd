"""One connection to one memcached: the commands that prefeed needs, each within a time.

pymemcache's client takes 3 to 4 times the processor time for 84 KB, and bounds each ``recv`` instead of the whole answer
(docs/adr/0010-pool.md). Its errors are used here.
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
"""A line of an answer is no longer."""

_END: Final = b"\r\nEND\r\n"
_MOST_BYTES: Final = 1024**3
"""memcached's own maximum of an item."""

_TOO_LATE: Final = "no answer in time"

Address = str | tuple[str, int]
"""Path of a unix socket, or host and port."""


class Connection:
    """A client of one server that asks one question at a time.

    **Threads.** One at a time.

    **Blocking.** A question ends, one way or another, within ``timeout_seconds``, and twice as long where the answer trickles
    in; making the connection takes as long again, name resolution apart.

    Attributes:
        has_answered: Whether the server has, since it was connected to.
    """

    def __init__(self, address: Address, *, timeout_seconds: float) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._sock: socket.socket | None = None
        self.has_answered: bool = False

    def read(self, key: bytes) -> memoryview | None:
        """Return the value under the key, which is the caller's own; None when there is none.

        Raises:
            OSError: The server did not answer in time, or the connection is broken.
            MemcacheError: It answered something else.
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
        """Return the values under those of the keys that have one: parts of one buffer, which is the caller's own.

        One question and few system calls for all of them: where values are there, a third of the processor time of ``read``.

        Args:
            keys: At least one, each once.
            expected_bytes: About what the values take together.

        Raises:
            OSError, MemcacheError: As ``read``.
        """
        answer = Answer(expected_bytes + len(keys) * _LINE_BYTES)
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
        """Store the pieces, one after the other, under the key; what was there is replaced.

        Raises:
            OSError: As ``read``.
            MemcacheServerError: The server has no room, or the value is too large for it.
            MemcacheError: It answered something else.
        """
        line = self._store(b"set", key, 0, pieces)
        if line != b"STORED":
            raise _unexpected(line)

    def add(self, key: bytes, value: bytes, *, seconds: int) -> bool:
        """Store the value for that long if there is none under the key; return whether there was none.

        Raises:
            As ``write``.
        """
        line = self._store(b"add", key, seconds, (value,))
        if line not in (b"STORED", b"NOT_STORED"):
            raise _unexpected(line)
        return line == b"STORED"

    def item_bytes(self) -> int:
        """Return the most bytes that the server takes as one item, all told.

        Raises:
            OSError: As ``read``.
            MemcacheError: It is no memcached.
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
        """Close it; the next question connects again."""
        sock, self._sock = self._sock, None
        self.has_answered = False
        if sock is not None:
            sock.close()

    def _connected(self) -> socket.socket:
        """Return the connection, made to the first of the host's addresses that answers if there was none.

        The kernel minds the time-out from then on: a time-out of Python's is a ``poll``, and two hand-overs of the
        interpreter, before each call; measured, a third of the processor time of a busy server (2026-11).
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
        """Return what the server says to it, a line."""
        deadline = time.monotonic() + self._timeout_seconds
        sock = self._connected()
        size = sum(memoryview(piece).nbytes for piece in pieces)
        _send(sock, [b"%s %s 0 %d %d\r\n" % (command, key, seconds, size), *pieces, b"\r\n"], deadline)
        line, rest = self._read_line(sock, deadline)
        if rest:
            raise _unexpected(line)
        return line

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


class Answer:
    """What a server answers to a question for many values, in one buffer."""

    def __init__(self, size_bytes: int) -> None:
        self._buffer = np.empty(size_bytes, dtype=np.uint8)  # bytearray would write zeros first
        self._have = 0
        self._at = 0

    @property
    def has_more(self) -> bool:
        """True when bytes came that were not taken."""
        return self._have > self._at

    def take_line(self, sock: socket.socket, deadline: float) -> bytes:
        """Return the next line."""
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
        """Return where the next bytes are, that many; after them the line ends."""
        end = self._at + size
        while self._have < end + 2:
            self._receive(sock, end + 2, deadline)
        if self._buffer[end : end + 2].tobytes() != b"\r\n":
            raise _unexpected(self._buffer[end : end + 2].tobytes())
        found = slice(self._at, end)
        self._at = end + 2
        return found

    def view(self, place: slice) -> memoryview:
        """Return the bytes there."""
        return memoryview(self._buffer)[place]  # type: ignore[arg-type]

    def _receive(self, sock: socket.socket, needed: int, deadline: float) -> None:
        if needed > len(self._buffer):
            larger = np.empty(needed + len(self._buffer), dtype=np.uint8)
            larger[: self._have] = self._buffer[: self._have]
            self._buffer = larger
        self._have += _receive(sock, memoryview(self._buffer)[self._have :], deadline)  # type: ignore[arg-type]


def _parse_value(line: bytes) -> tuple[bytes, int]:
    """Return key and size that a line announces."""
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
