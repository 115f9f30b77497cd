"""Requests and answers of ``/metrics``, without a socket."""

from __future__ import annotations

import gzip
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from observed import EMPTY, FULL, PLAN
from prefeed.server.metrics import METRICS, Exchange, Pages
from prefeed.server.status import Observation

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Client:
    """A socket that has sent a request; keeps what is sent to it."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.received = _Received()

    def makefile(self, mode: str, *_: object) -> BytesIO:
        return BytesIO(self._request) if mode == "rb" else self.received


class _Received(BytesIO):
    def close(self) -> None:
        """Keep it: the test reads it."""


def ask(
    seen: Observation | None, line: str = "GET /metrics HTTP/1.1", *headers: str
) -> tuple[str, dict[str, str], bytes]:
    request = "\r\n".join([line, "Host: node", *headers, "", ""]).encode()
    client = Client(request)
    Exchange(client, ("", 0), SimpleNamespace(pages=Pages(lambda: seen)))
    head, _, body = client.received.getvalue().partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status, dict(line.split(": ", 1) for line in lines), body


@pytest.mark.parametrize("seen", [FULL, EMPTY], ids=["full", "empty"])
@pytest.mark.parametrize(("accept", "reader"), [("text/plain", parse), (OPEN_METRICS, parse_openmetrics)])
def test_the_answer_can_be_parsed(seen: Observation, accept: str, reader) -> None:
    status, headers, body = ask(seen, "GET /metrics HTTP/1.1", f"Accept: {accept}")
    families = {family.name: family for family in reader(body.decode())}

    assert status == "HTTP/1.1 200 OK"
    assert headers["Content-Type"].startswith(accept.partition(";")[0])
    assert int(headers["Content-Length"]) == len(body)
    reads = {sample.labels["outcome"]: sample.value for sample in families["prefeed_reads"].samples}
    assert reads["hit"] == seen.statistics.hits
    assert families["process_cpu_seconds"].type == "counter"


def test_every_metric_is_there_with_its_help() -> None:
    families = {family.name: family for family in parse(ask(FULL)[2].decode())}

    for metric in METRICS:
        family = families[metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_a_path_of_any_bytes_can_be_a_label() -> None:
    seen = replace(FULL, plans=(replace(PLAN, dataset='/mnt/"a\\b\n\udcff'),))
    families = {family.name: family for family in parse(ask(seen)[2].decode())}

    (sample,) = families["prefeed_plan_length_objects"].samples
    assert sample.labels["dataset"] == '/mnt/"a\\b\n\\udcff'


def test_compressed_where_the_scraper_wants_it() -> None:
    _, headers, body = ask(FULL, "GET /metrics HTTP/1.1", "Accept-Encoding: deflate, gzip")

    assert headers["Content-Encoding"] == "gzip"
    assert b"prefeed_reads_total" in gzip.decompress(body)
    assert "Content-Encoding" not in ask(FULL)[1]


def test_head_has_no_body() -> None:
    status, headers, body = ask(FULL, "HEAD /metrics HTTP/1.1")

    assert (status, body) == ("HTTP/1.1 200 OK", b"")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /metrics?x=1 HTTP/1.1", "200 OK"),
        ("GET /metrics HTTP/1.0", "200 OK"),
        ("GET / HTTP/1.1", "404 Not Found"),
        ("GET /metrics/ HTTP/1.1", "404 Not Found"),
        ("HEAD /favicon.ico HTTP/1.1", "404 Not Found"),
        ("POST /metrics HTTP/1.1", "501 "),
        ("nonsense and more HTTP/1.1 x", "400 "),
        ("GET /metrics HTTP/3.0", "505 "),
    ],
)
def test_status(line: str, status: str) -> None:
    assert ask(FULL, line)[0].partition(" ")[2].startswith(status)


def test_a_server_without_time_says_so() -> None:
    status, headers, body = ask(None)

    assert status == "HTTP/1.1 503 Service Unavailable"
    assert b"ask again" in body
    assert int(headers["Content-Length"]) == len(body)


def test_the_connection_is_closed_and_nothing_is_said_of_the_machine() -> None:
    _, headers, _ = ask(FULL)

    assert headers["Connection"] == "close"
    assert headers["Server"].strip() == "prefeed"


def test_the_librarys_own_registry_is_left_alone() -> None:
    ask(FULL)

    assert not [family for family in REGISTRY.collect() if family.name.startswith("prefeed")]
