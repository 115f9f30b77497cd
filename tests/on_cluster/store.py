"""S3 server in a pod of the tests: objects in memory, and a count of the requests for each.

Runs as ``python -c`` in the image of prefeed. Paths below ``/-/`` are for the test: ``counts`` returns the requests per object, ``reset`` clears
them, ``access?key=K`` accepts K as the only access key, ``keys?bucket=B`` lists a bucket, ``fill`` begins anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PORT = 9000
NUMBER = int(os.environ.get("OBJECTS", "200"))


def content(number: int) -> bytes:
    """Return the bytes of an object: they tell its number."""
    return (b"%06d" % number) * (200 + number % 50)


def filled() -> dict[tuple[str, str], bytes]:
    """Return the objects of the bucket ``data``."""
    return {("data", f"train/{number:05}.bin"): content(number) for number in range(NUMBER)}


class State:
    """Objects, counts and the access key that is accepted."""

    def __init__(self) -> None:
        self.objects = filled()
        self.counts: dict[str, int] = {}
        self.key = "access-1"
        self.lock = threading.Lock()


STATE = State()


class Handler(BaseHTTPRequestHandler):
    """Requests of one client; any host, path style."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def setup(self) -> None:
        super().setup()
        self.url = urlsplit("")

    def answer(self, status: int, body: bytes = b"", size: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self) -> tuple[str, str, dict[str, str]] | None:
        """Return bucket, key and query of a request; None once it is answered."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if bucket == "-":
            self.control(key, query)
            return None
        given = self.headers.get("Authorization", "") + " Credential=" + query.get("X-Amz-Credential", "")
        if f"Credential={STATE.key}/" not in given:
            self.answer(403, b"<Error><Code>InvalidAccessKeyId</Code><Message>unknown key</Message></Error>")
            return None
        return bucket, key, query

    def control(self, command: str, query: dict[str, str]) -> None:
        with STATE.lock:
            if command == "access":
                STATE.key = query["key"]
            found: object = sorted(key for bucket, key in STATE.objects if bucket == query.get("bucket"))
            if command == "fill":
                STATE.objects = filled()
            if command == "counts":
                found = dict(STATE.counts)
            if command == "reset":
                STATE.counts = {}
        self.answer(200, json.dumps(found).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        if (request := self.begin()) is None:
            return
        bucket, key, query = request
        if not key:
            self.list(bucket, query)
            return
        data = STATE.objects.get((bucket, key))
        if data is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"', "Last_Modified": formatdate(1.7e9, usegmt=True)}
        if self.command == "HEAD":
            self.answer(200, size=len(data), **headers)
            return
        with STATE.lock:
            STATE.counts[key] = STATE.counts.get(key, 0) + 1
        if given := self.headers.get("Range"):
            first, _, last = given.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(data)), len(data) - 1)
            self.answer(206, data[begin : end + 1], Content_Range=f"bytes {begin}-{end}/{len(data)}", **headers)
        else:
            self.answer(200, data, **headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("start-after", "")
        objects, folders = [], set()
        for key, data in sorted((key, data) for (name, key), data in STATE.objects.items() if name == bucket):
            if not key.startswith(prefix) or key <= after:
                continue
            rest, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folders.add(f"{prefix}{rest}{delimiter}")
                continue
            objects.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
                f"<ETag>&quot;{hashlib.md5(data).hexdigest()}&quot;</ETag><Size>{len(data)}</Size></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(objects)}{common}</ListBucketResult>"
        self.answer(200, text.encode(), Content_Type="application/xml")

    def do_PUT(self) -> None:
        if (request := self.begin()) is not None:
            with STATE.lock:
                STATE.objects[request[0], request[1]] = self.body
            self.answer(200, ETag=f'"{hashlib.md5(self.body).hexdigest()}"')

    def do_DELETE(self) -> None:
        if (request := self.begin()) is not None:
            with STATE.lock:
                STATE.objects.pop((request[0], request[1]), None)
            self.answer(204)

    def do_POST(self) -> None:
        """Remove the objects that an XML document names."""
        if (request := self.begin()) is None:
            return
        keys = [each.decode() for each in re.findall(rb"<Key>([^<]*)</Key>", self.body)]
        with STATE.lock:
            for key in keys:
                STATE.objects.pop((request[0], key), None)
        removed = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{removed}</DeleteResult>".encode(), Content_Type="application/xml")


class Server(ThreadingHTTPServer):
    """Server whose queue takes the connections of several nodes at once; that of its base takes five."""

    request_queue_size = 1024


if __name__ == "__main__":
    Server(("", PORT), Handler).serve_forever()
