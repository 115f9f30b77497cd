"""Requests large pages for mapped files in memory, one by one, so that no setting of the machine has to allow them.

A tmpfs uses pages of 4 KiB unless it was mounted with ``huge=``. ``MADV_COLLAPSE`` (Linux 6.1) replaces 512 of them by one page of 2 MiB,
even if only some exist, for any mount option. Only ``shmem_enabled=deny`` prevents this. It takes 115 us, compared with 950 us for ``fallocate``
and page faults of 512 pages (docs/adr/0034-commits-of-stages.md).

A file benefits if it is mapped at a multiple of the large page size. Mappings of a tmpfs usually are not, so ``align_next_mapping`` arranges it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["LARGE_PAGE_BYTES", "align_next_mapping", "try_make_large_page"]

_SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAX_BYTES: Final = 4 * 1024**2
"""Maximum, because kernels with pages of 64 KiB have large pages of 512 MiB, which take too long to create."""

_MADV_COLLAPSE: Final = 25
_NO_ACCESS: Final = 0
_PRIVATE_ANONYMOUS_NO_RESERVE: Final = 0x4022
_FAILED: Final = ctypes.c_void_p(-1).value
_ELSEWHERE_BYTES: Final = 4 * 1024**2
"""Address space kept free above the gap for other small mappings, because the kernel uses the highest gap that fits."""


def _large_page_bytes() -> int:
    """Return the size of a large page; 0 if the kernel has none."""
    try:
        size = int(_SIZE.read_text())
    except (OSError, ValueError):
        return 0
    return size if size <= _MAX_BYTES else 0


LARGE_PAGE_BYTES: Final = _large_page_bytes()
"""Size of a large page; 0 if the kernel has none or only those above ``_MAX_BYTES``."""


@contextlib.contextmanager
def align_next_mapping(num_bytes: int) -> Iterator[None]:
    """Align the next mapping of this size in the block to a large page, if possible.

    For mappings by libraries such as LMDB, which accept no address. The kernel uses the highest gap that is large enough, and this
    function creates one of the exact size. If that fails, the file is mapped anywhere.

    **Threads.** A mapping by another thread may take the gap.
    """
    blocked = _leave_one_gap(num_bytes) if LARGE_PAGE_BYTES and num_bytes >= LARGE_PAGE_BYTES else []
    try:
        yield
    finally:
        for address, size in blocked:
            _LIBC.munmap(address, size)


def _leave_one_gap(num_bytes: int) -> list[tuple[int, int]]:
    """Create an aligned gap of this size. Return the addresses and sizes of the mappings around it."""
    size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    total = LARGE_PAGE_BYTES + size + mmap.PAGESIZE + _ELSEWHERE_BYTES
    begin = _LIBC.mmap(None, total, _NO_ACCESS, _PRIVATE_ANONYMOUS_NO_RESERVE, -1, 0)
    if begin is None or begin == _FAILED:  # address space is limited
        return []
    gap = -(-begin // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    above = gap + size
    free = above + mmap.PAGESIZE
    _LIBC.munmap(gap, size)
    _LIBC.munmap(free, begin + total - free)
    below = [(begin, gap - begin)] if gap > begin else []
    return [*below, (above, mmap.PAGESIZE)]


def try_make_large_page(address: int) -> bool:
    """Convert the pages at an address to one large page. Return False if that fails.

    Args:
        address: Multiple of ``LARGE_PAGE_BYTES`` at which a multiple of it in the file is mapped for writing. The file must
            have at least one page there.
    """
    return int(_LIBC.madvise(address, LARGE_PAGE_BYTES, _MADV_COLLAPSE)) == 0


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.munmap.restype = ctypes.c_int
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise.restype = ctypes.c_int
    return libc


_LIBC: Final = _load_libc()
