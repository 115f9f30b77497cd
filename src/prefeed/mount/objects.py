"""Reads the objects of a manifest for many threads. All parts of an object have the listed version.

part of an object ─→ tier ─hit→ bytes
                       │ miss
                       ↓
        up to 16 MiB: node server ─→ the whole object, which it caches
                       │ no server, no space
                       ↓
                     origin: the whole object, or only this part of a larger one

Larger objects are read in blocks (``large``), or from the origin if there is no server or no version. Parts of unversioned objects of any size
are read in the same way, because the tier may hold any version of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from xxhash import xxh3_64_hexdigest

from prefeed.client.blocks import blocks_of
from prefeed.client.consumer import Consumer
from prefeed.client.dataset import NodeDataset, open_manifest_dataset, reopen_on
from prefeed.client.node import NodeClient, access_now, open_as_made
from prefeed.client.reader import ObjectReader
from prefeed.config import Config
from prefeed.core.requests import Again
from prefeed.errors import (
    AccessDeniedError,
    CredentialsError,
    ObjectChangedError,
    ObjectNotFoundError,
    PassedThroughError,
    PrefeedError,
    SourceError,
    TruncatedBodyError,
)
from prefeed.mount.ahead import MountReadAhead
from prefeed.mount.large import LargeObjects
from prefeed.mount.pieces import PieceReader
from prefeed.mount.versions import FirstVersions
from prefeed.sources.answers import patiently, require_listed
from prefeed.sources.blocks import is_version
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.sources.manifest import Manifest, version_hash
from prefeed.sources.protocol import RangeSource, Source
from prefeed.types import Buffer, FetchedObject

_log = logging.getLogger("prefeed")

WHOLE_BYTES: Final = 16 * 1024 * 1024
"""Objects up to this size are fetched whole by the node server, larger ones in blocks."""

_RECENT_BYTES: Final = 64 * 1024 * 1024


def _do_nothing() -> None:
    pass


class MountedObjects:
    """Reads the objects of a manifest.

    **Ownership.** The creator closes it. **Threads and processes.** Any thread of the process that created it.
    **Blocking.** A hit never waits. Other reads wait for the server or the origin.

    Attributes:
        waits: Called by a thread before it waits.
        large: Reader of objects that are too large to be fetched whole.
    """

    def __init__(self, url: str, manifest: Manifest, config: Config, first_versions: FirstVersions) -> None:
        """Read the objects of a manifest, through the node server if there is one.

        Args:
            url: Root of the manifest, which may include credentials.
            manifest: Manifest of the mount.
            config: Settings.
            first_versions: Versions of unversioned objects.
        """
        self.manifest = manifest
        self.config = config
        self.waits: Callable[[], None] = _do_nothing
        self._url = url
        self._sizes = memoryview(manifest.sizes.data).cast("B").cast("Q")
        self._versions = memoryview(manifest.version_hashes.data).cast("B").cast("Q")
        self._max_whole_bytes = min(WHOLE_BYTES, config.limits.max_object_bytes)
        try:
            self._made_with = access_now(url, config)
        except CredentialsError:
            self._made_with = None  # reported by the first request to the store
        self._lock = threading.Lock()
        self._idle: list[ObjectReader] = []
        self._source: Source | None = None
        self._recent: OrderedDict[int, Buffer] = OrderedDict()
        self._recent_bytes = 0
        self._pieces = PieceReader(self._fetch_part)
        self._first_versions = first_versions
        self.large = LargeObjects(
            url, manifest, blocks_of(config),
            waits=lambda: self.waits(), version_of=self._version_of, whole_bytes=self._max_whole_bytes,
        )  # fmt: skip
        self._dataset: NodeDataset | None = None
        self._read_ahead = MountReadAhead(manifest.num_objects, self._open_consumer)
        self._again = Again()
        self._search: threading.Thread | None = None
        self._is_closed = False
        if config.enabled:
            self._find_server()

    def size(self, object_id: int) -> int | None:
        """Return an object's size in bytes; None if it is not listed."""
        size = self._sizes[object_id]
        return None if size == UNKNOWN_SIZE else size

    def is_at_most(self, object_id: int, size_bytes: int) -> bool:
        """Return whether an object exists and its listed size is at most ``size_bytes``."""
        return 0 <= object_id < len(self._sizes) and self._sizes[object_id] <= size_bytes

    def read_at_once(self, object_id: int, offset: int, size_bytes: int, task: int) -> Buffer | None:
        """Read a part of an object from the tier without waiting. Return None if that is not possible."""
        dataset = self._dataset
        if dataset is None or not 0 <= object_id < len(self._sizes):
            return None
        size = self._sizes[object_id]
        if offset >= size or size == UNKNOWN_SIZE:
            return None
        if not self._versions[object_id] and (offset or size_bytes < size):
            return None  # another part may have been read from another version
        reader = self._reader(dataset)
        try:
            data = reader.try_part(object_id, offset, min(size_bytes, size - offset), object_bytes=size)
        finally:
            self._idle.append(reader)
        if data is not None and task and not offset and size <= self._max_whole_bytes:
            self._read_ahead.record_read(task, object_id, is_hit=True)
        return data

    def read(self, object_id: int, offset: int, size_bytes: int, *, task: int = 0) -> Buffer:
        """Read a part of an object. The result is shorter at its end.

        Args:
            object_id: The object.
            offset: First byte.
            size_bytes: Number of bytes.
            task: Id of the reading thread, for predictions; 0 if unknown.

        Raises:
            ObjectChangedError: The origin now has another version.
            SourceError: The origin's error.
        """
        size = self.size(object_id)
        if size is not None:
            if offset >= size:
                return b""
            size_bytes = min(size_bytes, size - offset)
        data = self.read_at_once(object_id, offset, size_bytes, task)
        if data is not None:
            return data
        if size is not None and size <= self._max_whole_bytes and not self._versions[object_id] and size_bytes < size:
            return self._read_first_version(object_id, offset, size_bytes, task)
        dataset = self._dataset
        if dataset is None:
            self.waits()
            return self._read_from_origin(object_id, offset, size_bytes)
        is_large = size is not None and size > self._max_whole_bytes
        if task and not offset and not is_large:
            self._read_ahead.record_read(task, object_id, is_hit=False)
        if is_large:
            data = self.large.read(object_id, offset, size_bytes, task=task)
            if data is not None:
                return data
        self.waits()
        reader = self._reader(dataset)
        try:
            return self._read_miss(reader, object_id, offset, size_bytes)
        finally:
            self._idle.append(reader)

    def close(self) -> None:
        """Report the reads, and close all connections."""
        with self._lock:
            self._is_closed = True
        if self._search is not None:
            self._search.join()
        self._read_ahead.close()
        self._pieces.close()
        self.large.close()
        while self._idle:
            self._idle.pop().close()
        if self._source is not None:
            self._source.close()

    def _reader(self, dataset: NodeDataset) -> ObjectReader:
        """Take an idle reader, or create one."""
        try:
            return self._idle.pop()
        except IndexError:
            return ObjectReader(dataset)

    # ------------------------------------------------------------ not in the tier

    def _read_first_version(self, object_id: int, offset: int, size_bytes: int, task: int) -> Buffer:
        """Read a part of an unversioned object. All parts come from the version that was read first."""
        recent = self._recent_value(object_id)
        if recent is None and self._dataset is not None:
            try:
                data = self.large.read(object_id, offset, size_bytes, task=task)
            except (ObjectChangedError, ObjectNotFoundError):
                raise
            except SourceError:
                data = None  # some servers support GET but not HEAD
            if data is not None:
                return data
        if recent is None:
            self.waits()
            recent = self._fetch(object_id, lambda source: source.fetch(self.manifest.path(object_id)), in_parts=True)
            self._keep_recent(object_id, recent)
        return memoryview(recent)[offset : offset + size_bytes]

    def _read_miss(self, reader: ObjectReader, object_id: int, offset: int, size_bytes: int) -> Buffer:
        size = self.size(object_id)
        if size is not None and size > self._max_whole_bytes:
            return self._read_from_origin(object_id, offset, size_bytes)
        recent = self._recent_value(object_id)
        if recent is None:
            recent = self._request_object(reader, object_id)
            if recent is None:
                self._start_search()
                return self._read_from_origin(object_id, offset, size_bytes)
            if size is not None and len(recent) != size:
                raise self._changed_error(object_id)
            if offset or size_bytes < len(recent):
                if not reader.last_key:
                    # The tier had no space for the object, which may differ from the version of earlier parts.
                    return self._read_from_origin(object_id, offset, size_bytes)
                self._keep_recent(object_id, recent)
        return memoryview(recent)[offset : offset + size_bytes]

    def _request_object(self, reader: ObjectReader, object_id: int) -> Buffer | None:
        """Request an object from the server. Return None if only the origin can provide it."""
        try:
            data = reader.try_read(object_id)
        except (AccessDeniedError, PassedThroughError):
            return None  # denied to the server; this process may have other rights
        finally:
            reader.report()
        return None if data is None else memoryview(data)  # type: ignore[arg-type]  # a manifest's reader lends nothing

    def _read_from_origin(self, object_id: int, offset: int, size_bytes: int) -> Buffer:
        size = self.size(object_id)
        if size is not None and size > self._max_whole_bytes:
            return self._pieces.read(object_id, offset, size_bytes, size)
        recent = self._recent_value(object_id)
        if recent is None:
            in_parts = bool(offset) or size is None or size_bytes < size
            recent = self._fetch(
                object_id, lambda source: source.fetch(self.manifest.path(object_id)), in_parts=in_parts
            )
            if offset or size_bytes < len(recent):
                self._keep_recent(object_id, recent)
        return memoryview(recent)[offset : offset + size_bytes]

    def _fetch_part(self, object_id: int, offset: int, size_bytes: int) -> Buffer:
        path = self.manifest.path(object_id)
        return self._fetch(
            object_id, lambda source: source.fetch_range(path, offset, size_bytes), is_part=True, in_parts=True
        )

    def _fetch(
        self, object_id: int, fetch: Callable[[RangeSource], FetchedObject], *, in_parts: bool, is_part: bool = False
    ) -> Buffer:
        """Fetch an object or a part. All parts of an object get the same version, even if none was listed."""
        source: RangeSource = self._open_source()  # type: ignore[assignment]
        listed = self.manifest.listed(object_id)

        def fetch_listed() -> Buffer:
            try:
                fetched = fetch(source)
                if not is_part:
                    require_listed(fetched, listed, lambda: source.locate(self.manifest.path(object_id)))
            except TruncatedBodyError as err:
                if is_part:
                    raise self._changed_error(object_id) from err
                raise
            version = fetched.version
            if in_parts and not is_part and not version:
                version = xxh3_64_hexdigest(fetched.data)
            expected = self._version_of(object_id, version) if in_parts else listed.version_hash
            is_other = expected and version and not is_version(version, expected)
            if is_other or (not is_part and memoryview(fetched.data).nbytes != listed.size_bytes >= 0):
                raise self._changed_error(object_id)
            return memoryview(fetched.data)

        return patiently(fetch_listed, deadline_seconds=min(self.config.limits.retry_seconds, 60.0))

    def _version_of(self, object_id: int, version: str) -> int:
        """Return the hash of the required version: the listed one, or the first that was read; 0 for any."""
        listed = self.manifest.version_hash(object_id)
        return listed or (self._first_versions.get_or_set(object_id, version_hash(version)) if version else 0)

    def _open_source(self) -> Source:
        with self._lock:
            if self._source is None:
                self._source = open_as_made(self._url, self.config, self._made_with)
            return self._source

    def _changed_error(self, object_id: int) -> ObjectChangedError:
        where = f"{self.manifest.url.rstrip('/')}/{self.manifest.path(object_id)}"
        return ObjectChangedError(
            f"{where} has changed since it was mounted; unmount and mount again to see it", url=where
        )

    # ------------------------------------------------------------ recent objects that the tier did not store

    def _recent_value(self, object_id: int) -> Buffer | None:
        with self._lock:
            found = self._recent.get(object_id)
            if found is not None:
                self._recent.move_to_end(object_id)
            return found

    def _keep_recent(self, object_id: int, data: Buffer) -> None:
        with self._lock:
            if object_id not in self._recent:
                self._recent[object_id] = data
                self._recent_bytes += len(data)
            while self._recent_bytes > _RECENT_BYTES:
                self._recent_bytes -= len(self._recent.popitem(last=False)[1])

    # ------------------------------------------------------------ the server

    def _start_search(self) -> None:
        """Search for a server, or start one, in a background thread, with limited frequency."""
        now = time.monotonic()
        with self._lock:
            is_busy = self._search is not None and self._search.is_alive()
            if is_busy or self._is_closed or not self.config.enabled or not self._again.is_due(now):
                return
            self._search = threading.Thread(target=self._find_server, name="prefeed-find-server", daemon=True)
            self._search.start()

    def _open_consumer(self) -> Consumer | None:
        """Connect to the running server for a plan. Return None without a server."""
        dataset = self._dataset
        if dataset is None:
            return None
        self.waits()
        try:
            node = NodeClient.connect(self.config, autostart=False)
        except (PrefeedError, OSError):
            return None
        try:
            return Consumer(node, reopen_on(node, dataset))
        except (PrefeedError, OSError):
            node.close()
            return None

    def _find_server(self) -> None:
        began = time.monotonic()
        try:
            with NodeClient.connect(self.config) as node:
                if self._dataset is None:
                    opened = open_manifest_dataset(node, self._url, self.manifest, self.config, self._made_with)
                    self._dataset = opened
            self._again.succeeded()
        except (PrefeedError, OSError) as err:
            self._again.failed(began=began, now=time.monotonic())
            _log.info("prefeed: no node server: %s", err)
