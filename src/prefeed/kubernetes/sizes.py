"""Reports cache sizes to the operator over HTTP, at the port and path of the Paddle operator.

::

    GET http://SERVER:7716/cacheStatus/cacheInfo.json  ─→  {"name": "imagenet", "cacheStatus": {"totalSize": 4509715660, ...}}

Sizes are in bytes. The endpoint is read-only and names no object, whereas the original also accepts jobs at this port
without a password. A child process measures the sizes on request. Between requests it costs nothing.
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
"""Factor between the cost of an answer and its lifetime, so that measuring takes at most 5 % of one core."""

_CLIENT_SECONDS: Final = 5.0
"""Time in which a client must send its request and read the reply."""

_log = logging.getLogger("prefeed")

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Cache sizes of one server, in bytes.

    Attributes:
        total_size: Size of all objects of the set, or None if not known yet.
        total_files: Number of these objects.
        cached_size: Size of the objects that this server holds.
        disk_size: Budget of its tiers.
        disk_used: Space in use in its tiers.
        disk_avail: Space available in its tiers.
        error_message: Reason why the set cannot be listed or copied, or an empty text.
    """

    total_size: _Number | None
    total_files: _Number | None
    cached_size: _Number
    disk_size: _Number
    disk_used: _Number
    disk_avail: _Number
    error_message: str = ""


class _RuntimeReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    cache_status: Report


def parse_report(name: str, text: bytes) -> Report | None:
    """Parse the reply of a server. Return None if it is malformed or belongs to another set."""
    try:
        found = msgspec.json.decode(text, type=_RuntimeReply)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found.cache_status if found.name == name else None


class SizesEndpoint:
    """HTTP endpoint on all addresses of the pod. Stays closed if its port is taken.

    Args:
        look: Returns the output of ``prefeed sampleset list NAME --json``, or an empty text if nothing is known.
        port: Port to listen on; 0 chooses a free one.
        clock: Returns seconds.

    Attributes:
        port: Port in use, or 0 if it could not be opened. The log has the reason.

    **Threads**: one, from ``start`` to ``end``. ``end`` waits for ``look`` and at most 5 s for a client.
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
        """Start the thread that answers requests."""
        if self._server is not None:
            self._thread.start()

    def end(self) -> None:
        """Stop the thread and close the port."""
        if self._server is None:
            return
        os.eventfd_write(self._wake_up, 1)
        self._thread.join()
        self._server.server_close()
        os.close(self._wake_up)

    def expire(self) -> None:
        """Compute the next reply anew. Call it when the set has changed."""
        self._answered_at = -float("inf")

    def answer(self) -> bytes:
        """Return the current reply, or an empty text if nothing is known."""
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
    """Build the reply from the output of ``prefeed sampleset list NAME --json``. It is empty if there are no sizes."""
    try:
        (found,) = json.loads(printed)["samplesets"]
        return json.dumps({"name": found["name"], "cacheStatus": found["status"]["cacheStatus"]}).encode()
    except (ValueError, KeyError, TypeError):
        return b""


class _Handler(BaseHTTPRequestHandler):
    of: SizesEndpoint
    timeout = _CLIENT_SECONDS

    def handle(self) -> None:
        """Answer one client. A timer limits the receipt of its request: the socket timeout restarts with each byte."""
        self._asking = threading.Timer(self.timeout, self._leave)
        self._asking.start()
        try:
            with contextlib.suppress(OSError):  # the client has disconnected
                super().handle()
        finally:
            self._asking.cancel()
            self._asking.join()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the operator sends two requests per minute."""

    def do_GET(self) -> None:
        """Send the sizes, or 404 for any other path."""
        self._asking.cancel()
        if self.path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"the sizes are at {PATH}")
            return
        data = self.of.answer()
        with contextlib.suppress(OSError):  # the client has disconnected
            self.send_response(HTTPStatus.OK if data else HTTPStatus.SERVICE_UNAVAILABLE)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
