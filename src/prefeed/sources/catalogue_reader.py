"""Catalogues: files named by absolute path, with dense ids, in a list that grows while others have it mapped.

::

    <directory>/
        header.json                         format, uid, number of declared paths; never changed
        count    uint64 (2,)                number of objects; written last, when all of them is in place; who writes
        offsets  uint64 (capacity + 1,)     where path i begins in ``paths``
        paths    bytes                      UTF-8 with surrogate escapes, no separators
        known    16 bytes (capacity,)       key of the bytes last seen; zeros: never seen
        sizes    uint64 (capacity,)         size in bytes; UNKNOWN_SIZE where not known
        versions uint64 (capacity,)         xxh3-64 of the version last seen; 0 where it is unknown
        hashes   uint64 (capacity,)         xxh3-64 of the path
        inodes   uint64 (capacity,)         which file it was that was last seen, see ``identity_of``; 0: not known
        keys     16 bytes (capacity,)       published keys; zeros: ask the server

One server process writes it, readers map it. Files grow and are never cut: a page of a mapping that has lost its file
is SIGBUS. For the same reason all of a file's blocks are allocated before they are mapped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from prefeed.errors import StoreFormatError, UnsafeDirectoryError
from prefeed.sources.manifest import ENCODING, HEADER, UNKNOWN_SIZE
from prefeed.sources.mapped_files import as_numbers, key_at, map_file, release_pages
from prefeed.system.trust import open_kept
from prefeed.types import ENTRY_KEY_BYTES, EntryKey

FORMAT: Final = 2


class CatalogueHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What ``header.json`` holds.

    Attributes:
        format: Layout version.
        uid: Differs for every catalogue ever made: ids of one mean nothing in another.
        num_declared: How many paths, the first ones, it was made with.
    """

    format: int = FORMAT
    uid: str
    num_declared: int


