"""One budget of bytes, divided among the objects of a tier and the stage caches beside them. Pure.

    budget  |------ objects: all that no cache was given ------|-- cache --|-- cache --|
            at least their share, and what their file takes

A limit is a promise to other processes, which write without asking: it is lowered only when no process can write there.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

OBJECTS_SHARE: Final = 8
"""The budget divided by this stays with the objects, whatever caches ask for."""

MIN_OBJECTS_BYTES: Final = 16 * 1024**2

OVERHEAD_BYTES: Final = 64 * 1024
"""What a cache costs beside its limit: its record, rewritten before the old one goes, and its directories."""

CHUNK_BYTES: Final = 64 * 1024**2
"""Room is given in steps of this size, so that few ask."""

MIN_LIMIT_BYTES: Final = 256 * 1024
"""A store with less than this holds nothing: it is given nothing."""

_PAGE_BYTES: Final = 4096


class Shares:
    """Limits of the stores that share a budget.

    Args:
        budget_bytes: The most that all together may take.

    Invariants: all limits with their overhead, and what the objects have at least, stay within the budget.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.objects_share_bytes: int = min(budget_bytes, max(budget_bytes // OBJECTS_SHARE, MIN_OBJECTS_BYTES))
        self._limits: dict[Hashable, int] = {}

    @property
    def objects_limit_bytes(self) -> int:
        """The most that the objects may take now."""
        return self.budget_bytes - sum(self._limits.values()) - OVERHEAD_BYTES * len(self._limits)

    def limit_of(self, store: Hashable) -> int:
        """Return the most that a store may take; 0 for one that is not known."""
        return self._limits.get(store, 0)

    def free_bytes(self, store: Hashable, *, objects_bytes: int) -> int:
        """Return what could be added to the limit of a store, which may be a new one.

        Args:
            store: Whose limit it is.
            objects_bytes: What the objects take of their file system: it does not come back.
        """
        overhead = 0 if store in self._limits else OVERHEAD_BYTES
        return max(0, self.objects_limit_bytes - max(self.objects_share_bytes, objects_bytes) - overhead)

    def grant(self, store: Hashable, limit_bytes: int, *, objects_bytes: int) -> int:
        """Raise a limit as far as there is room, in whole pages, and return it; it is never lowered."""
        now = self.limit_of(store)
        most = now + self.free_bytes(store, objects_bytes=objects_bytes)
        limit = min(limit_bytes, most) // _PAGE_BYTES * _PAGE_BYTES
        if limit >= max(MIN_LIMIT_BYTES, now + 1):
            self._limits[store] = limit
        return self.limit_of(store)

    def set(self, store: Hashable, limit_bytes: int) -> None:
        """The store has this limit, whether or not there is room: it was given in an earlier life, or is lowered."""
        self._limits[store] = limit_bytes

    def forget(self, store: Hashable) -> None:
        """The store is gone, or takes nothing."""
        self._limits.pop(store, None)
