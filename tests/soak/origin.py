"""What the soak reads: bytes that say which object they are and of which version, and whoever changes them.

Each object has a number and a version. What its bytes are follows from both, so every byte that a trainer gets can be
checked. A table in shared memory says which versions the origin had when: ``settled`` is raised after a change, ``coming``
before it, so what is read between two looks at the table is of a version from ``settled`` at the first to ``coming`` at the
second.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

MAGIC = b"soak"
HEADER_BYTES = 16
LEAST_BYTES = 8192
"""Every object has as many; a stage takes these."""
CHANGES_PER_SECOND = 4.0
FINE, REFUSING, STALLING = range(3)
"""How the store answers: ``Table.mode``."""


def body(number: int, version: int) -> bytes:
    """Return the bytes of a version of an object: 8 to 24 KiB, another length with each version."""
    generator = np.random.Generator(np.random.PCG64([number, version]))
    length = LEAST_BYTES + int(generator.integers(16 * 1024))
    header = MAGIC + number.to_bytes(4, "little") + version.to_bytes(4, "little") + length.to_bytes(4, "little")
    return header + generator.bytes(length - HEADER_BYTES)


def version_of(data: bytes, number: int) -> int:
    """Return which version of an object these bytes are, all of them; -1: none."""
    if data[:4] != MAGIC or int.from_bytes(data[4:8], "little") != number:
        return -1
    version = int.from_bytes(data[8:12], "little")
    return version if data == body(number, version) else -1


class Table:
    """What all processes of a soak know of the origin, in a file that they map.

    Attributes:
        settled: Version that each object has at least, shape (2, num_objects): of files, of the store.
        coming: Version that it has at most, same shape.
        mode: How the store answers, shape (1,).
    """

    def __init__(self, path: Path, num_objects: int) -> None:
        if not path.exists():
            path.write_bytes(bytes(4 * (4 * num_objects + 1)))
        cells: NDArray[np.uint32] = np.memmap(path, np.uint32, "r+")
        self.num_objects = num_objects
        self.settled = cells[: 2 * num_objects].reshape(2, num_objects)
        self.coming = cells[2 * num_objects : 4 * num_objects].reshape(2, num_objects)
        self.mode = cells[-1:]


def name_of(number: int) -> str:
    return f"{number % 10}/{number:05d}.bin"


def write_files(root: Path, num_objects: int) -> None:
    """Make the first version of all files."""
    for number in range(num_objects):
        path = root / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body(number, 0))


def change_file(root: Path, table: Table, number: int) -> None:
    """Put the next version of a file into its place, whole."""
    version = int(table.settled[0, number]) + 1
    path = root / name_of(number)
    beside = root.parent / "incoming"
    beside.write_bytes(body(number, version))
    table.coming[0, number] = version
    os.replace(beside, path)
    table.settled[0, number] = version


class Store(BaseHTTPRequestHandler):
    """WebDAV over the second row of the table; refuses, stalls and breaks off as the mode says, and now and then anyway."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StoreServer

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        mode = int(self.server.table.mode[0])
        chance = random.random()
        if mode == REFUSING or chance < 0.01:
            self._reply(503, b"busy", {"Retry-After": "1"})
            return
        if not path.endswith(".bin"):
            self._reply(404, b"no such object", {})
            return
        self.server.num_requests += 1
        number = int(path[-9:-4])
        version = int(self.server.table.settled[1, number])
        data = body(number, version)
        if mode == STALLING:
            self.server.over.wait(random.uniform(0.5, 3))
        headers = {"ETag": _etag(number, version), "Last-Modified": formatdate(version, usegmt=True)}
        if chance < 0.02:
            self._reply(200, data, headers, num_bytes=random.randrange(len(data)))
            self.close_connection = True
        elif chance < 0.03:
            self.close_connection = True
        else:
            self._reply(200, data, headers)

    def do_PROPFIND(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        directory = f"<D:resourcetype><D:collection/></D:resourcetype><D:getlastmodified>{formatdate(0, usegmt=True)}</D:getlastmodified>"
        entries = [_response("/", directory)]
        for number in range(self.server.table.num_objects):
            version = int(self.server.table.settled[1, number])
            properties = (
                f"<D:resourcetype/><D:getcontentlength>{len(body(number, version))}</D:getcontentlength>"
                f"<D:getetag>{_etag(number, version)}</D:getetag>"
                f"<D:getlastmodified>{formatdate(version, usegmt=True)}</D:getlastmodified>"
            )
            entries.append(_response(f"/{name_of(number)}", properties))
        text = f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{"".join(entries)}</D:multistatus>'
        self._reply(207, text.encode(), {"Content-Type": "application/xml"})

    def _reply(self, status: int, data: bytes, headers: dict[str, str], *, num_bytes: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[:num_bytes])

    def log_message(self, format: str, *args: object) -> None:
        pass


def _response(path: str, properties: str) -> str:
    status = "<D:status>HTTP/1.1 200 OK</D:status>"
    return f"<D:response><D:href>{path}</D:href><D:propstat><D:prop>{properties}</D:prop>{status}</D:propstat></D:response>"


def _etag(number: int, version: int) -> str:
    return f'"{number}-{version}"'


class StoreServer(ThreadingHTTPServer):
    """The store, on a free port of loopback."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, table: Table) -> None:
        super().__init__(("127.0.0.1", 0), Store)
        self.table = table
        self.num_requests = 0
        self.over = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Say nothing of clients that went away."""

    def stop(self) -> None:
        self.over.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class Changes:
    """A thread that changes files and objects at random until it is stopped."""

    def __init__(self, root: Path, table: Table, seed: int) -> None:
        self.count = 0
        self._root = root
        self._table = table
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._random.expovariate(CHANGES_PER_SECOND)):
            number = self._random.randrange(self._table.num_objects)
            if self._random.random() < 0.5:
                change_file(self._root, self._table, number)
            else:
                self._table.coming[1, number] += 1  # before the store can answer with it
                self._table.settled[1, number] += 1
            self.count += 1
