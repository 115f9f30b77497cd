"""Manifests: the immutable, ordered listing of one origin, as flat files that are mapped and never loaded.

::

    <directory>/current                 name of the generation in force, replaced in one step
    <directory>/<generation>/           never changed after it has its name; the name is a hash of its content
        header.json                     format, url, counts
        sizes    uint64 (n,)            size in bytes; UNKNOWN_SIZE where the listing does not say
        keys     16 bytes (n,)          entry keys
        versions uint64 (n,)            xxh3-64 of the version; 0 where it is unknown
        offsets  uint64 (n + 1,)        where path i begins in ``paths``
        paths    bytes                  UTF-8 with surrogate escapes, no separators
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from prefeed.errors import StoreFormatError, UnsafeDirectoryError
from prefeed.sources.mapped_files import key_at, map_closed, release_pages
from prefeed.trust import open_kept
from prefeed.types import ENTRY_KEY_BYTES, Buffer, EntryKey

FORMAT: Final = 2
UNKNOWN_SIZE: Final = 2**64 - 1
ENCODING: Final = ("utf-8", "surrogateescape")
CURRENT: Final = "current"
HEADER: Final = "header.json"
KEYS: Final = "keys"

_PATIENCE_SECONDS: Final = 1.0
_LOOK_AGAIN_SECONDS: Final = 0.002


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What ``header.json`` holds.

    Attributes:
        format: Layout version.
        url: Canonical URL of the root.
        num_objects: Number of objects.
        total_bytes: Sum of the known sizes.
        num_unknown_sizes: Objects without one.
        path_bytes: Length of ``paths``.
    """

    format: int = FORMAT
    url: str
    num_objects: int
    total_bytes: int
    num_unknown_sizes: int
    path_bytes: int


def entry_key(url: str, path: str, version: str, size_bytes: int = -1, *, mark: str = "") -> EntryKey:
    """Return the key of an object's bytes: a hash of its full URL, of its version, and of its source's ``mark``.

    The URL and path are hashed joined, so that a file has one key whichever root it was listed below. Where
    the version is unknown the size stands in for it.
    """
    full = path if path.startswith("/") else f"{url.rstrip('/')}/{path}"
    version = version or (f"size-{size_bytes}" if size_bytes >= 0 else "")
    return EntryKey(xxh3_128_digest(f"{mark}{full}\0{version}".encode(*ENCODING)))


def version_hash(version: str) -> int:
    """Return 64 bits that tell versions apart; 0 for an unknown version only."""
    return (xxh3_64_intdigest(version.encode(*ENCODING)) or 1) if version else 0


