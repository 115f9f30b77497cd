"""Listings of ``gs://`` and ``az://`` that have keys which the native client refuses, such as ``a//b`` or ``a/./b``.

The native client fails the whole page of a listing that has such a key, and neither goes on after the page nor requests a smaller one.
Only the native client can sign requests for every kind of credentials. Therefore it sends the requests of such a listing to a relay in
this process, which forwards each one to the store and removes those keys from the answer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from xml.sax.saxutils import unescape

from prefeed.errors import SourceError
from prefeed.sources.listing import ENCODING, LeftOut
from prefeed.sources.plain_s3 import is_odd
from prefeed.sources.plain_web import WebAccess, forward
from prefeed.sources.store_listing import level_of_store, list_store
from prefeed.types import ObjectInfo

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ENTRY: Final = re.compile(r"<(Contents|CommonPrefixes|Blob|BlobPrefix)>.*?</\1>", re.DOTALL)
_NAME: Final = re.compile(r"<(Key|Name|Prefix)[^>]*>(.*?)</\1>", re.DOTALL)
_NUMBERED: Final = re.compile(r"&#(?:x([0-9A-Fa-f]+)|([0-9]+));")
_IS_EMPTY: Final = re.compile(r"<(?:Size|Content-Length)>0<").search


class RelayedListing:
    """Lists a store through a relay on loopback that removes the keys which the native client refuses.

    **Ownership**: belongs to one listing, which closes it. The relay is started by the first request.
    **Threads**: any.
    """

    def __init__(
        self, server: str, access: WebAccess, open_store: Callable[[str], ObjectStore], left_out: LeftOut
    ) -> None:
        """List a store.

        Args:
            server: URL of the store's server.
            access: How the relay reaches the server.
            open_store: Returns a client for the store at the URL of another server.
            left_out: Counts the keys that are removed.
        """
        parts = urlsplit(server)
        self._root, self._path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        self._access, self._open_store, self._left_out = access, open_store, left_out
        self._relay: ThreadingHTTPServer | None = None
        self._store: ObjectStore | None = None
        self._removed: set[str] = set()
        self._lock = threading.Lock()

    def pages(self, prefix: str, *, after: str = "") -> Iterator[list[ObjectInfo]]:
        """Yield the objects below a directory whose paths follow ``after``, without markers of directories."""
        return list_store(self._opened(), prefix, after)

    def level(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return the objects right below a directory, and the directories there."""
        return level_of_store(self._opened(), prefix)

    def close(self) -> None:
        """End the relay, if it was started."""
        if self._relay is not None:
            self._relay.shutdown()
            self._relay.server_close()

    def _opened(self) -> ObjectStore:
        with self._lock:
            if self._store is None:
                self._relay = ThreadingHTTPServer(("127.0.0.1", 0), partial(_RelayHandler, self._answered))
                threading.Thread(target=self._relay.serve_forever, name="prefeed-relay", daemon=True).start()
                self._store = self._open_store(f"http://127.0.0.1:{self._relay.server_port}{self._path}")
            return self._store

    def _answered(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status and the body of the store's answer to a request of the native client."""
        try:
            page = forward(self._root + path, headers, self._access).decode(*ENCODING)
        except SourceError as err:
            return err.details.get("status") or HTTPStatus.BAD_GATEWAY, err.message.encode()
        kept = _ENTRY.sub(lambda entry: "" if self._is_removed(entry[0]) else entry[0], page)
        return HTTPStatus.OK, kept.encode(*ENCODING)

    def _is_removed(self, entry: str) -> bool:
        """Return whether an entry is a key that cannot be requested, which is counted, or the marker of a directory."""
        found = _NAME.search(entry)
        key = "" if found is None else unescape(_NUMBERED.sub(_character, found[2]))
        is_prefix = entry.startswith(("<CommonPrefixes", "<BlobPrefix"))
        if is_odd(key.removesuffix("/") if is_prefix else key) is None:
            return False
        is_marker = not is_prefix and key.endswith("/") and _IS_EMPTY(entry) is not None
        with self._lock:
            if not is_marker and key not in self._removed:
                self._removed.add(key)
                self._left_out.add(
                    key, "has an empty part, '.', '..' or a control character, which the client cannot request"
                )
        return True


class _RelayHandler(BaseHTTPRequestHandler):
    def __init__(self, answered: Callable[[str, Mapping[str, str]], tuple[int, bytes]], *args: Any) -> None:
        self._answered = answered
        super().__init__(*args)

    def do_GET(self) -> None:
        status, body = self._answered(self.path, dict(self.headers.items()))
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a URL may hold a signature."""


def _character(found: re.Match[str]) -> str:
    return chr(int(found[1], 16) if found[1] else int(found[2]))
