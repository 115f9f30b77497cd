"""Real servers on loopback, with added latency, that count their requests: nginx, and a small one of our own.

`python -m prefeed_bench.origin ROOT LATENCY_SECONDS` is the small one: it prints its port and serves until its standard input
ends, so that it never outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from prefeed_bench.errors import BenchFailedError, MissingRequirementError

STATUS_PATH: Final = ".status"
_START_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 5.0
_ECHO_MODULE: Final = "ngx_http_echo_module.so"
_INSTALL_NGINX: Final = "apt-get install nginx-light libnginx-mod-http-echo"

_NGINX_CONF: Final = """\
load_module {echo_module};
daemon off;
{user}
worker_processes {num_workers};
pid {scratch}/nginx.pid;
error_log {scratch}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    types {{ image/jpeg jpg; text/plain txt; }}
    default_type application/octet-stream;
    keepalive_requests 1000000000;
    keepalive_timeout 600;
    log_not_found off;
    open_file_cache max=100000 inactive=600s;
    client_body_temp_path {scratch}/tmp;
    proxy_temp_path {scratch}/tmp;
    fastcgi_temp_path {scratch}/tmp;
    uwsgi_temp_path {scratch}/tmp;
    scgi_temp_path {scratch}/tmp;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        root {root};
        location = /{status_path} {{ stub_status; }}
        {listings}
        location / {{ {serve} }}
        location @files {{ root {root}; {rate} }}
    }}
}}
"""


_LISTINGS: Final = """\
if ($args ~ list-type=2) {{ rewrite ^ /.listings last; }}
location = /.listings {{ internal; proxy_pass {url}; }}
"""

_RATE: Final = "limit_rate {rate}; sendfile_max_chunk 256k;"
"""nginx waits after each part that it sends, and parts are as large as the socket takes if nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A running server.

    Attributes:
        url: Root URL, ending in ``/``.
        pid: Process id of the server (of its parent process, where it has several).
        latency_seconds: Time added before each answer.
    """

    url: str
    pid: int
    latency_seconds: float

    def counter(self) -> RequestCounter:
        """Return a count of requests that starts at 0 now."""
        return RequestCounter(self.url)


class RequestCounter:
    """Requests that a server answered since the counter was made, its own questions left out.

    **Threads and processes.** Two counters that ask at the same time count each other's questions.
    """

    def __init__(self, url: str) -> None:
        self._status_url = url + STATUS_PATH
        self._asked = 0
        self._first = self._ask()
        self._asked = 0

    def _ask(self) -> int:
        self._asked += 1
        with urllib.request.urlopen(self._status_url, timeout=10) as answer:
            text = answer.read().decode()
        match = re.search(r"^\s*\d+\s+\d+\s+(\d+)\s*$", text, re.MULTILINE)
        if match is None:
            raise BenchFailedError(f"{self._status_url} does not answer like nginx's stub_status: {text!r}")
        return int(match[1])

    def count(self) -> int:
        """Return the number of requests since the counter was made."""
        answered = self._ask()
        return answered - self._first - self._asked


@contextlib.contextmanager
def nginx_origin(
    root: Path,
    latency_seconds: float = 0.0,
    *,
    num_workers: int = 1,
    every_path: str = "",
    listings: str = "",
    connection_bytes_per_second: int = 0,
) -> Iterator[Origin]:
    """Serve ``root`` with nginx for the time of the block; each answer waits ``latency_seconds`` first.

    Runs as the current user with a configuration of its own; nothing of a system-wide nginx is touched.

    Args:
        root: Directory that is served.
        latency_seconds: Added to each answer, to the millisecond.
        num_workers: nginx's worker processes.
        every_path: If given, this file of ``root`` is the answer to every path, without latency.
        listings: If given, S3's listings are answered by the server at this URL, which adds the latency itself.
        connection_bytes_per_second: At most, of answers with latency; 0: as the machine gives.

    Raises:
        MissingRequirementError: nginx or its echo module is not installed.
        BenchFailedError: nginx does not start; its error log is in the message.
    """
    program, echo_module = _find_nginx()
    with tempfile.TemporaryDirectory(prefix="prefeed-nginx-") as scratch:
        port = free_port()
        # The echo module reads three decimals at most, and answers 400 to more.
        delay = f"echo_sleep {latency_seconds:.3f}; echo_exec @files;" if latency_seconds > 0 else ""
        serve = f"try_files /{every_path} =404;" if every_path else delay
        settings = {
            "echo_module": echo_module,
            "user": "user root root;" if os.geteuid() == 0 else "",  # root's workers would become nobody
            "num_workers": num_workers,
            "scratch": scratch,
            "port": port,
            "root": root.resolve(),
            "status_path": STATUS_PATH,
            "serve": serve,
            "rate": _RATE.format(rate=connection_bytes_per_second) if connection_bytes_per_second else "",
            "listings": _LISTINGS.format(url=listings) if listings else "",
        }
        conf = Path(scratch) / "nginx.conf"
        conf.write_text(_NGINX_CONF.format(**settings))
        command = [program, "-p", scratch, "-c", str(conf), "-e", f"{scratch}/error.log"]
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}/"
            _wait_until_it_answers(process, url, Path(scratch) / "error.log")
            yield Origin(url=url, pid=process.pid, latency_seconds=latency_seconds)
        finally:
            _stop(process)


@contextlib.contextmanager
def python_origin(root: Path, latency_seconds: float = 0.0) -> Iterator[Origin]:
    """Serve ``root`` with a small asyncio server in a process of its own: slower than nginx, nothing to install.

    Raises:
        BenchFailedError: The server does not start.
    """
    command = [sys.executable, "-m", "prefeed_bench.origin", str(root), str(latency_seconds)]
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip()
        if not line.isdigit():
            raise BenchFailedError(f"the file server did not start: exit status {process.wait()}")
        yield Origin(url=f"http://127.0.0.1:{line}/", pid=process.pid, latency_seconds=latency_seconds)
    finally:
        _stop(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _find_nginx() -> tuple[str, str]:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise MissingRequirementError(f"this benchmark needs nginx as its server: {_INSTALL_NGINX}")
    built = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stderr
    match = re.search(r"--modules-path=(\S+)", built)
    echo_module = Path(match[1] if match else "/usr/lib/nginx/modules") / _ECHO_MODULE
    if not echo_module.exists():
        raise MissingRequirementError(f"nginx has no echo module ({echo_module}): {_INSTALL_NGINX}")
    return program, str(echo_module)


def free_port() -> int:
    """Return a port of loopback that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = log.read_text() if log.exists() else ""
            raise BenchFailedError(f"nginx stopped at once with exit status {process.returncode}: {said.strip()}")
        with contextlib.suppress(OSError):
            RequestCounter(url)
            return
        time.sleep(0.02)
    raise BenchFailedError(f"nginx did not answer at {url} within {_START_SECONDS:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process, and those it started; it leads a session of its own."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_MAX_HEAD_BYTES: Final = 65536
_END_OF_HEAD: Final = b"\r\n\r\n"


class _Files:
    """The directory that is served, and how often it was asked."""

    def __init__(self, root: Path, latency_seconds: float) -> None:
        self._root = os.path.realpath(root)
        self.latency_seconds = latency_seconds
        self.requests = 0

    def answer(self, method: str, target: str) -> bytes:
        """Return head and body for one request."""
        path = unquote(urlsplit(target).path).lstrip("/")
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"")
        if path == STATUS_PATH:
            return _response(HTTPStatus.OK, f"requests\n 0 0 {self.requests}\n".encode())
        full = os.path.realpath(os.path.join(self._root, path))
        if not full.startswith(self._root + os.sep) or not os.path.isfile(full):
            return _response(HTTPStatus.NOT_FOUND, b"")
        with open(full, "rb", buffering=0) as file:
            facts = os.fstat(file.fileno())
            body = file.read() if method == "GET" else b""
        version = {
            "ETag": f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"',
            "Last-Modified": formatdate(facts.st_mtime, usegmt=True),
        }
        return _response(HTTPStatus.OK, body, length=facts.st_size, headers=version)


