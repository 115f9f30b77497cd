"""Formats sizes and times for people. Imports nothing, because every command uses this module."""

from __future__ import annotations

_STEP = 1024.0


def format_bytes(number: float) -> str:
    """Format a size, such as ``512 B``, ``1.5 KiB`` or ``8.0 GiB``."""
    if number < _STEP:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        number /= _STEP
        if number < _STEP:
            return f"{number:.1f} {unit}"
    return f"{number / _STEP:.1f} TiB"


def in_mib(size_bytes: int) -> str:
    """Format a size in MiB, for sizes that are compared, such as ``512 MiB``."""
    return f"{size_bytes / _STEP**2:.0f} MiB"


def in_gib(size_bytes: int) -> str:
    """Format a size in GiB, for sizes that are compared, such as ``7.25 GiB``."""
    return f"{size_bytes / _STEP**3:.2f} GiB"
