"""Servers for tests, on loopback: S3, plain HTTP with a choice of failures, WebDAV's listing, nginx."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit
from xml.sax.saxutils import escape

S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_REGION": "us-east-1",
}

_FORWARDED = ("content-type", "etag", "last-modified")

Answer = Callable[["Handler"], None]


@contextlib.contextmanager
def moto_server(requests: list[tuple[str, str, str]] | None = None) -> Iterator[str]:
    """Run moto's S3 in this process; yield its URL. All of a process show the same buckets, which are gone when the last one ends.

    Args:
        requests: Each one is appended: its method, path, and range.
    """
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    global _num_moto_servers
    application = DomainDispatcherApplication(create_backend_app)

    def noted(environ: dict[str, str], start_response: Any) -> Any:
        if requests is not None:
            requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_RANGE", "")))
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, noted, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    _num_moto_servers += 1
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        _num_moto_servers -= 1
        if not _num_moto_servers:
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].reset()


_num_moto_servers = 0


def put_into_moto(bucket: str, key: str, data: bytes) -> None:
    """Put an object into moto's S3 of this process without a request, which takes a hundred times as long."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, data)


class Handler(BaseHTTPRequestHandler):
    """Serves the files of ``server.directory``, or what ``server.answers`` has for the path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Else the body waits 40 ms for the acknowledgement of the headers.
    server: FileServer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.requests.append((self.command, path, dict(self.headers)))
        answer = self.server.answers.get(path)
        if answer is not None:
            answer(self)
            return
        if self.server.behind:
            self._forward()
            return
        self.serve_file()

    def serve_file(self) -> None:
        """Answer with the file of the path, or the part of it that is asked for."""
        path = urlsplit(self.path).path
        file = self.server.directory / unquote(path, errors="surrogateescape").lstrip("/")
        if not file.is_file():
            self.reply(404, b"not found")
            return
        status = file.stat()
        headers = {
            "ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"',
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
        }
        data = file.read_bytes()
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if part is None or not self.server.ranges:
            self.reply(200, data, headers)
        elif int(part[1]) >= len(data):
            self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        else:
            begin, end = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            self.reply(206, data[begin : end + 1], headers)

    def do_HEAD(self) -> None:
        if self.server.ranges:
            self.do_GET()
        else:
            self.send_error(501)

    def _forward(self) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.server.behind).netloc)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, headers=dict(self.headers))
            response = connection.getresponse()
            body = response.read()
            kept = {name: value for name, value in response.getheaders() if name.lower() in _FORWARDED}
            self.reply(response.status, body, kept)

    def do_PROPFIND(self) -> None:
        if not self.server.webdav:
            self.reply(405, b"")
            return
        self.rfile.read(int(self.headers.get("content-length", 0)))
        root = self.server.directory / unquote(urlsplit(self.path).path).strip("/")
        entries = [self._property(file) for file in [root, *sorted(root.rglob("*"))]]
        body = f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{"".join(entries)}</D:multistatus>'
        self.reply(207, body.encode(), {"Content-Type": "application/xml"})

    def _property(self, file: Path) -> str:
        status = file.stat()
        href = "/" + quote(str(file.relative_to(self.server.directory)))
        kind = "<D:resourcetype><D:collection/></D:resourcetype>" if file.is_dir() else "<D:resourcetype/>"
        etag = escape(f'"{status.st_mtime_ns:x}-{status.st_size:x}"')
        return (
            f"<D:response><D:href>{href}</D:href><D:propstat><D:prop>{kind}"
            f"<D:getcontentlength>{status.st_size}</D:getcontentlength><D:getetag>{etag}</D:getetag>"
            f"<D:getlastmodified>{formatdate(status.st_mtime, usegmt=True)}</D:getlastmodified>"
            f"</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
        )

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.server.sent_bytes += len(body)
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class FileServer(ThreadingHTTPServer):
    """Threaded HTTP server of one directory.

    Attributes:
        answers: What to do instead of serving a file, by request path.
        requests: Method, path and headers of each GET, in order.
        webdav: Whether PROPFIND lists.
        ranges: Whether HEAD and ranges are answered.
        sent_bytes: Of bodies, by one connection at a time.
        behind: Asked for what there is no answer for; empty: the directory.
        released: Set when the server stops: answers that stall wait for it.
    """

    daemon_threads = False
    request_queue_size = 128

    def __init__(
        self, directory: Path, *, webdav: bool = False, port: int = 0, handler: type[Handler] | None = None
    ) -> None:
        super().__init__(("127.0.0.1", port), handler or Handler)
        self.directory = directory
        self.webdav = webdav
        self.ranges = False
        self.sent_bytes = 0
        self.behind = ""
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.released = threading.Event()
        self._connections: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away."""

    def stop(self) -> None:
        """Stop serving, break every connection and wait for its thread."""
        self.released.set()
        self.shutdown()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


