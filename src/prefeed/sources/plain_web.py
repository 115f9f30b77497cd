"""Requests to web servers by the standard library, for the cases that obstore cannot handle.

obstore refuses answers without a ``Content-Length`` and servers that refuse ``HEAD`` or send no parts. It also sends the query of a URL,
which may be a signature, to the server that a redirect leads to (``Referer``).
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from obstore import exceptions as store_exceptions

from prefeed.errors import AccessDeniedError, SourceError, TransientSourceError, TruncatedBodyError
from prefeed.sources.answers import version_without_etag
from prefeed.sources.signed_urls import expiry_of
from prefeed.sources.store_access import CA_BUNDLE, StoreAccess, certificates_of
from prefeed.sources.store_errors import EXPIRED, translate
from prefeed.sources.tls import tls_context
from prefeed.types import FetchedObject, ObjectInfo

_CHUNK_BYTES: Final = 1024**2
_LOOPBACK: Final = "localhost,127.0.0.1,::1"
_PORTS: Final = {"http": 80, "https": 443}
_AUTHORIZATION: Final = "Authorization"
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_CODE: Final = re.compile(r"<Code>\w+</Code>")
_EXPIRED: Final = re.compile(r"Request has expired|Signature not valid in the specified time frame", re.IGNORECASE)
_ERROR_BYTES: Final = 4096
_NO_HEADERS: Final[Mapping[str, str]] = {}
_OF_ONE_CONNECTION: Final = frozenset({"host", "connection", "authorization", "accept-encoding", "user-agent"})
_PART, _NO_SUCH_PART = 206, 416


_REFUSED: Final = (400, 401, 403, 410)
"""Statuses by which stores refuse a signature that has expired."""

_Answer = TypeVar("_Answer")

STORED: Final = "gzip"
"""``Accept-Encoding`` for which Google sends objects as they are stored."""

_CERTIFICATES: Final = {10: "Expired", 62: "NotValidForName", 64: "NotValidForName"}
"""What OpenSSL's codes mean, as ``translate`` takes it."""

_STORED_ENCODING: Final = "x-goog-stored-content-encoding"


