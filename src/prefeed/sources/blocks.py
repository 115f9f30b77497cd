"""Objects as runs of blocks: a listing of blocks over the listing of another origin.

    objects   a.txt            | big.tar (2.5 blocks)                        | c.txt
    entries   a.txt\\0…0-1f0-   | big.tar\\0…0-100000 | …100000- | …200000-    | c.txt\\0…0-7-
    ids       0                | 1                  | 2        | 3           | 4

A block is an entry like any other: it has a dense id, a key and a size. So plans, residency, single flight, disk and pool need
to know nothing of blocks. The name of a block holds its object, its place, and which version and size of the object it is of: blocks of
two versions never have the same key, and a block of another version or size is never returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, cast

from prefeed.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    SourceError,
    ThrottledError,
    TruncatedBodyError,
)
from prefeed.sources.listing import LeftOut
from prefeed.sources.manifest import entry_key, version_hash
from prefeed.sources.protocol import BrowsableSource, QuickSource
from prefeed.sources.quick_fetches import QuickOrigin
from prefeed.sources.quick_heads import WHOLE
from prefeed.types import EntryKey, FetchedObject, ObjectInfo

_MARK: Final = "\0"
"""No file name has it, and no listing of a store can."""

_PLACE: Final = re.compile(r"([0-9a-f]{12,})-([0-9a-f]+)-([0-9a-f]{16})-([0-9a-f]+)")
_WEAK: Final = "W/"
_ASKING_THREADS: Final = 32


class Block(NamedTuple):
    """A part of one version of an object: ``size_bytes`` from ``offset`` on, of ``object_bytes``."""

    path: str
    offset: int
    size_bytes: int
    version_hash: int
    object_bytes: int


def is_split(info: ObjectInfo) -> bool:
    """Return whether an object is a run of blocks: it has bytes, and tells its version.

    A small one is a run of one: a block is of one version, and a whole object of any.
    """
    return info.size_bytes > 0 and bool(info.version)


def is_version(version: str, hash_of_it: int) -> bool:
    """Return whether a version has this ``version_hash``, as it is written or as servers write it elsewhere, weak or not."""
    return any(
        version_hash(spelling) == hash_of_it for spelling in (version, version.removeprefix(_WEAK), _WEAK + version)
    )


def num_entries(info: ObjectInfo, block_bytes: int) -> int:
    """Return how many entries an object has: its blocks, or one for the whole object."""
    return -(-info.size_bytes // block_bytes) if is_split(info) else 1


def entry_of(info: ObjectInfo, index: int, block_bytes: int) -> ObjectInfo:
    """Return the entry of one block, or of the whole object where it is not split.

    Args:
        info: The object.
        index: Which block, 0 <= index < ``num_entries``.
        block_bytes: Size of all blocks except the last.
    """
    if not is_split(info):
        return info
    offset = index * block_bytes
    size = min(block_bytes, info.size_bytes - offset)
    path = f"{info.path}{_MARK}{offset:012x}-{size:x}-{version_hash(info.version):016x}-{info.size_bytes:x}"
    return ObjectInfo(path=path, size_bytes=size, version=info.version, modified_seconds=info.modified_seconds)


def entries_of(info: ObjectInfo, block_bytes: int) -> Iterator[ObjectInfo]:
    """Yield the entries of an object in order."""
    return (entry_of(info, index, block_bytes) for index in range(num_entries(info, block_bytes)))


def key_of(url: str, mark: str, entry: ObjectInfo) -> EntryKey:
    """Return the key of an entry, as a manifest of the origin has it."""
    return entry_key(url, entry.path, entry.version, entry.size_bytes, mark=mark)


def parse_block(path: str) -> Block | None:
    """Return which block a path names; None for the path of a whole object."""
    name, mark, place = path.partition(_MARK)
    found = _PLACE.fullmatch(place) if mark else None
    return None if found is None else Block(name, *(int(number, 16) for number in found.groups()))


def object_of(path: str) -> str:
    """Return the path of the object that an entry is of, or is."""
    return path.partition(_MARK)[0]


class BlockSource:
    """Lists and reads the objects of an origin in blocks.

    **Threads and processes.** As the source that it stands on.

    Attributes:
        block_bytes: Size of all blocks of an object except the last.
    """

    def __init__(self, url: str, source: BrowsableSource, block_bytes: int) -> None:
        """Read ``source`` in blocks; ``url`` is the canonical URL of that."""
        self.url = url
        self.block_bytes = block_bytes
        self._source = source

    @property
    def mark(self) -> str:
        """What tells the origin from others of the same URL."""
        return self._source.mark

    def locate(self, path: str) -> str:
        """Return the full path or URL of an object, and which bytes of it, for messages."""
        block = parse_block(path)
        if block is None:
            return self._source.locate(path)
        return f"{self._source.locate(block.path)} (bytes {block.offset} to {block.offset + block.size_bytes - 1})"

    @property
    def left_out(self) -> LeftOut:
        """Entries of the last listing that are no objects."""
        found: LeftOut = getattr(self._source, "left_out", LeftOut())
        return found

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield the entries of every object below the root; see ``Source.list_objects``."""
        for batch in self._source.list_objects():
            yield [entry for info in batch for entry in entries_of(info, self.block_bytes)]

    def list_level(self, path: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return the objects right below a directory, and the directories there; see ``BrowsableSource.list_level``."""
        return self._source.list_level(path)

    def list_whole(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object below the root, not in blocks."""
        return self._source.list_objects()

    @property
    def needs_helper(self) -> bool:
        """True if a request of this process starts a helper process: the node server answers sooner."""
        return bool(getattr(self._source, "needs_helper", False))

    def info(self, path: str) -> ObjectInfo:
        """Return size and version that an object has now; see ``BrowsableSource.info``."""
        return self._source.info(path)

    def infos(self, paths: Sequence[str]) -> list[ObjectInfo]:
        """Return the same of several objects, asked at the same time."""
        if len(paths) < 2:
            return [self.info(path) for path in paths]
        with ThreadPoolExecutor(min(len(paths), _ASKING_THREADS), thread_name_prefix="prefeed-ask") as pool:
            return list(pool.map(self.info, paths))

    def fetch(self, path: str) -> FetchedObject:
        """Return a block with one range request, or a whole object; see ``Source.fetch``.

        Raises:
            ObjectChangedError: The object is of another version by now.
        """
        block = parse_block(path)
        return self._source.fetch(path) if block is None else self.fetch_part(block)

    def fetch_part(self, block: Block) -> FetchedObject:
        """Return a part of an object, which need not be a whole block, with one request.

        Raises:
            ObjectChangedError: The object is of another version by now.
            SourceError: See ``RangeSource.fetch_range``.
        """
        try:
            fetched = self._source.fetch_range(block.path, block.offset, block.size_bytes)
        except (ObjectNotFoundError, AccessDeniedError, ThrottledError):
            raise
        except SourceError as err:
            if isinstance(err, TruncatedBodyError) or not err.retryable:  # is it shorter than it was?
                now = self._source.info(block.path)
                self._require_same(block, now.version, now.size_bytes)
            raise
        if block.size_bytes:
            self._require_same(block, fetched.version, fetched.object_bytes)
        return fetched

    def quick_origin(self) -> QuickOrigin | None:
        """Return who is asked; see ``QuickSource``."""
        source = self._source
        return cast("QuickSource", source).quick_origin() if hasattr(source, "quick_origin") else None

    def quick_target(self, path: str) -> bytes:
        """Return what the request for a block names: its object; ``quick_first`` says where it begins."""
        return cast("QuickSource", self._source).quick_target(object_of(path))

    def quick_first(self, path: str) -> int:
        """Return the first byte of a block; ``WHOLE`` for a whole object, also in one block: some web servers send no parts."""
        block = parse_block(path)
        return WHOLE if block is None or block.size_bytes == block.object_bytes else block.offset

    def quick_failure(self, path: str, failure: str) -> SourceError | None:
        """Return the error that stands for a failure; None where ``fetch`` looks whether the object has changed."""
        error = cast("QuickSource", self._source).quick_failure(object_of(path), failure)
        may_have_changed = error is None or not error.retryable or isinstance(error, TruncatedBodyError)
        return None if may_have_changed else error

    def changed(self, path: str, version: str, object_bytes: int) -> ObjectChangedError | None:
        """Return the error of a block that came of another version or size of its object than it names; None: it is of this one.

        Args:
            path: Names the block.
            version: Of the object, as the answer has it.
            object_bytes: Size of the object, as the answer has it; negative if it does not show it.
        """
        block = parse_block(path)
        try:
            if block is not None:
                self._require_same(block, version, object_bytes)
        except ObjectChangedError as err:
            return err
        return None

    def close(self) -> None:
        """Release connections."""
        self._source.close()

    def _require_same(self, block: Block, version: str, object_bytes: int) -> None:
        where = self._source.locate(block.path)
        if not is_version(version, block.version_hash):
            raise ObjectChangedError(
                f"{where} changed while it was read: open it again to read what it is now", path=where
            )
        if object_bytes not in (-1, block.object_bytes):
            raise ObjectChangedError(
                f"{where} has {object_bytes:,} bytes by the answer to a range request and {block.object_bytes:,} bytes by the answer "
                "when it was opened, in the same version: the server contradicts itself, or the object changed; open it again",
                path=where,
            )