AnyServer = TypeVar("AnyServer", bound=FileServer)


@contextlib.contextmanager
def http_server(directory: Path, *, webdav: bool = False) -> Iterator[FileServer]:
    """Serve a directory over HTTP in this process."""
    with _served(FileServer(directory, webdav=webdav)) as server:
        yield server


@contextlib.contextmanager
def _served(server: AnyServer) -> Iterator[AnyServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def encrypt(server: FileServer, directory: Path) -> str:
    """Let a server speak TLS, with a certificate made below a directory; return the file of it, which is its own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    trusted, secret = directory / "certificate.pem", directory / "key.pem"
    trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, secret)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return str(trusted)


class BucketHandler(Handler):
    """Answers as S3, Google and Azure do for ``server.objects``, with keys as they are; bucket ``b``."""

    server: BucketServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.requests.append((self.command, path, dict(self.headers)))
        place, _, key = unquote(path).lstrip("/").partition("/") if path != "/b" else ("b", "", "")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        if place != "b":
            self.reply(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif "list-type" in asked or "comp" in asked:
            self.reply(200, self._listed(asked).encode(), {"Content-Type": "application/xml"})
        elif key not in self.server.objects:
            self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._send(self.server.objects[key])

    def do_HEAD(self) -> None:
        if self.server.head_status:
            self.reply(self.server.head_status, b"")
        else:
            self.do_GET()

    def _send(self, data: bytes) -> None:
        headers = {"ETag": _etag(data), "Last-Modified": formatdate(_MODIFIED, usegmt=True)}
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if part is None:
            self.reply(200, data, headers)
            return
        begin, end = int(part[1]), min(int(part[2]), len(data) - 1)
        self.reply(206, data[begin : end + 1], {**headers, "Content-Range": f"bytes {begin}-{end}/{len(data)}"})

    def _listed(self, asked: dict[str, str]) -> str:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        keys = [
            key for key in self.server.listed_keys() if key.startswith(prefix) and key > asked.get("start-after", "")
        ]
        is_encoded = asked.get("encoding-type") == "url"
        shown = {}  # in order, and a common prefix once
        for key in keys:
            rest, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            shown[prefix + rest + slash if slash else key] = not slash
        is_azure = "comp" in asked
        start = int(asked.get("continuation-token") or asked.get("marker") or "0")
        count = int(asked.get("max-keys", self.server.page_size))
        lines = []
        for key, is_object in list(shown.items())[start : start + count]:
            name = (
                quote_plus(key, safe="/") if is_encoded else _XML_CONTROLS.sub(lambda c: f"&#{ord(c[0])};", escape(key))
            )
            if is_azure and is_object:
                lines.append(
                    f"<Blob><Name>{name}</Name><Properties><Last-Modified>{formatdate(_MODIFIED, usegmt=True)}</Last-Modified>"
                    f"<Content-Length>{len(self.server.objects[key])}</Content-Length><Content-Type>x</Content-Type>"
                    f"<Etag>{escape(_etag(self.server.objects[key]))}</Etag></Properties></Blob>"
                )
            elif is_azure:
                lines.append(f"<BlobPrefix><Name>{name}</Name></BlobPrefix>")
            elif is_object:
                data = self.server.objects[key]
                lines.append(
                    f"<Contents><Key>{name}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
                    f"<ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
                )
            else:
                lines.append(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>")
        if is_azure:
            more = f"<NextMarker>{start + count}</NextMarker>" if start + count < len(shown) else "<NextMarker/>"
            return f"<EnumerationResults><Blobs>{''.join(lines)}</Blobs>{more}</EnumerationResults>"
        if start + count < len(shown):
            lines.append(f"<NextContinuationToken>{start + count}</NextContinuationToken>")
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{str(start + count < len(shown)).lower()}</IsTruncated>"
            f"{'<EncodingType>url</EncodingType>' if is_encoded else ''}{''.join(lines)}</ListBucketResult>"
        )


_MODIFIED = 1_700_000_000
_XML_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class BucketServer(FileServer):
    """A store like S3 with one bucket, ``b``, whose keys are any text.

    Attributes:
        objects: Bytes by key.
        page_size: Most keys of one answer.
        head_status: Answer to each HEAD; 0: it is answered as it should be.
        is_sorted: False: keys are listed in the order in which they were put, as S3 Express does.
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(Path("/nonexistent"), handler=BucketHandler)
        self.objects = objects
        self.page_size = 1000
        self.is_sorted = True
        self.head_status = 0

    def listed_keys(self) -> list[str]:
        return sorted(self.objects, key=str.encode) if self.is_sorted else list(self.objects)


@contextlib.contextmanager
def bucket_server(objects: dict[str, bytes]) -> Iterator[BucketServer]:
    """Serve a bucket in this process."""
    with _served(BucketServer(objects)) as server:
        yield server


def write_index(directory: Path, name: str = "index.txt") -> None:
    """Write the index that ``find . -type f -printf '%P\\t%s\\n'`` would."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != name)
    lines = [f"{path.relative_to(directory)}\t{path.stat().st_size}\n" for path in files]
    (directory / name).write_text("".join(lines), encoding="utf-8", errors="surrogateescape")


def status(code: int, body: bytes = b"") -> Answer:
    """Answer with a status."""
    return lambda handler: handler.reply(code, body)


def truncated(handler: Handler) -> None:
    """Announce 1000 bytes, send 10 and hang up."""
    _begin(handler)
    handler.close_connection = True


def stalled(handler: Handler) -> None:
    """Announce 1000 bytes, send 10 and nothing more until the server stops."""
    _begin(handler)
    handler.server.released.wait()
    handler.close_connection = True


def silent(handler: Handler) -> None:
    """Never answer."""
    handler.server.released.wait()
    handler.close_connection = True


def reset(handler: Handler) -> None:
    """Announce 1000 bytes, send 10 and reset the connection."""
    _begin(handler)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.shutdown(socket.SHUT_RD)
    handler.close_connection = True


def chunked(handler: Handler) -> None:
    """Send the file in chunks, without its length."""
    _without_length(
        handler, {"Transfer-Encoding": "chunked"}, lambda data: b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    )


def chunked_half(handler: Handler) -> None:
    """Send half the file in a chunk, and hang up before the last one."""
    half = lambda data: b"%x\r\n%b\r\n" % (len(data) // 2, data[: len(data) // 2])  # noqa: E731
    _without_length(handler, {"Transfer-Encoding": "chunked"}, half)
    handler.close_connection = True


def until_closed(handler: Handler) -> None:
    """Send the file, and say by hanging up that this was all."""
    _without_length(handler, {"Connection": "close"}, bytes)
    handler.close_connection = True


def until_closed_half(handler: Handler) -> None:
    """Send half the file, and hang up as if this were all."""
    _without_length(handler, {"Connection": "close"}, lambda data: data[: len(data) // 2])
    handler.close_connection = True


def redirected(code: int, to: str) -> Answer:
    """Say that it is elsewhere."""
    return lambda handler: handler.reply(code, b"", {"Location": to})


def _without_length(handler: Handler, headers: dict[str, str], body: Callable[[bytes], bytes]) -> None:
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body((handler.server.directory / handler.path.lstrip("/")).read_bytes()))
    handler.wfile.flush()


def _begin(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"x" * 10)
    handler.wfile.flush()


@contextlib.contextmanager
def nginx_server(directory: Path, work: Path, *, options: str = "") -> Iterator[str]:
    """Serve a directory with nginx, whose files go below ``work``; yield its URL. ``options`` are more directives of the server."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    port = free_port()
    work.mkdir(parents=True, exist_ok=True)
    temporary = "".join(
        f"{kind}_temp_path {work}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (work / "nginx.conf").write_text(
        f"daemon off; {user} worker_processes 1; pid {work}/nginx.pid; error_log {work}/error.log;"
        "events { worker_connections 2048; }"
        f"http {{ access_log off; sendfile on; keepalive_requests 1000000; {temporary}"
        f"server {{ listen 127.0.0.1:{port}; root {directory}; {options} }} }}"
    )
    process = subprocess.Popen([program, "-e", str(work / "error.log"), "-c", str(work / "nginx.conf")])
    try:
        wait_for_port(port, alive=lambda: process.poll() is None)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, *, alive: Callable[[], bool], timeout_seconds: float = 60.0) -> None:
    """Block until something listens on a port of loopback."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if not alive() or time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.01)
