"""S3 requests that are signed here, for keys that the native client refuses: ``a//b``, ``a/./b``, ``a/../b``, control characters.

The native client takes a key for a path: it refuses such keys, fails the page of a listing that has one, and drops slashes at the
begin and end of keys. Here a key is any text, and is sent as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_plus
from xml.etree import ElementTree as ET

from prefeed.errors import AccessDeniedError, SourceError
from prefeed.sources.store_access import StoreAccess, signing_options
from prefeed.types import ObjectInfo

is_odd: Final = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]").search
"""Matches a key that is no path: it has an empty part, ``.`` or ``..``, or a control character."""

has_dots: Final = re.compile(r"(?:^|/)\.\.?(?:/|$)").search
"""Matches a path that has another meaning in a URL or a file system, because a part of it is ``.`` or ``..``."""

_SAFE: Final = "-_.~"
_SECONDS: Final = 3600
_KEPT_SECONDS: Final = 600.0
"""How long keys are used before they are looked up again: those of machines and containers expire."""

Fetch = Callable[[str], bytes]
"""Requests a signed URL and returns the body of the answer."""


def signed_url(method: str, url: str, options: Mapping[str, str], now: datetime | None = None) -> str:
    """Return the URL with a signature (SigV4) that is valid for an hour; unchanged without keys.

    Args:
        method: HTTP method of the request.
        url: Percent-encoded, with the query of the request.
        options: ``access_key_id``, ``secret_access_key``, ``session_token``, ``region``, as in ``StoreAccess.options``.
        now: Time of the signature; None: by the clock.
    """
    if "access_key_id" not in options:
        return url
    now = now or datetime.now(UTC)
    date = now.strftime("%Y%m%dT%H%M%SZ")
    region = options.get("region") or options.get("default_region") or "us-east-1"
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    place, _, query = url.partition("?")
    host, slash, path = place.partition("://")[2].partition("/")
    pairs = {
        **dict(parse_qsl(query, keep_blank_values=True)),
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{options['access_key_id']}/{scope}",
        "X-Amz-Date": date,
        "X-Amz-Expires": str(_SECONDS),
        "X-Amz-SignedHeaders": "host",
    }
    if token := options.get("session_token"):
        pairs["X-Amz-Security-Token"] = token
    query = "&".join(sorted(f"{quote(name, safe=_SAFE)}={quote(value, safe=_SAFE)}" for name, value in pairs.items()))
    request = "\n".join([method, slash + path, query, f"host:{host}\n", "host", "UNSIGNED-PAYLOAD"])
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{options['secret_access_key']}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return f"{place}?{query}&X-Amz-Signature={key.hex()}"


class PlainBucket:
    """The keys below a prefix of a bucket, listed as they are.

    **Threads**: any.
    """

    def __init__(self, bucket_url: str, root: str, options: Mapping[str, str], fetch: Fetch) -> None:
        """List below a root.

        Args:
            bucket_url: URL of the bucket, with a slash at its end.
            root: Prefix without a slash at its end; empty: the bucket.
            options: See ``signed_url``.
            fetch: Sends the requests of listings.
        """
        self._bucket_url = bucket_url
        self._root = f"{root}/" if root else ""
        self._options = options
        self._fetch = fetch

    def url(self, method: str, path: str) -> str:
        """Return the signed URL of an object."""
        return signed_url(method, self._bucket_url + quote(self._root + path), self._options)

    def pages(self, prefix: str = "", *, after: str = "") -> Iterator[list[ObjectInfo]]:
        """Yield the objects below a directory whose paths follow ``after``, without markers of directories."""
        for objects, _ in self._pages(f"{prefix}/" if prefix else "", after=after):
            if objects:
                yield objects

    def level(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return the objects right below a directory, and the directories there.

        An object of a directory without a name, such as ``a//b``, is listed in ``a``, because no path leads to that directory.
        """
        objects: list[ObjectInfo] = []
        directories: list[str] = []
        start = f"{prefix}/" if prefix else ""
        for found, below in self._pages(start, delimiter="/"):
            objects += found
            directories += (directory for directory in below if directory != start)
            if start in below:
                objects += (info for page, _ in self._pages(f"{start}/") for info in page)
        return objects, directories

    def has_leading_slashes(self) -> bool:
        """Return whether keys begin with a slash, which the native client lists as if they did not."""
        return self._page({"prefix": f"{self._root}/", "max-keys": "1"}).find("{*}Contents") is not None

    def _pages(
        self, start: str, *, after: str = "", delimiter: str = ""
    ) -> Iterator[tuple[list[ObjectInfo], list[str]]]:
        query = {"prefix": self._root + start}
        if after:
            query["start-after"] = self._root + after
        if delimiter:
            query["delimiter"] = delimiter
        while True:
            page = self._page(query)
            yield self._parsed(page)
            token = page.findtext("{*}NextContinuationToken")
            is_cut = page.findtext("{*}IsTruncated") == "true"
            if is_cut and token in (None, "", query.get("continuation-token")):
                raise SourceError(
                    f"{self._bucket_url} does not show the rest of a listing of version 2: the page says IsTruncated, and the next one "
                    f"would begin at {token!r}"
                )
            if not token:
                return
            query["continuation-token"] = token

    def _parsed(self, page: ET.Element) -> tuple[list[ObjectInfo], list[str]]:
        decode = unquote_plus if page.findtext("{*}EncodingType") == "url" else str
        objects: list[ObjectInfo] = []
        directories: list[str] = []
        for element in page:
            kind, fields = _name_of(element), {_name_of(child): child.text or "" for child in element}
            if kind == "Contents":
                key, size = decode(fields["Key"]).removeprefix(self._root), int(fields["Size"])
                if size or not key.endswith("/"):
                    objects.append(_info(key, size, fields))
            elif kind == "CommonPrefixes":
                directories.append(decode(fields["Prefix"]).removeprefix(self._root)[:-1])
        return objects, directories

    def _page(self, query: Mapping[str, str]) -> ET.Element:
        asked = {"list-type": "2", "encoding-type": "url", **query}
        text = "&".join(f"{name}={quote(value, safe=_SAFE)}" for name, value in asked.items())
        is_host = self._bucket_url.count("/") == 3  # the bucket is in its name
        url = self._bucket_url if is_host else self._bucket_url.rstrip("/")
        body = self._fetch(signed_url("GET", f"{url}?{text}", self._options))
        try:
            page = ET.fromstring(body)
        except ET.ParseError as err:
            raise SourceError(f"{self._bucket_url} does not answer a listing in XML: {err}") from err
        if _name_of(page) != "ListBucketResult":
            raise SourceError(f"{self._bucket_url} does not answer a listing, but <{_name_of(page)}>")
        return page


