"""Text for terminals; imports nothing, for every command needs it."""

from __future__ import annotations

_STEP = 1024.0


def printable(text: object) -> str:
    """Return a text that can be printed: bytes of a path that are no UTF-8 are shown as ``\\udcff`` rather than not at all."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


def format_bytes(number: float) -> str:
    """Return ``512 B``, ``1.5 KiB``, ``8.0 GiB``."""
    if number < _STEP:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        number /= _STEP
        if number < _STEP:
            return f"{number:.1f} {unit}"
    return f"{number / _STEP:.1f} TiB"
