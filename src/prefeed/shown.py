"""Short texts of values for a ``repr``, and of errors for a message."""

from __future__ import annotations

import functools
from typing import Any


def described(err: BaseException) -> str:
    """Return the type of an error, its text, and the notes that were added to it, in one line."""
    return "; ".join([f"{type(err).__name__}: {err}", *getattr(err, "__notes__", ())])


def shown(value: Any) -> str:
    """Return a short text of a value.

    That is the ``repr`` of an object of prefeed, the name of a function or class, or the name of the value's class and its length.
    """
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
