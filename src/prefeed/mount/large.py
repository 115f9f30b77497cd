"""Reads large objects of stores in blocks, which the node server fetches once for all mounts and ``prefeed.open``.

::

    part ─→ this reader's open object ─→ tier ─hit→ bytes
                                          │ miss
                       ┌──────────────────┴───────────────────┐
              a block, and the next ones              a few bytes of it, from the origin
              in the reader's order                            │ after many jumps
                                                               ↓
                                                      all blocks, in order
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from prefeed.client.block_file import BlockFile
from prefeed.client.blocks import BlockObject, Blocks
from prefeed.client.node import NodeClient
from prefeed.errors import ObjectChangedError, PrefeedError
from prefeed.sources.blocks import is_version
from prefeed.sources.manifest import Manifest
from prefeed.types import Buffer, Statistics
from prefeed.wire.endpoint import put_in_transit

_log = logging.getLogger("prefeed")

_MAX_OBJECTS: Final = 256
_MAX_READERS: Final = 64
"""Maximum number of readers per object."""

_BLOCKS_PER_JUMP: Final = 32
_MIN_JUMPS: Final = 64


def should_fetch_all(num_jumps: int, num_blocks: int) -> bool:
    """Return whether a reader has jumped so often that fetching the whole object pays. Pure.

    A jump takes as long as ten to eighty blocks that are fetched concurrently (ADR 38). With this limit a reader that jumps often waits little
    longer than if the object had been fetched at the beginning, and one that jumps rarely costs only the bytes that it reads.
    """
    return num_jumps >= max(_MIN_JUMPS, num_blocks // _BLOCKS_PER_JUMP)


def fits_in_tiers(counts: Statistics, size_bytes: int) -> bool:
    """Return whether the tiers have space for so many bytes without evicting. Pure."""
    memory = counts.budget_bytes - counts.resident_bytes - counts.transient_bytes
    disk = counts.disk.budget_bytes - counts.disk.bytes
    return max(memory, 0) + max(disk, 0) >= size_bytes


class _LargeObject:
    """State of an object that its readers share.

    Attributes:
        opened: The object in the listed version.
        readers: Readers by thread. If there are too many, the first one is closed.
        num_jumps: Number of jumps.
        is_fetching: True while the whole object is being fetched.
    """

    def __init__(self, opened: BlockObject) -> None:
        self.opened = opened
        self.readers: OrderedDict[int, BlockFile] = OrderedDict()
        self.num_jumps: int = 0
        self.is_fetching: bool = False


class LargeObjects:
    """Reads large objects of a manifest in blocks.

    Each thread of a program has a reader, and threads that read the same place share one. Read-ahead follows the order of a reader.

    **Ownership.** The creator closes it. **Threads and processes.** Any thread of the process that created it.
    **Blocking.** ``waits`` is called before each wait; in ``read``, after the reader's position was recorded.
    """

    def __init__(
        self,
        url: str,
        manifest: Manifest,
        blocks: Blocks,
        *,
        waits: Callable[[], None],
        version_of: Callable[[int, str], int],
        whole_bytes: int = 0,
    ) -> None:
        """Read the objects of a manifest.

        Args:
            url: Root of the manifest, which may include credentials.
            manifest: Manifest of the mount.
            blocks: Source of blocks.
            waits: Called by a thread before it waits.
            version_of: Receives object id and current version. Returns the hash of the required version; 0 for any.
            whole_bytes: Objects up to this size are fetched completely at the first read.
        """
        self._url = url
        self._version_of = version_of
        self._whole_bytes = whole_bytes
        self._manifest = manifest
        self._blocks = blocks
        self._waits = waits
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._objects: OrderedDict[int, _LargeObject] = OrderedDict()
        self._num_opens: Counter[int] = Counter()

    def record_open(self, object_id: int) -> None:
        """Record that a program opened an object."""
        with self._lock:
            self._num_opens[object_id] += 1

    def record_release(self, object_id: int) -> None:
        """Record that a program closed an object. After the last close, its read-ahead stops."""
        with self._lock:
            self._num_opens[object_id] -= 1  # below 0 if an earlier daemon opened it
            if self._num_opens[object_id] > 0:
                return
            del self._num_opens[object_id]
            large = self._objects.get(object_id)
            readers = [] if large is None else list(large.readers.values())
        for reader in readers:
            reader.rest()

    def read(self, object_id: int, offset: int, size_bytes: int, *, task: int) -> Buffer | None:
        """Read a part of an object. Return None if it cannot be read in blocks: it has no version, or there is no server.

        Args:
            object_id: The object.
            offset: First byte.
            size_bytes: Number of bytes, which must exist.
            task: Id of the reading thread.

        Raises:
            ObjectChangedError: The origin now has another version.
            SourceError: The origin's error.
        """
        large = self._objects.get(object_id)
        if large is None:
            self._waits()
            with self._opening:
                large = self._objects.get(object_id) or self._open(object_id)
        if self._blocks.asks_first(large.opened):
            self._waits()
        if not large.opened.is_split or self._blocks.tier(large.opened) is None:
            return None
        while True:
            reader = self._find_reader(large, task, offset)
            try:
                return reader.read_range(offset, size_bytes)
            except ValueError:
                if not reader.closed:  # another thread closed this reader
                    raise

    def close(self) -> None:
        """Close all readers."""
        while self._objects:
            self._end(self._objects.popitem()[1])
        self._blocks.close()

    def _open(self, object_id: int) -> _LargeObject:
        """Open an object and check that it has the listed version."""
        manifest = self._manifest
        info = self._blocks.settled_info(self._url, manifest.path(object_id))
        listed = manifest.listed(object_id)
        expected = self._version_of(object_id, info.version)
        is_other = expected and not is_version(info.version, expected)
        if is_other or info.size_bytes != listed.size_bytes:
            where = self._blocks.source(self._url).locate(info.path)
            raise ObjectChangedError(
                f"{where} has changed since it was mounted; unmount and mount again to see it", path=where
            )
        large = _LargeObject(self._blocks.opened(self._url, info))
        with self._lock:
            self._objects[object_id] = large
            closed = [other for other in self._objects if not self._num_opens[other] and other != object_id]
            ended = [self._objects.pop(other) for other in closed[: max(0, len(self._objects) - _MAX_OBJECTS)]]
        for other in ended:
            self._end(other)
        return large

    def _end(self, large: _LargeObject) -> None:
        while large.readers:
            large.readers.popitem()[1].close()

    def _find_reader(self, large: _LargeObject, task: int, offset: int) -> BlockFile:
        """Return the reader that this read continues, even one of another thread, or a new one."""
        ended = None
        with self._lock:
            for other in large.readers.values():
                if other.follows(offset) and not other.closed:
                    return other
            found = large.readers.pop(task, None)
            reader = None if found is None or found.closed else found
            if reader is None:
                reader = BlockFile(
                    large.opened,
                    self._blocks,
                    readahead=True if large.opened.info.size_bytes <= self._whole_bytes else None,
                    read_part=partial(self._read_jump, large),
                    waits=self._waits,
                    slack_bytes=large.opened.block_bytes // 2,
                )
                if len(large.readers) >= _MAX_READERS:
                    ended = large.readers.popitem(last=False)[1]
            large.readers[task] = reader
        if ended is not None:
            ended.close()
        return reader

    def _read_jump(self, large: _LargeObject, offset: int, size_bytes: int) -> Buffer:
        """Read a few bytes of a block: from the block if another reader will soon read it, otherwise from the origin.

        While the whole object is being fetched, the bytes also come from the origin, because the block would wait for earlier ones.
        """
        opened = large.opened
        index, start = divmod(offset, opened.block_bytes)
        with self._lock:
            comes = any(reader.expects(index) for reader in large.readers.values())
        if comes and opened.dataset is not None and start + size_bytes <= opened.block_bytes:
            return memoryview(self._blocks.read_block(opened, index, 0))[start : start + size_bytes]
        large.num_jumps += not large.is_fetching
        if should_fetch_all(large.num_jumps, opened.num_blocks):
            large.num_jumps = -opened.num_blocks  # must be worth it again after an eviction
            threading.Thread(target=self._fetch_whole, args=(large,), name="prefeed-fetch-whole", daemon=True).start()
        return self._blocks.read_part(opened, offset, size_bytes)

    def _fetch_whole(self, large: _LargeObject) -> None:
        """Let the server fetch all blocks of an object if they fit into the tiers."""
        opened = large.opened
        with suppress(PrefeedError, OSError), NodeClient.connect(self._blocks.config, autostart=False) as node:
            dataset = self._blocks.dataset(opened)
            if dataset is None or dataset.instance != node.connection.instance:
                return
            if not fits_in_tiers(node.statistics(), opened.info.size_bytes):
                _log.info(
                    "prefeed: the tiers have no space for all of %s; its parts are read from the store", opened.location
                )
                return
            ids = np.arange(opened.num_blocks, dtype=np.int64)
            name = put_in_transit(node.connection.runtime_dir, [ids.data], suffix=".i64")
            large.is_fetching = True
            try:
                node.warm_in_order(dataset.number, name)
            finally:
                large.is_fetching = False
