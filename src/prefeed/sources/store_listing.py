r"""Listings through obstore: what a store lists itself, and what stands in for it on plain HTTP servers.

A store lists in order, a page after the other, and says of no page where it begins before the one before it has come. Objects
below few prefixes are therefore listed prefix by prefix, many at a time; a flat bucket, and one with few objects per prefix, is
listed page by page, which costs the fewest requests.

A plain HTTP server has no listing of its own: an index file stands in for it, else WebDAV. The index is one UTF-8 text file in
the root, named by the setting ``index``. Make it with::

    find . -type f -printf '%P\t%s\n' > index.txt

One object per line: its path relative to the root, then, optionally, its size in bytes.

* With a tab in the line, the last tab ends the path and a decimal size follows; an empty size means unknown.
* Without a tab, a line that ends in spaces and decimal digits has that size; any other line is all path. A path
  that itself ends in a space and digits therefore needs a tab and a size.
* Empty lines and lines that begin with ``#`` are skipped; write ``./#name`` for a path that begins with ``#``.
* A leading ``./`` or ``/`` is dropped. The index does not list itself.
* Paths are written as they are, not percent-encoded; they are encoded when requested.

An index holds no versions: a file that changes without changing its size is not noticed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from queue import Empty, Queue
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, InvalidPathError

from prefeed.errors import AccessDeniedError, CannotListError, ObjectNotFoundError, SourceError
from prefeed.sources.answers import version_without_etag
from prefeed.sources.listing import LeftOut
from prefeed.sources.plain_s3 import PlainBucket, has_dots, is_odd
from prefeed.sources.store_errors import NO_LENGTH, cause_of, refused_name, translate
from prefeed.types import ObjectInfo

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

    from prefeed.sources.listing_relay import RelayedListing

_LIST_BATCH: Final = 1000
HTTP_INDEX: Final = "index.txt"
"""Name of the file that lists the objects of a plain HTTP server."""

_LOOK_UP_THREADS: Final = 16
_MOST_LOOKED_UP: Final = 4
"""Empty objects of one directory, in one page, that are looked up one by one; for more the directory is listed once."""

_INDEX_CHUNK_BYTES: Final = 4 * 1024**2


def version_of(meta: ObjectMeta) -> str:
    """Return the etag, else time and size, else ``""``: obstore gives 1970 where a server tells no time."""
    etag = meta["e_tag"]
    if etag:
        return etag
    return version_without_etag(modified_of(meta), meta["size"])


def modified_of(meta: ObjectMeta) -> int:
    """Return when the object was last changed, in seconds since 1970; 0 when the server does not say."""
    return int(meta["last_modified"].timestamp())


def list_store(store: ObjectStore, prefix: str = "", after: str = "") -> Iterator[list[ObjectInfo]]:
    """Yield the objects that follow the key ``after``, in batches; errors of obstore pass through."""
    for batch in obstore.list(store, prefix or None, offset=after or None, chunk_size=_LIST_BATCH):
        yield [info_of(meta, meta["path"]) for meta in batch]


def level_of_store(store: ObjectStore, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
    """Return the objects right below a prefix, and the prefixes there; obstore's own errors pass through.

    The marker of the prefix itself is listed by the name of the prefix.
    """
    found = obstore.list_with_delimiter(store, prefix or None)
    return [info_of(meta, meta["path"]) for meta in found["objects"]], list(found["common_prefixes"])


class StoreListing:
    """Lists a store without the markers of directories: ``train/``, zero bytes, which the native client lists as ``train``.

    If the native client refuses a key, the requests from there on are made by a ``PlainBucket``, or through a ``RelayedListing``.
    **Threads**: any.
    """

    def __init__(
        self, store: ObjectStore, open_plain: Callable[[], PlainBucket] | None, relayed: RelayedListing | None = None
    ) -> None:
        """List a store; ``open_plain`` is None if it is not S3, and ``relayed`` if it is."""
        self._store = store
        self._open_plain = open_plain
        self._relayed = relayed
        self._empty: dict[str, set[str]] = {}

    def objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield all objects, in any order, many prefixes at a time where that is quicker."""
        return walk_prefixes(self.pages, self.level)

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """Yield the objects below a prefix, page after page; an object may come twice if the store does not list in order."""
        if prefix and is_odd(prefix) and self._open_plain is not None:
            yield from self._open_plain().pages(prefix)
            return
        last: str | None = ""
        num_listed, seen = 0, frozenset[str]()  # of the last page
        try:
            for page in list_store(self._store, prefix):
                objects = [_with_slash(info, prefix) for info in self._without_markers(page, prefix)]
                yield objects
                last = page[-1].path if last is not None and page[0].path >= last else None
                num_listed, seen = num_listed + len(page), frozenset(info.path for info in objects)
        except InvalidPathError as err:
            plain: PlainBucket | RelayedListing | None = self._plain_after(err)
        else:
            plain = None if last is None else self._plain_if_cut(num_listed)
        for page in plain.pages(prefix, after=last or "") if plain is not None else ():
            # After the marker "a/", which is listed as "a", the plain client begins with what is between the two, such as "a-b".
            # A store that has no listings from a key on begins anew.
            yield [info for info in page if info.path not in seen and (not last or info.path > last)]

    def _plain_if_cut(self, num_listed: int) -> PlainBucket | None:
        """Return a client for the rest if the last page was full or empty, because the native client takes what is no page for the end."""
        if self._open_plain is not None and num_listed % _LIST_BATCH == 0:
            with suppress(AccessDeniedError):  # the keys are not known here
                return self._open_plain()
        return None

    def level(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return the objects right below a prefix, and the prefixes there."""
        objects, prefixes = self.level_with_marker(prefix)
        return [_with_slash(info, prefix) for info in objects if info.path != prefix or info.size_bytes], prefixes

    def level_with_marker(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return the same, and the marker of the prefix itself, if it has one, by the name of the prefix."""
        if prefix and is_odd(prefix) and self._open_plain is not None:
            return self._open_plain().level(prefix)
        try:
            found = level_of_store(self._store, prefix)
        except InvalidPathError as err:
            return self._plain_after(err).level(prefix)
        plain = self._plain_if_cut(len(found[0]) + len(found[1])) if found != ([], []) else None
        return found if plain is None else plain.level(prefix)

    def _plain_after(self, err: InvalidPathError) -> PlainBucket | RelayedListing:
        """Return what lists a key that the native client refuses, as its error says."""
        if self._relayed is not None:
            return self._relayed
        if self._open_plain is None:
            try:
                raise err
            finally:
                del err  # its traceback refers to this frame
        try:
            return self._open_plain()
        except AccessDeniedError as denied:
            text, details = f"{denied.message} ({refused_name(err)})", denied.details
        raise AccessDeniedError(text, **details) from err

    def _without_markers(self, page: list[ObjectInfo], prefix: str) -> list[ObjectInfo]:
        """Return the objects of a page. Each empty one is looked up: only the store tells ``a`` and ``a/`` apart."""
        below: dict[str, list[str]] = {}
        for info in page:
            if not info.size_bytes and info.path not in ("", prefix):
                below.setdefault(info.path.rpartition("/")[0], []).append(info.path)
        kept: set[str] = set()
        if below:
            with ThreadPoolExecutor(min(len(below), _LOOK_UP_THREADS), thread_name_prefix="prefeed-head") as pool:
                kept.update(*pool.map(self._objects_among, below.keys(), below.values()))
        return [info for info in page if info.size_bytes or info.path in kept]

    def _objects_among(self, parent: str, paths: list[str]) -> Iterable[str]:
        """Return which of these paths are empty objects, by one request each, or by a listing of the directory."""
        if parent not in self._empty and len(paths) <= _MOST_LOOKED_UP:
            with suppress(BaseError):  # HEAD may be refused
                return [path for path in paths if self._is_empty_object(path)]
        if parent not in self._empty:
            self._empty[parent] = {info.path for info in self.level(parent)[0] if not info.size_bytes}
        return self._empty[parent].intersection(paths)

    def _is_empty_object(self, path: str) -> bool:
        try:
            return not obstore.head(self._store, path)["size"]
        except FileNotFoundError:
            return False


def _with_slash(info: ObjectInfo, prefix: str) -> ObjectInfo:
    """Return the object with its key ``prefix/`` if the client listed that key as ``prefix``."""
    return replace(info, path=f"{prefix}/") if prefix and info.path == prefix else info


def info_of(meta: ObjectMeta, path: str) -> ObjectInfo:
    """Return what the store says of the object at a path."""
    return ObjectInfo(path=path, size_bytes=meta["size"], version=version_of(meta), modified_seconds=modified_of(meta))


def level_of(batches: Iterable[Sequence[ObjectInfo]], path: str) -> tuple[list[ObjectInfo], list[str]]:
    """Return what lies right below a directory, of a listing of everything: objects, and paths of directories."""
    start = f"{path.rstrip('/')}/" if path else ""
    objects: list[ObjectInfo] = []
    directories: set[str] = set()
    for info in chain.from_iterable(batches):
        if info.path.startswith(start):
            name, slash, _ = info.path[len(start) :].partition("/")
            if slash and name:
                directories.add(start + name)
            else:
                objects.append(info)
    return objects, sorted(directories)


def list_http(
    store: ObjectStore,
    url: str,
    index: str,
    *,
    timeout: float,
    fetch_plainly: Callable[[str], bytes],
    left_out: LeftOut,
) -> Iterator[list[ObjectInfo]]:
    """Yield what the index file lists, or else what the server answers to WebDAV's PROPFIND.

    Args:
        store: Client for the whole server, not for the root alone: paths of a WebDAV listing are the server's.
        url: Canonical URL of the root.
        index: Name of the index file in it.
        timeout: Seconds one request may take, for messages.
        fetch_plainly: Returns the whole file of that name in the root, sent without a length.
        left_out: Counts lines of the index that are no objects.

    Raises:
        CannotListError: Neither is there; the message says how to make an index.
    """
    root = unquote(urlsplit(url).path).strip("/")
    found = _open_index(store, f"{root}/{index}" if root else index, lambda: fetch_plainly(index))
    if found is not None:
        yield from parse_index(found, name=f"{url}/{index}", left_out=left_out)
        return
    try:
        for batch in list_store(store, root):
            yield [replace(info, path=info.path.removeprefix(root).lstrip("/")) for info in batch]
    except Exception as err:  # noqa: BLE001 - the table of errors decides
        translated = translate(err, url, timeout=timeout)
        if not isinstance(translated, SourceError) or translated.retryable or isinstance(translated, AccessDeniedError):
            try:
                raise translated from cause_of(err)
            finally:
                del translated  # its traceback refers to this frame
        raise CannotListError(
            f"{url} cannot be listed: it has no {index}, and the server has no WebDAV. Make an index in the served "
            f"directory with  find . -type f -printf '%P\\t%s\\n' > {index}",
            url=url,
            index=index,
        ) from cause_of(err)


def list_index(url: str, index: str, fetch: Callable[[str], bytes], *, left_out: LeftOut) -> Iterator[list[ObjectInfo]]:
    """Yield the objects of the index file of a root whose URL has a query.

    Args:
        url: Canonical URL of the root.
        index: Name of the index file in it.
        fetch: Returns a file of that name, requested with the query.
        left_out: Gets what cannot be a sample.

    Raises:
        CannotListError: The server does not give the file for this query.
    """
    try:
        found = fetch(index)
    except (ObjectNotFoundError, AccessDeniedError) as err:
        raise CannotListError(
            f"{url} cannot be listed: the server gives no {index} for the query of the URL ({err.message}). "
            "Open an object whose URL is signed with prefeed.open(URL), and warm it with `prefeed warm URL`",
            url=url,
            index=index,
        ) from err
    yield from parse_index([found], name=f"{url}/{index}", left_out=left_out)


def _open_index(store: ObjectStore, index: str, fetch_plainly: Callable[[], bytes]) -> Iterable[bytes] | None:
    try:
        return obstore.get(store, index).stream(min_chunk_size=_INDEX_CHUNK_BYTES)
    except FileNotFoundError:
        return None
    except Exception as err:
        if NO_LENGTH not in str(err):
            raise
        return [fetch_plainly()]


_SPACED = re.compile(r"(.*[^ ]) +([0-9]+)")


def parse_index(chunks: Iterable[bytes], *, name: str, left_out: LeftOut) -> Iterator[list[ObjectInfo]]:
    """Yield the objects of an index file given in pieces cut anywhere; see the module.

    Args:
        chunks: The file's bytes.
        name: URL of the index, for messages.
        left_out: Counts lines that are no path and size, and paths that URLs cannot have.
    """
    rest = b""
    number = 0
    for chunk in chunks:
        lines = (rest + bytes(chunk)).split(b"\n")
        rest = lines.pop()
        yield from _parse_lines(lines, number, name, left_out)
        number += len(lines)
    yield from _parse_lines([rest], number, name, left_out)


def _parse_lines(lines: list[bytes], number: int, name: str, left_out: LeftOut) -> Iterator[list[ObjectInfo]]:
    objects = []
    for at, line in enumerate(lines, number + 1):
        try:
            info = parse_line(line, at, name)
        except CannotListError as err:
            left_out.add(line.decode("utf-8", "surrogateescape"), err.message)
            continue
        if info is not None and has_dots(info.path):
            left_out.add(info.path, "a URL cannot have '.' or '..' between slashes")
        elif info is not None and "\0" in info.path:
            left_out.add(info.path, "has a zero byte in it")
        elif info is not None:
            objects.append(info)
    if objects:
        yield objects


def parse_line(line: bytes, number: int, name: str) -> ObjectInfo | None:
    """Return the object that a line of an index lists; None for a comment, an empty line or the index itself."""
    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
    if not text.strip() or text.startswith("#"):
        return None
    path, tab, size = text.rpartition("\t")
    if not tab:
        spaced = _SPACED.fullmatch(text)
        path, size = (spaced[1], spaced[2]) if spaced else (text, "")
    if size and not (size.isascii() and size.isdigit()):
        raise CannotListError(
            f"line {number} of {name}: {size[:40]!r} after the tab is not a size in bytes", line=number, index=name
        )
    path = path.removeprefix("./").lstrip("/")
    if not path or path == name.rpartition("/")[2]:
        return None
    return ObjectInfo(path=path, size_bytes=int(size) if size else -1, version="")


THREADS: Final = 32
_LEAST_MEAN: Final = 100
"""Objects a prefix, on average over the first pages, below which pages are listed one after the other: a tenth of a page.

With it, prefix by prefix is at most ten times the requests, 32 at a time: a third of the time.
"""

_LOOK_AHEAD_PAGES: Final = 2
_DRAIN_SECONDS: Final = 0.05

ListPages = Callable[[str], Iterator[list[ObjectInfo]]]
"""Yields all objects below a prefix, ``""`` the root, page after page; a page is one request."""

ListLevel = Callable[[str], tuple[list[ObjectInfo], list[str]]]
"""Returns the objects right below a prefix, and the prefixes there, without a slash at their ends."""


def walk_prefixes(
    list_pages: ListPages, list_level: ListLevel, *, threads: int = THREADS
) -> Iterator[list[ObjectInfo]]:
    """Yield every object below the root once, in batches, in any order.

    Of a batch that waits to be taken the others wait too: memory is that of some pages for each thread, and of the names of
    the prefixes. The first error of any request is raised.

    Args:
        list_pages: Asks for pages.
        list_level: Asks for one level.
        threads: Most requests at a time.
    """
    return _StoreWalk(list_pages, list_level, threads).batches()


class _StoreWalk:
    """One listing.

    **Threads**: the pool's list, the caller's takes.
    """

    def __init__(self, list_pages: ListPages, list_level: ListLevel, threads: int) -> None:
        self._list_pages = list_pages
        self._list_level = list_level
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prefeed-list")
        self._found: Queue[list[ObjectInfo] | BaseException | None] = Queue(maxsize=2 * threads)
        self._lock = threading.Lock()
        self._num_unfinished = 0
        self._num_running = 0
        self._is_stopped = False

    def batches(self) -> Iterator[list[ObjectInfo]]:
        self._submit("")
        try:
            while (found := self._found.get()) is not None:
                if isinstance(found, BaseException):
                    try:
                        raise found
                    finally:
                        del found  # its traceback refers to this frame
                yield found
        finally:
            self._is_stopped = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            while self._num_running:  # what they found is taken, and thrown away
                try:
                    self._found.get(timeout=_DRAIN_SECONDS)
                except Empty:
                    continue

    def _submit(self, prefix: str) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._num_unfinished += 1
            self._pool.submit(self._run, prefix)

    def _run(self, prefix: str) -> None:
        with self._lock:
            self._num_running += 1
        try:
            if not self._is_stopped:
                self._list(prefix)
        except BaseException as err:  # noqa: BLE001 - it is raised to the caller
            self._found.put(err)
        finally:
            with self._lock:
                self._num_unfinished -= 1
                is_last = self._num_unfinished == 0
            if is_last:
                self._found.put(None)
            with self._lock:
                self._num_running -= 1

    def _list(self, prefix: str) -> None:
        pages = self._list_pages(prefix)
        first = [page for _, page in zip(range(_LOOK_AHEAD_PAGES), pages, strict=False)]
        if len(first) == _LOOK_AHEAD_PAGES and _is_worth_it(first, prefix):
            objects, prefixes = self._list_level(prefix)
            self._give(objects)
            for below in prefixes:
                self._submit(below)
            return
        for page in chain(first, pages):
            if self._is_stopped:
                return
            self._give(page)

    def _give(self, objects: list[ObjectInfo]) -> None:
        if objects:
            self._found.put(objects)


def _is_worth_it(pages: list[list[ObjectInfo]], prefix: str) -> bool:
    """Return whether these objects lie below few prefixes."""
    start = len(prefix) + 1 if prefix else 0
    num_objects, below = 0, set()
    for page in pages:
        for info in page:
            name, slash, _ = info.path[start:].partition("/")
            below.add(name + slash)
        num_objects += len(page)
    return num_objects >= _LEAST_MEAN * len(below)
