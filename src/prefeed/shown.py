"""Values as parts of a ``repr``, and errors as parts of a message."""

from __future__ import annotations

import functools
from typing import Any


def described(err: BaseException) -> str:
    """Return the type of an error, its text, and the notes that were added to it, in one line."""
    return "; ".join([f"{type(err).__name__}: {err}", *getattr(err, "__notes__", ())])


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
