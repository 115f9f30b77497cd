"""Pages of the data file that exist before anything is written to them, so that a full tmpfs is an error, not a SIGBUS."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 4 * 1024**2
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14


class Reservation:
    """The first ``reserved_bytes`` of a mapped file are backed by pages.

    Populating the writer's own mapping does in one call what would be ``posix_fallocate`` and a page fault a page
    later; where the kernel or the file system cannot, ``posix_fallocate`` alone is used.

    **Threads and processes.** One thread at a time, in the process that mapped the file. The interpreter lock is not
    held while pages are made.
    """

    def __init__(self, path: Path, *, reserved_bytes: int, map_bytes: int) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._address = _mapped_address(path)
        self.reserved_bytes = min(reserved_bytes, map_bytes)
        self.map_bytes = map_bytes

    def try_reserve(self, upto_bytes: int) -> bool:
        """Back the file up to an offset; False when the file system has no room, what was reserved stays reserved."""
        wanted = min(upto_bytes, self.map_bytes)
        while self.reserved_bytes < wanted:
            chunk = min(_CHUNK_BYTES, self.map_bytes - self.reserved_bytes)
            if not self._try_reserve_chunk(chunk):
                return False
            self.reserved_bytes += chunk
        return True

    def remapped(self, map_bytes: int) -> None:
        """Note that LMDB mapped the file anew with another size."""
        self.map_bytes = map_bytes
        self.reserved_bytes = min(self.reserved_bytes, map_bytes)
        self._address = _mapped_address(self._path)

    def close(self) -> None:
        """Close the file; its pages stay."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _try_reserve_chunk(self, chunk_bytes: int) -> bool:
        if self._address is not None:
            if _populate(self._address + self.reserved_bytes, chunk_bytes) == 0:
                return True
            # Old kernel, or no room: posix_fallocate tells which.
        try:
            os.posix_fallocate(self._file, self.reserved_bytes, chunk_bytes)
        except OSError as err:
            if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM):
                return False
            raise
        return True


def _populate(address: int, size_bytes: int) -> int:
    return int(_LIBC.madvise(address, size_bytes, _MADV_POPULATE_WRITE))


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise.restype = ctypes.c_int
    return libc


_LIBC: Final = _load_libc()


def _mapped_address(path: Path) -> int | None:
    """Return where this process has the file mapped for writing; None when that cannot be told."""
    stat = os.stat(path)
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}"
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            addresses, permissions, offset, on_device, inode, *_ = line.split(maxsplit=5)
            if (
                inode == str(stat.st_ino)
                and on_device == device
                and permissions.startswith("rw")
                and int(offset, 16) == 0
            ):
                return int(addresses.split("-")[0], 16)
    return None
