"""A server of a set tells the operator how much it holds: over HTTP, at the port and the path of the original.

::

    GET http://SERVER:7716/cacheStatus/cacheInfo.json  ─→  {"name": "imagenet", "cacheStatus": {"totalSize": 4509715660, ...}}

Sizes are numbers, in bytes. No name of an object is told, and nothing can be changed: the original takes jobs at this port, without a
password. A child looks when it is asked for; between two questions there is no process and no work.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated, Any, Final

import msgspec

PORT: Final = 7716
PATH: Final = "/cacheStatus/cacheInfo.json"

LEAST_AGE_SECONDS: Final = 10.0
_COST_SHARE: Final = 20
"""An answer is given again for this many times as long as it took to find: looking takes 5 % of one core at most."""

_CLIENT_SECONDS: Final = 5.0
"""In which a client asks all of its question, and takes the answer."""

_log = logging.getLogger("prefeed")

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one server says, in bytes.

    Attributes:
        total_size: Of all that the set holds; None: not known yet.
        total_files: Their number.
        cached_size: Of what this server holds.
        disk_size: Most that its tiers may take.
        disk_used: What they take.
        disk_avail: What they can still take.
        error_message: Why the set cannot be listed or copied; empty: it can.
    """

    total_size: _Number | None
    total_files: _Number | None
    cached_size: _Number
    disk_size: _Number
    disk_used: _Number
    disk_avail: _Number
    error_message: str = ""


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    cache_status: Report


def parse_report(name: str, text: bytes) -> Report | None:
    """Return what a server says of a set; None: it is not understood, or is one of another set."""
    try:
        found = msgspec.json.decode(text, type=_Answer)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found.cache_status if found.name == name else None


class SizesEndpoint:
    """Answers at a port of all addresses, if it can be had.

    Args:
        look: Returns what ``prefeed sampleset list NAME --json`` prints; empty: nothing is known now.
        port: 0: a free one.
        clock: Returns seconds.

    Attributes:
        port: That it has; 0: none, and the log says why.

    **Threads**: one, from ``start`` to ``end``. ``end`` waits for ``look`` and, at most 5 s, for a client.
    """

    def __init__(self, look: Callable[[], bytes], *, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._answer = b""
        self._answered_at = -float("inf")
        self._lasts = 0.0
        self._server: HTTPServer | None = None
        self.port = 0
        try:
            listener = _listen(port)
        except OSError as err:
            _log.warning("prefeed: no sizes for the operator: port %d: %s", port, err.strerror)
            return
        endpoint = self

        class Handler(_Handler):
            of = endpoint

        self._server = HTTPServer(("", 0), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self.port = listener.getsockname()[1]
        self._wake_up = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="prefeed-sizes", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        if self._server is not None:
            self._thread.start()

    def end(self) -> None:
        """The port is free, and the thread has ended."""
        if self._server is None:
            return
        os.eventfd_write(self._wake_up, 1)
        self._thread.join()
        self._server.server_close()
        os.close(self._wake_up)

    def answer(self) -> bytes:
        """Return what is told now; empty: nothing is known."""
        if self._clock() - self._answered_at >= self._lasts:
            begun = self._clock()
            self._answer = told(self._look())
            self._answered_at = self._clock()
            self._lasts = max(LEAST_AGE_SECONDS, _COST_SHARE * (self._answered_at - begun))
        return self._answer

    def _run(self) -> None:
        assert self._server is not None
        while True:
            ready, _, _ = select.select([self._server.fileno(), self._wake_up], [], [])
            if self._wake_up in ready:
                return
            self._server.handle_request()


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def told(printed: bytes) -> bytes:
    """Return the answer from what ``prefeed sampleset list NAME --json`` prints; empty if it says nothing."""
    try:
        (found,) = json.loads(printed)["samplesets"]
        return json.dumps({"name": found["name"], "cacheStatus": found["status"]["cacheStatus"]}).encode()
    except (ValueError, KeyError, TypeError):
        return b""


class _Handler(BaseHTTPRequestHandler):
    of: SizesEndpoint
    timeout = _CLIENT_SECONDS

    def handle(self) -> None:
        """Answer one client, or leave one that asks byte by byte: each byte would have the whole time."""
        self._asking = threading.Timer(self.timeout, self._leave)
        self._asking.start()
        try:
            with contextlib.suppress(OSError):  # the client has gone
                super().handle()
        finally:
            self._asking.cancel()
            self._asking.join()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the operator asks twice per minute."""

    def do_GET(self) -> None:
        """Answer, to the one path that there is."""
        self._asking.cancel()
        if self.path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"the sizes are at {PATH}")
            return
        data = self.of.answer()
        with contextlib.suppress(OSError):  # the client has gone
            self.send_response(HTTPStatus.OK if data else HTTPStatus.SERVICE_UNAVAILABLE)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
