"""The socket at which Prometheus asks, and the thread that waits there: what answers is imported with the first client."""

from __future__ import annotations

import importlib
import os
import select
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from prefeed.config import METRICS_PORT
from prefeed.errors import PrefeedError
from prefeed.server.status import Observation

if TYPE_CHECKING:
    from prefeed.server.metrics import Scrapes

CLIENT_SECONDS: Final = 10.0
"""A client that has not asked, and taken its answer, within so long is left."""

_LOOPBACK: Final = "127.0.0.1"
_ANSWERS: Final = "prefeed.server.metrics"
_BACKLOG: Final = 64
_ANSWER_SECONDS: Final = 2.0
"""The loop answers between two of its turns; when it does not, the client is told to come again."""

_PAUSE_SECONDS: Final = 0.2


class Questions:
    """Asks the thread that owns the state for observations.

    Args:
        call_soon: Runs a function in that thread.
        observe: Returns the observation; in that thread.

    **Threads**: any.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], None], observe: Callable[[], Observation]) -> None:
        self._call_soon = call_soon
        self._observe = observe
        self._is_over = False
        self._asked: set[SimpleQueue[Observation | None]] = set()

    def ask(self) -> Observation | None:
        """Return an observation made now; None when there was none in time, or never will be."""
        answers: SimpleQueue[Observation | None] = SimpleQueue()
        self._asked.add(answers)
        try:
            if self._is_over:
                return None
            self._call_soon(lambda: answers.put(self._try_observe()))
            return answers.get(timeout=_ANSWER_SECONDS)
        except Empty:
            return None
        finally:
            self._asked.discard(answers)

    def give_up(self) -> None:
        """Let ``ask`` return, now and ever after; any thread may call it."""
        self._is_over = True
        for answers in self._asked.copy():
            answers.put(None)

    def _try_observe(self) -> Observation | None:
        try:
            return self._observe()
        except (PrefeedError, KeyError, IndexError, ValueError, OSError):
            return None  # the loop continues, whatever an observation meets


class MetricsEndpoint:
    """Serves the metrics over HTTP, if it has an address.

    Args:
        address: As in ``Config.metrics``: None for the usual port, or a free one; empty for none.
        client_seconds: See ``CLIENT_SECONDS``.

    Attributes:
        url: Of the metrics; empty when none are served.
        notice: What is to be said when the address cannot be had; else empty.

    **Ownership**: who makes it closes it. **Threads**: ``start`` makes one, which accepts clients; each client has another. They
    take an observation from the loop's thread and do the rest themselves, and end with ``close``.
    """

    def __init__(self, address: str | None, *, client_seconds: float = CLIENT_SECONDS) -> None:
        self.url: str = ""
        self.notice: str = ""
        self._client_seconds = client_seconds
        self._scrapes: Scrapes | None = None
        self._questions: Questions
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        try:
            self._listener = _listen(address)
        except (OSError, ValueError) as err:
            # create_server appends the address in brackets.
            reason = str(getattr(err, "strerror", None) or err).partition(" (while")[0]
            self.notice = (
                f"no metrics are served: {address} cannot be used: {reason}; name another address with PREFEED_METRICS, or 0 "
                "for none"
            )
        if self._listener is not None:
            self.url = _url_of(self._listener)
            self._wake_up = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def start(self, questions: Questions) -> None:
        """Answer from now on."""
        if self._listener is None:
            return
        self._questions = questions
        self._thread = threading.Thread(target=self._run, name="prefeed-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, close every client, and give the address back."""
        if self._listener is None:
            return
        if self._thread is not None:
            self._questions.give_up()
            os.eventfd_write(self._wake_up, 1)
            self._thread.join()
        if self._scrapes is not None:
            self._scrapes.close()
        self._listener.close()
        os.close(self._wake_up)
        self._listener = None

    def _run(self) -> None:
        assert self._listener is not None
        scrapes = None
        sources: list[Any] = [self._listener, self._wake_up]
        while True:
            ready, _, _ = select.select(sources, [], [], None if scrapes is None else scrapes.seconds_left)
            if self._wake_up in ready:
                return
            if scrapes is None:
                answers = importlib.import_module(_ANSWERS)
                scrapes = self._scrapes = answers.Scrapes(
                    self._listener, self._questions.ask, client_seconds=self._client_seconds
                )
            scrapes.leave_slow()
            if ready and not scrapes.try_accept():  # where there are no descriptors, it is offered again at once
                select.select([self._wake_up], [], [], _PAUSE_SECONDS)


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
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
