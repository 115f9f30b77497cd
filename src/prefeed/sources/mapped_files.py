"""Files that one process writes and others read, all through mappings: allocated before they are mapped, never cut."""

from __future__ import annotations

import errno
import mmap
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import StoreFormatError, TierFullError
from prefeed.types import ENTRY_KEY_BYTES, Buffer, EntryKey


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


def map_file(directory: int, name: str, *, writable: bool) -> memoryview:
    """Return the whole of a file below the descriptor of its directory, as long as it is now.

    Raises:
        StoreFormatError: It is empty.
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR if writable else os.O_RDONLY
    descriptor = os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            raise StoreFormatError(f"{name} is empty")
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ))
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
    """Let the kernel have back the pages that were touched; the next use maps them anew, from the page cache."""
    mapped: Any = view
    while not isinstance(mapped, mmap.mmap):
        mapped = mapped.obj if isinstance(mapped, memoryview) else mapped.base
        if mapped is None:
            return
    mapped.madvise(mmap.MADV_DONTNEED)
