"""Short texts of values for a ``repr``, and of errors for a message."""

from __future__ import annotations

import functools
from typing import Any, Final

_MAX_CHARACTERS: Final = 100


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


def describe(value: Any) -> str:
    """Return the names of a stage's steps in one line, such as ``Compose(Resize, CenterCrop, ToTensor)``."""
    name = _name(value)
    inner = [_described(part) for part in _shown(value)]
    text = f"{name}({', '.join(inner)})" if inner else name
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


def _described(value: Any, depth: int = 2) -> str:
    inner = [_described(part, depth - 1) for part in _shown(value)] if depth else []
    return f"{_name(value)}({', '.join(inner)})" if inner else _name(value)


def _name(value: Any) -> str:
    """Return the name of a function or class, or of the class of an instance."""
    if isinstance(value, functools.partial):
        return _name(value.func)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "").replace("<lambda>", "lambda")


def _shown(value: Any) -> list[Any]:
    """Return the steps of a stage and the datasets below it."""
    own = getattr(value, "__dict__", {})
    for name in ("transforms", "_modules"):
        steps = own.get(name)
        if isinstance(steps, dict | list | tuple) and steps:
            return list(steps.values()) if isinstance(steps, dict) else list(steps)
    return [own[name] for name in ("dataset", "fn", "transform") if own.get(name) is not None]
