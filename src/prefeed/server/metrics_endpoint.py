"""The socket at which Prometheus asks: one thread, a bounded number of clients, each with a bounded time."""

from __future__ import annotations

import importlib
import logging
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from prefeed.config import METRICS_PORT
from prefeed.errors import PrefeedError
from prefeed.server.status import Observation

if TYPE_CHECKING:
    from prefeed.server.metrics_page import Pages

_log = logging.getLogger("prefeed")

MOST_CLIENTS: Final = 16
"""Connections at a time; one more and the oldest is closed."""

CLIENT_SECONDS: Final = 10.0
"""A client that has not asked, and taken its answer, within so long is left."""

_LOOPBACK: Final = "127.0.0.1"
_PAGE_MODULE: Final = "prefeed.server.metrics_page"
_NOTHING: Final = memoryview(b"")
_ANSWER_SECONDS: Final = 2.0
"""The loop answers between two of its turns; when it does not, the client is told to come again."""

_PAUSE_SECONDS: Final = 0.2
_MOST_HEAD_BYTES: Final = 16 * 1024
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FAILED: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Questions:
    """Asks the thread that owns the state for observations.

    Args:
        call_soon: Runs a function in that thread.
        observe: Returns the observation; in that thread.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], None], observe: Callable[[], Observation]) -> None:
        self._call_soon = call_soon
        self._observe = observe
        self._is_over = False
        self._answers: SimpleQueue[Observation | None] = SimpleQueue()

    def ask(self) -> Observation | None:
        """Return an observation made now; None when there was none in time, or never will be."""
        answers = self._answers = SimpleQueue()
        if self._is_over:
            return None
        self._call_soon(lambda: answers.put(self._try_observe()))
        try:
            return answers.get(timeout=_ANSWER_SECONDS)
        except Empty:
            return None

    def give_up(self) -> None:
        """Let ``ask`` return, now and ever after; any thread may call it."""
        self._is_over = True
        self._answers.put(None)

    def _try_observe(self) -> Observation | None:
        try:
            return self._observe()
        except (PrefeedError, KeyError, IndexError, ValueError, OSError):
            return None  # the loop goes on, whatever an observation meets


@dataclass(slots=True, eq=False)
class _Client:
    sock: socket.socket
    deadline: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview = _NOTHING


class MetricsEndpoint:
    """Serves the metrics over HTTP, if it has an address.

    Args:
        address: As in ``Config.metrics``: None for the usual port, or a free one; empty for none.
        client_seconds: See ``CLIENT_SECONDS``.

    Attributes:
        url: Of the metrics; empty when none are served.
        notice: What is to be said when the address cannot be had; else empty.

    **Ownership**: who makes it closes it. **Threads**: ``start`` makes one, which ends with ``close``. It takes an
    observation from the loop's thread and does the rest itself; the library is imported with the first request.
    """

    def __init__(self, address: str | None, *, client_seconds: float = CLIENT_SECONDS) -> None:
        self.url = ""
        self.notice = ""
        self._client_seconds = client_seconds
        self._clients: list[_Client] = []
        self._pages: Pages | None = None
        self._questions: Questions
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._listener: socket.socket | None = None
        try:
            self._listener = _listen(address)
        except (OSError, ValueError) as err:
            self.notice = (
                f"no metrics are served: {address} cannot be had ({getattr(err, 'strerror', None) or err}); name "
                "another address with PREFEED_METRICS, or 0 for none"
            )
        if self._listener is not None:
            self.url = _url_of(self._listener)
            self._wake_up = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._selector = selectors.DefaultSelector()

    def start(self, questions: Questions) -> None:
        """Answer from now on."""
        if self._listener is None:
            return
        self._questions = questions
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_up, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="prefeed-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, close every client, and give the address back."""
        if self._listener is None:
            return
        self._is_closing = True
        if self._thread is not None:
            self._questions.give_up()
            os.eventfd_write(self._wake_up, 1)
            self._thread.join()
        for client in self._clients:
            client.sock.close()
        self._selector.close()
        self._listener.close()
        os.close(self._wake_up)
        self._listener = None

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select(self._timeout()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Client) and key.data in self._clients:
                    self._serve(key.data)
            now = time.monotonic()
            for client in [client for client in self._clients if client.deadline <= now]:
                self._close(client)

    def _timeout(self) -> float | None:
        if not self._clients:
            return None
        return max(0.0, min(client.deadline for client in self._clients) - time.monotonic())

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it is gone already, or there are no descriptors left, and it is offered again at once
            select.select([self._wake_up], [], [], _PAUSE_SECONDS)
            return
        sock.setblocking(False)
        if len(self._clients) == MOST_CLIENTS:
            self._close(self._clients[0])
        client = _Client(sock, time.monotonic() + self._client_seconds)
        self._clients.append(client)
        self._selector.register(sock, selectors.EVENT_READ, client)

    def _serve(self, client: _Client) -> None:
        try:
            if not client.answer and not self._read(client):
                return
            client.answer = client.answer[client.sock.send(client.answer) :]
        except BlockingIOError:
            return
        except OSError:
            client.answer = _NOTHING
        if not client.answer:
            self._close(client)

    def _read(self, client: _Client) -> bool:
        """Take in what the client sends; True once there is an answer, or nothing more to come."""
        data = client.sock.recv(_MOST_HEAD_BYTES)
        client.request += data
        is_whole = b"\r\n\r\n" in client.request or b"\n\n" in client.request
        if data and not is_whole and len(client.request) <= _MOST_HEAD_BYTES:
            return False
        if is_whole:
            client.answer = memoryview(self._answer(bytes(client.request)))
        elif data:
            client.answer = memoryview(_TOO_LARGE)
        self._selector.modify(client.sock, selectors.EVENT_WRITE, client)
        return True

    def _answer(self, request: bytes) -> bytes:
        try:
            if self._pages is None:
                self._pages = importlib.import_module(_PAGE_MODULE).Pages(self._questions.ask)
            return self._pages.answer(request)
        except Exception:  # noqa: BLE001 - a defect here costs one answer, not the thread
            _log.exception("prefeed: the metrics cannot be shown")
            return _FAILED

    def _close(self, client: _Client) -> None:
        self._selector.unregister(client.sock)
        self._clients.remove(client)
        client.sock.close()


def _listen(address: str | None) -> socket.socket | None:
    if address == "":
        return None
    if address is not None:
        host, _, port = address.rpartition(":")
        return _bound(host.strip("[]"), int(port))
    try:
        return _bound(_LOOPBACK, METRICS_PORT)
    except OSError:
        return _bound(_LOOPBACK, 0)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=MOST_CLIENTS)
    listener.setblocking(False)
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
