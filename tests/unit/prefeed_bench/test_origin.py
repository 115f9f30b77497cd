"""The servers of the benches: both serve the same, add their latency, count, and are gone afterwards."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from prefeed_bench import origin as module
from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.origin import Origin, nginx_origin, python_origin

pytestmark = pytest.mark.usefixtures("sandbox")

OriginFactory = Callable[..., AbstractContextManager[Origin]]
both = pytest.mark.parametrize("factory", [nginx_origin, python_origin])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "cat").mkdir(parents=True)
    (tmp_path / "root" / "cat" / "a b.jpg").write_bytes(bytes(range(256)) * 300)
    (tmp_path / "root" / "empty").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"not served")
    return tmp_path / "root"


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        data: bytes = answer.read()
        return data


@both
def test_serves_files_whole(factory: OriginFactory, root: Path) -> None:
    with factory(root) as origin:
        assert get(origin.url + "cat/a%20b.jpg") == (root / "cat" / "a b.jpg").read_bytes()
        assert get(origin.url + "empty") == b""


@both
def test_one_connection_serves_many_requests_and_says_versions(factory: OriginFactory, root: Path) -> None:
    with factory(root, 0.001) as origin:
        connection = HTTPConnection(urlsplit(origin.url).netloc)
        versions = set()
        for _ in range(3):
            connection.request("GET", "/cat/a%20b.jpg")
            answer = connection.getresponse()
            assert len(answer.read()) == 76800
            versions.add((answer.getheader("ETag"), answer.getheader("Last-Modified")))
        connection.request("HEAD", "/cat/a%20b.jpg")
        answer = connection.getresponse()
        assert (answer.read(), answer.getheader("Content-Length")) == (b"", "76800")
        connection.close()

    assert len(versions) == 1
    assert None not in next(iter(versions))


@both
@pytest.mark.parametrize("path", ["nothing", "cat", "../secret", "%2e%2e/secret"])
def test_what_is_not_a_file_below_the_root_is_refused(factory: OriginFactory, root: Path, path: str) -> None:
    with factory(root) as origin:
        connection = HTTPConnection(urlsplit(origin.url).netloc)
        connection.request("GET", f"/{path}")
        status = connection.getresponse().status
        connection.close()

    assert status >= 300


@both
def test_latency_is_added(factory: OriginFactory, root: Path) -> None:
    with factory(root, 0.05) as origin:
        started = time.perf_counter()
        get(origin.url + "empty")
        assert time.perf_counter() - started >= 0.05
        assert origin.latency_seconds == 0.05


@both
def test_requests_are_counted_but_not_the_questions_for_the_count(factory: OriginFactory, root: Path) -> None:
    with factory(root, 0.001) as origin:
        get(origin.url + "empty")
        counter = origin.counter()
        assert counter.count() == 0
        for _ in range(5):
            get(origin.url + "empty")
        with pytest.raises(urllib.error.HTTPError):
            get(origin.url + "nothing")
        assert counter.count() == 6
        assert counter.count() == 6


@both
def test_nothing_is_left(factory: OriginFactory, root: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), factory(root) as origin:
        raise KeyboardInterrupt

    with pytest.raises(ProcessLookupError):
        os.kill(origin.pid, 0)
    with pytest.raises(urllib.error.URLError):
        get(origin.url)
    assert sorted(tmp_path.iterdir()) == before


def test_every_path_may_give_one_file(root: Path) -> None:
    with nginx_origin(root, every_path="empty") as origin:
        assert get(origin.url + "x/y/z.jpg") == b""


def test_nginx_that_gives_connections_little_sends_the_same(root: Path) -> None:
    """How fast is a question of time, which no test asks; a wrong directive ends nginx."""
    with nginx_origin(root, 0.001, connection_bytes_per_second=10_000_000) as origin:
        assert get(origin.url + "cat/a%20b.jpg") == bytes(range(256)) * 300


def test_file_server_ends_with_the_process_that_started_it(root: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from prefeed_bench.origin import python_origin\n"
        "with python_origin(pathlib.Path(sys.argv[1])) as origin:\n"
        "    print(origin.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    server = os.pidfd_open(int(starter.stdout.readline()))
    try:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        wait_for_end(server)
    finally:
        os.close(server)
        starter.stdout.close()


def wait_for_end(pidfd: int) -> None:
    """Block until the process is gone; pytest's own time limit bounds it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()


def test_missing_nginx_is_said_with_the_package(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)

    said = "apt-get install nginx-light libnginx-mod-http-echo"
    with pytest.raises(MissingRequirementError, match=said), nginx_origin(root):
        pass


def test_missing_echo_module_is_said_with_the_package(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(module, "_ECHO_MODULE", "ngx_http_no_such_module.so")

    with pytest.raises(MissingRequirementError, match=r"no echo module .*apt-get install"), nginx_origin(root):
        pass


def test_nginx_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(module, "_NGINX_CONF", "load_module {echo_module}; daemon off; nonsense on;\n")

    with pytest.raises(BenchFailedError, match='unknown directive "nonsense"'), nginx_origin(root):
        pass
