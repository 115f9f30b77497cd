"""``prefeed.open`` of web servers that are unlike a store: without ranges, without HEAD, or with answers that contradict each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import prefeed
import servers
from limits import set_limits
from prefeed.errors import ObjectChangedError, ObjectNotFoundError, SourceError
from prefeed.files import close
from sandbox import Sandbox

BLOCK = 64 * 1024
SMALL = bytes(range(250)) * 4
LARGE = b"".join(b"%07d\n" % number for number in range(40_000))
FILES = {"small.bin": SMALL, "large.bin": LARGE, "empty.bin": b""}


@pytest.fixture(params=[True, False], ids=["server", "no server"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    monkeypatch.setenv("PREFEED_ENABLED", str(int(request.param)))
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120, retry_seconds=1)
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (1_700_000_000, 1_700_000_000))
    yield tmp_path
    close()


@pytest.fixture
def server(root: Path) -> Iterator[servers.FileServer]:
    with servers.http_server(root) as server:
        server.ranges = True
        yield server


class Counted(SimpleHTTPRequestHandler):
    """``python -m http.server``, which sends files whole, and notes requests."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away before a file has been sent."""


@pytest.fixture
def python_server(root: Path) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Counted,), {"asked": asked})
    with Quiet(("127.0.0.1", 0), partial(handler, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_server_without_ranges(root: Path, python_server: tuple[str, list[str]]) -> None:
    """Each file is read whole, once, and what it is now is read after it has changed."""
    url, asked = python_server
    for name, data in FILES.items():
        asked.clear()
        with prefeed.open(f"{url}/{name}") as file:
            assert file.read(100) == data[:100]
            file.seek(len(data) // 2)
            assert file.read() == data[len(data) // 2 :]
            file.seek(0)
            assert file.read() == data
        assert len(asked) <= 4  # of all ways to ask, and not once for each of five blocks
    (root / "large.bin").write_bytes(LARGE[::-1])
    os.utime(root / "large.bin", (1_700_000_009, 1_700_000_009))
    with prefeed.open(f"{url}/large.bin") as file:
        assert file.read() == LARGE[::-1]


def test_a_file_too_large_for_a_server_without_ranges(
    python_server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = python_server
    set_limits(monkeypatch, max_object_bytes=len(LARGE) - 1)
    with pytest.raises(SourceError, match=r"large\.bin: .*\(Range\).* 320,000 bytes, the maximum is 319,999"):
        prefeed.open(f"{url}/large.bin")


@pytest.mark.parametrize(("status", "ranges"), [(403, True), (405, False), (501, True)])
@pytest.mark.parametrize("root", [True], indirect=True)
def test_a_server_that_refuses_head(server: servers.FileServer, status: int, ranges: bool) -> None:
    asked = []

    def answer(handler: servers.Handler) -> None:
        asked.append(handler.command)
        if handler.command == "HEAD":
            handler.reply(status, b"")
            return
        server.ranges = ranges
        handler.serve_file()
        server.ranges = True

    for name in FILES:
        server.answers[f"/{name}"] = answer
    for name, data in FILES.items():
        with prefeed.open(f"{server.url}/{name}") as file:
            assert file.size == len(data)
            assert file.read(10) == data[:10]
            assert file.read() == data[10:]
    assert asked.count("HEAD") <= 2  # of the server, and of a reader without one
    server.answers["/none"] = lambda handler: handler.reply(status if handler.command == "HEAD" else 404, b"")
    with pytest.raises(ObjectNotFoundError, match="none: does not exist"):
        prefeed.open(f"{server.url}/none")


@pytest.mark.parametrize("more", [-100, 100])
def test_sizes_that_contradict_each_other(server: servers.FileServer, more: int) -> None:
    """HEAD shows another size than ranges do, with one ETag: no part of the object is taken for all of it, nor are foreign bytes."""

    def answer(handler: servers.Handler) -> None:
        data = FILES[handler.path.removeprefix("/")]
        asked = handler.headers.get("Range")
        if handler.command == "HEAD":
            handler.reply(200, bytes(len(data) + more), {"ETag": '"x"'})
        elif asked is None:
            handler.reply(200, data, {"ETag": '"x"'})
        else:
            first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            body = (data + b"foreign" * 100)[first : last + 1]  # as many as were asked for
            handler.reply(206, body, {"ETag": '"x"', "Content-Range": f"bytes {first}-{last}/{len(data)}"})

    server.answers.update({f"/{name}": answer for name in FILES})
    with prefeed.open(f"{server.url}/large.bin") as file:  # asked for a byte of it, too
        assert file.read() == LARGE
    told = rf"has 1,000 bytes by the answer to a range request and {1000 + more:,} bytes"
    with prefeed.open(f"{server.url}/small.bin") as file, pytest.raises(ObjectChangedError, match=told):
        file.read()


def other_range(handler: servers.Handler) -> None:
    handler.reply(206, b"x" * 10, {"Content-Range": "bytes 50-59/1000"})


def no_range(handler: servers.Handler) -> None:
    handler.reply(206, b"x" * 1000)


ODD: list[Callable[[servers.Handler], None]] = [other_range, no_range, servers.status(416)]


@pytest.mark.parametrize("root", [False], indirect=True)  # a server's processes ask twice, too
@pytest.mark.parametrize("odd", ODD, ids=["another range", "no range", "416"])
def test_one_odd_answer(server: servers.FileServer, odd: servers.Answer) -> None:
    """The server is asked again; to the program it is as if there had been no such answer."""
    odd_ones = []

    def answer(handler: servers.Handler) -> None:
        asked = handler.headers.get("Range")
        if asked is not None and asked not in odd_ones:
            odd_ones.append(asked)
            odd(handler)
        else:
            handler.serve_file()

    for name, data in list(FILES.items())[:2]:
        server.answers[f"/{name}"] = answer
        with prefeed.open(f"{server.url}/{name}") as file:
            assert file.read() == data
    assert odd_ones