class Catalogue:
    """One catalogue, mapped to be read while its server lets it grow. Opening it costs the same at any size.

    **Ownership.** The files are the server's. What is mapped stays readable when they are replaced.
    **Threads and processes.** Inherited by forked children; a pickled one is its directory's name and its uid. One
    thread at a time calls ``refresh``.

    Attributes:
        directory: Where it lies.
        url: ``/``: paths are absolute.
        header: What it was made with.
        keys: Published keys, zeros where there is none; that of object i is ``keys[i * 16 : (i + 1) * 16]``. It covers
            the capacity as last mapped; ``refresh`` puts a longer one in its place, and the old one stays valid.
    """

    __slots__ = ("_count", "_inodes", "_offsets", "_paths", "_sizes", "directory", "header", "keys", "url")

    _WRITABLE = False

    def __init__(self, directory: Path, header: CatalogueHeader, files: int) -> None:
        """Map the files below the descriptor of the directory; use ``open``."""
        self.directory = directory
        self.header = header
        self.url = "/"
        self._count = as_numbers(self._map(files, "count"))
        self._map_all(files)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], uid: str = "") -> Self:
        """Return the catalogue in ``directory``.

        Args:
            directory: Where it lies.
            uid: Take this one only, not another that has come to the same place; empty: whichever is there.

        Raises:
            StoreFormatError: There is none, it is another one, of another layout, or it is damaged.
        """
        path = Path(directory)
        for last_try in (False, False, True):  # The server may replace it while its files are being opened.
            try:
                return cls._open_once(path, uid)
            except (FileNotFoundError, NotADirectoryError) as err:
                if last_try:
                    raise StoreFormatError(f"{path} holds no catalogue, or not all of it: {err.filename}") from err
        raise AssertionError

    @classmethod
    def _open_once(cls, directory: Path, uid: str = "") -> Self:
        try:
            files = open_kept(directory)
        except UnsafeDirectoryError as err:
            raise StoreFormatError(str(err)) from err
        try:
            header = _read_header(files, directory)
            if uid and header.uid != uid:
                raise StoreFormatError(f"{directory} holds another catalogue than before")
            return cls(directory, header, files)
        finally:
            os.close(files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the directory's name."""
        return (Catalogue.open, (str(self.directory), self.uid))

    def __len__(self) -> int:
        """Return the number of objects."""
        return self.num_objects

    def __repr__(self) -> str:
        """Return directory and count, for logs."""
        return f"<{type(self).__name__} {self.directory.name}: {self.num_objects} objects>"

    @property
    def uid(self) -> str:
        """What this catalogue is told from others by: equal only if ids mean the same."""
        return self.header.uid

    @property
    def num_declared(self) -> int:
        """How many paths it was made with."""
        return self.header.num_declared

    @property
    def num_objects(self) -> int:
        """Number of objects by now."""
        return int(self._count[0])

    @property
    def capacity(self) -> int:
        """Number of objects that fit what is mapped; more are there after ``refresh``."""
        return min(len(self._offsets) - 1, len(self._sizes), len(self._inodes), len(self.keys) // ENTRY_KEY_BYTES)

    @property
    def sizes(self) -> NDArray[np.uint64]:
        """Bytes of each object by now, shape (num_objects,), ``UNKNOWN_SIZE`` where not known; a live, read-only view."""
        count = self.num_objects
        if count > self.capacity:
            self.refresh()
        view = self._sizes[:count]
        view.flags.writeable = False
        return view

    @property
    def total_bytes(self) -> int:
        """Sum of the known sizes, in bytes; reads all of them."""
        sizes = self.sizes
        return int(sizes[sizes != np.uint64(UNKNOWN_SIZE)].sum())

    def path(self, index: int) -> str:
        """Return the absolute path of an object."""
        return self.path_bytes(index).decode(*ENCODING)

    def path_bytes(self, index: int) -> bytes:
        """Return the path of an object as the system has it."""
        self._reach(index)
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        if end > len(self._paths):
            self.refresh()
        return bytes(self._paths[start:end])

    def key(self, index: int) -> EntryKey:
        """Return the published key of an object's bytes; zeros while there is none."""
        self._reach(index)
        return key_at(self.keys, index)

    def directories(self) -> set[str]:
        """Return the directories that its files lie in, with a slash at the end; reads all paths, 0.3 us each."""
        ends = self._offsets[: min(self.num_objects, self.capacity) + 1].tolist()
        blob = bytes(self._paths[: ends[-1]])
        found = {blob[start : blob.rfind(b"/", start, end) + 1] for start, end in itertools.pairwise(ends)}
        return {directory.decode(*ENCODING) for directory in found}

    def withdraw_all(self) -> None:
        """Let no reader find an object without asking a server: for a client that has none to tell what has changed.

        A file that is gone, or may not be written, is left alone.
        """
        with contextlib.suppress(OSError), open(self.directory / "keys", "r+b") as file:
            left = os.fstat(file.fileno()).st_size
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))

    def size(self, index: int) -> int | None:
        """Return the size of an object in bytes; None where not known."""
        self._reach(index)
        size = int(self._sizes[index])
        return None if size == UNKNOWN_SIZE else size

    def inode(self, index: int) -> int:
        """Return which file it was that was last seen under the path, as ``identity_of`` says; 0 where not known."""
        self._reach(index)
        return int(self._inodes[index])

    def refresh(self) -> bool:
        """Map what the files have grown by; return whether they had.

        Views taken before stay valid. Nothing changes when the catalogue is gone or another one is in its place.
        """
        try:
            files = open_kept(self.directory)
        except OSError:
            return False
        try:
            if _read_header(files, self.directory) != self.header or not self._has_grown(files):
                return False
            self._map_all(files)
            return True
        except (OSError, StoreFormatError):
            return False
        finally:
            os.close(files)

    def release_pages(self) -> None:
        """Let the kernel have back the pages that were touched; the next use maps them anew, from the page cache."""
        for view in (self.keys, self._paths, self._sizes, self._offsets):
            release_pages(view)

    def _reach(self, index: int) -> None:
        """Make sure that an object is mapped."""
        count = self.num_objects
        if 0 <= index < count and index >= self.capacity:
            self.refresh()
        if not 0 <= index < min(count, self.capacity):
            raise IndexError(f"object {index} of {count}")

    def _has_grown(self, files: int) -> bool:
        mapped = {
            "keys": len(self.keys),
            "paths": len(self._paths),
            "offsets": self._offsets.nbytes,
            "sizes": self._sizes.nbytes,
            "inodes": self._inodes.nbytes,
        }
        return any(os.stat(name, dir_fd=files).st_size != size for name, size in mapped.items())

    def _map_all(self, files: int) -> None:
        count = self.num_objects  # Read first: a file is long enough for the count before the count says so.
        offsets, sizes, inodes = (as_numbers(self._map(files, name)) for name in ("offsets", "sizes", "inodes"))
        keys, paths = self._map(files, "keys"), self._map(files, "paths")
        if (
            len(keys) % ENTRY_KEY_BYTES
            or count >= len(offsets)
            or count > min(len(sizes), len(inodes))
            or count * ENTRY_KEY_BYTES > len(keys)
        ):
            raise StoreFormatError(f"{self.directory} is damaged: its files do not fit {count} objects")
        if offsets[0] != 0 or int(offsets[count]) > len(paths):
            raise StoreFormatError(f"{self.directory} is damaged: paths end at {offsets[count]} of {len(paths)} bytes")
        # Offsets last: who reads a path in another thread finds none beyond ``paths``.
        self._paths, self._sizes, self._inodes, self.keys, self._offsets = paths, sizes, inodes, keys, offsets

    def _map(self, files: int, name: str) -> memoryview:
        return map_file(files, name, writable=self._WRITABLE)


def _read_header(files: int, directory: Path) -> CatalogueHeader:
    descriptor = os.open(HEADER, os.O_RDONLY | os.O_CLOEXEC, dir_fd=files)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read()
    try:
        header = msgspec.json.decode(content, type=CatalogueHeader)
    except msgspec.DecodeError as err:
        raise StoreFormatError(f"{directory / HEADER} is damaged: {err}") from err
    if header.format != FORMAT:
        raise StoreFormatError(f"{directory} has layout {header.format}; this version reads {FORMAT}")
    return header
