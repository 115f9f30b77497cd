"""State and size of every object of one manifest: one byte per state, so that 10 million cost 10 MB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

UNKNOWN_SIZE: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
"""Stands in ``sizes`` for an object whose listing gave no size."""

_FIRST_GUESS_BYTES: Final = 256 * 1024
_GUESS_WEIGHT: Final = 64
"""A guess made from a sample counts as much as that many objects seen."""

_MEAN_OVER: Final = 1000
"""The mean follows about that many objects seen last."""

_CHUNK: Final = 1 << 20
_UNKNOWN: Final = 0xFFFF_FFFF
"""Stands in the own copy for an unknown size, or for one of 4 GiB and more that the dict holds."""


class ObjectSizes:
    """Sizes, and what all objects together would cost in the tier.

    While every listed size is known, the listed array itself is used, which may be a mapped file. Otherwise a copy of
    4 bytes an object is kept: a catalogue of 10 million files costs 40 MB, and may change its own array at any time.

    Args:
        listed: Bytes of each object, uint64, shape (num_objects,); ``UNKNOWN_SIZE`` where the listing has none.
        stored_bytes: Cost of a value of that many bytes in the tier.
    """

    __slots__ = ("_known_cost", "_length", "_mean", "_num_known", "_others", "_own", "_seen", "_sizes", "_stored_bytes")

    def __init__(self, listed: npt.NDArray[np.uint64], stored_bytes: Callable[[int], int]) -> None:
        self._stored_bytes = stored_bytes
        self._length = len(listed)
        self._sizes: npt.NDArray[np.uint64] | npt.NDArray[np.uint32] = listed
        self._own: npt.NDArray[np.uint32] | None = None
        self._others: dict[int, int] = {}
        self._mean = float(_FIRST_GUESS_BYTES)
        self._seen = 0
        self._num_known = 0
        self._known_cost = 0
        self._count(listed)
        if self._num_known < len(listed):
            self._copy(listed, 0)

    def __len__(self) -> int:
        return self._length

    @property
    def total_cost(self) -> int:
        """About what all objects would cost in the tier, in bytes; those not known are guessed."""
        unknown = self._length - self._num_known
        return self._known_cost + (unknown * self._stored_bytes(int(self._mean)) if unknown else 0)

    def get(self, object_id: int) -> int:
        """Return the object's size as last seen or listed, in bytes; a guess from the others when it is not known."""
        size = self._find(object_id)
        return int(self._mean) if size is None else size

    def is_known(self, object_id: int) -> bool:
        """Return True if the object's size was listed or seen."""
        return self._find(object_id) is not None

    def observe(self, object_id: int, size_bytes: int) -> None:
        """The object's true size is known."""
        old = self._find(object_id)
        if size_bytes != old:
            self._known_cost += self._stored_bytes(size_bytes)
            if old is None:
                self._num_known += 1
            else:
                self._known_cost = max(0, self._known_cost - self._stored_bytes(old))
            self._put(object_id, size_bytes)
        self._follow(size_bytes, 1)

    def guess_mean(self, mean_bytes: int) -> None:
        """Take objects to be about that large, if nothing is known yet."""
        if self._seen == 0:
            self._follow(mean_bytes, _GUESS_WEIGHT)

    def grow(self, listed: npt.NDArray[np.uint64]) -> None:
        """Objects were appended; amortised O(1) for each.

        Args:
            listed: Sizes of all objects, the old ones first; of these only the number is looked at.
        """
        if len(listed) < self._length:
            raise ValueError(f"{len(listed)} sizes for {self._length} objects: a listing never shrinks")
        if self._own is None:
            self._copy(self._sizes, 0)
        start, self._length = self._length, len(listed)
        self._count(listed[start:])
        self._copy(listed[start:], start)

    def _find(self, object_id: int) -> int | None:
        other = self._others.get(object_id)
        if other is not None:
            return other
        size = int(self._sizes[object_id])
        return None if self._own is not None and size == _UNKNOWN else size

    def _put(self, object_id: int, size_bytes: int) -> None:
        self._others.pop(object_id, None)
        if self._own is not None:
            self._own[object_id] = min(size_bytes, _UNKNOWN)
        if size_bytes != self._sizes[object_id] or (self._own is not None and size_bytes >= _UNKNOWN):
            self._others[object_id] = size_bytes

    def _copy(self, part: npt.NDArray[np.unsignedinteger], start: int) -> None:
        """Copy sizes, those of the objects from ``start`` on, a chunk at a time: they may be a mapped file."""
        room = self._room_for(start + len(part))
        for at in range(0, len(part), _CHUNK):
            chunk = part[at : at + _CHUNK]
            room[start + at : start + at + len(chunk)] = np.minimum(chunk, _UNKNOWN)
            for offset in np.flatnonzero((chunk >= _UNKNOWN) & (chunk != UNKNOWN_SIZE)).tolist():
                self._others.setdefault(start + at + offset, int(chunk[offset]))
        self._own, self._sizes = room, room

    def _room_for(self, length: int) -> npt.NDArray[np.uint32]:
        if self._own is not None and length <= len(self._own):
            return self._own
        room = np.empty(length if self._own is None else max(1024, 2 * length), dtype=np.uint32)
        if self._own is not None:
            room[: len(self._own)] = self._own
        return room

    def _count(self, part: npt.NDArray[np.uint64]) -> None:
        """Add up what is known of these, a chunk at a time."""
        total = known = 0
        for start in range(0, len(part), _CHUNK):
            chunk = part[start : start + _CHUNK]
            chunk = chunk[chunk != UNKNOWN_SIZE]
            total += int(chunk.sum())
            known += len(chunk)
        if known:
            self._num_known += known
            self._known_cost += total + round(known * self._rounding(part))
            self._follow(total / known, known)

    def _rounding(self, part: npt.NDArray[np.uint64]) -> float:
        """Return by how much a value costs more than its size, on average: measured on a sample."""
        sample = part[:: max(1, len(part) // 1000)]
        sample = sample[sample != UNKNOWN_SIZE]
        return sum(self._stored_bytes(int(size)) - int(size) for size in sample) / max(1, len(sample))

    def _follow(self, mean_bytes: float, count: int) -> None:
        self._seen += count
        self._mean += (mean_bytes - self._mean) * min(1.0, count / min(self._seen, _MEAN_OVER))


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
        self.resident_bytes: int = 0
        self.in_flight: int = 0
        self.max_in_flight: int = 32
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

    def transient_bytes(self, object_id: int) -> int:
        """Return the bytes to reserve for a transient: twice the mean if its size is unknown.

        A transient that arrives larger than its reservation may find the lent part taken and is fetched again.
        """
        cost = self.stored_bytes(object_id)
        return cost if self._sizes.is_known(object_id) else 2 * cost

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
