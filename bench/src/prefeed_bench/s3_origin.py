"""An S3 endpoint on loopback that is read only: nginx sends the objects, which are files; listings come from a thread here.

Made because a mount and prefeed are to read the same endpoint, and moto gives 240 objects of 90 KB per second (2026-11, 2
cores), half of what an epoch needs. Signatures are made by the clients, and not looked at.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit
from xml.sax.saxutils import escape

from prefeed_bench.origin import Origin, nginx_origin
from prefeed_bench.photos import PhotoFolder

_PAGE_KEYS: Final = 1000
"""Names in one answer, as in Amazon's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket that is served.

    Attributes:
        name: Of the bucket.
        origin: The server.
        env: What clients need in their environment, prefeed's among them.
    """

    name: str
    origin: Origin
    env: Mapping[str, str]

    @property
    def url(self) -> str:
        """``s3://`` and the name."""
        return f"s3://{self.name}"

    @property
    def endpoint(self) -> str:
        """URL of the endpoint, without a slash at its end."""
        return self.origin.url.rstrip("/")


@contextlib.contextmanager
def s3_bucket(
    root: Path, name: str, latency_seconds: float, *, connection_bytes_per_second: int = 0
) -> Iterator[Bucket]:
    """Serve the files below ``root / name`` as a bucket for the time of the block; links are followed.

    Args:
        root: Directory whose entries are buckets; nothing else should be in it.
        name: One of them.
        latency_seconds: Added to each answer, listings included.
        connection_bytes_per_second: At most; 0: as the machine gives.

    Raises:
        MissingRequirementError: nginx or its echo module is not installed.
        BenchFailedError: nginx does not start.
    """
    entries = list_entries(root / name)
    with (
        _lister(entries, latency_seconds) as port,
        nginx_origin(
            root,
            latency_seconds,
            listings=f"http://127.0.0.1:{port}",
            connection_bytes_per_second=connection_bytes_per_second,
        ) as origin,
    ):
        env = {
            "AWS_ENDPOINT_URL": origin.url.rstrip("/"),
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench-secret",
            "AWS_REGION": "us-east-1",
        }
        yield Bucket(name=name, origin=origin, env=env)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and so of its children, for the time of the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a listing: what nginx says of it in headers."""

    key: str
    size_bytes: int
    modified: float

    def to_xml(self) -> str:
        """Return it as listings have it."""
        etag = f'"{int(self.modified):x}-{self.size_bytes:x}"'
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.modified))
        return (
            f"<Contents><Key>{escape(self.key)}</Key><LastModified>{when}</LastModified><ETag>{escape(etag)}</ETag>"
            f"<Size>{self.size_bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )


def list_entries(directory: Path) -> list[Entry]:
    """Return the files below a directory as objects, ordered by key."""
    found = []
    for folder, _, files in os.walk(directory, followlinks=True):
        for file in files:
            path = Path(folder, file)
            status = path.stat()
            found.append(Entry(str(path.relative_to(directory)), status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.key)


def list_page(entries: Sequence[Entry], query: Mapping[str, str]) -> str:
    """Return the answer to one request of version 2 of S3's listing.

    Args:
        entries: Ordered by key.
        query: ``prefix``, ``delimiter``, ``continuation-token`` and ``max-keys`` count.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most = min(int(query.get("max-keys", _PAGE_KEYS)), _PAGE_KEYS)
    rows: list[str] = []
    at = bisect.bisect_left(entries, query.get("continuation-token") or prefix, key=lambda entry: entry.key)
    while at < len(entries) and entries[at].key.startswith(prefix) and len(rows) < most:
        folder, found, _ = entries[at].key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if found:
            common = prefix + folder + delimiter
            rows.append(f"<CommonPrefixes><Prefix>{escape(common)}</Prefix></CommonPrefixes>")
            at = bisect.bisect_left(entries, common + "\U0010ffff", key=lambda entry: entry.key)
        else:
            rows.append(entries[at].to_xml())
            at += 1
    is_truncated = at < len(entries) and entries[at].key.startswith(prefix)
    token = f"<NextContinuationToken>{escape(entries[at].key)}</NextContinuationToken>" if is_truncated else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(rows)}</KeyCount><MaxKeys>{most}</MaxKeys>"
        f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
    )


class _Lister(ThreadingHTTPServer):
    """Answers listings of one bucket."""

    daemon_threads = True

    def __init__(self, entries: Sequence[Entry], latency_seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Listing)
        self.entries = entries
        self.latency_seconds = latency_seconds


class _Listing(BaseHTTPRequestHandler):
    server: _Lister

    def do_GET(self) -> None:
        time.sleep(self.server.latency_seconds)
        body = list_page(self.server.entries, dict(parse_qsl(urlsplit(self.path).query))).encode()
        self.send_response(200)
        for name, value in {"Content-Type": "application/xml", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests."""


@contextlib.contextmanager
def _lister(entries: Sequence[Entry], latency_seconds: float) -> Iterator[int]:
    """Answer listings for the time of the block; give the port."""
    server = _Lister(entries, latency_seconds)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="s3-listings")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_NAME: Final = "photos"


@contextlib.contextmanager
def photo_bucket(photos: PhotoFolder, latency_seconds: float = 0.0) -> Iterator[Bucket]:
    """Serve the pictures for the time of the block; servers started meanwhile find them by the environment.

    Args:
        photos: What is in the bucket.
        latency_seconds: Added to each answer, listings included.

    Raises:
        MissingRequirementError: nginx or its echo module is not installed.
        BenchFailedError: nginx does not start.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-bucket-") as scratch:
        (Path(scratch) / _NAME).symlink_to(photos.root.resolve())
        with s3_bucket(Path(scratch), _NAME, latency_seconds) as bucket, environment(bucket.env):
            yield bucket
