"""HTTP requests by the standard library: answers without ``Content-Length``, and URLs that obstore would change."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from obstore import exceptions as store_exceptions

from prefeed.errors import SourceError, TransientSourceError, TruncatedBodyError
from prefeed.sources.answers import version_without_etag
from prefeed.sources.store_errors import translate
from prefeed.types import FetchedObject

_CHUNK_BYTES: Final = 1024**2
_PORTS: Final = {"http": 80, "https": 443}
_AUTHORIZATION: Final = "Authorization"
_TOLD_BYTES: Final = 4096


def fetch_plainly(
    url: str,
    *,
    authorization: str | None,
    proxies: Mapping[str, str],
    excluded: str,
    timeout_seconds: float,
    where: str = "",
    part: tuple[int, int] | None = None,
) -> tuple[FetchedObject, bool]:
    """Return what a web server sends for a URL, with one GET, and whether it told its length; redirects are followed.

    Args:
        url: Percent-encoded, without credentials; or signed.
        authorization: Sent as the header of that name, and to no other server.
        proxies: Variables such as ``https_proxy``, by name in small letters.
        excluded: Hosts to be reached without a proxy, with commas between.
        timeout_seconds: For the whole request.
        where: URL for messages, without the signature; empty: the same.
        part: First byte, and the byte behind the last, of the part to fetch; None: the whole object.

    Raises:
        SourceError: As ``Source.fetch`` raises them.
    """
    headers = {"Accept-Encoding": "identity", "User-Agent": "prefeed"}
    if part is not None:
        headers["Range"] = f"bytes={part[0]}-{part[1] - 1}"
    request = urllib.request.Request(url, headers=headers)
    if authorization is not None:
        request.add_unredirected_header(_AUTHORIZATION, authorization)
    opener = urllib.request.build_opener(_proxy_handler(url, proxies, excluded), _Redirects())
    deadline = time.monotonic() + timeout_seconds
    url = where or url
    try:
        with opener.open(request, timeout=timeout_seconds) as response:
            return _whole(response, url, deadline, part)
    except SourceError:
        raise
    except urllib.error.HTTPError as err:
        told = err.read(_TOLD_BYTES).decode(errors="replace") if where else ""
        err.close()
        answered = store_exceptions.GenericError(f"status code: {err.code} {told}")
        raise translate(answered, url, timeout=timeout_seconds) from None
    except http.client.IncompleteRead as err:
        raise TruncatedBodyError(f"{url}: the connection broke off before the whole object had come", url=url) from err
    except TimeoutError as err:
        raise TransientSourceError(f"{url}: no answer within {timeout_seconds:g} s", url=url) from err
    except (OSError, http.client.HTTPException, ValueError) as err:  # URLError is an OSError
        reason = getattr(err, "reason", err)
        if isinstance(reason, ssl.SSLCertVerificationError):
            text = "the server's certificate is not trusted; install its authority on this node"
            raise SourceError(f"{url}: {text}", url=url) from err
        raise TransientSourceError(f"{url}: {reason}", url=url) from err


def _whole(response: Any, url: str, deadline: float, part: tuple[int, int] | None) -> tuple[FetchedObject, bool]:
    has_length = response.length is not None
    if part is not None and response.status == http.HTTPStatus.OK:
        raise SourceError(f"{url}: the server does not send parts of files", url=url)
    if response.status != (http.HTTPStatus.OK if part is None else http.HTTPStatus.PARTIAL_CONTENT):
        raise TransientSourceError(
            f"{url}: the server answers {response.status} where all of it was asked for", url=url
        )
    pieces = []
    while piece := response.read(_CHUNK_BYTES):
        pieces.append(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    data, headers = b"".join(pieces), response.headers
    modified = _seconds(headers.get("Last-Modified"))
    fetched = FetchedObject(
        data=data, version=headers.get("ETag") or version_without_etag(modified, len(data)), modified_seconds=modified,
        encoding=encoding_of(headers.get("Content-Encoding")), is_end_known=response.chunked or has_length,
    )  # fmt: skip
    return fetched, has_length


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
