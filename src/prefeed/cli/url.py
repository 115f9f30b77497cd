"""URLs as people type them."""

from __future__ import annotations

from pathlib import Path


def absolute_url(text: str) -> str:
    """Return a URL as it is and a path as an absolute one: the server runs in another directory."""
    return text if "://" in text else str(Path(text).expanduser().absolute())
