"""Answers one HTTP request for ``/metrics``. Imported with the first request: the library takes some 80 ms."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Final, cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted

from prefeed.server.metrics import METRICS, PlanNumbers, rows
from prefeed.server.status import Observation

PATH: Final = "/metrics"
_PLAIN: Final = "text/plain; charset=utf-8"

Observe = Callable[[], Observation | None]
"""Asks the server's loop; None when it has no time to answer."""


class Pages:
    """Answers requests, each given and returned as bytes.

    **Threads**: one at a time.
    """

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._numbers = PlanNumbers()
        self._process = ProcessCollector(registry=None)

    def answer(self, request: bytes) -> bytes:
        """Return the whole answer to a request, of which the head is enough."""
        return _Exchange(request, self._page).answer

    def _page(self, accept: str, encodings: str) -> tuple[HTTPStatus, dict[str, str], bytes]:
        seen = self._observe()
        if seen is None:
            text = b"the server is too busy to answer; ask again\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, {"Content-Type": _PLAIN}, text
        encode, content_type = choose_encoder(accept)
        # The encoders only collect; a registry would ask for names first, and keep them.
        body = encode(cast(CollectorRegistry, _Collected([*families(seen, self._numbers), *self._process.collect()])))
        headers = {"Content-Type": content_type}
        if gzip_accepted(encodings):
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body)
        return HTTPStatus.OK, headers, body


class _Collected:
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found


def families(seen: Observation, numbers: PlanNumbers) -> Iterator[Metric]:
    """Yield what the observation says of each metric, in the order of ``METRICS``; those without a number are left out."""
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    found: dict[str, Metric] = {m.name: kinds[m.kind](m.name, m.help, labels=m.labels) for m in METRICS}
    for name, labels, number in rows(seen, numbers):
        family = cast(CounterMetricFamily | GaugeMetricFamily, found[name])
        family.add_metric(labels, number)
    return (family for family in found.values() if family.samples)


class _Exchange(BaseHTTPRequestHandler):
    """One request, read from memory and answered into memory: the standard library's own reading of HTTP."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # not 0.9, whose answers have no head
    server_version = "prefeed"
    sys_version = ""

    def __init__(self, request: bytes, page: Callable[[str, str], tuple[HTTPStatus, dict[str, str], bytes]]) -> None:
        self.rfile = BytesIO(request)
        self.wfile = BytesIO()
        self.client_address = ("", 0)
        self._page = page
        self.handle_one_request()

    @property
    def answer(self) -> bytes:
        """What was written."""
        return cast(BytesIO, self.wfile).getvalue()

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._say(HTTPStatus.NOT_FOUND, {"Content-Type": _PLAIN}, f"the metrics are at {PATH}\n".encode())
        else:
            self._say(*self._page(self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: each scrape would be a line in the server's log."""

    def _say(self, status: HTTPStatus, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
