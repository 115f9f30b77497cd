"""The state of every object of one manifest: one byte an object, so that 10 million cost 10 MB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

ABSENT: Final = 0
FETCHING: Final = 1
RESIDENT: Final = 2
TRANSIENT: Final = 3
FAILED: Final = 4
FREEING: Final = 5

UNKNOWN_SIZE: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
"""Stands in ``sizes`` for an object whose listing gave no size."""

_FIRST_GUESS_BYTES: Final = 256 * 1024
_CHUNK: Final = 1 << 20


class ObjectTable:
    """States and sizes of the objects of one manifest.

    Args:
        sizes: Bytes of each object, uint64, shape (num_objects,); ``UNKNOWN_SIZE`` where the listing has none.
        stored_bytes: Cost of a value of that many bytes in the tier.

    Attributes:
        in_flight: Fetches under way.
        max_in_flight: Most fetches ahead of demand under way; the interpreter tunes it to the origin.
        resident_bytes: Cost of the residents in the tier, in bytes.

    Invariants: ``state[i]`` is one of the constants above; ``failures`` holds exactly the FAILED ids.
    """

    __slots__ = (
        "_listed_bytes", "_mean", "_observed", "_seen", "_sizes", "_stored_bytes", "failures", "in_flight", "max_in_flight",
        "resident_bytes", "state", "states",
    )  # fmt: skip

    def __init__(self, sizes: npt.NDArray[np.uint64], stored_bytes: Callable[[int], int]) -> None:
        self._sizes = sizes
        self._observed: dict[int, int] = {}
        self.resident_bytes = 0
        self.in_flight = 0
        self.max_in_flight = 32
        self.state = bytearray(len(sizes))
        self.states: npt.NDArray[np.uint8] = np.frombuffer(self.state, dtype=np.uint8)
        self.failures: dict[int, tuple[str, str]] = {}
        self._stored_bytes = stored_bytes
        self._seen = 0
        self._mean = float(_FIRST_GUESS_BYTES)
        self._listed_bytes = _estimate_total(sizes, stored_bytes)

    def __len__(self) -> int:
        return len(self.state)

    @property
    def total_bytes(self) -> int:
        """About what all objects would cost in the tier, in bytes: as listed, or guessed from those seen."""
        if self._listed_bytes is None:
            return len(self.state) * self._stored_bytes(int(self._mean))
        return self._listed_bytes

    @property
    def mean_stored_bytes(self) -> int:
        """About what one object costs in the tier, in bytes."""
        return self.total_bytes // max(1, len(self.state))

    def size_bytes(self, object_id: int) -> int:
        """Return the object's size as last seen; a guess from those seen while nothing is known."""
        size = self._observed.get(object_id)
        if size is None:
            size = int(self._sizes[object_id])
            if size == UNKNOWN_SIZE:
                size = int(self._mean)
        return size

    def stored_bytes(self, object_id: int) -> int:
        """Return what the object costs in the tier, in bytes."""
        return self._stored_bytes(self.size_bytes(object_id))

    def observe_size(self, object_id: int, size_bytes: int) -> int:
        """Return the object's cost in the tier now that its true size is known; later calls agree."""
        if size_bytes != self._sizes[object_id]:
            self._observed[object_id] = size_bytes
        else:
            self._observed.pop(object_id, None)
        self._seen += 1
        self._mean += (size_bytes - self._mean) / min(self._seen, 1000)
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


def _estimate_total(sizes: npt.NDArray[np.uint64], stored_bytes: Callable[[int], int]) -> int | None:
    """Return about what all objects cost in the tier, in bytes; None if no size is known.

    A chunk at a time, for sizes may be a mapped file.
    """
    total = known = 0
    for start in range(0, len(sizes), _CHUNK):
        chunk = sizes[start : start + _CHUNK]
        chunk = chunk[chunk != UNKNOWN_SIZE]
        total += int(chunk.sum())
        known += len(chunk)
    if known == 0:
        return None
    # A value costs its size rounded up to pages; the mean rounding is measured on a sample.
    sample = sizes[:: max(1, len(sizes) // 1000)]
    sample = sample[sample != UNKNOWN_SIZE]
    rounding = sum(stored_bytes(int(size)) - int(size) for size in sample) / max(1, len(sample))
    return int((total / known + rounding) * len(sizes))