class _DecompressedError(Exception):
    """An answer has other bytes than the object: the server decompressed them for this client."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WebAccess:
    """How a web server is reached.

    Attributes:
        authorization: Sent as the header of that name, and to no other server; None: no such header.
        proxies: Variables such as ``https_proxy``, by name in small letters.
        excluded: Hosts to be reached without a proxy, with commas between.
        timeout_seconds: For a whole request.
        ca_bundle: File or directory of certificates to trust; empty: those of the machine.
    """

    authorization: str | None
    proxies: Mapping[str, str]
    excluded: str
    timeout_seconds: float
    ca_bundle: str


def web_access(access: StoreAccess, authorization: str | None, *, timeout_seconds: float) -> WebAccess:
    """Return how a web server is reached, with the credentials in its URL if there are some."""
    return WebAccess(
        authorization=authorization or authorization_of(access.options),
        proxies=access.proxies,
        excluded=excluded_of(access.proxies),
        timeout_seconds=timeout_seconds,
        ca_bundle=access.options.get(CA_BUNDLE, ""),
    )


def authorization_of(options: Mapping[str, str]) -> str | None:
    """Return the value of the header ``Authorization``: a bearer token, or a name and a password; None without them."""
    if "bearer_token" in options:
        return f"Bearer {options['bearer_token']}"
    if "username" not in options:
        return None
    pair = f"{options['username']}:{options.get('password', '')}"
    return "Basic " + b64encode(pair.encode()).decode()


def excluded_of(proxies: Mapping[str, str]) -> str:
    """Return the hosts that are reached without a proxy, with commas between."""
    return ",".join(filter(None, (_LOOPBACK, proxies.get("no_proxy"))))


class PlainWeb:
    """Requests to one web server, one connection each.

    All methods take the URL of an object, percent-encoded and without credentials, and how the server is reached. A URL that is signed
    has another one for messages, ``where``. Redirects are followed.

    Attributes:
        encoding: ``Accept-Encoding`` for which the server sends objects as they are stored.
        decompresses: True once the server has decompressed an object for clients that do not take gzip.
    """

    def __init__(self, url: str, query: str, *, max_bytes: int) -> None:
        """Ask below a URL.

        Args:
            url: Canonical.
            query: Sent with each request, with its ``?``; may be a signature.
            max_bytes: Maximum size of an object that is read whole for a part of it.
        """
        self.encoding = encoding_of_url(url)
        self.decompresses = False
        self._query = query
        self._max_bytes = max_bytes

    @property
    def is_needed(self) -> bool:
        """True if obstore cannot ask: its client would give the query away, and has another ``Accept-Encoding``."""
        return bool(self._query) or self.decompresses

    def fetch(self, url: str, access: WebAccess, where: str = "") -> tuple[FetchedObject, bool]:
        """Return the whole object, and whether the answer had a length.

        Raises:
            SourceError: As ``Source.fetch`` raises them.
        """
        return self._asked(url, access, None, _whole, where)

    def fetch_part(
        self, url: str, access: WebAccess, offset: int, size_bytes: int, *, where: str = ""
    ) -> FetchedObject:
        """Return a part of an object; of a server that sends no parts, from the whole object.

        Raises:
            SourceError: As ``RangeSource.fetch_range`` raises them.
        """

        def part(response: Any, url: str, access: WebAccess) -> FetchedObject:
            total = response.length
            if response.status == http.HTTPStatus.OK:
                self._require_small(url, total)
                whole = _fetched(response, access)
                data = memoryview(whole.data)[offset : offset + size_bytes]
                total = memoryview(whole.data).nbytes
            else:
                total = _size_of_whole(response, url, offset, size_bytes)
                data = memoryview(_fetched(response, access).data)
            if data.nbytes != size_bytes:
                raise TruncatedBodyError(f"{url}: {data.nbytes} bytes came, {size_bytes} were asked for", url=url)
            return FetchedObject(data=data, version=_version(response, total), object_bytes=total)

        return self._asked(url, access, (offset, size_bytes), part, where)

    def info(self, url: str, access: WebAccess, path: str, *, where: str = "") -> ObjectInfo:
        """Return size and version of an object without ``HEAD``: from the head of the answer for its first byte.

        Raises:
            SourceError: As ``BrowsableSource.info`` raises them.
        """

        def head(response: Any, url: str, _: WebAccess) -> ObjectInfo:
            sends_parts = response.status != http.HTTPStatus.OK
            size = _size_of_whole(response, url, 0, 1) if sends_parts else response.length
            if not sends_parts:
                self._require_small(url, size)
            return ObjectInfo(
                path=path, size_bytes=size, version=_version(response, size),
                modified_seconds=_seconds(response.headers.get("Last-Modified")), sends_parts=sends_parts,
            )  # fmt: skip

        return self._asked(url, access, (0, 1), head, where)

    def _asked(
        self,
        url: str,
        access: WebAccess,
        part: tuple[int, int] | None,
        read: Callable[[Any, str, WebAccess], _Answer],
        where: str = "",
    ) -> _Answer:
        """Return what is read of an answer; after another part than the one requested, or decompressed bytes, ask once more."""
        for is_last in (False, True):
            try:
                with _answer(url + self._query, where or url, self.encoding, access, part) as response:
                    return read(response, where or url, access)
            except _DecompressedError:
                self.encoding, self.decompresses = STORED, True
            except SourceError as err:
                if is_last or err.details.get("status") not in (_PART, _NO_SUCH_PART):
                    raise _explained(err, self._query) from err.__cause__
        raise AssertionError

    def _require_small(self, url: str, size_bytes: int | None) -> None:
        """Refuse an object of a server that sends no parts if it is too large to be read whole.

        Raises:
            SourceError: It is.
        """
        if size_bytes is None or size_bytes > self._max_bytes:
            size = "unknown" if size_bytes is None else f"{size_bytes:,} bytes"
            raise SourceError(
                f"{url}: the server does not send parts of files (Range), and the object is too large to be read whole: its size is "
                f"{size}, the maximum is {self._max_bytes:,} bytes; let the server answer Range",
                url=url,
            )


def forward(url: str, headers: Mapping[str, str], access: WebAccess) -> bytes:
    """Return the answer to a GET that another client has signed, with its headers.

    Raises:
        SourceError: As ``Source.fetch`` raises them; its text has no query, which may be a signature.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    speaker = replace(access, authorization=sent.get("authorization"))
    kept = {name: value for name, value in sent.items() if name not in _OF_ONE_CONNECTION}
    with _answer(url, url.partition("?")[0], "identity", speaker, None, kept) as response:
        return bytes(_fetched(response, access).data)


