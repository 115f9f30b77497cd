"""Sizes and times as people read them; imports nothing, for every command needs it."""

from __future__ import annotations

_STEP = 1024.0


def format_bytes(number: float) -> str:
    """Return ``512 B``, ``1.5 KiB``, ``8.0 GiB``."""
    if number < _STEP:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        number /= _STEP
        if number < _STEP:
            return f"{number:.1f} {unit}"
    return f"{number / _STEP:.1f} TiB"


def in_mib(size_bytes: int) -> str:
    """Return ``512 MiB``, for sizes beside one another."""
    return f"{size_bytes / _STEP**2:.0f} MiB"


def in_gib(size_bytes: int) -> str:
    """Return ``7.25 GiB``, for sizes beside one another."""
    return f"{size_bytes / _STEP**3:.2f} GiB"


def format_seconds(seconds: float) -> str:
    """Return ``7 us``, ``1.5 ms``, ``2.5 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
