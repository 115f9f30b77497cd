"""Listings: the objects of an origin by dense ids, in columns that are mapped from files and never loaded.

Two kinds have this in common: a ``Manifest`` lists what lies below one root, and is never changed; a ``Catalogue`` lists files
by absolute path, and grows. Files that one process writes and others map are allocated before they are mapped, and never cut.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import StoreFormatError, TierFullError, UnsafeDirectoryError
from prefeed.types import ENTRY_KEY_BYTES, Buffer, EntryKey

UNKNOWN_SIZE: Final = 2**64 - 1
ENCODING: Final = ("utf-8", "surrogateescape")

_Opened = TypeVar("_Opened")
_log = logging.getLogger("prefeed")

_MOST_NAMED: Final = 5
_MOST_NAME_CHARS: Final = 200

_warned: set[str] = set()


class LeftOut:
    """Entries of an origin that cannot be samples: their number, and the first ones by name with the reason.

    **Threads**: any.
    """

    def __init__(self, count: int = 0, named: Sequence[str] = (), denied: Sequence[bytes] = ()) -> None:
        """Continue a count; a listing begins with none."""
        self.count = count
        self.named = list(named)
        self.denied = list(denied)  # the first paths that the user of this process has no permission to read
        self._lock = threading.Lock()

    def add(self, path: str, reason: str, *, is_denied: bool = False) -> None:
        """Count an entry; the path may have any characters, and is shown escaped."""
        with self._lock:
            self.count += 1
            if is_denied:
                self.denied = sorted([*self.denied, path.encode(*ENCODING)])[:_MOST_NAMED]
            # In order, so that a listing by several threads always gives the same manifest.
            self.named = sorted([*self.named, f"{path[:_MOST_NAME_CHARS]!r} ({reason})"])[:_MOST_NAMED]

    def clear(self) -> None:
        """Begin a new count."""
        with self._lock:
            self.count, self.named, self.denied = 0, [], []

    def described(self) -> str:
        """Return the first names and the number of the others."""
        more = self.count - len(self.named)
        return ", ".join(self.named) + (f" and {more:,} more" if more else "")

    def warn(self, url: str, *, what: str = "samples") -> None:
        """Log one line, once per process and text; none if nothing was left out."""
        text = f"{url}: entries that cannot be {what} are left out ({self.count:,}): {self.described()}"
        if self.count and text not in _warned:
            _warned.add(text)
            _log.warning("prefeed: %s", text)


@dataclass(frozen=True, slots=True)
class Listed:
    """What a listing says of one object's bytes.

    Attributes:
        size_bytes: Its size; -1 when the listing does not say.
        version_hash: See ``manifest.version_hash``; 0 when it has no version.
        listed_at: Returns when it was listed, in seconds since 1970; asked only where there is no version.
    """

    size_bytes: int
    version_hash: int
    listed_at: Callable[[], float] = lambda: float("inf")


class Listing(ABC):
    """Objects by dense ids, 0 <= id < ``num_objects``: path, size and entry key of each.

    Attributes:
        grows: False: one root was listed, and what is said of an object holds until it is listed again. True: files are added
            as they are opened by path, and each is what it is when it is read.
        directory: Where its files lie.
        url: Canonical URL of the root; ``/`` where paths are absolute.
        keys: Entry keys by which readers find objects; that of object i is ``keys[i * 16 : (i + 1) * 16]``.
        path_blob: The paths, one after the other.
        offsets: Where each begins in it, and the last one's end, uint64.
    """

    __slots__ = ("directory", "keys", "offsets", "path_blob", "url")

    grows: ClassVar[bool]
    directory: Path
    url: str
    keys: memoryview
    path_blob: memoryview
    offsets: NDArray[np.uint64]

    @property
    @abstractmethod
    def uid(self) -> str:
        """Listings of one kind with the same are the same: ids of one mean the same in the other."""

    @property
    @abstractmethod
    def num_objects(self) -> int:
        """Number of objects by now."""

    @property
    @abstractmethod
    def num_declared(self) -> int:
        """Number of objects, the first ones, that it began with."""

    @property
    @abstractmethod
    def sizes(self) -> NDArray[np.uint64]:
        """Bytes of each object, shape (num_objects,); ``UNKNOWN_SIZE`` where not known."""

    def __len__(self) -> int:
        """Return the number of objects."""
        return self.num_objects

    def path(self, index: int) -> str:
        """Return the path of an object, relative to the root."""
        return self.path_bytes(index).decode(*ENCODING)

    def path_bytes(self, index: int) -> bytes:
        """Return the path of an object as it stands in the file."""
        self._reach(index)
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        if end > len(self.path_blob):
            self.refresh()
        return bytes(self.path_blob[start:end])

    def key(self, index: int) -> EntryKey:
        """Return the key by which readers find an object's bytes; zeros while there is none."""
        return key_at(self.keys, index)

    def size(self, index: int) -> int | None:
        """Return the size of an object in bytes; None where not known."""
        self._reach(index)
        size = int(self.sizes[index])
        return None if size == UNKNOWN_SIZE else size

    @abstractmethod
    def listed(self, index: int) -> Listed | None:
        """Return what the bytes of an object have to be; None: whatever they are when it is read."""

    @abstractmethod
    def is_below(self, ids: NDArray[np.int64], url: str) -> NDArray[np.bool_]:
        """Return of each of these objects whether it is at or below a URL, which lies below the root; shape (num_ids,)."""

    def inode(self, index: int) -> int:
        """Return which file it was that was last seen under the path, as ``identity_of`` says; 0 where not known."""
        return 0

    def refresh(self) -> bool:
        """Map what the files have grown by; return whether they had. Views taken before stay valid."""
        return False

    def release_pages(self) -> None:
        """Let the kernel have back the pages that were touched; the next use maps them again, from the page cache."""
        for view in (self.keys, self.path_blob, self.sizes, self.offsets):
            release_pages(view)

    def _reach(self, index: int) -> None:
        """Make sure that an object is mapped."""
        if not 0 <= index < self.num_objects:
            raise IndexError(f"object {index} of {self.num_objects}")