class PlainKeys:
    """Chooses between the native client and a ``PlainBucket`` for one root; of web servers it knows which names are requested plainly.

    **Threads**: any.

    Attributes:
        is_s3: The root is in S3.
        has_odd_root: The native client refuses the name of the root, so that all requests are made here.
    """

    def __init__(
        self,
        url: str,
        access: Callable[[], StoreAccess],
        bucket_url: Callable[[StoreAccess], str],
        fetch: Callable[[StoreAccess, str], bytes],
    ) -> None:
        """Choose for a canonical URL.

        Args:
            url: The root.
            access: Returns how the store is reached.
            bucket_url: Returns the URL of the bucket for a way to reach the store.
            fetch: Requests a signed URL and returns the body of the answer.
        """
        self.is_s3: bool = url.startswith("s3://")
        self.has_odd_root: bool = self.is_s3 and is_odd(url.removeprefix("s3://")) is not None
        self._url, self._access, self._bucket_url, self._fetch = url, access, bucket_url, fetch
        self._opened: PlainBucket | None = None
        self._opened_at = 0.0

    def takes(self, path: str) -> bool:
        """Return True for an object whose name the native client refuses and that can be read here."""
        if is_odd(path) is None:
            return self.has_odd_root
        return self.is_s3 or (self._url.startswith("http") and has_dots(path) is None)

    def lists_root(self) -> bool:
        """Return whether the native client cannot list the root: it refuses its name, or drops slashes at the begin of keys."""
        if self.has_odd_root or not self.is_s3 or "/" in self._url.removeprefix("s3://"):
            return self.has_odd_root
        plain = self._try_open(asks_instance=False)
        with suppress(SourceError):  # the listing itself raises the error
            return plain is not None and plain.has_leading_slashes()
        return False

    def open(self) -> PlainBucket:
        """Return the client for keys that are no paths.

        Raises:
            AccessDeniedError: The keys to sign requests with are not known here.
        """
        plain = self._try_open(asks_instance=True)
        if plain is None:
            raise AccessDeniedError(
                f"{self._url} has names that only requests signed here can reach, and the keys are not known here: "
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pip install 'prefeed[aws]'",
                url=self._url,
            )
        return plain

    def _try_open(self, *, asks_instance: bool) -> PlainBucket | None:
        if self._opened is None or time.monotonic() - self._opened_at > _KEPT_SECONDS:
            access = self._access()
            options = signing_options(access, asks_instance=asks_instance)
            if options is None:
                return None
            root = self._url.removeprefix("s3://").partition("/")[2]
            self._opened = PlainBucket(self._bucket_url(access), root, options, partial(self._fetch, access))
            self._opened_at = time.monotonic()
        return self._opened


def _name_of(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _info(path: str, size: int, fields: Mapping[str, str]) -> ObjectInfo:
    modified = int(datetime.fromisoformat(fields["LastModified"]).timestamp()) if "LastModified" in fields else 0
    return ObjectInfo(
        path=path,
        size_bytes=size,
        version=fields.get("ETag") or (f"{modified}-{size}" if modified else ""),
        modified_seconds=modified,
    )
