"""The client of fetch processes: it takes plain answers, and tells of every other one."""

from __future__ import annotations

import errno
import gzip
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import servers
from prefeed.sources.quick_fetches import (
    BROKEN_OFF,
    INTERRUPTED,
    NOT_CONNECTED,
    ODD,
    STATUS,
    TIMED_OUT,
    Arrival,
    QuickClient,
    QuickOrigin,
)

pytestmark = pytest.mark.usefixtures("sandbox")

SIZE = 1000
LONG_HEAD_BYTES = 8192


def origin_of(url: str, *, host: str = "", timeout_seconds: float = 60.0) -> QuickOrigin:
    parts = urlsplit(url)
    assert parts.port is not None
    headers = f"Host: {parts.netloc}\r\n".encode()
    return QuickOrigin(url, parts.scheme == "https", host or parts.hostname or "", parts.port, headers, timeout_seconds)


class Client:
    """A client, and the objects that it has fetched, by number."""

    def __init__(self, origin: QuickOrigin) -> None:
        self.objects: dict[int, bytes] = {}
        self.client = QuickClient(self.keep)
        self.client.add_origin(7, origin)

    def keep(self, number: int, data: memoryview) -> None:
        self.objects[number] = bytes(data)

    def fetch(self, *wanted: tuple[str, int]) -> list[Arrival]:
        """Fetch targets of these sizes at a time; return their arrivals in this order."""
        for number, (target, size) in enumerate(wanted):
            self.client.fetch(number, 7, target.encode(), size)
        arrivals: list[Arrival] = []
        while self.client.num_under_way:
            arrivals += self.client.step(60.0)
        return sorted(arrivals, key=lambda arrival: arrival.number)

    def fetch_part(self, target: str, first: int, size: int) -> list[Arrival]:
        """Fetch a part of an object; return its arrival."""
        self.client.fetch(0, 7, target.encode(), size, first=first)
        return self.until(bool)

    def until(self, condition: Callable[[list[Arrival]], bool]) -> list[Arrival]:
        """Return what has arrived when the condition holds."""
        arrivals: list[Arrival] = []
        deadline = time.monotonic() + 60
        while not condition(arrivals):
            assert time.monotonic() < deadline
            arrivals += self.client.step(0.1)
        return arrivals

    def close(self) -> None:
        self.client.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.FileServer]:
    for index in range(40):
        (tmp_path / f"{index:02}.bin").write_bytes(bytes([index]) * SIZE)
    with servers.http_server(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: servers.FileServer) -> Iterator[Client]:
    client = Client(origin_of(server.url))
    yield client
    client.close()


