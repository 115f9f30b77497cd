"""Text for terminals; imports nothing, for every command needs it."""

from __future__ import annotations


def printable(text: object) -> str:
    """Return a text that can be printed: bytes of a path that are no UTF-8 are shown as ``\\udcff`` rather than not at all."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")
