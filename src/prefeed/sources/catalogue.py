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

One server process writes it (``catalogue_writer``), readers map it. Files grow and are never cut: a page of a mapping that has lost its file
is SIGBUS. For the same reason all of a file's blocks are allocated before they are mapped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from prefeed.errors import StoreFormatError
from prefeed.sources.listing import ENCODING, UNKNOWN_SIZE, Listing, as_numbers, map_file, opened_while_replaced
from prefeed.sources.manifest import HEADER
from prefeed.system.paths import is_in
from prefeed.system.trust import open_protected
from prefeed.types import ENTRY_KEY_BYTES, EntryKey

FORMAT: Final = 2
DIRECTORY: Final = "catalogues"
_CHUNK: Final = 1 << 16


def paths_digest(paths: Sequence[str]) -> str:
    """Return 32 hexadecimal digits that stand for these paths in this order."""
    digest = xxh3_128()
    for start in range(0, len(paths), _CHUNK):
        digest.update(("\0".join(paths[start : start + _CHUNK]) + "\0").encode(*ENCODING))
    return digest.hexdigest()


def name_of_list(paths: Sequence[str]) -> str:
    """Return the name of the catalogue that begins with these files, in this order."""
    return f"files-{paths_digest(paths)}"


def name_of_learned(fingerprint: str) -> str:
    """Return the name of the catalogue of a dataset whose files are learned."""
    return f"learned-{fingerprint}"


def catalogues_named(own: Path, name: str) -> list[Path]:
    """Return the catalogues of this name, one per view of the files, in the directory of a server."""
    return sorted((own / DIRECTORY).glob(f"{name}*"))


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


class Catalogue(Listing):
    """One catalogue, mapped to be read while its server lets it grow. Opening it costs the same at any size.

    **Ownership.** The files are the server's. What is mapped stays readable when they are replaced.
    **Threads and processes.** Inherited by forked children; a pickled one is its directory's name and its uid. One
    thread at a time calls ``refresh``.

    Attributes:
        header: What it was made with.
        keys: Published keys, zeros where there is none. It covers the capacity as last mapped; ``refresh`` puts a longer one
            in its place, and the old one stays valid. So it is with ``offsets``.
    """

    __slots__ = ("_count", "_inodes", "_sizes", "header")

    grows: ClassVar[Literal[True]] = True
    _WRITABLE = False

    def __init__(self, directory: Path, header: CatalogueHeader, files: int) -> None:
        """Map the files below the descriptor of the directory; use ``open``."""
        self.directory = directory
        self.header: CatalogueHeader = header
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
        return opened_while_replaced(lambda: cls._open_once(path, uid), path, "catalogue")

    @classmethod
    def _open_once(cls, directory: Path, uid: str = "") -> Self:
        files = open_protected(directory)
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

    def __repr__(self) -> str:
        """Return directory and count, for logs."""
        return f"<{type(self).__name__} {self.directory.name}: {self.num_objects} objects>"

    @property
    def uid(self) -> str:
        """What this catalogue is told from others by."""
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
        return min(len(self.offsets) - 1, len(self._sizes), len(self._inodes), len(self.keys) // ENTRY_KEY_BYTES)

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

    def listed(self, index: int) -> None:
        """A file has the bytes that it has when it is read."""

    def is_below(self, ids: NDArray[np.int64], url: str) -> NDArray[np.bool_]:
        """Return of each of these files whether it is at or below a path; shape (num_ids,)."""
        return np.array([is_in(self.path(index), url) for index in ids.tolist()], np.bool_)

    def directories(self) -> set[str]:
        """Return the directories that its files lie in, with a slash at the end; reads all paths, 0.3 us each."""
        ends = self.offsets[: min(self.num_objects, self.capacity) + 1].tolist()
        blob = bytes(self.path_blob[: ends[-1]])
        found = {blob[start : blob.rfind(b"/", start, end) + 1] for start, end in itertools.pairwise(ends)}
        return {directory.decode(*ENCODING) for directory in found}

    def withdraw_all(self) -> None:
        """Let no reader find an object without asking a server: for a client that has no server to report changes to.

        A file that is gone, or may not be written, is left alone.
        """
        with contextlib.suppress(OSError), open(self.directory / "keys", "r+b") as file:
            left = os.fstat(file.fileno()).st_size
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))

    def key(self, index: int) -> EntryKey:
        """Return the published key of a file's bytes; zeros while there is none."""
        self._reach(index)
        return super().key(index)

    def inode(self, index: int) -> int:
        """Return which file it was that was last seen under the path; 0 where not known."""
        self._reach(index)
        return int(self._inodes[index])

    def refresh(self) -> bool:
        """Map what the files have grown by; return whether they had.

        Views taken before stay valid. Nothing changes when the catalogue is gone or another one is in its place.
        """
        try:
            files = open_protected(self.directory)
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

    def _reach(self, index: int) -> None:
        """Make sure that an object is mapped."""
        super()._reach(index)
        if index >= self.capacity:
            self.refresh()
            if index >= self.capacity:
                raise IndexError(f"object {index} of {self.capacity} that are mapped")

    def _has_grown(self, files: int) -> bool:
        mapped = {
            "keys": len(self.keys),
            "paths": len(self.path_blob),
            "offsets": self.offsets.nbytes,
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
        self.path_blob, self._sizes, self._inodes, self.keys, self.offsets = paths, sizes, inodes, keys, offsets

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
