"""Values as parts of a ``repr``."""

from __future__ import annotations

import functools
from typing import Any


def shown(value: Any) -> str:
    """Return a value in a few words: one of prefeed as its ``repr``; others by the name of their class or function, and how many they hold."""
    if isinstance(value, functools.partial):
        return f"partial of {shown(value.func)}"
    if isinstance(name := getattr(value, "__qualname__", None), str):
        return name
    if type(value).__module__.partition(".")[0] == "prefeed":
        return repr(value)
    text = type(value).__name__
    try:
        return f"{text} of {len(value):,}"
    except TypeError:
        return text