def _response(
    status: HTTPStatus, body: bytes, *, length: int | None = None, headers: dict[str, str] | None = None
) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Connection(asyncio.Protocol):
    """One client; answers leave in the order of the requests, for each waits equally long."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        while _END_OF_HEAD in self._received:
            head, self._received = self._received.split(_END_OF_HEAD, 1)
            self._files.requests += 1
            method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
            target = rest.rpartition(" ")[0]
            latency = 0.0 if target == f"/{STATUS_PATH}" else self._files.latency_seconds
            asyncio.get_running_loop().call_later(latency, self._send, method, target)
        if len(self._received) > _MAX_HEAD_BYTES and self._transport is not None:
            self._transport.abort()

    def _send(self, method: str, target: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._files.answer(method, target))


async def serve(root: Path, latency_seconds: float) -> None:
    """Serve until standard input ends or a signal asks to stop; print the port first."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    files = _Files(root, latency_seconds)
    server = await loop.create_server(lambda: _Connection(files), "127.0.0.1", 0, backlog=1024)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, stop)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await stop.wait()
    server.close()


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stop.set()


def main() -> None:
    """Entry point of the process."""
    root, latency_seconds = Path(sys.argv[1]), float(sys.argv[2])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(root, latency_seconds))


if __name__ == "__main__":
    main()
