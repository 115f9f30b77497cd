"""Reads without a future: of the objects a sample is made that is kept itself, so that they need not be kept as well."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Scope(threading.local):
    given: dict[tuple[str, int], bytes] | None = None


_scope = _Scope()


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside it, the node keeps nothing of what this thread has to ask it for, unless a plan of some loader does."""
    previous, _scope.given = _scope.given, {}
    try:
        yield
    finally:
        _scope.given = previous


def is_reading_once() -> bool:
    """Return True inside ``reading_once``."""
    return _scope.given is not None


def given_before(dataset: str, object_id: int) -> bytes | None:
    """Return what was given for an object in this scope: a sample that is made twice is made of the same bytes."""
    return None if _scope.given is None else _scope.given.get((dataset, object_id))


def gave(dataset: str, object_id: int, data: bytes) -> None:
    """Note what was given for an object, if this is such a scope."""
    if _scope.given is not None:
        _scope.given[dataset, object_id] = data
