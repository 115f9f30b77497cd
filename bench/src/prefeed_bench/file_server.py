"""A small HTTP/1.1 file server: keep-alive, GET and HEAD, latency added to each answer, requests counted.

Run as ``python -m prefeed_bench.file_server ROOT LATENCY_SECONDS``: it prints its port and serves until its
standard input ends, so that it never outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from prefeed_bench.origin import STATUS_PATH

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
