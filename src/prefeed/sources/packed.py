"""A pack as an origin: its index lists it, and an object is a range of one of its data files."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from prefeed.errors import ObjectNotFoundError, PrefeedError, SourceError, StoreFormatError, TruncatedBodyError
from prefeed.sources.listing import ENCODING
from prefeed.sources.pack_index import HEAD_BYTES, INDEX_NAME, Extent, Head, PackIndex, version_of
from prefeed.sources.protocol import RangeSource
from prefeed.system.files import atomic_write, is_being_written, make_private
from prefeed.system.machine import is_on_own_disk
from prefeed.types import Buffer, FetchedObject, ObjectInfo

_DIRECTORY: Final = "packs"
_ABANDONED_SECONDS: Final = 24 * 3600
_UNUSED_SECONDS: Final = 30 * 24 * 3600
_CHUNK_BYTES: Final = 16 * 1024**2


class PackedSource:
    """Reads the objects of a pack, each by one range request, and compares each with its checksum.

    The index is copied into the home when the pack is first used, and mapped from there: a mapping of a file that
    network storage has replaced would end in SIGBUS.

    **Threads and processes.** As the source that the pack lies on.
    """

    def __init__(self, url: str, source: RangeSource, *, home: Path) -> None:
        """Read a pack.

        Args:
            url: Canonical URL of the pack.
            source: Reads the directory that the pack lies in.
            home: Where copies of indices are kept; memory takes its place when it cannot be written.
        """
        self.url = url
        self._source = source
        self._copies = home / _DIRECTORY / xxh3_64_hexdigest(url.encode(*ENCODING))
        self._lock = threading.Lock()
        self._index: PackIndex | None = None

    @property
    def mark(self) -> str:
        """What tells the store that the pack lies in from others; objects are known by their sums."""
        return self._source.mark

    def locate(self, path: str) -> str:
        """Return the URL of an object: that of the pack, and its path."""
        return f"{self.url}/{path}"

    def fetch(self, path: str) -> FetchedObject:
        """Return the whole object with one range request; see ``Source.fetch``.

        Where the pack was replaced meanwhile, the object is read from the new one.

        Raises:
            TruncatedBodyError: The bytes are not those that were packed.
        """
        index = self._index or self.index()
        try:
            return self._fetch(index, path)
        except (ObjectNotFoundError, TruncatedBodyError):
            newer = self.index(newest=True)
            if newer.name == index.name:
                raise
            return self._fetch(newer, path)

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object of the pack; see ``Source.list_objects``."""
        yield from self.index(newest=True).infos()

    def index(self, *, newest: bool = False) -> PackIndex:
        """Return the index; ``newest`` asks the origin whether there is a newer one, with one short request.

        Raises:
            ObjectNotFoundError: There is no pack.
            SourceError: The index could not be read, or is damaged.
        """
        with self._lock:
            if self._index is not None and not newest:
                return self._index
            try:
                head = self._read_head()
                if self._index is None or self._index.head != head:
                    self._index = self._copy(head)
            except StoreFormatError as err:
                raise SourceError(str(err), url=self.url) from err
            return self._index

    def close(self) -> None:
        """Release connections and the index."""
        with self._lock:
            self._index = None
            self._source.close()

    def _fetch(self, index: PackIndex, path: str) -> FetchedObject:
        found = index.find(path)
        if found is None:
            raise ObjectNotFoundError(f"{self.locate(path)} does not exist: the pack has no such object", path=path)
        try:
            extent = index.extent(found)
            data = self._source.fetch_range(extent.file, extent.offset, extent.size_bytes).data
        except StoreFormatError as err:
            raise SourceError(str(err), url=self.url) from err
        except SourceError as err:
            raise type(err)(f"{self.locate(path)}: {err.message}", **err.details) from err
        self._check(data, extent, path)
        return FetchedObject(data=data, version=version_of(extent.checksum))

    def _check(self, data: Buffer, extent: Extent, path: str) -> None:
        if xxh3_64_intdigest(data) != extent.checksum:
            raise TruncatedBodyError(
                f"{self.locate(path)}: the {extent.size_bytes} bytes from {extent.offset} of {extent.file} are not those "
                "that were packed; the file was changed, or is damaged: pack again",
                path=path,
                data_file=extent.file,
            )

    def _read_head(self) -> Head:
        try:
            data = self._source.fetch_range(INDEX_NAME, 0, HEAD_BYTES).data
        except ObjectNotFoundError as err:
            raise ObjectNotFoundError(
                f"{self.url} is not a finished pack: it has no {INDEX_NAME}. Finish it with the command that began it",
                url=self.url,
            ) from err
        return Head.decode(data, self._source.locate(INDEX_NAME))

    def _copy(self, head: Head) -> PackIndex:
        """Return the index with this head, from the home's copy or copied now."""
        copy = self._copies / f"{head.digest.hex()}.index"
        try:
            found = PackIndex.open(copy)
            if found.head == head:
                with contextlib.suppress(OSError):
                    os.utime(copy)  # in use: see ``_is_unused``
                return found
        except (OSError, StoreFormatError):
            pass  # none, or not a whole one
        try:
            return self._copy_to_home(head, copy)
        except OSError as err:
            if isinstance(err, PrefeedError):
                raise
        return _validated(PackIndex(memoryview(b"".join(self._chunks(head))), self._source.locate(INDEX_NAME)))

    def _copy_to_home(self, head: Head, copy: Path) -> PackIndex:
        make_private(copy.parent)
        with atomic_write(copy, private=True) as file:
            for chunk in self._chunks(head):
                file.write(chunk)
            file.flush()
            _validated(PackIndex.open(file.name))
        opened = PackIndex.open(copy)
        for other in copy.parent.iterdir():  # older packs of this URL
            if (other.suffix == ".index" and other != copy and _is_unused(other)) or _is_abandoned(other):
                with contextlib.suppress(OSError):
                    other.unlink()
        return opened

    def _chunks(self, head: Head) -> Iterator[Buffer]:
        for start in range(0, head.total_bytes, _CHUNK_BYTES):
            yield self._source.fetch_range(INDEX_NAME, start, min(_CHUNK_BYTES, head.total_bytes - start)).data


def _is_unused(copy: Path) -> bool:
    """Return whether it may go: who has it mapped keeps it on one kernel, but loses it to another node."""
    try:
        return is_on_own_disk(copy) or time.time() - copy.stat().st_mtime > _UNUSED_SECONDS
    except FileNotFoundError:
        return False


def _is_abandoned(file: Path) -> bool:
    """Return whether this is what a process that was killed had copied until then, a day ago or more."""
    try:
        return is_being_written(file.name) and time.time() - file.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _validated(index: PackIndex) -> PackIndex:
    """Return the index when it is whole: between two requests it may have been replaced."""
    try:
        index.validate()
    except StoreFormatError as err:
        raise TruncatedBodyError(f"{err}, or was replaced while it was read") from err
    return index