def opened_while_replaced(open_once: Callable[[], _Opened], path: Path, what: str) -> _Opened:
    """Return what is opened; another one may take its place meanwhile, so that it is tried three times.

    Raises:
        StoreFormatError: There is none, not all of it, or others than this user may have written to it.
    """
    for last_try in (False, False, True):
        try:
            return open_once()
        except UnsafeDirectoryError as err:
            raise StoreFormatError(str(err)) from err
        except (FileNotFoundError, NotADirectoryError) as err:
            if last_try:
                raise StoreFormatError(f"{path} holds no {what}, or not all of it: {err.filename}") from err
    raise AssertionError


def allocate(path: Path, size_bytes: int) -> None:
    """Make a file at least that long, with blocks for all of it: a mapped hole on a full disk ends in SIGBUS.

    Raises:
        TierFullError: The file system has no room; what the file held stays.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            text = f"{path.parent} has no room for {size_bytes} bytes of {path.name}: free some space there"
            raise TierFullError(text, path=str(path), size_bytes=size_bytes) from err
        raise
    finally:
        os.close(descriptor)


def mapped(descriptor: int, *, writable: bool = False) -> memoryview:
    """Return the whole of an open file, as long as it is now; it is not empty. The mapping keeps the open file."""
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ))


def map_file(directory: int, name: str, *, writable: bool) -> memoryview:
    """Return the whole of a file below the descriptor of its directory, as long as it is now.

    Raises:
        StoreFormatError: It is empty.
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR if writable else os.O_RDONLY
    descriptor = os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not os.fstat(descriptor).st_size:
            raise StoreFormatError(f"{name} is empty")
        return mapped(descriptor, writable=writable)
    finally:
        os.close(descriptor)


def as_numbers(view: memoryview) -> NDArray[np.uint64]:
    """Return what is mapped as numbers.

    Raises:
        StoreFormatError: It is no whole number of numbers.
    """
    if len(view) % 8:
        raise StoreFormatError(f"a file of {len(view)} bytes does not hold numbers of 8 bytes")
    return np.frombuffer(view, np.uint64)


def split_paths(blob: Buffer, offsets: NDArray[np.uint64]) -> list[bytes]:
    """Return the paths of a blob, one ``bytes`` each."""
    joined, ends = bytes(blob), offsets.tolist()
    return [joined[start:end] for start, end in pairwise(ends)]


def key_at(keys: memoryview, index: int) -> EntryKey:
    """Return the key at that place; 16 bytes each."""
    return EntryKey(bytes(keys[index * ENTRY_KEY_BYTES : (index + 1) * ENTRY_KEY_BYTES]))


def release_pages(view: memoryview | NDArray[np.uint64]) -> None:
    """Let the kernel have back the pages that were touched; the next use maps them again, from the page cache."""
    of_file: Any = view
    while not isinstance(of_file, mmap.mmap):
        of_file = of_file.obj if isinstance(of_file, memoryview) else of_file.base
        if of_file is None:
            return
    of_file.madvise(mmap.MADV_DONTNEED)
