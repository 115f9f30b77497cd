"""The socket of the metrics: who asks, who is slow, who is in the way, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from leaks import wait_until
from observed import FULL
from prefeed.server import metrics_endpoint
from prefeed.server.metrics import MOST_CLIENTS, Pages
from prefeed.server.metrics_endpoint import MetricsEndpoint, Questions
from prefeed.server.status import Observation

pytestmark = pytest.mark.usefixtures("sandbox")

SECONDS = 60.0


class OwnLoop:
    """Stands for the server's loop: runs what it is given in a thread of its own, or holds it back."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []
        self.is_stuck = False
        self.observed: list[str] = []
        self.failure: Exception | None = None

    def call_soon(self, function: Callable[[], None]) -> None:
        if self.is_stuck:
            self.held.append(function)
        else:
            function()

    def observe(self) -> Observation:
        self.observed.append(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure
        return FULL


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> OwnLoop:
    monkeypatch.setattr(metrics_endpoint, "_ANSWER_SECONDS", SECONDS)
    return OwnLoop()


@contextlib.contextmanager
def serving(loop: OwnLoop, address: str | None = "127.0.0.1:0", **more: float) -> Iterator[MetricsEndpoint]:
    with contextlib.closing(MetricsEndpoint(address, **more)) as endpoint:
        endpoint.start(Questions(loop.call_soon, loop.observe))
        yield endpoint


@pytest.fixture
def endpoint(loop: OwnLoop) -> Iterator[MetricsEndpoint]:
    with serving(loop) as endpoint:
        yield endpoint


def place(endpoint: MetricsEndpoint) -> tuple[str, int]:
    parts = urlsplit(endpoint.url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def status_of(endpoint: MetricsEndpoint) -> int:
    connection = http.client.HTTPConnection(*place(endpoint), timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert (b"prefeed_reads_total" in response.read()) == (response.status == 200)
        return response.status


def connect(endpoint: MetricsEndpoint) -> socket.socket:
    return socket.create_connection(place(endpoint), timeout=SECONDS)


def clients(endpoint: MetricsEndpoint) -> int:
    return 0 if endpoint._scrapes is None else len(endpoint._scrapes._deadlines)


def is_closed(sock: socket.socket) -> bool:
    """Wait until the other end has closed the connection."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_it_answers_again_and_again(endpoint: MetricsEndpoint) -> None:
    assert [status_of(endpoint) for _ in range(3)] == [200, 200, 200]


def test_a_request_may_come_in_pieces(endpoint: MetricsEndpoint) -> None:
    with connect(endpoint) as sock:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\nHo", b"st: x\r\n\r", b"\n"):
            sock.sendall(piece)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        assert is_closed(sock)


def test_clients_that_say_nothing_do_not_delay_others(endpoint: MetricsEndpoint) -> None:
    silent = [connect(endpoint) for _ in range(5)]
    try:
        assert status_of(endpoint) == 200
    finally:
        for sock in silent:
            sock.close()


def test_the_oldest_client_makes_room(endpoint: MetricsEndpoint) -> None:
    silent = [connect(endpoint) for _ in range(MOST_CLIENTS)]
    try:
        assert status_of(endpoint) == 200
        assert is_closed(silent[0])
        assert wait_until(lambda: clients(endpoint) < MOST_CLIENTS, timeout_seconds=SECONDS)
    finally:
        for sock in silent:
            sock.close()


def test_a_client_that_takes_too_long_is_left(loop: OwnLoop) -> None:
    with serving(loop, client_seconds=0.1) as endpoint, connect(endpoint) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert is_closed(sock)
        assert wait_until(lambda: clients(endpoint) == 0, timeout_seconds=SECONDS)


def test_a_head_without_an_end_is_refused(endpoint: MetricsEndpoint) -> None:
    with connect(endpoint) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 70_000)
        assert sock.recv(12) == b"HTTP/1.1 431"
    assert status_of(endpoint) == 200


def test_a_client_that_hangs_up_is_forgotten(endpoint: MetricsEndpoint) -> None:
    with connect(endpoint) as sock:
        sock.sendall(b"GET /metr")
    assert status_of(endpoint) == 200
    assert wait_until(lambda: clients(endpoint) == 0, timeout_seconds=SECONDS)


def test_threads_are_bounded_however_many_ask(endpoint: MetricsEndpoint) -> None:
    assert status_of(endpoint) == 200
    before = threading.active_count()
    sockets = [connect(endpoint) for _ in range(2 * MOST_CLIENTS)]
    try:
        assert status_of(endpoint) == 200
        assert wait_until(lambda: threading.active_count() <= before + MOST_CLIENTS, timeout_seconds=SECONDS)
    finally:
        for sock in sockets:
            sock.close()


def test_a_thread_that_cannot_be_had_costs_one_client(loop: OwnLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with serving(loop, client_seconds=SECONDS * 60) as endpoint:
        assert status_of(endpoint) == 200
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", refuse)
            with connect(endpoint) as sock:
                assert is_closed(sock)


def test_a_loop_without_time_is_said(loop: OwnLoop, endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.is_stuck = True
    with monkeypatch.context() as short:
        short.setattr(metrics_endpoint, "_ANSWER_SECONDS", 0.05)
        assert status_of(endpoint) == 503
    loop.is_stuck = False
    assert status_of(endpoint) == 200
    for late in loop.held:
        late()  # its answer is nobody's
    assert status_of(endpoint) == 200


def test_what_goes_wrong_in_the_loop_does_not_end_it(loop: OwnLoop, endpoint: MetricsEndpoint) -> None:
    loop.failure = KeyError("gone")
    assert status_of(endpoint) == 503
    loop.failure = None
    assert status_of(endpoint) == 200


def test_a_defect_costs_one_answer(
    endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("prefeed.server.metrics.families", lambda *_: 1 / 0)
        assert status_of(endpoint) == 500
    assert "ZeroDivisionError" in caplog.text
    assert status_of(endpoint) == 200


def test_closing_does_not_wait_for_a_loop_that_is_stuck(loop: OwnLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.server.metrics_endpoint._ANSWER_SECONDS", 1000.0)
    loop.is_stuck = True
    endpoint = MetricsEndpoint("127.0.0.1:0")
    endpoint.start(Questions(loop.call_soon, loop.observe))
    with connect(endpoint) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert wait_until(lambda: bool(loop.held), timeout_seconds=SECONDS)
        endpoint.close()
        assert is_closed(sock)
    endpoint.close()  # once more changes nothing


def test_without_an_address_there_is_nothing(loop: OwnLoop) -> None:
    with serving(loop, "") as endpoint:
        assert (endpoint.url, endpoint.notice) == ("", "")
        assert "prefeed-metrics" not in [thread.name for thread in threading.enumerate()]


def test_a_named_port_that_is_taken_is_a_notice(loop: OwnLoop, endpoint: MetricsEndpoint) -> None:
    port = place(endpoint)[1]
    with serving(loop, f"127.0.0.1:{port}") as second:
        assert second.url == ""
        assert f"127.0.0.1:{port} cannot be used: Address already in use; name" in second.notice
        assert "PREFEED_METRICS" in second.notice
    assert status_of(endpoint) == 200


@pytest.mark.parametrize("address", ["no.such.host.invalid:80", "1.2.3.4:9000", "a..b:80"])
def test_an_address_that_is_not_ours_is_a_notice(loop: OwnLoop, address: str) -> None:
    with serving(loop, address) as endpoint:
        assert endpoint.url == ""
        assert address in endpoint.notice


def test_the_usual_port_that_is_taken_gives_way_to_a_free_one(
    loop: OwnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as taken:  # another server of this machine may have the real one
        usual = taken.getsockname()[1]
        monkeypatch.setattr(metrics_endpoint, "METRICS_PORT", usual)
        with serving(loop, None) as first, serving(loop, None) as second:
            assert len({place(first)[1], place(second)[1], usual}) == 3
            assert (status_of(first), status_of(second), second.notice) == (200, 200, "")


def test_it_listens_on_loopback_unless_told_otherwise(loop: OwnLoop) -> None:
    with serving(loop, None) as endpoint:
        assert place(endpoint)[0] == "127.0.0.1"


def test_ipv6(loop: OwnLoop) -> None:
    with serving(loop, "[::1]:0") as endpoint:
        if not endpoint.url:
            pytest.skip(endpoint.notice)
        assert endpoint.url.startswith("http://[::1]:")
        assert status_of(endpoint) == 200


def test_the_port_can_be_had_again_at_once(loop: OwnLoop) -> None:
    with serving(loop) as endpoint:
        port = place(endpoint)[1]
        assert status_of(endpoint) == 200
    with serving(loop, f"127.0.0.1:{port}") as again:
        assert again.notice == ""
        assert status_of(again) == 200


def test_nothing_is_imported_before_somebody_asks() -> None:
    program = (
        "import sys; from prefeed.server.metrics_endpoint import *; e = MetricsEndpoint('127.0.0.1:0');"
        "e.start(Questions(lambda f: f(), lambda: None)); e.close();"
        "import prefeed.server.main; print([n for n in ('prometheus_client', 'http.server') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_reader_that_takes_nothing_is_left(loop: OwnLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def page(*_: object) -> tuple[str, bytes]:
        asked.set()
        return "text/plain", b"x" * 50_000_000

    monkeypatch.setattr(Pages, "page", page)
    with serving(loop, client_seconds=0.2) as endpoint, connect(endpoint) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert asked.wait(SECONDS)
        assert wait_until(lambda: clients(endpoint) == 0, timeout_seconds=SECONDS)
        assert select.select([sock], [], [], SECONDS)[0]
