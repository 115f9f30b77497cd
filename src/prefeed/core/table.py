"""The state of every object of one manifest: one byte an object, so that 10 million cost 10 MB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core.sizes import UNKNOWN_SIZE, ObjectSizes

__all__ = [
    "ABSENT", "FAILED", "FETCHING", "FREEING", "RESIDENT", "TRANSIENT", "UNKNOWN_SIZE", "ObjectTable",
]  # fmt: skip

ABSENT: Final = 0
FETCHING: Final = 1
RESIDENT: Final = 2
TRANSIENT: Final = 3
FAILED: Final = 4
FREEING: Final = 5


class ObjectTable:
    """States and sizes of the objects of one manifest, or of a catalogue, which grows.

    Args:
        sizes: Bytes of each object, uint64, shape (num_objects,); ``UNKNOWN_SIZE`` where the listing has none.
        stored_bytes: Cost of a value of that many bytes in the tier.

    Attributes:
        in_flight: Fetches under way.
        max_in_flight: Most fetches ahead of demand under way; the interpreter tunes it to the origin.
        resident_bytes: Cost of the residents in the tier, in bytes.
        state: State of each object; longer than the table, as room for more. ``grow`` may replace it.
        states: The same memory as an array, shape (num_objects,). ``grow`` replaces it.

    Invariants: ``state[i]`` is one of the constants above; ``failures`` holds exactly the FAILED ids.
    """

    __slots__ = (
        "_sizes", "_stored_bytes", "failures", "in_flight", "max_in_flight", "resident_bytes", "state", "states",
    )  # fmt: skip

    def __init__(self, sizes: npt.NDArray[np.uint64], stored_bytes: Callable[[int], int]) -> None:
        self._sizes = ObjectSizes(sizes, stored_bytes)
        self._stored_bytes = stored_bytes
        self.resident_bytes = 0
        self.in_flight = 0
        self.max_in_flight = 32
        self.state = bytearray(len(sizes))
        self.states: npt.NDArray[np.uint8] = np.frombuffer(self.state, dtype=np.uint8)
        self.failures: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self.states)

    @property
    def total_bytes(self) -> int:
        """About what all objects would cost in the tier, in bytes: as listed or seen, guessed where nothing is known."""
        return self._sizes.total_cost

    @property
    def mean_stored_bytes(self) -> int:
        """About what one object costs in the tier, in bytes."""
        return self.total_bytes // max(1, len(self))

    def num_in(self, state: int) -> int:
        """Return how many objects are in that state."""
        return int(np.count_nonzero(self.states == state))

    def grow(self, sizes: npt.NDArray[np.uint64]) -> None:
        """Objects were appended, which are absent; amortised O(1) for each.

        Args:
            sizes: Of all objects, the old ones first; may be another array than before.

        Raises:
            ValueError: There are fewer than before.
        """
        old, new = len(self), len(sizes)
        self._sizes.grow(sizes)
        if new > len(self.state):
            room = bytearray(max(1024, 2 * new))  # a new one: an array stands on the old one, which cannot be resized
            room[:old] = self.state[:old]
            self.state = room
        self.states = np.frombuffer(self.state, dtype=np.uint8, count=new)

    def guess_mean(self, mean_bytes: int) -> None:
        """Take objects of unknown size to be about that large until some were seen; nothing when some are known."""
        self._sizes.guess_mean(mean_bytes)

    def size_bytes(self, object_id: int) -> int:
        """Return the object's size as last seen or listed; a guess from the others when it is not known."""
        return self._sizes.get(object_id)

    def stored_bytes(self, object_id: int) -> int:
        """Return what the object costs in the tier, in bytes."""
        return self._stored_bytes(self._sizes.get(object_id))

    def observe_size(self, object_id: int, size_bytes: int) -> int:
        """Return the object's cost in the tier now that its true size is known; later calls agree."""
        self._sizes.observe(object_id, size_bytes)
        return self._stored_bytes(size_bytes)

    def forget_failures(self) -> None:
        """Let every refused object be asked for again: a new epoch begins."""
        for object_id in self.failures:
            self.state[object_id] = ABSENT
        self.failures.clear()

    def ids_in(self, *states: int) -> npt.NDArray[np.int64]:
        """Return the ids in any of these states, ascending."""
        mask = np.zeros(256, dtype=bool)
        mask[list(states)] = True
        return np.flatnonzero(mask[self.states])
