"""Pages of the data file that exist before anything is written to them, so that a full tmpfs is an error, not a SIGBUS."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from prefeed.system.files import punch
from prefeed.system.large_pages import LARGE_PAGE_BYTES, try_make_large_page

_CHUNK_BYTES: Final = 4 * 1024**2
_MOST_AT_ONCE: Final = 4 * 1024**2
"""Where the file system has no room for all of it, the first part is still had."""

_FIRST_SMALL_BYTES: Final = 8 * 1024**2
"""Of what a process makes, so much are small pages: what they cost is measured, and a large one is no waste in a file of that size."""

_PAUSE_BYTES: Final = 128 * 1024**2
_LONGEST_PAUSE_BYTES: Final = 4 * 1024**3
"""After a large page that was not to be had, or cost more than small ones, so much is made of small ones; each time twice as much."""

_MEAN_OVER: Final = 8
"""Large pages in the mean of how late they come: a thread is kept waiting now and then without their fault."""

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14


class _Nanoseconds(NamedTuple):
    """Of this thread's processor time, and by the clock."""

    processor: float
    clock: float

    def plus(self, began: _Nanoseconds, num_bytes: int) -> _Nanoseconds:
        """Return these and the time since then, for each of so many bytes."""
        now = _now()
        return _Nanoseconds(
            self.processor + (now.processor - began.processor) / num_bytes,
            self.clock + (now.clock - began.clock) / num_bytes,
        )


def _now() -> _Nanoseconds:
    return _Nanoseconds(time.thread_time_ns(), time.perf_counter_ns())


