"""What a tier is: a writing end and a reading end, so that a fake can stand for either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from prefeed.types import Buffer


class WritableTier(Protocol):
    """The one writer of a tier; one thread at a time."""

    @property
    def capacity_bytes(self) -> int:
        """The most that values may cost together, counted by ``stored_bytes``."""
        ...

    @property
    def used_bytes(self) -> int:
        """What they cost now."""
        ...

    @property
    def file_bytes(self) -> int:
        """What they have taken of the file system."""
        ...

    @property
    def is_scattered(self) -> bool:
        """Whether ``give_back`` gives no more, although not all that is taken holds values."""
        ...

    def capacity_within(self, budget_bytes: int) -> int:
        """Return what ``capacity_bytes`` is when the tier takes so much of the file system."""
        ...

    def expect_foreign_readers(self, are_expected: bool) -> None:
        """Let readers of other PID namespaces open the tier; or, once those that are in have left, no more."""
        ...

    def resize(self, budget_bytes: int) -> int:
        """Let the tier take so much from now on; returns what it may take, more when its file has more already."""
        ...

    def give_back(self, budget_bytes: int) -> int:
        """Give back what holds no values, part by part, until no more than that is taken; returns what is taken now."""
        ...

    def apply(self, puts: Sequence[tuple[bytes, Buffer, bool]], deletes: Sequence[bytes]) -> None:
        """Delete, then store; raises TierFullError with none of the puts stored and the deletes done."""
        ...

    def put_many(self, items: Sequence[tuple[bytes, Buffer, bool]]) -> None:
        """Store all of a group or, with TierFullError, none of it."""
        ...

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete values; unknown keys are passed over."""
        ...

    def entries(self) -> Iterator[tuple[bytes, int, bool]]:
        """Yield key, size in bytes, and whether it is transient."""
        ...

    def reclaim_dead_readers(self) -> int:
        """Free what killed readers held; returns how many there were."""
        ...

    def close(self) -> None:
        """Let go of the tier; its values stay."""
        ...

    def destroy(self) -> None:
        """Remove the tier and its values."""
        ...


class ViewBatch(Protocol):
    """A snapshot of a tier."""

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return a view of each value, None for those not held; valid inside the batch only."""
        ...


class ReadableTier(Protocol):
    """A reader of a tier; never raises for what the tier does."""

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of a value, None if it is not held."""
        ...

    def batch(self) -> AbstractContextManager[ViewBatch]:
        """Return a context manager in which views are valid."""
        ...

    def reopen_if_replaced(self) -> bool:
        """Let go of a store that is no longer the one at its path; True if it was not."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the last read found a tier, whatever it held."""
        ...

    def close(self) -> None:
        """Let go of the tier."""
        ...