class Manifest:
    """One listing, mapped from disk. Opening it reads the header only, whatever the number of objects.

    **Ownership.** The files stay as long as anyone has them mapped, also after a newer listing replaced them: a mapped
    manifest is locked (shared), and what is locked is not removed.
    **Threads and processes.** Read-only: shared by all threads and inherited by forked children; a pickled
    manifest is its directory's name.

    Attributes:
        directory: Generation this manifest was read from.
        url: Canonical URL of the root.
        num_objects: Number of objects; ids are 0 <= id < num_objects.
        total_bytes: Sum of the known sizes, in bytes.
        sizes: Bytes of each object, shape (num_objects,), uint64; ``UNKNOWN_SIZE`` where not known.
        version_hashes: See ``version_hash``, shape (num_objects,), uint64; 0 where not known.
        keys: All entry keys; that of object i is ``keys[i * 16 : (i + 1) * 16]``.
    """

    __slots__ = (
        "_blob", "_offsets", "directory", "header", "keys", "num_objects", "sizes",
        "total_bytes", "url", "version_hashes",
    )  # fmt: skip

    def __init__(self, directory: Path, header: Header, files: int, *, locked: bool = True) -> None:
        """Map the files below the descriptor of one generation; use ``Manifest.open``."""
        count = header.num_objects
        self.directory = directory
        self.header = header
        self.url = header.url
        self.num_objects = count
        self.total_bytes = header.total_bytes
        self.sizes = _map_numbers(directory, files, "sizes", count)
        self.version_hashes = _map_numbers(directory, files, "versions", count)
        self.keys = _map(directory, files, KEYS, count * ENTRY_KEY_BYTES, lock=locked)
        self._offsets = _map_numbers(directory, files, "offsets", count + 1)
        self._blob = _map(directory, files, "paths", header.path_bytes)
        # After a power failure a file may have its size but not its content. Keys of zeros would be equal keys.
        if not (int(self._offsets[-1]) == header.path_bytes and any(self.key(0)) and any(self.key(count - 1))):
            raise StoreFormatError(f"{directory} is damaged: offsets or keys were not written")

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, locked: bool = True) -> Manifest:
        """Return the manifest in ``directory``: the generation in force there, or the generation it is.

        Args:
            directory: See above.
            locked: The files stay as long as it is open; False: only what is mapped does.

        Raises:
            StoreFormatError: There is none, it is of another layout, files are missing or too short, or others than this
                user may have written to it.
        """
        path = Path(directory)
        for last_try in (False, False, True):  # A newer listing may replace the generation between the two steps.
            try:
                generation = current_generation(path) or path
                return cls._open_generation(generation, locked=locked)
            except UnsafeDirectoryError as err:
                raise StoreFormatError(str(err)) from err
            except FileNotFoundError as err:
                if last_try:
                    raise StoreFormatError(f"{path} holds no manifest, or not all of it: {err.filename}") from err
        raise AssertionError

    @classmethod
    def _open_generation(cls, generation: Path, *, locked: bool) -> Manifest:
        files = open_kept(generation)
        try:
            return cls(generation, _read_header(generation, files), files, locked=locked)
        finally:
            os.close(files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the directory's name."""
        return (Manifest.open, (str(self.directory),))

    def __len__(self) -> int:
        """Return the number of objects."""
        return self.num_objects

    def __repr__(self) -> str:
        """Return URL, count and size, for logs."""
        return f"<Manifest {self.url}: {self.num_objects} objects, {self.total_bytes} bytes>"

    @property
    def uid(self) -> str:
        """Name of the generation, which stands for the content: equal listings have equal names."""
        return self.directory.name

    def path_bytes(self, index: int) -> bytes:
        """Return the path of an object as it stands in the file."""
        if not 0 <= index < self.num_objects:
            raise IndexError(f"object {index} of {self.num_objects}")
        return bytes(self._blob[self._offsets[index] : self._offsets[index + 1]])

    def all_paths(self) -> list[bytes]:
        """Return the paths of all objects, about 100 bytes each."""
        blob, ends = bytes(self._blob), self._offsets.tolist()
        return [blob[start:end] for start, end in pairwise(ends)]

    def path(self, index: int) -> str:
        """Return the path of an object, relative to the root."""
        return self.path_bytes(index).decode(*ENCODING)

    def size(self, index: int) -> int | None:
        """Return the size of an object in bytes; None where not known."""
        size = int(self.sizes[index])
        return None if size == UNKNOWN_SIZE else size

    def key(self, index: int) -> EntryKey:
        """Return the entry key of an object's bytes."""
        return key_at(self.keys, index)

    def version_hash(self, index: int) -> int:
        """Return the hash of an object's version; 0 where not known."""
        return int(self.version_hashes[index])

    def index_of(self, path: str) -> int | None:
        """Return the id of a path; None if it is not listed.

        Complexity: O(log n), about 10 µs for ten million objects.
        """
        wanted = path.encode(*ENCODING)
        index = self._lower_bound(wanted)
        return index if index < self.num_objects and self.path_bytes(index) == wanted else None

    def paths_below(self, prefix: str) -> range:
        """Return the ids of all objects below a directory; ``""`` is the root."""
        directory = prefix.strip("/").encode(*ENCODING)
        if not directory:
            return range(self.num_objects)
        return range(self._lower_bound(directory + b"/"), self._lower_bound(directory + b"0"))  # "0" follows "/".

    def is_below(self, ids: NDArray[np.int64], url: str) -> NDArray[np.bool_]:
        """Return of each of these objects whether it is at or below a URL, which lies below the root; shape (num_ids,)."""
        root = self.url.rstrip("/") + "/"
        if not url.startswith(root):
            return np.zeros(len(ids), dtype=bool)
        path = url[len(root) :]
        below, itself = self.paths_below(path), self.index_of(path)
        inside: NDArray[np.bool_] = (ids >= below.start) & (ids < below.stop)
        return inside if itself is None else inside | (ids == itself)

    def release_pages(self) -> None:
        """Let the kernel have back the pages that were read; the next read maps them anew, from the page cache."""
        for view in (self.keys, self._blob, self.sizes, self.version_hashes, self._offsets):
            release_pages(view)

    def contents(self) -> dict[str, Buffer]:
        """Return what the files of the generation hold, by name; they need not be there any more."""
        return {
            "sizes": self.sizes.data,
            KEYS: self.keys,
            "versions": self.version_hashes.data,
            "offsets": self._offsets.data,
            "paths": self._blob,
            HEADER: msgspec.json.encode(self.header),
        }

    def validate(self) -> None:
        """Check every invariant; reads all of it.

        Raises:
            StoreFormatError: An offset, the order or a sum is not as it has to be.
        """
        steps = np.diff(self._offsets.astype(np.int64))
        known = self.sizes != np.uint64(UNKNOWN_SIZE)
        checks = {
            "offsets": self._offsets[0] == 0 and bool((steps > 0).all()),
            "path_bytes": int(self._offsets[-1]) == self.header.path_bytes,
            "total_bytes": int(self.sizes[known].sum()) == self.total_bytes,
            "num_unknown_sizes": int((~known).sum()) == self.header.num_unknown_sizes,
            "order of paths": self._is_ordered(),
        }
        wrong = [name for name, good in checks.items() if not good]
        if wrong:
            raise StoreFormatError(f"{self.directory} is damaged: {', '.join(wrong)}")

    def _is_ordered(self) -> bool:
        paths = map(self.path_bytes, range(self.num_objects))
        return all(previous < following for previous, following in pairwise(paths))

    def _lower_bound(self, wanted: bytes) -> int:
        """Return the first id whose path is not below ``wanted``."""
        low, high = 0, self.num_objects
        while low < high:
            middle = (low + high) // 2
            if self.path_bytes(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low


def current_generation(directory: Path) -> Path | None:
    """Return the generation in force in a directory; None if it names none."""
    try:
        name = (directory / CURRENT).read_text("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as err:
        raise StoreFormatError(f"{directory / CURRENT} is damaged") from err
    if not name.isalnum():
        raise StoreFormatError(f"{directory / CURRENT} names no generation: {name[:40]!r}")
    return directory / name


def _read_header(generation: Path, files: int) -> Header:
    with os.fdopen(os.open(HEADER, os.O_RDONLY | os.O_CLOEXEC, dir_fd=files), "rb") as file:
        content = file.read()
    try:
        header = msgspec.json.decode(content, type=Header)
    except msgspec.DecodeError as err:
        raise StoreFormatError(f"{generation / HEADER} is damaged: {err}") from err
    if header.format != FORMAT:
        raise StoreFormatError(f"{generation} has layout {header.format}; this version reads {FORMAT}")
    return header


def _map(generation: Path, files: int, name: str, size: int, *, lock: bool = False) -> memoryview:
    """Map a file; with ``lock`` it is seen to be in use as long as it is mapped: ``mmap`` keeps the open file, and only then."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=files)
    try:
        if lock:
            _lock_shared(descriptor)
        found = os.fstat(descriptor).st_size
        if found != size:
            raise StoreFormatError(f"{generation / name} is damaged: {found} bytes, {size} expected")
        return (
            memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)) if lock else map_closed(descriptor, size)
        )
    finally:
        os.close(descriptor)


def _lock_shared(descriptor: int) -> None:
    # One who looks whether it is in use, or removes it, is waited for. Not for ever: he may have been stopped, and what is
    # mapped stays whole without the lock. A file system without locks: who would remove it cannot lock it either.
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_LOOK_AGAIN_SECONDS)
                continue
        except OSError:
            pass
        return


def _map_numbers(generation: Path, files: int, name: str, count: int) -> NDArray[np.uint64]:
    return np.frombuffer(_map(generation, files, name, count * 8), np.uint64)
