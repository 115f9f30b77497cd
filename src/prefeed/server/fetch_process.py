"""A fetch process: ``python -m prefeed.server.fetch_process SOCKET SEGMENT...`` fetches objects for its server, into the tier.

The numbers are descriptors: a socket with one message per packet, and the segments of the memory tier. The server grants a place in
a segment for each object, the process fills it with the value and its trailer, and the server publishes it. The process
ends when the server does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from prefeed.sources.quick_fetches import Arrival, QuickClient, QuickOrigin
from prefeed.store.segment import trailer, write_parts

PACKET_BYTES: Final = 128 * 1024
"""No packet is larger."""

_GROUP: Final = 32
"""Arrivals that are told together: with 16 cores, groups of 32 brought a tenth more objects than groups of 16 (ADR 31)."""

_HOLD_SECONDS: Final = 0.002
"""An arrival that no reader waits for is told with the next ones."""

_WAIT_SECONDS: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1


class NewOrigin(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """To the process: a server that will be asked, by a number."""

    number: int
    origin: QuickOrigin


class Limit(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """To the process: how many requests to a server may be under way."""

    number: int
    most: int


FetchItem = tuple[int, int, bytes, bytes, int, int, int, bool, int]


class Fetches(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """To the process: objects to fetch.

    Attributes:
        fetches: Of each number, origin, target, key, segment and offset of its place, size in bytes, whether it does not wait for
            its turn, and its first byte, if it is a part.
        is_urgent: A reader waits: tell of each arrival at once, until the next message.
    """

    fetches: list[FetchItem]
    is_urgent: bool


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """To the process: tell that you run."""


class Arrivals(msgspec.Struct, frozen=True, array_like=True):
    """From the process: fetches that have ended; none when it begins, and as answer to a ping.

    Attributes:
        cpu_seconds: Processor time of the process so far.
    """

    arrivals: list[Arrival]
    cpu_seconds: float


TO_PROCESS: Final = msgspec.msgpack.Decoder(NewOrigin | Limit | Fetches | Ping)
FROM_PROCESS: Final = msgspec.msgpack.Decoder(Arrivals)


class ServerGoneError(Exception):
    """There is no one to fetch for."""


class FetchProcess:
    """What the process does: takes messages, fetches, tells of arrivals in groups."""

    def __init__(self, sock: socket.socket, segments: Sequence[int]) -> None:
        self._sock = sock
        self._segments = segments
        self._places: dict[int, tuple[bytes, int, int]] = {}  # key, segment and offset, by number of the fetch
        self._client = QuickClient(self._write)
        self._client.watch(sock.fileno())
        self._encode = msgspec.msgpack.Encoder().encode
        self._arrived: list[Arrival] = []
        self._held_since = 0.0
        self._is_urgent = False

    def run(self) -> None:
        """Serve until the server is gone."""
        self._tell()
        while True:
            arrivals = self._client.step(self._timeout())
            if arrivals:
                for arrival in arrivals:
                    del self._places[arrival.number]
                if not self._arrived:
                    self._held_since = time.monotonic()
                self._arrived += arrivals
            self._take_messages()
            if self._arrived and self._is_due():
                self._tell()

    def close(self) -> None:
        """Break off what is under way; the segments are the caller's."""
        self._client.close()

    def _write(self, number: int, value: memoryview) -> None:
        key, segment, offset = self._places[number]
        write_parts(self._segments[segment], [value, trailer(key)], offset)

    def _timeout(self) -> float:
        if self._arrived:
            return max(0.0, self._held_since + _HOLD_SECONDS - time.monotonic())
        return _WAIT_SECONDS

    def _is_due(self) -> bool:
        if self._is_urgent or len(self._arrived) >= min(_GROUP, self._client.num_under_way):
            return True
        return time.monotonic() >= self._held_since + _HOLD_SECONDS

    def _take_messages(self) -> None:
        while True:
            try:
                packet = self._sock.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as err:
                raise ServerGoneError from err
            if not packet:
                raise ServerGoneError
            message = TO_PROCESS.decode(packet)
            if isinstance(message, Fetches):
                self._is_urgent = message.is_urgent
                for number, origin, target, key, segment, offset, size, is_urgent, first in message.fetches:
                    self._places[number] = (key, segment, offset)
                    self._client.fetch(number, origin, target, size, first=first, is_urgent=is_urgent)
            elif isinstance(message, NewOrigin):
                self._client.add_origin(message.number, message.origin)
            elif isinstance(message, Limit):
                self._client.limit(message.number, message.most)
            else:
                self._tell()

    def _tell(self) -> None:
        """Send the arrivals; waits while the server takes none."""
        arrivals, self._arrived = self._arrived, []
        for start in range(0, max(len(arrivals), 1), _GROUP):
            part = slice(start, start + _GROUP)
            packet = self._encode(Arrivals(arrivals[part], time.process_time()))
            try:
                self._sock.send(packet)
            except OSError as err:
                raise ServerGoneError from err


def main() -> int:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        # A suspended process does not see that the socket was closed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            FetchProcess(sock, [int(segment) for segment in sys.argv[2:]]).run()
        except ServerGoneError:
            os._exit(0)
    return 1


if __name__ == "__main__":
    sys.exit(main())
