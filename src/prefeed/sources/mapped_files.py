"""Files that one process writes and others read, all through mappings: allocated before they are mapped, never cut."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import StoreFormatError, TierFullError
from prefeed.types import ENTRY_KEY_BYTES, EntryKey


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


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED: Final = ctypes.c_void_p(-1).value


def map_closed(descriptor: int, size_bytes: int) -> memoryview:
    """Return a file, to be read, as long as it is referred to; the descriptor may be closed, and no copy of it stays open.

    Python's own ``mmap`` keeps one (until 3.13): of 200 listings with five files each, 1,000.

    Raises:
        OSError: It cannot be mapped.
    """
    address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    mapped = (ctypes.c_ubyte * size_bytes).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, size_bytes).atexit = False
    return memoryview(mapped).cast("B").toreadonly()


def as_numbers(view: memoryview) -> NDArray[np.uint64]:
    """Return what is mapped as numbers.

    Raises:
        StoreFormatError: It is no whole number of numbers.
    """
    if len(view) % 8:
        raise StoreFormatError(f"a file of {len(view)} bytes does not hold numbers of 8 bytes")
    return np.frombuffer(view, np.uint64)


def key_at(keys: memoryview, index: int) -> EntryKey:
    """Return the key at that place; 16 bytes each."""
    return EntryKey(bytes(keys[index * ENTRY_KEY_BYTES : (index + 1) * ENTRY_KEY_BYTES]))


def release_pages(view: memoryview | NDArray[np.uint64]) -> None:
    """Let the kernel have back the pages that were touched; the next use maps them anew, from the page cache."""
    mapped: Any = view
    while not isinstance(mapped, mmap.mmap):
        if isinstance(mapped, ctypes.Array):
            _libc.madvise(ctypes.addressof(mapped), ctypes.sizeof(mapped), mmap.MADV_DONTNEED)
            return
        mapped = mapped.obj if isinstance(mapped, memoryview) else mapped.base
        if mapped is None:
            return
    mapped.madvise(mmap.MADV_DONTNEED)
