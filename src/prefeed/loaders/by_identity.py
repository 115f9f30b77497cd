"""Records of objects of the user's, for as long as there is the object."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """A record for each object, by identity and not in the object.

    What equality and hashes mean is the user's, and so are pickles, copies and ``vars`` of the object.

    **Threads**: any; a record goes with its object, in whichever thread that is collected, without a lock.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[Any], T]] = {}

    def get(self, thing: Any) -> T | None:
        """Return the record of an object; None if it has none."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def clear(self) -> None:
        """Forget all records."""
        self._entries.clear()

    def get_or_make(self, thing: Any, make: Callable[[], T]) -> T:
        """Return the record of an object, made now if it has none.

        It is not kept where nothing can refer to the object weakly.
        """
        found = self.get(thing)
        if found is None:
            found, entries, key = make(), self._entries, id(thing)
            with contextlib.suppress(TypeError):
                entries[key] = ref(thing, lambda _: entries.pop(key, None)), found
        return found
