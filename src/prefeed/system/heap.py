"""Raises the amount of freed memory that the C library keeps for later allocations."""

from __future__ import annotations

from typing import Final

__all__ = ["keep_freed"]

_MAX_BYTES: Final = 63 << 20
"""Maximum: the freed block is half as large, and glibc ignores blocks of more than 32 MiB."""

_kept_bytes = 0


def keep_freed(num_bytes: int) -> None:
    """Let the heap of this process keep up to ``num_bytes`` freed bytes, for code that repeatedly frees and allocates.

    By default, glibc returns the end of its heap to the kernel if more than 128 KiB are free there. The next allocation then creates the pages
    again, which for 84 KB takes longer than a copy. glibc raises that limit to twice the size of a large block when the block is freed. This
    function therefore allocates and frees a block without touching its pages, in 5 us, once per size. A limit set by the user
    (``MALLOC_TRIM_THRESHOLD_``) stays. Other C libraries are not affected.

    Args:
        num_bytes: Bytes that are freed together, limited to 63 MiB.
    """
    global _kept_bytes
    wanted = min(num_bytes, _MAX_BYTES)
    if wanted > _kept_bytes:
        _kept_bytes = wanted
        bytes(wanted // 2)  # zeros from the kernel, whose pages are not touched; a ``bytearray`` would be filled