@pytest.mark.parametrize("size", [0, 1, 4095, 84_000])
def test_object_is_received(client: Client, server: servers.FileServer, size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    (server.directory / "object").write_bytes(data)
    (arrival,) = client.fetch(("/object", size))
    assert not arrival.failure
    assert client.objects[arrival.number] == data
    stat = (server.directory / "object").stat()
    assert arrival.version == f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'


def test_many_objects_come_over_as_many_connections_as_are_under_way(
    client: Client, server: servers.FileServer
) -> None:
    for start in (0, 10, 20, 30):
        arrivals = client.fetch(*((f"/{index:02}.bin", SIZE) for index in range(start, start + 10)))
        assert [client.objects[arrival.number][0] for arrival in arrivals] == list(range(start, start + 10))
    assert len(server.requests) == 40
    assert len(client.client._connections) <= 10


def test_time_is_the_version_where_there_is_no_etag(client: Client, server: servers.FileServer) -> None:
    date = {"Last-Modified": "Sun, 13 Sep 2020 12:26:40 GMT"}
    server.answers["/dated"] = lambda handler: handler.reply(200, b"x" * SIZE, date)
    (arrival,) = client.fetch(("/dated", SIZE))
    assert (arrival.version, arrival.modified_seconds) == ("", 1_600_000_000)


@pytest.mark.parametrize(("first", "size"), [(0, 100), (37, 1), (SIZE - 5, 5), (0, SIZE)])
def test_a_part_is_received_where_it_was_told(
    client: Client, server: servers.FileServer, first: int, size: int
) -> None:
    server.ranges = True
    data = bytes(index % 251 for index in range(SIZE))
    (server.directory / "object").write_bytes(data)
    (arrival,) = client.fetch_part("/object", first, size)
    assert (arrival.failure, arrival.object_bytes) == ("", SIZE)
    assert client.objects[arrival.number] == data[first : first + size]
    assert arrival.version == f'"{(server.directory / "object").stat().st_mtime_ns:x}-{SIZE:x}"'


def _part(content_range: str, size: int = 100) -> Callable[[servers.Handler], None]:
    headers = {"Content-Range": content_range} if content_range else {}
    return lambda handler: handler.reply(206, b"x" * size, headers)


PARTS: dict[str, Callable[[servers.Handler], None]] = {
    "the whole object": lambda handler: handler.reply(200, b"x" * 100, {}),
    "another place": _part("bytes 0-99/1000"),
    "another end": _part("bytes 50-148/1000"),
    "another number of bytes": _part("bytes 50-149/1000", size=99),
    "an object of unknown size": _part("bytes 50-149/*"),
    "a place that is not told": _part(""),
    "several parts": _part("multipart/byteranges; boundary=x"),
    "nothing there": servers.status(416),
}


@pytest.mark.parametrize("name", PARTS)
def test_answers_that_are_not_the_part(client: Client, server: servers.FileServer, name: str) -> None:
    server.answers["/object"] = PARTS[name]
    (arrival,) = client.fetch_part("/object", 50, 100)
    assert arrival.failure == ODD


def _large_head(handler: servers.Handler) -> None:
    handler.reply(200, b"x" * SIZE, {"X-Padding": "y" * (LONG_HEAD_BYTES + SIZE)})


def _surplus(handler: servers.Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(SIZE))
    handler.end_headers()
    handler.wfile.write(b"x" * (SIZE + 5))


ANSWERS: dict[str, tuple[Callable[[servers.Handler], None], str]] = {
    "another size": (lambda handler: handler.reply(200, b"x" * (SIZE - 1)), ODD),
    "a redirect": (servers.redirected(302, "/00.bin"), ODD),
    "a part": (lambda handler: handler.reply(206, b"x" * SIZE, {"Content-Range": "bytes 0-999/2000"}), ODD),
    "not modified": (servers.status(304), ODD),
    "no access": (servers.status(403), ODD),
    "compressed": (lambda handler: handler.reply(200, b"x" * SIZE, {"Content-Encoding": "gzip"}), ODD),
    "chunks and a length": (lambda h: h.reply(200, b"x" * SIZE, {"Transfer-Encoding": "chunked"}), ODD),
    "two lengths": (lambda handler: _two_lengths(handler), ODD),
    "a head that is too large": (_large_head, ODD),
    "more than announced": (_surplus, ODD),
    "missing": (servers.status(404, b"not found"), STATUS % 404),
    "gone": (servers.status(410), STATUS % 410),
    "too many requests": (servers.status(429), STATUS % 429),
    "a failure": (servers.status(500, b"x" * 100_000), STATUS % 500),
    "throttled": (servers.status(503), STATUS % 503),
}


def _two_lengths(handler: servers.Handler) -> None:
    handler.send_response(200)
    for length in (SIZE, SIZE):
        handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.wfile.write(b"x" * SIZE)


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_are_no_object(client: Client, server: servers.FileServer, name: str) -> None:
    answer, failure = ANSWERS[name]
    server.answers["/answer"] = answer
    first, other = client.fetch(("/answer", SIZE), ("/03.bin", SIZE))
    assert first.failure == failure
    assert not other.failure
    assert client.objects[other.number] == b"\3" * SIZE
    assert sorted(path for _, path, _ in server.requests) == ["/03.bin", "/answer"]
    (after,) = client.fetch(("/05.bin", SIZE))
    assert client.objects[after.number] == b"\5" * SIZE


@pytest.mark.parametrize(
    "answer", [servers.chunked, servers.chunked_half, servers.until_closed, servers.until_closed_half]
)
def test_answers_without_a_length_are_odd(client: Client, server: servers.FileServer, answer: Any) -> None:
    server.answers["/00.bin"] = answer
    (arrival,) = client.fetch(("/00.bin", SIZE))
    assert arrival.failure == ODD


@pytest.mark.parametrize("answer", [servers.truncated, servers.reset])
def test_half_an_object_is_none(client: Client, server: servers.FileServer, answer: Any) -> None:
    server.answers["/half"] = answer
    (arrival,) = client.fetch(("/half", 1000))
    assert arrival.failure == BROKEN_OFF
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [servers.silent, servers.stalled])
def test_answer_that_does_not_come_is_given_up(server: servers.FileServer, answer: Any) -> None:
    server.answers["/late"] = answer
    client = Client(origin_of(server.url, timeout_seconds=0.5))
    late, other = client.fetch(("/late", 1000), ("/01.bin", SIZE))
    client.close()
    assert late.failure == TIMED_OUT
    assert late.seconds >= 0.5
    assert other.failure in ("", TIMED_OUT)  # on a machine that is busy enough


