"""Objects behind S3, Google Cloud Storage, Azure Blob Storage and plain HTTP, all through obstore."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import obstore
from obstore import exceptions as store_exceptions
from xxhash import xxh3_64_hexdigest

from prefeed.config import Config
from prefeed.errors import SourceError, TruncatedBodyError
from prefeed.sources.answers import patiently, require_listed
from prefeed.sources.fork_proxy import ForkedReader
from prefeed.sources.listing import LeftOut
from prefeed.sources.listing_relay import RelayedListing
from prefeed.sources.plain_s3 import PlainKeys
from prefeed.sources.plain_web import (
    PlainWeb,
    WebAccess,
    authorization_of,
    encoding_of,
    web_access,
)
from prefeed.sources.quick_fetches import MISSING, ODD, QuickOrigin
from prefeed.sources.signed_urls import named_by
from prefeed.sources.store_access import (
    CA_BUNDLE,
    SPEAKERS_OF_S3,
    StoreAccess,
    endpoint_words,
    is_signed_here,
    mark_of,
    native_options,
    own_access,
    server_of,
)
from prefeed.sources.store_clients import shared_client
from prefeed.sources.store_errors import (
    NO_LENGTH,
    cause_of,
    is_about_bucket,
    is_another_part,
    refuses_head,
    translate,
)
from prefeed.sources.store_listing import (
    HTTP_INDEX,
    StoreListing,
    info_of,
    level_of,
    list_http,
    list_index,
    modified_of,
    version_of,
)
from prefeed.types import FetchedObject, ObjectInfo

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

_is_plain: Final = re.compile(r"[A-Za-z0-9/._~-]*").fullmatch
"""Of a path that ``quote`` would not change, which is said six times sooner than ``quote`` says it."""

_LIST_DEADLINE_SECONDS: Final = 60.0
_LIST_RETRIES: Final = 3
"""Of each request of a listing: one of a thousand that fails would else be the end of all."""

_MOST_ODD: Final = 16
"""Answers that a quick client cannot take, and a sixteenth of all, are asked for again; from more on, only this process asks."""

_SIGNED_FOR: Final = timedelta(hours=1)

_THREADS: Final = "/proc/self/task"

# obstore runs on one tokio runtime a process, made at first use. Its threads do not survive a fork, and a call in
# the child waits for them for ever (obstore 0.12, 2026-11). So: remember who used it first, and never call it elsewhere.
_runtime_pid: int | None = None
_RUNTIME_THREAD: Final = "tokio-rt-worker\n"


def runtime_is_foreign() -> bool:
    """Return True in a forked child of a process that has used obstore: calls would hang here."""
    return _runtime_pid is not None and _runtime_pid != os.getpid()


def _claim_runtime() -> None:
    global _runtime_pid
    if _runtime_pid is None:
        _runtime_pid = os.getpid()


def _claim_runtime_of_others() -> None:
    """Before a fork: somebody else in this process may have used obstore; its threads show it.

    A thread takes its name when it first runs, so a fork within the same millisecond goes unnoticed. So do threads where /proc is that
    of another PID namespace.
    """
    if _runtime_pid is None and any(_thread_name(thread) == _RUNTIME_THREAD for thread in _threads()):
        _claim_runtime()


def _threads() -> list[str]:
    try:
        return os.listdir(_THREADS)
    except FileNotFoundError:
        return []


def _thread_name(thread: str) -> str:
    try:
        with open(f"{_THREADS}/{thread}/comm") as file:
            return file.read()
    except OSError:  # It ended meanwhile.
        return ""


# Taking a client apart closes its connections, and tells the runtime under its locks. A thread may have held one of them when the
# process was forked, say as it went to sleep after the last request; the child would wait for ever (obstore 0.12, 2026-11).
_clients: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()


def _keep_clients() -> None:
    """In a forked child no client is ever taken apart, not at its end either."""
    for client in list(_clients.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(before=_claim_runtime_of_others, after_in_child=_keep_clients)


class ObjectStoreSource:
    """Reads the objects below one ``s3://``, ``gs://``, ``az://`` or ``http(s)://`` URL.

    Credentials, region and endpoint are those it is given, else those that this process finds when it first asks: see
    ``store_access``.

    **Threads and processes.** ``fetch`` blocks its caller's thread and may be called from many at once. The
    native client is opened at first use. In a forked child of a process that has used one, requests go
    through a helper process, which costs a copy and serves one request at a time.
    """

    def __init__(
        self,
        url: str,
        config: Config,
        *,
        authorization: str | None = None,
        query: str = "",
        access: StoreAccess | None = None,
    ) -> None:
        """Read below a URL.

        Args:
            url: Canonical.
            config: Settings.
            authorization: Sent to web servers as the header of that name.
            query: Sent to web servers with each request, with its ``?``; see ``signed_urls``.
            access: Who speaks, and to whom; None: as this process finds it.
        """
        self.url = url
        self._config = config
        self._authorization = authorization
        self._query = query
        self._access = access
        self._is_http = url.startswith("http")
        self._root_path = urlsplit(url).path if self._is_http else ""
        self._web = PlainWeb(url, query, max_bytes=config.limits.max_object_bytes)
        self._sends_no_length = False
        self._refuses_head = False
        self._has_bucket = False  # as far as it is known
        self._sends_parts = False  # as far as it is known
        self._lock = threading.Lock()
        self._store: ObjectStore | None = None
        self._reader: ForkedReader | None = None
        self._mark: str | None = None
        self._plain = PlainKeys(
            url,
            partial(
                _given_or_own, url, config, access
            ),  # none of these refers to the source, which would outlive its last user
            partial(_url_of_bucket, url, config),
            partial(_get_listing, url, config),
        )
        self.left_out: LeftOut = LeftOut()
        self._quick: QuickOrigin | None = None
        self._num_quick = 0
        self._num_odd = 0
        self._is_never_quick = False

    @property
    def mark(self) -> str:
        """What tells the store from others with a bucket of this name; see ``Source.mark``."""
        if self._mark is None:  # part of each key of a block: looked up once
            told = mark_of(self.url, self._own_access())
            self._mark = self._speaker_of_url() + told + named_by(self._query) if self._is_http else told
        return self._mark

    def locate(self, path: str) -> str:
        """Return the full URL of an object."""
        return f"{self.url}/{quote(path) if self._is_http else path}"

    @property
    def needs_helper(self) -> bool:
        """True in a forked process whose requests need a helper process."""
        return runtime_is_foreign() and not self._query

    def fetch(self, path: str) -> FetchedObject:
        """Return the whole object with one GET; see ``Source.fetch``.

        A web server that sends no length is asked once more by other means, the first time; then by these alone, until it
        sends one.
        """
        if self.needs_helper:
            return self._forked().fetch(path)
        if self._sends_no_length or self._is_asked_plainly(path):
            return self._fetch_plainly(path)
        try:
            result = obstore.get(self._store or self._open_store(), path)
            meta = result.meta
            encoding = encoding_of(result.attributes.get("Content-Encoding")) if self._is_http else ""
            body = result.bytes()
        except BaseException as err:  # noqa: BLE001 - the table of errors decides
            if self._is_http and NO_LENGTH in str(err):
                self._sends_no_length = True
                return self._fetch_plainly(path)
            raise self.translated(err, self.locate(path)) from cause_of(err)
        if len(body) != meta["size"]:
            raise TruncatedBodyError(
                f"{self.locate(path)}: {len(body)} bytes came, {meta['size']} were announced", url=self.locate(path)
            )
        return FetchedObject(
            data=memoryview(body), version=version_of(meta), modified_seconds=modified_of(meta), encoding=encoding
        )

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """Return a part of the object with one GET; see ``RangeSource.fetch_range``.

        If another part comes, or none, the request is sent once more. If a web server sends no parts, the part is cut from the whole object.
        """
        if not size_bytes:
            return FetchedObject(data=b"", version="")  # HTTP has no empty ranges
        if self.needs_helper:
            return self._forked().fetch_range(path, offset, size_bytes)
        if self._is_asked_plainly(path):
            return self._fetch_part_plainly(path, offset, size_bytes)
        try:
            store = self._store or self._open_store()
            options: GetOptions = {"range": (offset, offset + size_bytes)}
            try:
                result = obstore.get(store, path, options=options)
            except BaseException as err:
                if not is_another_part(err):
                    raise
                if self._is_http:
                    return self._fetch_part_plainly(path, offset, size_bytes)
                result = obstore.get(store, path, options=options)
            meta = result.meta
            body = result.bytes()
        except BaseException as err:  # noqa: BLE001 - the table of errors decides
            raise self.translated(err, self.locate(path)) from cause_of(err)
        if len(body) != size_bytes:
            raise TruncatedBodyError(
                f"{self.locate(path)}: {len(body)} bytes came, {size_bytes} were asked for", url=self.locate(path)
            )
        return FetchedObject(data=memoryview(body), version=version_of(meta), object_bytes=meta["size"])

    def info(self, path: str) -> ObjectInfo:
        """Return size and version of the object with one HEAD; see ``BrowsableSource.info``.

        If a web server refuses HEAD, a GET of the first byte shows the same. That GET also shows, for an object of several blocks, whether
        the server sends parts.
        """
        if self.needs_helper:
            return self._forked().info(path)
        if self._refuses_head or self._is_asked_plainly(path):  # a query is signed for GET, as a rule
            return self._info_plainly(path)
        try:
            meta = obstore.head(self._store or self._open_store(), path)
        except BaseException as err:  # noqa: BLE001 - the table of errors decides
            if self._is_http and refuses_head(err):
                info = self._info_plainly(path)
                self._refuses_head = True
                return info
            if not self._is_http and not self._has_bucket and isinstance(err, FileNotFoundError):
                self._require_bucket(path)
            raise self.translated(err, self.locate(path)) from cause_of(err)
        self._has_bucket = True
        info = info_of(meta, path)
        if self._is_http and not self._sends_parts and info.size_bytes > self._config.limits.block_bytes:
            probed = self._info_plainly(path)
            self._sends_parts = probed.sends_parts
            return probed
        return info

    def _require_bucket(self, path: str) -> None:
        """Raise the error of a bucket that does not exist: the answer to HEAD has no body that would name it.

        Raises:
            ObjectNotFoundError: The answer to GET names it.
        """
        try:
            obstore.get(self._store or self._open_store(), path, options={"range": (0, 1)})
        except FileNotFoundError as err:
            self._has_bucket = not is_about_bucket(err)
            raise self.translated(err, self.locate(path)) from cause_of(err)
        except store_exceptions.BaseError:  # the error of HEAD is raised
            return

    def list_level(self, path: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return what lies right below a directory; see ``BrowsableSource.list_level``.

        A web server lists everything at once; this is a part of it.
        """
        if self._is_http or self.needs_helper:
            return level_of(self.list_objects(), path)
        try:
            if not self._plain.has_odd_root:
                with self._store_listing(self._store or self._open_store(), LeftOut()) as listing:
                    found = listing.level_with_marker(path)
                if "" not in found[1]:
                    return found
            return self._plain.open().level(path)
        except BaseException as err:  # noqa: BLE001 - the table of errors decides
            raise self.translated(err, self.locate(path)) from cause_of(err)

    def quick_origin(self) -> QuickOrigin | None:
        """Return the web server, or that of a bucket of S3 whose requests can be signed here; see ``QuickSource``.

        None behind a proxy, and where answers are too often odd.
        """
        if (
            self._sends_no_length
            or self._web.decompresses
            or self._plain.has_odd_root
            or self._num_odd > _MOST_ODD + self._num_quick // _MOST_ODD
        ):
            return None
        if self._quick is None and not self._is_never_quick:
            self._quick = self._as_quick_origin()
            self._is_never_quick = self._quick is None
        return self._quick

    def quick_target(self, path: str) -> bytes:
        """Return the path of the object in requests; see ``QuickSource``."""
        self._num_quick += 1
        if not self._is_http and self._plain.takes(path):
            return self._plain.open().url("GET", path).partition("://")[2].partition("/")[2].join(("/", "")).encode()
        if self._is_http:
            return f"{self._root_path}/{path if _is_plain(path) else quote(path)}{self._query}".encode()
        return self._signed(path).partition("://")[2].partition("/")[2].join(("/", "")).encode()

    def quick_failure(self, path: str, failure: str) -> SourceError | None:
        """Return the error that stands for a failure; see ``QuickSource``. A store's text says which of its things is missing."""
        if failure == ODD or (failure == MISSING and not self._is_http):
            self._num_odd += 1
            return None
        err = self.translated(store_exceptions.GenericError(failure), self.locate(path))
        assert isinstance(err, SourceError)
        return err

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object below the root; see ``Source.list_objects``.

        Plain HTTP servers list through an index file or WebDAV: see ``store_listing``.
        """
        if self.needs_helper:
            yield from self._forked().list_objects()
            return
        if self._query:
            self.left_out.clear()  # a manifest that is being written refers to it
            yield from list_index(self.url, HTTP_INDEX, self._fetch_index, left_out=self.left_out)
            self.left_out.warn(self.url)
            return
        yield from self._listed(lambda listing: listing.objects())

    def list_in_order(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object of a store in the order in which the store lists; see ``list_objects``."""
        yield from self._listed(lambda listing: listing.pages(""))

    def _listed(self, of_store: Callable[[StoreListing], Iterator[list[ObjectInfo]]]) -> Iterator[list[ObjectInfo]]:
        try:
            if self._plain.lists_root():
                yield from self._plain.open().pages()
                return
            store = _open(
                self.url, self._config, self._authorization, self._own_access(), listing=True, retries=_LIST_RETRIES
            )
            self.left_out.clear()
            if self._is_http:
                yield from list_http(
                    store, self.url, HTTP_INDEX, timeout=self._config.limits.request_seconds,
                    fetch_plainly=self._fetch_index, left_out=self.left_out,
                )  # fmt: skip
            else:
                with self._store_listing(store, self.left_out) as listing:
                    yield from of_store(listing)
            self.left_out.warn(self.url)
        except GeneratorExit:
            raise
        except BaseException as err:  # noqa: BLE001 - the table of errors decides
            raise self.translated(err, self.url) from cause_of(err)

    @contextmanager
    def _store_listing(self, store: ObjectStore, left_out: LeftOut) -> Iterator[StoreListing]:
        """Open a listing of the store, including keys that the native client refuses."""
        access = self._own_access()
        option, server = server_of(self.url, access)
        if not server:
            yield StoreListing(store, self._plain.open if self._plain.is_s3 else None)
            return

        def open_relayed(relay_url: str) -> ObjectStore:
            relayed = replace(access, options={**access.options, option: relay_url})
            return _open(self.url, self._config, self._authorization, relayed, listing=True, retries=_LIST_RETRIES)

        with closing(RelayedListing(server, self._web_access(), open_relayed, left_out)) as listing:
            yield StoreListing(store, None, listing)

    def open_for_writing(self) -> ObjectStore:
        """Return a client for packing into this place; a request may take as long as a listing."""
        return _open(self.url, self._config, self._authorization, self._own_access(), listing=True)

    def close(self) -> None:
        """Release connections and the helper process, if one was started."""
        with self._lock:
            self._store = None
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _is_asked_plainly(self, path: str) -> bool:
        """True for an object that the native client cannot request: for its name, or the query of the URL."""
        return self._web.is_needed or self._plain.takes(path)

    def _fetch_plainly(self, path: str) -> FetchedObject:
        """Return the whole object as a server sends it, with a length or without."""
        fetched, has_length = self._web.fetch(self._plain_url(path), self._web_access(), self.locate(path))
        self._sends_no_length = self._is_http and not has_length
        return fetched

    def _fetch_part_plainly(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        return self._web.fetch_part(
            self._plain_url(path), self._web_access(), offset, size_bytes, where=self.locate(path)
        )

    def _info_plainly(self, path: str) -> ObjectInfo:
        return self._web.info(self._plain_url(path), self._web_access(), path, where=self.locate(path))

    def _plain_url(self, path: str) -> str:
        """Return the URL of an object for a request by the standard library; of a store it is signed."""
        return self.locate(path) if self._is_http else self._plain.open().url("GET", path)

    def _web_access(self) -> WebAccess:
        access = self._own_access()
        return web_access(access, self._authorization, timeout_seconds=self._config.limits.request_seconds)

    def _as_quick_origin(self) -> QuickOrigin | None:
        try:
            access = self._own_access()
        except SourceError:
            return None
        if not self._is_http and (not self.url.startswith("s3://") or not is_signed_here(access)):
            return None
        parts = urlsplit(self.url if self._is_http else self._signed("-"))
        if parts.hostname is None or access.proxies.keys() & {f"{parts.scheme}_proxy", "all_proxy"}:
            return None
        given: Any = native_options(self.url, access)
        lines = [f"Host: {parts.netloc}", "Accept: */*", "User-Agent: prefeed"]
        if self._is_http:
            lines.append(f"Accept-Encoding: {self._web.encoding}")
        if self._is_http and (authorization := self._authorization or authorization_of(given)):
            lines.append(f"Authorization: {authorization}")
        is_encrypted = parts.scheme == "https"
        return QuickOrigin(
            url=self.url,
            is_encrypted=is_encrypted,
            host=parts.hostname,
            port=parts.port or (443 if is_encrypted else 80),
            headers="".join(f"{line}\r\n" for line in lines).encode("latin-1"),
            timeout_seconds=self._config.limits.request_seconds,
            ca_bundle=access.options.get(CA_BUNDLE, ""),
        )

    def _signed(self, path: str) -> str:
        """Return the URL of an object of S3 that says who asks for it, for a time."""
        store: Any = self._store or self._open_store()
        url: str = obstore.sign(store, "GET", path, _SIGNED_FOR)
        return url

    def _fetch_index(self, path: str) -> bytes:
        fetched = self._fetch_plainly(path)
        require_listed(fetched, None, lambda: self.locate(path))
        return bytes(fetched.data)

    def translated(self, err: BaseException, where: str) -> BaseException:
        """Return the error that stands for what obstore raised; it names the endpoint, which may be another than the user thinks."""
        endpoint = "" if self._access is None else endpoint_words(self.url, self._access)
        return translate(err, where, timeout=self._config.limits.request_seconds, endpoint=endpoint)

    def _own_access(self) -> StoreAccess:
        with self._lock:
            if self._access is None:
                self._access = own_access(self.url, self._config)
            return self._access

    def _speaker_of_url(self) -> str:
        """Return what stands for the user of the URL itself: a server may give each other pages."""
        user = b64decode((self._authorization or "").removeprefix("Basic ")).partition(b":")[0]
        return xxh3_64_hexdigest(user) if user else ""

    def _open_store(self) -> ObjectStore:
        access = self._own_access()
        with self._lock:
            if self._store is None:
                self._store = _open(self.url, self._config, self._authorization, access, listing=False)
            return self._store

    def _forked(self) -> ForkedReader:
        access = self._own_access()
        with self._lock:
            if self._reader is None or self._reader.owner_pid != os.getpid():
                self._reader = ForkedReader(self.url, self._config, self._authorization, access)
            return self._reader


def _open(
    url: str, config: Config, authorization: str | None, access: StoreAccess, *, listing: bool, retries: int = 0
) -> ObjectStore:
    """Return a client for the root, or for the whole server to list plain HTTP; ``retries`` is how often it tries a request again.

    From here on the native runtime belongs to this process.
    """
    _claim_runtime()
    client = shared_client(url, config, authorization, access, listing=listing, retries=retries)
    _clients[id(client)] = client
    return client


def _given_or_own(url: str, config: Config, access: StoreAccess | None) -> StoreAccess:
    return own_access(url, config) if access is None else access


def _get_listing(where: str, config: Config, access: StoreAccess, url: str) -> bytes:
    """Return the answer to a signed request of a listing."""

    def get() -> bytes:
        asked = PlainWeb("", "", max_bytes=0)
        fetched, _ = asked.fetch(url, web_access(access, None, timeout_seconds=config.limits.request_seconds), where)
        return bytes(fetched.data)

    return patiently(get, deadline_seconds=min(config.limits.retry_seconds, _LIST_DEADLINE_SECONDS))


def _url_of_bucket(url: str, config: Config, access: StoreAccess) -> str:
    """Return the URL of the bucket of an S3 URL, with a slash at its end, as the native client makes it."""
    known = {"access_key_id": "-", "secret_access_key": "-"}  # so that nobody is asked for keys
    options = {name: value for name, value in access.options.items() if name not in SPEAKERS_OF_S3}
    bucket = url[: url.index("/", len("s3://"))] if "/" in url[len("s3://") :] else url
    store: Any = _open(bucket, config, None, StoreAccess(options={**options, **known}), listing=False)
    signed: str = obstore.sign(store, "GET", "-", _SIGNED_FOR)
    return signed.partition("?")[0].removesuffix("-")