class Reservation:
    """A part of a mapped file, up to ``reserved_bytes``, is backed by pages.

    ``posix_fallocate`` makes the pages, then the writer's own mapping is populated with them, which is what a page
    fault a page would do later. What is populated stays; what is only allocated may go again, when another process that
    allocates the same pages finds that there is no room for all it wants (Linux takes back pages that were not touched).
    Where the kernel cannot populate, ``posix_fallocate`` alone is used.

    With ``large`` the pages are large ones (``large_pages``) as long as these cost less processor time, and do not take twice as long by the
    clock: a virtual machine may have to get each from its host, and the kernel waits for all processors. They are made only where it is
    known that nobody writes.

    **Threads and processes.** Any thread, in the process that mapped the file. The interpreter lock is not held while
    pages are made.
    """

    def __init__(
        self, path: Path, *, reserved_bytes: int, map_bytes: int, chunk_bytes: int = _CHUNK_BYTES, large: bool = False
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._large_bytes = LARGE_PAGE_BYTES if large and _POPULATES else 0
        self._small_bytes_left = _FIRST_SMALL_BYTES
        self._pause_bytes = _PAUSE_BYTES
        self._small_ns_a_byte = _Nanoseconds(0.0, 0.0)
        self._late_ns_a_byte = 0.0  # by how much large pages came later than small ones would have, in the mean
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._address = _mapped_address(self._file)
        self._backed = (0, min(reserved_bytes, map_bytes))  # from, up to; replaced as a whole, since threads share it
        self.map_bytes: int = map_bytes

    @property
    def reserved_bytes(self) -> int:
        """Up to where the file is known to be backed."""
        return self._backed[1]

    @property
    def can_populate(self) -> bool:
        """Whether pages made outside of any lock are sure to stay."""
        return self._address is not None and _POPULATES

    @property
    def makes_large(self) -> bool:
        """Whether pages are large now, where nobody writes meanwhile."""
        size = self._large_bytes
        return size > 0 and self._small_bytes_left <= 0 and self._address is not None and self._address % size == 0

    def has_pages(self, upto_bytes: int, *, from_bytes: int = 0) -> bool:
        """Return whether a part of the file is known to be backed."""
        start, end = self._backed
        return start <= from_bytes and min(upto_bytes, self.map_bytes) <= end

    def try_reserve(self, upto_bytes: int, *, from_bytes: int = 0, is_unused: bool = False) -> bool:
        """Back a part of the file; False when the file system has no room, what was reserved stays reserved.

        Args:
            upto_bytes: End of the part; no more than the map is backed.
            from_bytes: Its begin, a multiple of the page size.
            is_unused: Nothing was written behind its begin, and nobody does meanwhile.
        """
        start, end = self._backed
        if not start <= from_bytes <= end:
            start = end = min(from_bytes, self.map_bytes)
        wanted = min(upto_bytes, self.map_bytes)
        while end < wanted:
            size = self._try_make_large(end) if is_unused else 0
            if not size:
                size = self._small_bytes(end, wanted, is_unused=is_unused)
                if not self._try_make_small(end, size):
                    return False
            end += size
            self._backed = (start, end)
        return True

    @property
    def can_punch(self) -> bool:
        """Whether it is known where the file is mapped, and pages that are made again are sure to stay."""
        return self.can_populate

    def offset_of(self, address: int) -> int:
        """Return where in the file a byte of this process's mapping lies."""
        assert self._address is not None
        return address - self._address

    def punch(self, start: int, size_bytes: int) -> bool:
        """Give pages of the file back to the kernel; False when the file system cannot do that."""
        return punch(self._file, start, size_bytes)

    def try_fill(self, start: int, size_bytes: int) -> bool:
        """Back a part that was punched; False when the file system has no room."""
        return size_bytes <= 0 or self._try_back(start, size_bytes)

    def release(self, from_bytes: int) -> None:
        """Give the pages back that are backed behind the data."""
        start, end = self._backed
        if start <= from_bytes < end and self.punch(from_bytes, end - from_bytes):
            self._backed = (start, from_bytes)

    def remapped(self, map_bytes: int) -> None:
        """Note that LMDB remapped the file with another size."""
        self.map_bytes = map_bytes
        self._backed = (min(self._backed[0], map_bytes), min(self._backed[1], map_bytes))
        self._address = _mapped_address(self._file)

    def close(self) -> None:
        """Close the file; its pages stay."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _small_bytes(self, start: int, wanted: int, *, is_unused: bool) -> int:
        """Return how much is made of small pages at once: whole chunks, but no more than up to where a large one begins."""
        chunks = -(-min(wanted - start, _MOST_AT_ONCE) // self._chunk_bytes)
        size = min(chunks * self._chunk_bytes, self.map_bytes - start)
        if is_unused and self.makes_large:
            size = min(size, self._large_bytes - start % self._large_bytes)
        return size

    def _try_make_small(self, start: int, size_bytes: int) -> bool:
        if self._small_bytes_left <= 0 or not self._large_bytes:
            return self._try_back(start, size_bytes)
        began = _now()
        is_made = self._try_back(start, size_bytes)
        if self._pause_bytes == _PAUSE_BYTES:  # the first ones
            self._small_ns_a_byte = self._small_ns_a_byte.plus(began, _FIRST_SMALL_BYTES)
        self._small_bytes_left -= size_bytes
        return is_made

    def _try_make_large(self, start: int) -> int:
        """Back a large page at this offset; returns its size, 0 if there is none, and goes on with small ones if it was dear."""
        size = self._large_bytes
        if not self.makes_large or start % size or start + size > self.map_bytes:
            return 0
        assert self._address is not None
        began = _now()
        try:
            os.posix_fallocate(self._file, start, mmap.PAGESIZE)
        except OSError:
            return 0  # who makes small ones comes to the same error, and tells of it
        is_made = try_make_large_page(self._address + start)
        took = _Nanoseconds(0.0, 0.0).plus(began, size)
        self._late_ns_a_byte += (took.clock - self._small_ns_a_byte.clock - self._late_ns_a_byte) / _MEAN_OVER
        is_dear = took.processor > self._small_ns_a_byte.processor or self._late_ns_a_byte > self._small_ns_a_byte.clock
        if not is_made or is_dear:
            self._late_ns_a_byte = 0.0
            self._small_bytes_left = self._pause_bytes
            self._pause_bytes = min(2 * self._pause_bytes, _LONGEST_PAUSE_BYTES)
        return size if is_made else 0

    def _try_back(self, start: int, size_bytes: int) -> bool:
        try:
            os.posix_fallocate(self._file, start, size_bytes)
        except OSError as err:
            if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM):
                return False
            raise
        return self._address is None or not _POPULATES or _populate(self._address + start, size_bytes) == 0


def _populate(address: int, size_bytes: int) -> int:
    return int(_LIBC.madvise(address, size_bytes, _MADV_POPULATE_WRITE))


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise.restype = ctypes.c_int
    return libc


_LIBC: Final = _load_libc()
_POPULATES: Final = _populate(0, 0) == 0


def _mapped_address(file: int) -> int | None:
    """Return where this process has an open file mapped for writing; None when that cannot be told."""
    stat = os.fstat(file)
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


_AHEAD_BYTES: Final = 8 * 1024**2


class PageMaker(Reservation):
    """Part of a mapped file that is backed by pages, and up to 8 MiB more than was asked for, from the first time on.

    Making the pages of an object takes the kernel as long as copying it there; measured, the loop of a server that
    fills its tier had 20 % more time for objects (2026-11, docs/adr/0001-store.md). One process writes the file, and only where
    there are pages already: so they are large ones where these cost less.

    **Ownership.** ``close`` ends the thread.

    **Threads.** One asks. Pages are made, and the file is remapped, by one thread at a time.
    """

    def __init__(self, path: Path, *, reserved_bytes: int, map_bytes: int) -> None:
        super().__init__(path, reserved_bytes=reserved_bytes, map_bytes=map_bytes, large=True)
        self._lock = threading.Lock()
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def try_reserve(self, upto_bytes: int, *, from_bytes: int = 0, is_unused: bool = True) -> bool:
        """Do what ``Reservation`` does; pages that there are already are not waited for."""
        is_there = self.has_pages(upto_bytes, from_bytes=from_bytes)
        if not is_there:
            with self._lock:
                is_there = super().try_reserve(upto_bytes, from_bytes=from_bytes, is_unused=is_unused)
        wanted = min(upto_bytes + _AHEAD_BYTES, self.map_bytes)
        if is_there and self.reserved_bytes < wanted:
            self._ask(wanted)
        return is_there

    def remap(self, map_bytes: int, resize: Callable[[int], bool]) -> None:
        """Let the file be remapped with another size, while no pages are made; the function returns False if it was not."""
        with self._lock:
            if resize(map_bytes):
                self.remapped(map_bytes)

    def release(self, from_bytes: int) -> None:
        """Do what ``Reservation`` does, while no pages are made."""
        with self._lock:
            super().release(from_bytes)

    def close(self) -> None:
        """Close the file, once what is being made is there; its pages stay."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None
        super().close()

    def _ask(self, upto_bytes: int) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="prefeed-pages", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads are to be had: who writes makes them
                thread.start()
                self._thread = thread
        if self._thread is not None:
            self._asked.put(upto_bytes)

    def _run(self) -> None:
        while (upto_bytes := self._asked.get()) is not None:
            with self._lock, contextlib.suppress(OSError):  # who writes comes to the same error, and tells of it
                super().try_reserve(upto_bytes, is_unused=True)