def test_no_server_listens() -> None:
    client = Client(origin_of(f"http://127.0.0.1:{servers.free_port()}"))
    (arrival,) = client.fetch(("/x", 1))
    client.close()
    assert arrival.failure == NOT_CONNECTED


def test_name_is_resolved_and_each_address_is_tried(server: servers.FileServer) -> None:
    """``localhost`` may be ::1 first, where nobody listens."""
    client = Client(origin_of(server.url, host="localhost"))
    arrivals = client.fetch(("/01.bin", SIZE), ("/02.bin", SIZE))
    client.close()
    assert [arrival.failure for arrival in arrivals] == ["", ""]
    assert len(server.requests) == 2


def test_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    client = Client(origin_of("http://127.0.0.1:1", host="no-such-host.invalid"))
    (arrival,) = client.fetch(("/x", 1))
    client.close()
    assert arrival.failure == NOT_CONNECTED


class Scripted:
    """A server of one connection at a time that does what the test says; it counts the connections."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._serve = serve
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_connections = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with sock:
                first = sock.recv(4096)
                if first == b"end":
                    return
                self.num_connections += 1
                sock.sendall(ANSWER)
                self._serve(sock)

    def close(self) -> None:
        with socket.create_connection(self._listener.getsockname()) as sock:
            sock.sendall(b"end")
            self._thread.join()
        self._listener.close()


ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: "1"\r\n\r\nabc'


def test_connection_that_was_closed_while_idle_is_replaced() -> None:
    server = Scripted(lambda sock: None)
    client = Client(origin_of(server.url))
    for _ in range(5):
        (arrival,) = client.fetch(("/x", 3))
        assert client.objects[arrival.number] == b"abc"
    client.close()
    server.close()
    assert server.num_connections == 5


def test_connection_that_is_closed_after_a_second_request_is_replaced_once() -> None:
    server = Scripted(lambda sock: sock.recv(4096) and None)
    client = Client(origin_of(server.url))
    for _ in range(3):
        (arrival,) = client.fetch(("/x", 3))
        assert client.objects[arrival.number] == b"abc"
    client.close()
    server.close()
    assert server.num_connections == 3


def test_first_request_of_a_connection_is_not_made_again() -> None:
    def hang_up(handler: servers.Handler) -> None:
        handler.close_connection = True

    with servers.http_server(Path("/nonexistent")) as server:
        server.answers["/x"] = hang_up
        client = Client(origin_of(server.url))
        (arrival,) = client.fetch(("/x", 3))
        client.close()
        assert arrival.failure == INTERRUPTED
        assert len(server.requests) == 1


def test_head_that_comes_byte_by_byte_is_read() -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(4096)
        for index in range(len(ANSWER)):
            sock.sendall(ANSWER[index : index + 1])
        sock.recv(4096)

    server = Scripted(serve)
    client = Client(origin_of(server.url))
    for _ in range(2):
        (arrival,) = client.fetch(("/x", 3))
        assert (client.objects[arrival.number], arrival.version) == (b"abc", '"1"')
    client.close()
    server.close()


def test_close_breaks_off_what_is_under_way(server: servers.FileServer) -> None:
    server.answers["/late"] = servers.silent
    client = Client(origin_of(server.url))
    client.client.fetch(1, 7, b"/late", 1000)
    deadline = time.monotonic() + 60
    while not server.requests:
        client.client.step(0.05)
        assert time.monotonic() < deadline
    client.close()


def test_no_more_requests_than_the_limit_but_urgent_ones(client: Client, server: servers.FileServer) -> None:
    server.answers["/late0"] = server.answers["/late1"] = servers.stalled
    client.client.limit(7, 2)
    for number, target in enumerate((b"/late0", b"/late1", b"/00.bin", b"/01.bin")):
        client.client.fetch(number, 7, target, SIZE)
    client.client.fetch(4, 7, b"/02.bin", SIZE, is_urgent=True)
    arrivals = client.until(lambda found: len(found) == 1 and len(server.requests) >= 3)  # late ones are noted late
    assert [arrival.number for arrival in arrivals] == [4]
    assert sorted(path for _, path, _ in server.requests) == ["/02.bin", "/late0", "/late1"]
    client.client.limit(7, 3)
    arrivals = client.until(lambda found: len(found) == 2)
    assert [arrival.number for arrival in arrivals] == [2, 3]
    assert client.client.num_under_way == 2


def test_origin_shows_no_secret() -> None:
    origin = QuickOrigin("http://host", False, "host", 80, b"Authorization: Basic c2VjcmV0\r\n", 1.0)
    assert "c2VjcmV0" not in repr(origin)


def test_compressed_is_not_what_was_listed(client: Client, server: servers.FileServer) -> None:
    body = gzip.compress(b"x" * SIZE)
    server.answers["/z"] = lambda handler: handler.reply(200, body, {"Content-Encoding": "gzip"})
    (arrival,) = client.fetch(("/z", len(body)))
    assert arrival.failure == ODD


@pytest.fixture
def encrypted(server: servers.FileServer, tmp_path: Path) -> str:
    """Let the server speak TLS; return the file of its certificate."""
    return servers.encrypt(server, tmp_path)


def test_objects_over_tls(server: servers.FileServer, encrypted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", encrypted)
    (server.directory / "large").write_bytes(bytes(range(250)) * 400)
    client = Client(origin_of(server.url.replace("http:", "https:")))
    for _ in range(3):
        small, large, missing = client.fetch(("/07.bin", SIZE), ("/large", 100_000), ("/none", 1))
        assert client.objects[small.number] == b"\7" * SIZE
        assert client.objects[large.number] == bytes(range(250)) * 400
        assert missing.failure == STATUS % 404
    client.close()
    assert len(server.requests) == 9


@pytest.mark.usefixtures("encrypted")
def test_server_that_is_not_trusted_gets_no_request(server: servers.FileServer) -> None:
    client = Client(origin_of(server.url.replace("http:", "https:")))
    (arrival,) = client.fetch(("/07.bin", SIZE))
    client.close()
    assert arrival.failure == ODD
    assert not server.requests


def test_server_that_speaks_no_tls(server: servers.FileServer) -> None:
    client = Client(origin_of(server.url.replace("http:", "https:")))
    (arrival,) = client.fetch(("/07.bin", SIZE))
    client.close()
    assert arrival.failure == ODD


def test_many_that_wait_fail_one_after_the_other_without_descriptors(monkeypatch):
    """Each that fails at once makes room for the next: that is no recursion, and the client goes on."""
    num = 5 * sys.getrecursionlimit()
    with socket.create_server(("127.0.0.1", 0)) as server:
        fetched = Client(origin_of(f"http://127.0.0.1:{server.getsockname()[1]}/"))
        fetched.client.limit(7, 1)
        for number in range(num):
            fetched.client.fetch(number, 7, b"/", SIZE)
        accepted, _ = server.accept()

        def no_descriptor(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", no_descriptor)
            accepted.close()
            arrivals = fetched.until(lambda arrivals: len(arrivals) == num)
        assert {arrival.failure for arrival in arrivals} == {INTERRUPTED, NOT_CONNECTED}
        fetched.client.close()


def test_an_object_that_cannot_be_kept_is_for_the_library(server: servers.FileServer) -> None:
    def refuse(number: int, data: memoryview) -> None:
        if number == 0:
            raise OSError(errno.ENOSPC, "no room")

    client = Client(origin_of(server.url))
    client.client.close()
    client.client = QuickClient(refuse)
    client.client.add_origin(7, origin_of(server.url))
    assert [arrival.failure for arrival in client.fetch(("/01.bin", SIZE), ("/02.bin", SIZE))] == [ODD, ""]
    client.close()


def test_buffers_are_used_again_and_grow(client: Client, server: servers.FileServer) -> None:
    for size in (10, 300_000, 20, 1_000_000, 0):
        (server.directory / "object").write_bytes(bytes([size % 251]) * size)
        (arrival,) = client.fetch(("/object", size))
        assert client.objects[arrival.number] == bytes([size % 251]) * size
    assert len(client.client._buffers) == 1
