"""An S3 endpoint whose answers depend on who asks: tenants with buckets of one name, tokens that expire."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import servers

_KEY = re.compile(r"Credential=([^/]+)/")


@dataclass
class Tenants:
    """What each access key may read, "" for anonymous; those in ``expired`` are refused.

    Etags and times are the same for all: only who asks, and whom, tells objects apart.
    """

    contents: dict[str, Mapping[str, bytes]]
    expired: set[str] = field(default_factory=set)
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)

    def objects_asked(self, key: str | None = None) -> list[str]:
        """Return the objects that were asked for, by this key or by any."""
        return [path for by, path in self.asked if path and key in (None, by)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    tenants: Tenants

    def do_GET(self) -> None:
        found = _KEY.search(self.headers.get("Authorization", ""))
        key = found[1] if found else ""
        parts = urlsplit(self.path)
        bucket, _, path = unquote(parts.path).lstrip("/").partition("/")
        self.tenants.asked.append((key, path))
        if key in self.tenants.expired:
            self._refuse(400, "ExpiredToken")
        elif key not in self.tenants.contents:
            self._refuse(403, "InvalidAccessKeyId")
        elif path:
            data = self.tenants.contents[key].get(path)
            if data is None:
                self._refuse(404, "NoSuchKey")
            else:
                self._answer(200, data)
        else:
            prefix = parse_qs(parts.query).get("prefix", [""])[0]
            objects = "".join(
                f"<Contents><Key>{escape(name)}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
                f'<ETag>"same"</ETag><Size>{len(data)}</Size></Contents>'
                for name, data in sorted(self.tenants.contents[key].items()) if name.startswith(prefix)
            )  # fmt: skip
            self._answer(200, (
                f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"
            ).encode())  # fmt: skip

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Wed, 01 Jan 2020 00:00:00 GMT")
        self.send_header("ETag", '"same"')
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def tenants_server(contents: dict[str, Mapping[str, bytes]], *, port: int = 0) -> Iterator[Tenants]:
    """Run it on loopback."""
    tenants = Tenants(contents)
    handler = type("Handler", (_Handler,), {"tenants": tenants})
    server = servers.FileServer(Path("/"), port=port)
    server.RequestHandlerClass = handler
    tenants.url = server.url
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield tenants
    finally:
        server.stop()
        thread.join()
