"""Lists, reads, writes and removes objects in an object store, and reads web servers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import obstore

from prefeed.config import Config
from prefeed.errors import JobError, ObjectNotFoundError, TruncatedBodyError
from prefeed.prefetching import BackgroundGenerator
from prefeed.sources.objectstore import ObjectStoreSource
from prefeed.sources.plain_s3 import is_odd
from prefeed.sources.protocol import RangeSource
from prefeed.sources.store_errors import cause_of
from prefeed.sources.store_listing import modified_of, version_of
from prefeed.transfer.engine import Body
from prefeed.transfer.entries import Entry, is_same_in_store, md5_of, why_unsafe
from prefeed.transfer.ordering import check_order, sort_on_disk
from prefeed.transfer.patterns import Rules
from prefeed.transfer.rooted_dir import safe_parts
from prefeed.types import Buffer

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult
    from obstore.store import ObjectStore

WRITABLE: Final = ("s3://", "gs://", "az://")

_PAGE_OBJECTS: Final = 1000
_HEAD_THREADS: Final = 16
_PART_BYTES: Final = 16 * 1024**2
_NANOSECONDS: Final = 10**9

_UNADDRESSABLE: Final = "no request that names it can be made here; remove it with the tools of the store"

T = TypeVar("T")


class HttpPlace:
    """A web server, which is only readable and lists in no order. See ``places.Root``."""

    def __init__(self, root: str, config: Config) -> None:
        self.url = root
        self.has_times = False
        self._config = config
        self._source = ObjectStoreSource(root, config)

    def list_in_order(self, rules: Rules) -> Iterator[Entry]:
        """See ``Root.list_in_order``. Listings of more than 100,000 objects are sorted on disk, in the home."""
        infos = (info for batch in self._source.list_objects() for info in batch if rules.takes(info.path))
        self._config.home.mkdir(parents=True, exist_ok=True)
        return sort_on_disk(map(Entry.of, infos), self._config.home)

    def source(self) -> RangeSource:
        """See ``Root.source``."""
        return self._source

    def describe_left_out(self, entries: Iterable[Entry]) -> str:
        """See ``Root.describe_left_out``. An unreadable line of the index may be about any entry."""
        found = self._source.left_out
        return found.described() if found.count else ""

    def remove_unchanged(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
        """Raise ``JobError``, because a web server is not writable."""
        raise JobError(f"nothing can be removed from {self.url}: it is a web server")

    def close(self) -> None:
        """See ``Root.close``."""
        self._source.close()


class StorePlace:
    """A prefix of an object store. See ``places.Root`` and ``places.Target``."""

    def __init__(self, root: str, config: Config) -> None:
        self.url = root
        self.has_times = True
        self._config = config
        self._source = ObjectStoreSource(root, config)
        self._lock = threading.Lock()
        self._client: ObjectStore | None = None

    def list_in_order(self, rules: Rules) -> Iterator[Entry]:
        """See ``Root.list_in_order``."""
        infos = (info for batch in self._source.list_in_order() for info in batch)
        for one in check_order(map(Entry.of, infos), self.url):
            if rules.is_past_end(one.path):
                return
            if rules.takes(one.path):
                yield one

    def list_target(self, rules: Rules) -> Iterator[Entry]:
        """See ``Target.list_target``."""
        return self.list_in_order(rules)

    def list_below(self, path: str) -> Iterator[Entry]:
        """List the object of this path and those below it, in key order."""
        found = self.head(path) if path else None
        if found is not None:
            yield found
        yield from self._list(path)

    def source(self) -> RangeSource:
        """See ``Root.source``."""
        return self._source

    def describe_left_out(self, entries: Iterable[Entry]) -> str:
        """See ``Root.describe_left_out``. Each entry is requested, because the native client mistakes a truncated page for the last one."""
        rest = iter(entries)
        with ThreadPoolExecutor(_HEAD_THREADS, thread_name_prefix="prefeed-head") as pool:
            while batch := [one.path for one in islice(rest, _PAGE_OBJECTS)]:
                for path, is_there in zip(batch, pool.map(self._exists, batch), strict=True):
                    if is_there:
                        return repr(path)
        return ""

    def _exists(self, path: str) -> bool:
        try:
            self._source.info(path)
        except ObjectNotFoundError:
            return False
        return True

    def why_unwritable(self, path: str) -> str | None:
        """See ``Target.why_unwritable``."""
        return why_unsafe(path) or ("has a control character in it" if is_odd(path) else None)

    def is_same(self, source: Entry, found: Entry) -> bool:
        """See ``Target.is_same``."""
        return is_same_in_store(source, found)

    def open_sink(self, origin: RangeSource, *, perms: bool, durable: bool = False) -> StoreSink:
        """See ``Target.open_sink``. Concurrent syncs are allowed, because each object is stored whole. Stores keep no modes."""
        return StoreSink(self)

    def remove_unchanged(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
        """See ``Root.remove_unchanged``."""
        rest = iter(entries)
        with ThreadPoolExecutor(_HEAD_THREADS, thread_name_prefix="prefeed-head") as pool:
            while batch := list(islice(rest, _PAGE_OBJECTS)):
                odd = {one.path for one in batch if is_odd(one.path)}
                yield from ((one, _UNADDRESSABLE) for one in batch if one.path in odd)
                batch = [one for one in batch if one.path not in odd]
                found = list(pool.map(self.head, (one.path for one in batch)))
                gone = [one.path for one, now in zip(batch, found, strict=True) if now is not None and now == one]
                self.remove(gone)
                for one, now in zip(batch, found, strict=True):
                    yield one, "" if now is None or now == one else "has changed since it was listed"

    def put_file(self, path: str, file: Path) -> None:
        """Upload a file, in several parts if it is large."""
        self.request(self.locate(path), lambda client: obstore.put(client, path, file))

    def remove(self, paths: list[str]) -> None:
        """Delete objects by path. Missing objects are ignored."""
        if paths:
            self.request(self.url, lambda client: obstore.delete(client, paths))

    def head(self, path: str) -> Entry | None:
        """Request the current metadata of an object. Return None if it does not exist."""
        try:
            meta = self.request(self._source.locate(path), lambda client: obstore.head(client, path))
        except ObjectNotFoundError:
            return None
        return _entry(meta, path)

    def read(self, path: str) -> Iterator[Buffer]:
        """Read an object in parts."""
        size = self.request(self._source.locate(path), lambda client: obstore.head(client, path))["size"]
        for start in range(0, size, _PART_BYTES):
            yield self._source.fetch_range(path, start, min(_PART_BYTES, size - start)).data

    def request(self, where: str, act: Callable[[ObjectStore], T]) -> T:
        """Run a request and return its result.

        Raises:
            SourceError: The store reported an error or did not respond.
        """
        try:
            return act(self._open_client())
        except BaseException as err:  # noqa: BLE001 - the table of errors decides
            raise self._source.translated(err, where) from cause_of(err)

    def locate(self, path: str) -> str:
        """Return the full URL of an object."""
        return self._source.locate(path)

    def close(self) -> None:
        """See ``Root.close``."""
        self._client = None
        self._source.close()

    def _open_client(self) -> ObjectStore:
        with self._lock:
            if self._client is None:
                self._client = self._source.open_for_writing()
            return self._client

    def _list(self, prefix: str = "") -> Iterator[Entry]:
        try:
            for batch in obstore.list(self._open_client(), prefix or None, chunk_size=_PAGE_OBJECTS):
                for meta in batch:
                    yield _entry(meta, meta["path"])
        except GeneratorExit:
            raise
        except BaseException as err:  # noqa: BLE001 - the table of errors decides
            raise self._source.translated(err, self.url) from cause_of(err)


def _entry(meta: ObjectMeta, path: str) -> Entry:
    return Entry(path, meta["size"], modified_of(meta) * _NANOSECONDS, version_of(meta))


class StoreSink:
    """Uploads objects and verifies them by digest or size. See ``places.TargetSink``."""

    num_same: int
    bytes_same: int

    folds_case = False

    def __init__(self, place: StorePlace) -> None:
        self.num_same = self.bytes_same = 0
        self._place = place
        self._compared: set[str] = set()
        self._lock = threading.Lock()
        self._has_md5_etags = True

    def expect_same(self, path: str) -> None:
        """See ``TargetSink.expect_same``."""
        self._compared.add(path)

    def write(self, entry: Entry, body: Body) -> None:
        """See ``Sink.write``. Large objects are uploaded in parts and appear after the last one."""
        path = entry.path
        safe_parts(path)
        if path in self._compared and self._has_same_bytes(path, body):
            with self._lock:
                self.num_same += 1
                self.bytes_same += body.size_bytes
            return
        chunks = _HashedChunks(body)
        try:
            put = self._put(path, chunks)
        except Exception:
            error, chunks.error = chunks.error, None
            if error is None:
                raise
            try:
                raise error from None  # the client's own error is less specific
            finally:
                del error  # its traceback refers to this frame
        self._verify(path, body, chunks, put["e_tag"] or "")

    def _put(self, path: str, chunks: _HashedChunks) -> PutResult:
        where, whole = self._place.locate(path), chunks.whole()
        if whole is not None:
            return self._place.request(where, lambda client: obstore.put(client, path, whole))
        # The client calls the iterator in its own thread, where its other clients cannot be used.
        with BackgroundGenerator(chunks, 1) as ahead:
            return self._place.request(where, lambda client: obstore.put(client, path, ahead, chunk_size=_PART_BYTES))

    def make_directory(self, path: str) -> None:
        """Do nothing: stores have no directories."""

    def make_durable(self) -> None:
        """Do nothing: a store that has answered a put keeps the object."""

    def close(self) -> None:
        """Do nothing, because uploads leave no unfinished objects."""

    def _verify(self, path: str, body: Body, chunks: _HashedChunks, etag: str) -> None:
        """Check that the store has the bytes of this body.

        Raises:
            TruncatedBodyError: The store has other bytes. Another try may succeed.
        """
        told = md5_of(etag)
        if told and told == chunks.md5.hexdigest():
            return
        if told and self._has_md5_etags:
            if not self._has_same_bytes(path, body):
                raise TruncatedBodyError(f"{self._place.locate(path)} has other bytes than were sent", path=path)
            self._has_md5_etags = False  # the bytes are right, so these etags are no digests, as in encrypted stores
            return
        found = self._place.head(path)
        if found is None or found.size_bytes != body.size_bytes:
            raise TruncatedBodyError(
                f"{self._place.locate(path)}: {body.size_bytes} bytes were sent, and the store has "
                f"{'nothing' if found is None else found.size_bytes}",
                path=path,
            )

    def _has_same_bytes(self, path: str, body: Body) -> bool:
        """Return whether the stored object has the same bytes."""
        found = self._place.head(path)
        if found is None or found.size_bytes != body.size_bytes:
            return False
        return _digest(self._place.read(path)) == _digest(body.chunks())


class _HashedChunks:
    """Chunks of a body for an upload, with their digest and the error that ended them."""

    def __init__(self, body: Body) -> None:
        self.md5 = hashlib.md5(usedforsecurity=False)
        self.error: BaseException | None = None
        self._body = body

    def whole(self) -> Buffer | None:
        """Return all bytes of an object that fits into one request; None for larger ones."""
        if self._body.size_bytes > _PART_BYTES:
            return None
        data = b"".join(self._body.chunks())
        self.md5.update(data)
        if len(data) != self._body.size_bytes:
            raise TruncatedBodyError(f"received {len(data)} of {self._body.size_bytes} bytes")
        return data

    def __iter__(self) -> Iterator[Buffer]:
        """Yield the chunks."""
        try:
            for chunk in self._body.chunks():
                self.md5.update(chunk)
                yield bytes(chunk)
        except BaseException as err:
            self.error = err
            raise


def _digest(chunks: Iterable[Buffer]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()
