"""How much freed memory the C library's heap keeps for the next allocation."""

from __future__ import annotations

from typing import Final

__all__ = ["keep_freed"]

_MAX_BYTES: Final = 63 << 20
"""glibc learns nothing from a block of more than 32 MiB; the block is half as large as what is kept."""

_kept_bytes = 0


def keep_freed(num_bytes: int) -> None:
    """Have the heap of this process keep up to ``num_bytes`` freed bytes, for code that frees and allocates as much repeatedly.

    glibc returns the end of its heap to the kernel when more than 128 KiB are free there, and the next allocation makes every
    page again: for bytes of 84 KB that takes longer than to copy them. When a large block is freed, glibc raises that limit to
    twice its size. So a block is allocated and freed here, without a touch of its pages: 5 us, once per size. Limits that
    the user has set (``MALLOC_TRIM_THRESHOLD_``) stay, and other C libraries take no notice.

    Args:
        num_bytes: That are freed together; of more than 63 MiB only this is kept.
    """
    global _kept_bytes
    wanted = min(num_bytes, _MAX_BYTES)
    if wanted > _kept_bytes:
        _kept_bytes = wanted
        bytes(wanted // 2)  # zeros of the kernel's; a ``bytearray`` would be filled