def encoding_of_url(url: str) -> str:
    """Return the ``Accept-Encoding`` for the stored bytes: Google decompresses objects for clients that do not take gzip."""
    parts = urlsplit(url)
    if parts.scheme == "gs" or f".{parts.hostname}".endswith(".storage.googleapis.com"):
        return STORED
    return "identity" if parts.scheme in _PORTS else ""


def _explained(err: SourceError, query: str) -> SourceError:
    """Return an error that names the query of the URL as the reason if the server refused a request that has one."""
    expiry, status = expiry_of(query), err.details.get("status")
    has_expired = expiry is not None and expiry < datetime.now(UTC)
    is_refused = isinstance(err, AccessDeniedError) or (has_expired and status in _REFUSED)
    if not query or not is_refused or status is None:
        return err
    if expiry is not None and has_expired:
        reason = f"the signature in the URL expired at {expiry:%Y-%m-%d %H:%M:%S} UTC: get a new URL"
    elif EXPIRED in err.message:
        reason = "the signature in the URL has expired: get a new URL"
    else:
        reason = "access denied with the query of the URL: is it signed for this object, and for GET? Get a new URL"
    url = err.details["url"]
    return AccessDeniedError(f"{url}: {reason} (HTTP {status})", url=url, status=status)


@contextmanager
def _answer(
    full_url: str,
    url: str,
    encoding: str,
    access: WebAccess,
    part: tuple[int, int] | None,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Iterator[Any]:
    """Open the answer to a GET, of a part that begins at a byte and has a size; its errors are translated, and have ``url``."""
    headers = {"Accept-Encoding": encoding or "identity", "User-Agent": "prefeed", **headers}
    if part is not None:
        headers["Range"] = f"bytes={part[0]}-{part[0] + part[1] - 1}"
    request = urllib.request.Request(full_url, headers=headers)
    if access.authorization is not None:
        request.add_unredirected_header(_AUTHORIZATION, access.authorization)
    handlers: list[urllib.request.BaseHandler] = [
        _proxy_handler(full_url, access.proxies, access.excluded),
        _Redirects(),
    ]
    timeout_seconds = access.timeout_seconds
    try:
        if access.ca_bundle:
            certificates_of(access.ca_bundle)  # raises an error that names the file, which OpenSSL does not
            handlers.append(urllib.request.HTTPSHandler(context=tls_context(access.ca_bundle)))
        opener = urllib.request.build_opener(*handlers)
        with opener.open(request, timeout=timeout_seconds) as response:
            if encoding != STORED and response.headers.get(_STORED_ENCODING, "identity") != "identity":
                raise _DecompressedError
            yield response
    except SourceError:
        raise
    except urllib.error.HTTPError as err:
        if err.code == _NO_SUCH_PART and part == (0, 1):  # an empty object has no first byte
            err.close()
            with _answer(full_url, url, encoding, access, None) as response:
                yield response
            return
        raise translate(_answered(err), url, timeout=timeout_seconds) from None
    except http.client.IncompleteRead as err:
        raise TruncatedBodyError(f"{url}: the connection broke off before the whole object had come", url=url) from err
    except TimeoutError as err:
        raise TransientSourceError(f"{url}: no answer within {timeout_seconds:g} s", url=url) from err
    except (OSError, http.client.HTTPException, ValueError) as err:  # URLError is an OSError
        reason = getattr(err, "reason", err)
        if isinstance(reason, ssl.SSLCertVerificationError):
            refused = store_exceptions.GenericError(f"InvalidCertificate({_CERTIFICATES.get(reason.verify_code, '')})")
            raise translate(refused, url, timeout=timeout_seconds) from err
        raise TransientSourceError(f"{url}: {reason}", url=url) from err


def _answered(err: urllib.error.HTTPError) -> store_exceptions.GenericError:
    """Return what ``translate`` takes for an answer: its status, its code, and whether it names an expired signature."""
    body = ""
    with err, suppress(OSError, http.client.HTTPException):
        body = err.read(_ERROR_BYTES).decode("utf-8", "replace")
    code = _CODE.search(body)
    expired = "ExpiredToken" if _EXPIRED.search(body) else ""
    return store_exceptions.GenericError(f"status code: {err.code} {code[0] if code else ''} {expired}")


def _whole(response: Any, url: str, access: WebAccess) -> tuple[FetchedObject, bool]:
    if response.status != http.HTTPStatus.OK:
        raise TransientSourceError(
            f"{url}: the server answers {response.status} where all of it was asked for", url=url
        )
    has_length = response.length is not None
    return _fetched(response, access), has_length


def _fetched(response: Any, access: WebAccess) -> FetchedObject:
    """Read the body of an answer to its end."""
    has_length = response.length is not None
    deadline = time.monotonic() + access.timeout_seconds
    pieces = []
    while piece := response.read(_CHUNK_BYTES):
        pieces.append(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    data = b"".join(pieces)
    return FetchedObject(
        data=data, version=_version(response, len(data)), modified_seconds=_seconds(response.headers.get("Last-Modified")),
        encoding=encoding_of(response.headers.get("Content-Encoding")), is_end_known=response.chunked or has_length,
    )  # fmt: skip


def _version(response: Any, size_bytes: int) -> str:
    modified = _seconds(response.headers.get("Last-Modified"))
    return response.headers.get("ETag") or version_without_etag(modified, size_bytes)


def _size_of_whole(response: Any, url: str, offset: int, size_bytes: int) -> int:
    """Return the size of the object that an answer is a part of.

    Raises:
        SourceError: Another part came than the one requested, or the answer does not show the size.
    """
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None:
        raise SourceError(f"{url}: the server sent a part and does not say which", url=url, status=_PART)
    if (int(found[1]), int(found[2])) != (offset, offset + size_bytes - 1) or found[3] == "*":
        raise SourceError(f"{url}: the server sent another part than was asked for", url=url, status=_PART)
    return int(found[3])


def encoding_of(header: str | None) -> str:
    """Return what a ``Content-Encoding`` says that was done to the bytes; empty for nothing."""
    return "" if header is None or header.strip().lower() == "identity" else header.strip()


def _seconds(header: str | None) -> int:
    try:
        return int(parsedate_to_datetime(header).timestamp()) if header else 0
    except ValueError:
        return 0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; the header that says who speaks goes to the server that it is for, and to no other."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        authorization = req.unredirected_hdrs.get(_AUTHORIZATION)
        if following is not None and authorization is not None and _server_of(newurl) == _server_of(req.full_url):
            following.add_unredirected_header(_AUTHORIZATION, authorization)
        return following


def _server_of(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _proxy_handler(url: str, proxies: Mapping[str, str], excluded: str) -> urllib.request.ProxyHandler:
    parts = urlsplit(url)
    proxy = proxies.get(f"{parts.scheme}_proxy") or proxies.get("all_proxy")
    if not proxy or urllib.request.proxy_bypass_environment(parts.netloc, {"no": excluded}):  # type: ignore[attr-defined]
        return urllib.request.ProxyHandler({})
    return urllib.request.ProxyHandler({"http": proxy, "https": proxy})
