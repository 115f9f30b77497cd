"""Manifests: the immutable, ordered listing of one origin, as one flat file that is mapped and never loaded.

::

    <directory>/current                 name of the generation in force, replaced in one step
    <directory>/<generation>/           never changed after it has its name; the name is a hash of the header
        columns                         what follows, one after the other, each from a multiple of 8 bytes on:
            head     16 bytes           mark, layout, and length of the header
            header   JSON               url, counts, and xxh3-64 of each column: so the name stands for all of it
            sizes    uint64 (n,)        size in bytes; UNKNOWN_SIZE where the listing does not say
            versions uint64 (n,)        xxh3-64 of the version; 0 where it is unknown
            keys     16 bytes (n,)      entry keys
            stamps   int64 (2, n)       nanoseconds of each file's last change, and its inode; of directories alone
            offsets  uint64 (n + 1,)    where path i begins in ``paths``
            paths    bytes              UTF-8 with surrogate escapes, no separators

A manifest that has only paths is not settled: its keys are zeros, and nothing is read by it. It is never in force.
"""

from __future__ import annotations

import fcntl
import os
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_digest, xxh3_128_hexdigest

from prefeed.errors import ManifestDamagedError, StoreFormatError
from prefeed.sources.listing import (
    ENCODING,
    UNKNOWN_SIZE,
    LeftOut,
    Listed,
    Listing,
    mapped,
    opened_while_replaced,
    release_pages,
    split_paths,
)
from prefeed.system.locks import flock_within
from prefeed.system.trust import open_protected
from prefeed.types import ENTRY_KEY_BYTES, Buffer, EntryKey

FORMAT: Final = 3
CURRENT: Final = "current"
HEADER: Final = "header.json"
"""Of catalogues, and of manifests of layouts before this one."""

COLUMNS: Final = "columns"
_MAGIC: Final = b"PFLIST"
_HEAD: Final = struct.Struct("<6sHQ")
_ITEM_BYTES: Final = {"sizes": 8, "versions": 8, "keys": ENTRY_KEY_BYTES, "stamps": 16, "offsets": 8}

_REMOVAL_SECONDS: Final = 1.0
_LOOK_AGAIN_SECONDS: Final = 0.005


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the header holds.

    Attributes:
        url: Canonical URL of the root.
        num_objects: Number of objects.
        total_bytes: Sum of the known sizes.
        num_unknown_sizes: Objects without one.
        path_bytes: Length of ``paths``.
        is_settled: Sizes, versions and keys are known, as far as the origin tells them.
        sums: xxh3-64 of each column that is there, in their order.
        is_part: Only some objects of the root are listed: it takes the place of no other listing.
        num_left_out: Number of entries of the root that cannot be samples.
        left_out: Names and reasons of the first ones; see ``LeftOut``.
        denied: Paths of the first ones that the process that listed them had no permission to read.
    """

    url: str
    num_objects: int
    total_bytes: int
    num_unknown_sizes: int
    path_bytes: int
    is_settled: bool
    sums: dict[str, int]
    is_part: bool = False
    num_left_out: int = 0
    left_out: list[str] = []
    denied: list[bytes] = []

    def column_bytes(self, name: str) -> int:
        """Return the length of a column."""
        return self.path_bytes if name == "paths" else (self.num_objects + (name == "offsets")) * _ITEM_BYTES[name]


def entry_key(url: str, path: str, version: str, size_bytes: int = -1, *, mark: str = "") -> EntryKey:
    """Return the key of an object's bytes: a hash of its full URL, of its version, and of its source's ``mark``.

    The URL and path are hashed joined, so that a file has one key whichever root it was listed below. Where
    the version is unknown the size stands in for it.
    """
    full = path if path.startswith("/") else f"{url.rstrip('/')}/{path}"
    version = version or (f"size-{size_bytes}" if size_bytes >= 0 else "")
    return EntryKey(xxh3_128_digest(f"{mark}{full}\0{version}".encode(*ENCODING)))


def entry_keys(url: str, paths: Sequence[bytes], versions: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return the ``entry_key`` of many objects, which lie below the root and have a version, shape (num_objects, 16)."""
    root = f"{url.rstrip('/')}/".encode(*ENCODING)
    pairs = zip(paths, versions, strict=True)
    joined = b"".join([xxh3_128_digest(b"%b%b\0%b" % (root, path, version)) for path, version in pairs])
    return np.frombuffer(joined, np.uint8).reshape(-1, ENTRY_KEY_BYTES)


def version_hash(version: str) -> int:
    """Return 64 bits that tell versions apart; 0 for an unknown version only."""
    return (xxh3_64_intdigest(version.encode(*ENCODING)) or 1) if version else 0


