"""Large pages for mapped files in memory: the kernel is asked for each one, so no setting of the machine has to allow them.

A tmpfs gives pages of 4 KiB unless it was mounted with ``huge=``. ``MADV_COLLAPSE`` (Linux 6.1) makes one page of 2 MiB out of 512, or
out of the first of them where there are no others, whatever the mount says. Only ``shmem_enabled=deny`` forbids it. That takes 115 us,
where ``fallocate`` and page faults take 950 us for the same 512 pages (docs/adr/0034-commits-of-stages.md).

A file profits where it is mapped at a multiple of the size of a large page, which mappings of a tmpfs are only by chance.
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
"""Kernels with pages of 64 KiB have large ones of 512 MiB: too much to make at once."""

_MADV_COLLAPSE: Final = 25
_NO_ACCESS: Final = 0
_PRIVATE_ANONYMOUS_NO_RESERVE: Final = 0x4022
_FAILED: Final = ctypes.c_void_p(-1).value
_ELSEWHERE_BYTES: Final = 4 * 1024**2
"""Addresses kept free above the wanted ones, for small mappings made meanwhile: the kernel takes the highest gap that is large enough."""


def _large_page_bytes() -> int:
    """Return the size of a large page; 0 where there are none."""
    try:
        size = int(_SIZE.read_text())
    except (OSError, ValueError):
        return 0
    return size if size <= _MAX_BYTES else 0


LARGE_PAGE_BYTES: Final = _large_page_bytes()
"""The size of a large page; 0 where the kernel has none, or only larger ones than are useful."""


@contextlib.contextmanager
def align_next_mapping(num_bytes: int) -> Iterator[None]:
    """Inside it, the next file that is mapped with this size lies at a multiple of the size of a large page, as a rule.

    For mappings that others make, such as LMDB, who cannot be told an address. The kernel takes the highest gap that is large enough, and
    here one is made of just that size. Where that does not work, the file is mapped anywhere.

    **Threads.** What another thread maps meanwhile may take the place.
    """
    blocked = _leave_one_gap(num_bytes) if LARGE_PAGE_BYTES and num_bytes >= LARGE_PAGE_BYTES else []
    try:
        yield
    finally:
        for address, size in blocked:
            _LIBC.munmap(address, size)


def _leave_one_gap(num_bytes: int) -> list[tuple[int, int]]:
    """Make a gap of this size that begins at a large page; return what is mapped around it: addresses and sizes."""
    size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    total = LARGE_PAGE_BYTES + size + mmap.PAGESIZE + _ELSEWHERE_BYTES
    begin = _LIBC.mmap(None, total, _NO_ACCESS, _PRIVATE_ANONYMOUS_NO_RESERVE, -1, 0)
    if begin is None or begin == _FAILED:  # a limit of address space
        return []
    gap = -(-begin // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    above = gap + size
    free = above + mmap.PAGESIZE
    _LIBC.munmap(gap, size)
    _LIBC.munmap(free, begin + total - free)
    below = [(begin, gap - begin)] if gap > begin else []
    return [*below, (above, mmap.PAGESIZE)]


def try_make_large_page(address: int) -> bool:
    """Make one large page of a file, and map it at this address; False where that cannot be.

    Args:
        address: Where its first byte is mapped for writing, in the file and in memory at a multiple of ``LARGE_PAGE_BYTES``. The
            file has at least one page there already.
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
