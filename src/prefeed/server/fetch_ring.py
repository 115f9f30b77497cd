"""Memory in which fetch processes leave objects, and the server finds them: leased per object, and used again at once."""

from __future__ import annotations

import mmap
import os
from typing import Final

_PAGE_BYTES: Final = 4096
_GROWTH_BYTES: Final = 2 * 1024**2
_SIZES_AN_OCTAVE: Final = 4


class Ring:
    """A file in memory that has no name, mapped by this process and by the one that its descriptor is given to.

    What was given back last is leased first: these bytes are still in the processor's caches, and no more memory is taken
    than is leased at a time.

    **Ownership.** ``close`` gives it back, at the latest when the last lease has been released.
    **Invariants.** Nothing is leased twice at a time. Every page below what was ever leased is backed: no SIGBUS.
    """

    def __init__(self, size_bytes: int) -> None:
        """Make one; pages are made when they are leased.

        Raises:
            OSError: The system has no memory or no descriptor for it.
        """
        self.size_bytes = size_bytes
        self.num_leased: int = 0
        self.fd: int = os.memfd_create("prefeed-ring", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, size_bytes)
            self._memory = mmap.mmap(self.fd, size_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self._view = memoryview(self._memory)
        self._free: dict[int, list[int]] = {}  # begins of what was given back, by size
        self._end = 0
        self._backed = 0
        self._is_closed = False

    def lease(self, size_bytes: int) -> tuple[int, int] | None:
        """Return begin and size of a part that is at least so large; None while too much is leased."""
        size = _rounded(size_bytes)
        free = self._free.get(size)
        if free:
            self.num_leased += 1
            return free.pop(), size
        if self._end + size > self.size_bytes and self.num_leased == 0:
            self._free.clear()  # all of it was cut into parts of other sizes
            self._end = 0
        if self._end + size > self.size_bytes or not self._is_backed(self._end + size):
            return None
        start, self._end = self._end, self._end + size
        self.num_leased += 1
        return start, size

    def release(self, start: int, size_bytes: int) -> None:
        """Take back what ``lease`` returned: it is not used any more."""
        self._free.setdefault(size_bytes, []).append(start)
        self.num_leased -= 1
        if self._is_closed and not self.num_leased:
            self._unmap()

    def view(self, start: int, size_bytes: int) -> memoryview:
        """Return some bytes; the caller releases the view before the lease."""
        return self._view[start : start + size_bytes]

    def close(self) -> None:
        """Give the memory back, once nothing of it is leased."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self.fd)
            if not self.num_leased:
                self._unmap()

    def _unmap(self) -> None:
        self._view.release()
        self._memory.close()

    def _is_backed(self, upto_bytes: int) -> bool:
        while self._backed < upto_bytes:
            growth = min(_GROWTH_BYTES, self.size_bytes - self._backed)
            try:
                os.posix_fallocate(self.fd, self._backed, growth)
            except OSError:
                return False
            self._backed += growth
        return True


def _rounded(size_bytes: int) -> int:
    """Return the size of the part that is leased for this number of bytes: a quarter more at most, and whole pages."""
    size = max(size_bytes, _PAGE_BYTES)
    step = max(_PAGE_BYTES, (1 << (size - 1).bit_length()) // (2 * _SIZES_AN_OCTAVE))
    return -(-size // step) * step