def version_hashes(versions: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return the ``version_hash`` of many known versions."""
    return np.maximum(np.fromiter(map(xxh3_64_intdigest, versions), np.uint64, len(versions)), np.uint64(1))


def encoded(header: Header, columns: Mapping[str, Buffer]) -> tuple[str, list[Buffer]]:
    """Return the name of a generation, and what its file is to hold, part after part.

    Args:
        header: Without the sums.
        columns: By name; those that are there.
    """
    contents = {name: memoryview(columns[name]).cast("B") for name in (*_ITEM_BYTES, "paths") if name in columns}
    sums = {name: xxh3_64_intdigest(content) for name, content in contents.items()}
    text = msgspec.json.encode(msgspec.structs.replace(header, sums=sums))
    parts: list[Buffer] = [_HEAD.pack(_MAGIC, FORMAT, len(text)), text, _padding(len(text))]
    for content in contents.values():
        parts += content, _padding(content.nbytes)
    return xxh3_128_hexdigest(text), parts


def _padding(size: int) -> bytes:
    return bytes(-size % 8)


class Manifest(Listing):
    """One listing, mapped from disk. Opening it reads all of it once, to compare the sums: 10 ms for a million objects.

    **Ownership.** The files stay as long as anyone has them mapped, also after a newer listing replaced them: a mapped
    manifest is locked (shared), and what is locked is not removed. One of a few objects (``Header.is_part``) is copied instead.
    **Threads and processes.** Read-only: shared by all threads and inherited by forked children; a pickled
    manifest is its directory's name.

    Attributes:
        header: What the header holds.
        total_bytes: Sum of the known sizes, in bytes.
        version_hashes: See ``version_hash``, shape (num_objects,), uint64; 0 where not known.
        stamps: When each file last changed, and its inode, shape (2, num_objects), int64; None of what is no directory.
    """

    __slots__ = ("_ends", "_file", "header", "num_objects", "sizes", "stamps", "total_bytes", "version_hashes")

    grows: ClassVar[Literal[False]] = False
    num_objects: int
    sizes: NDArray[np.uint64]
    stamps: NDArray[np.int64] | None
    version_hashes: NDArray[np.uint64]

    def __init__(self, directory: Path, file: memoryview) -> None:
        """Take apart the mapped file of one generation; use ``Manifest.open``."""
        header, columns = _taken_apart(directory, file)
        self.directory = directory
        self.header: Header = header
        self.url = header.url
        self.num_objects = header.num_objects
        self.total_bytes: int = header.total_bytes
        self._file = file
        self.sizes = np.frombuffer(columns["sizes"], np.uint64)
        self.version_hashes = np.frombuffer(columns["versions"], np.uint64)
        self.keys = columns["keys"]
        self.stamps = np.frombuffer(columns["stamps"], np.int64).reshape(2, -1) if "stamps" in columns else None
        self.offsets = np.frombuffer(columns["offsets"], np.uint64)
        self._ends = self.offsets.data  # its numbers are those of Python
        self.path_blob = columns["paths"]
        release_pages(file)  # the sums have mapped all of it

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, locked: bool = True) -> Manifest:
        """Return the manifest in ``directory``: the generation in force there, or the generation it is.

        Args:
            directory: See above.
            locked: The files stay as long as it is open; False: only what is mapped does.

        Raises:
            ManifestDamagedError: It is not what was written.
            StoreFormatError: There is none, it is of another layout, or others than this user may have written to it.
        """
        path = Path(directory)
        return opened_while_replaced(lambda: cls._open_now(path, locked=locked), path, "manifest")

    @classmethod
    def _open_now(cls, path: Path, *, locked: bool) -> Manifest:
        generation = current_generation(path) or path
        files = open_protected(generation)
        try:
            opened = cls(generation, _map(generation, files, lock=locked))
            if opened.header.is_part:  # one per open object: a mapping costs a descriptor
                return cls(generation, np.frombuffer(opened.contents(), np.uint8).copy().data)
            return opened
        finally:
            os.close(files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the directory's name."""
        return (Manifest.open, (str(self.directory),))

    def __repr__(self) -> str:
        """Return URL, count and size, for logs."""
        return f"<Manifest {self.url}: {self.num_objects} objects, {self.total_bytes} bytes>"

    @property
    def is_settled(self) -> bool:
        """False when only the paths are known: nothing can be read by it."""
        return self.header.is_settled

    @property
    def left_out(self) -> LeftOut:
        """Entries of the root that cannot be samples."""
        return LeftOut(self.header.num_left_out, self.header.left_out, self.header.denied)

    @property
    def uid(self) -> str:
        """Name of the generation, which stands for the content: equal listings have equal names."""
        return self.directory.name

    @property
    def num_declared(self) -> int:
        """All objects."""
        return self.num_objects

    def path_bytes(self, index: int) -> bytes:
        """Return the path of an object as it stands in the file."""
        if not 0 <= index < self.num_objects:
            raise IndexError(f"object {index} of {self.num_objects}")
        return bytes(self.path_blob[self._ends[index] : self._ends[index + 1]])

    def all_paths(self) -> list[bytes]:
        """Return the paths of all objects, about 100 bytes each."""
        return split_paths(self.path_blob, self.offsets)

    def listed(self, index: int) -> Listed:
        """Return size and version of an object, and when the listing was made."""

        def listed_at() -> float:
            try:
                return os.stat(self.directory / COLUMNS).st_mtime
            except OSError:  # replaced, and removed
                return float("inf")

        size = int(self.sizes[index])
        return Listed(-1 if size == UNKNOWN_SIZE else size, self.version_hash(index), listed_at)

    def version_hash(self, index: int) -> int:
        """Return the hash of an object's version; 0 where not known."""
        return int(self.version_hashes.item(index))

    def index_of(self, path: str) -> int | None:
        """Return the id of a path, or of an object that is one block; None if it is not listed.

        Complexity: O(log n), about 10 µs for ten million objects.
        """
        wanted = path.encode(*ENCODING)
        index = self._lower_bound(wanted)
        if index < self.num_objects and self.path_bytes(index) == wanted:
            return index
        blocks = self.entries_at(path)
        return blocks.start if len(blocks) == 1 else None

    def entries_at(self, path: str) -> range:
        """Return the ids of an object: one, or those of its blocks; none if it is not listed."""
        start = path.encode(*ENCODING)
        first = self._lower_bound(start)
        index = self.num_objects if first == self.num_objects else self._lower_bound(start + b"\x01", first)
        return range(first, index)

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
        below, itself = self.paths_below(path), self.entries_at(path)
        inside: NDArray[np.bool_] = (ids >= below.start) & (ids < below.stop)
        return inside | ((ids >= itself.start) & (ids < itself.stop))

    def release_pages(self) -> None:
        """Let the kernel have back the pages that were read; the next read maps them again, from the page cache."""
        release_pages(self._file)

    def contents(self) -> Buffer:
        """Return what the file of the generation holds; it need not be there any more."""
        return self._file

    def validate(self) -> None:
        """Check every invariant; reads all of it.

        Raises:
            StoreFormatError: An offset, the order or a sum is not as it has to be.
        """
        steps = np.diff(self.offsets.astype(np.int64))
        known = self.sizes != np.uint64(UNKNOWN_SIZE)
        checks = {
            "offsets": self.offsets[0] == 0 and bool((steps > 0).all()),
            "path_bytes": int(self.offsets[-1]) == self.header.path_bytes,
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

    def _lower_bound(self, wanted: bytes, start: int = 0) -> int:
        """Return the first id from ``start`` on whose path is not below ``wanted``."""
        blob, ends = self.path_blob, self._ends
        return bisect_left(
            range(self.num_objects), wanted, start, key=lambda index: bytes(blob[ends[index] : ends[index + 1]])
        )


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


def _map(generation: Path, files: int, *, lock: bool) -> memoryview:
    """Map the file; with ``lock`` it is seen to be in use as long as it is mapped: ``mmap`` keeps the open file."""
    try:
        descriptor = os.open(COLUMNS, os.O_RDONLY | os.O_CLOEXEC, dir_fd=files)
    except FileNotFoundError:
        if os.access(HEADER, os.F_OK, dir_fd=files):
            raise StoreFormatError(f"{generation} has an older layout; this version reads {FORMAT}") from None
        raise
    try:
        if lock:
            _lock_shared(descriptor)
        found = os.fstat(descriptor).st_size
        if found < _HEAD.size:
            raise ManifestDamagedError(f"{generation / COLUMNS} is damaged: it has {found} bytes")
        return mapped(descriptor)
    finally:
        os.close(descriptor)


def _taken_apart(generation: Path, file: memoryview) -> tuple[Header, dict[str, memoryview]]:
    """Return the header and the columns of a file that holds what was written under the name of its generation."""
    damage = f"{generation / COLUMNS} is damaged: "
    magic, layout, length = _HEAD.unpack_from(file)
    if magic != _MAGIC:
        raise ManifestDamagedError(damage + "it does not begin as a manifest does")
    if layout != FORMAT:
        raise StoreFormatError(f"{generation} has layout {layout}; this version reads {FORMAT}")
    text = bytes(file[_HEAD.size : _HEAD.size + length])
    if xxh3_128_hexdigest(text) != generation.name:
        raise ManifestDamagedError(damage + "its header is not the one that the generation is named after")
    try:
        header = msgspec.json.decode(text, type=Header)
    except msgspec.DecodeError as err:
        raise ManifestDamagedError(f"{damage}{err}") from err
    columns: dict[str, memoryview] = {}
    at = _HEAD.size + length + -length % 8
    for name, wanted in header.sums.items():
        size = header.column_bytes(name)
        columns[name] = file[at : at + size]
        at += size + -size % 8
        if len(columns[name]) != size or xxh3_64_intdigest(columns[name]) != wanted:
            raise ManifestDamagedError(f"{damage}its column {name!r} is not what was written")
    if at != len(file):
        raise ManifestDamagedError(f"{damage}{len(file)} bytes, {at} expected")
    return header, columns


def _lock_shared(descriptor: int) -> None:
    """Say that it is in use; wait for one who looks whether it is, or removes it: a matter of milliseconds.

    One who takes longer is stopped, or on a node that is gone. What is mapped without the lock stays on a file system of this
    machine's own, whatever that one removes later.
    """
    flock_within(descriptor, _REMOVAL_SECONDS, fcntl.LOCK_SH)
