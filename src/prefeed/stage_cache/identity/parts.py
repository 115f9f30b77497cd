"""The result of looking at a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from prefeed.types import Buffer

MARK: Final = "_prefeed_not_random"
"""Attribute of what a user has marked with ``not_random``."""

Part = tuple[str, Any]
"""How it is reached from the whole, as in ``.transforms`` or ``[2]``, and what it is."""


class UntoldError(Exception):
    """Of a value it cannot be told whether it is the same in the next run: the message says why."""


@dataclass(frozen=True, slots=True)
class AsFarAsTold:
    """A value whose code the user vouches for, with a version: its parameters count, so far as they can be told.

    Functions, classes and modules in it count by their names, and what cannot be told does not count.
    """

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """What a value consists of.

    Attributes:
        kind: What it is.
        content: Its own bytes, made when asked for.
        parts: What else it consists of, in an order that is the same in every process, unless ``is_unordered``.
        is_unordered: The parts come in an order that means nothing.
    """

    kind: str
    content: Callable[[], Iterable[Buffer]] = tuple
    parts: tuple[Part, ...] = ()
    is_unordered: bool = False


def attributes(values: dict[Any, Any]) -> list[Part]:
    """Return attributes by name: in which order they were set means nothing."""
    return [(f".{name}", values[name]) for name in sorted(values, key=str) if name != MARK]
