"""A tier: one index and the segments that it points into."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Final

import numpy as np

from prefeed.errors import TierFullError
from prefeed.store.index import Index, IndexReader, Place
from prefeed.store.segment import TRAILER_BYTES, Segment, read_into, read_value
from prefeed.store.values import value_size
from prefeed.types import ENTRY_KEY_BYTES, Buffer

TRANSIENT: Final = 1
"""A flag of entries that are freed after they were read."""

_INDEX_BYTES: Final = 64
"""Share of one entry in the index, if the table is half full."""

_MOST_VALUE_BYTES: Final = 2**32 - 1
_UNREADABLE: Final = (OSError, IndexError, OverflowError, MemoryError)
"""Errors of a read at the place of a damaged record."""

Corrupt = Callable[[bytes], None]


def stored_bytes(size_bytes: int) -> int:
    """Return the cost of a value in a tier, with its trailer and its record."""
    return size_bytes + TRAILER_BYTES + _INDEX_BYTES


class LogReader:
    """Reads a tier. Nothing that happens to the tier is an error: what cannot be read is not held.

    **Ownership.** The descriptors belong to the caller.
    **Threads and processes.** Any number; nothing is shared between two reads.
    **Blocking.** Reads wait for no lock and no other process.

    Args:
        index: The index file.
        segments: The segments, by their numbers.
        verify: Compare each value with its checksum.
        on_corrupt: Called with the key of a value that the index names and that is not as it was written.
    """

    def __init__(
        self, index: int, segments: Sequence[int], *, verify: bool = False, on_corrupt: Corrupt | None = None
    ) -> None:
        self._index = IndexReader(index)
        self._segments = segments
        self._verify = verify
        self._on_corrupt = on_corrupt

    def get(self, key: bytes) -> bytes | None:
        """Return a value, None if the tier does not hold it."""
        try:
            place = self._index.find(key)
            if place is None:
                return None
            offset, length, segment, _ = place
            value = read_value(self._segments[segment], key, offset, length, verify=self._verify)
        except _UNREADABLE:
            value = None
        if value is None and self._on_corrupt is not None:
            self._on_corrupt(key)
        return value

    def size_of(self, key: bytes) -> int | None:
        """Return the size of a value, None if the tier does not hold it."""
        place = self._find(key)
        return None if place is None else place.length

    def read_into(self, key: bytes, target: memoryview, start: int = 0) -> int | None:
        """Copy a part of a value; return how many bytes, fewer at its end; None if the tier does not hold the value.

        A reader that verifies reads the whole value.

        Args:
            key: Of the value.
            target: Bytes that are written over; their contents are undefined after None.
            start: First byte of the part.

        Raises:
            ValueError: ``start`` is negative.
        """
        if start < 0:
            raise ValueError(f"a part of a value starts at byte 0 or later, not at {start}")
        if self._verify:
            value = self.get(key)
            if value is None:
                return None
            part = memoryview(value)[start : start + len(target)]
            target[: len(part)] = part
            return len(part)
        place = self._find(key)
        if place is None:
            return None
        try:
            return read_into(self._segments[place.segment], key, place.offset, place.length, start, target)
        except _UNREADABLE:
            return None

    def _find(self, key: bytes) -> Place | None:
        try:
            return self._index.find(key)
        except OSError:
            return None


class LogWriter:
    """Appends values to a segment and publishes them in the index, within a budget.

    **Ownership.** One process writes; the descriptors belong to the caller.
    **Threads.** One at a time.

    Args:
        index: The index file.
        segments: The segments, by their numbers; this writer appends to the first.
        budget_bytes: The most that the files may take together.
        sums: Give values checksums.

    Attributes:
        num_impossible: Records found that named no place in the segments, or shared a key, and were removed.

    Raises:
        OSError: The files cannot be read or written.
    """

    def __init__(self, index: int, segments: Sequence[int], *, budget_bytes: int, sums: bool = False) -> None:
        self.budget_bytes = budget_bytes
        self._index_descriptor = index
        self._index = Index(index)
        self.num_impossible: int = self._drop_impossible(segments)
        places = self._index.places()
        self._segments = []
        for number, descriptor in enumerate(segments):
            own = places[places["segment"] == number]
            self._segments.append(Segment(descriptor, sums=sums, offsets=own["offset"], lengths=own["length"]))
        self._value_bytes = int(places["length"].sum(dtype=np.int64))

    def _drop_impossible(self, segments: Sequence[int]) -> int:
        """Remove records that name no place in the segments, or share a key, and return how many: a power cut can leave any."""
        places = self._index.places()
        ends = np.zeros(len(places), dtype=np.uint64)
        for number, descriptor in enumerate(segments):
            ends[places["segment"] == number] = os.fstat(descriptor).st_size
        needed = places["length"].astype(np.uint64) + np.uint64(TRAILER_BYTES)
        wrong = (places["offset"] > ends) | (needed > ends - np.minimum(places["offset"], ends))
        _, groups, counts = np.unique(places["low"], return_inverse=True, return_counts=True)
        wrong |= counts[groups] > 1
        self._index.discard(wrong)
        return int(np.count_nonzero(wrong))

    @property
    def was_damaged(self) -> bool:
        """Whether the index that was found could not be used: the tier began empty."""
        return self._index.was_damaged

    @property
    def num_entries(self) -> int:
        """Values that are held."""
        return len(self._index)

    @property
    def value_bytes(self) -> int:
        """Sizes of the values together."""
        return self._value_bytes

    def file_bytes(self) -> int:
        """Return the allocated bytes of the files."""
        index_bytes = os.fstat(self._index_descriptor).st_blocks * 512
        return index_bytes + sum(segment.allocated_bytes() for segment in self._segments)

    def free_bytes(self) -> int:
        """Return the remaining budget, in units of ``stored_bytes``."""
        return self.budget_bytes - self.file_bytes() - self._index.growth_bytes()

    def put_many(self, items: Sequence[tuple[bytes, Buffer, bool]]) -> None:
        """Store values, or none of them; a value replaces the one that has its key. The third part of an item: it is transient.

        Raises:
            ValueError: A key is not 16 bytes long, or all zeros; nothing is stored.
            TierFullError: There is no room; nothing is stored. Where a file may not be larger, all values are freed.
        """
        for key, _, _ in items:
            if len(key) != ENTRY_KEY_BYTES:
                raise ValueError(f"a key has {ENTRY_KEY_BYTES} bytes, not {len(key)}: {key!r}")
            if not any(key):
                raise ValueError(f"a key of {ENTRY_KEY_BYTES} zeros is the mark of a free record")
        sizes = [value_size(value) for _, value, _ in items]
        needed = sum(map(stored_bytes, sizes))
        room = self.budget_bytes - self.file_bytes() - self._index.growth_bytes(len(items))
        what = f"no room for {len(items)} values of {needed} bytes together"
        if needed > room or max(sizes, default=0) > _MOST_VALUE_BYTES:
            taken = self.file_bytes()
            raise TierFullError(
                f"{what}: {taken} of {self.budget_bytes} bytes are taken, and a value has at most {_MOST_VALUE_BYTES}",
                needed_bytes=needed, used_bytes=taken, capacity_bytes=self.budget_bytes,
            )  # fmt: skip
        try:
            offsets = self._segments[0].append([(key, value) for key, value, _ in items])
        except OSError as err:
            if err.errno == errno.EFBIG:
                self.clear()  # the segment begins anew
            raise TierFullError(f"{what}: {err}") from err
        self._value_bytes += needed - len(items) * stored_bytes(0)
        flags = [TRANSIENT if transient else 0 for _, _, transient in items]
        places = list(map(Place, offsets, sizes, repeat(0), flags))
        replaced: list[Place | None] = []
        try:
            for (key, _, _), place in zip(items, places, strict=True):
                replaced.append(self._index.put(key, place))
        except OSError as err:
            for (key, _, _), place, before in reversed(list(zip(items, places, replaced, strict=False))):
                if before is None:
                    self._index.remove(key)
                elif before != place:
                    self._index.put(key, before)
            self._free(iter(places))
            raise TierFullError(f"{what}: {err}") from err
        self._free(place for place in replaced if place is not None)

    def free_many(self, keys: Sequence[bytes]) -> None:
        """Free values; keys that are not held are passed over."""
        removed = [self._index.remove(key) for key in keys]
        self._free(place for place in removed if place is not None)

    def entries(self) -> Iterator[tuple[bytes, int, bool]]:
        """Yield key, size in bytes, and whether it is transient, of each value."""
        for key, place in self._index.entries():
            yield key, place.length, bool(place.flags & TRANSIENT)

    def clear(self) -> None:
        """Free all values."""
        self._index.clear()
        for segment in self._segments:
            segment.clear()
        self._value_bytes = 0

    def _free(self, places: Iterator[Place]) -> None:
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for place in places:
            by_segment.setdefault(place.segment, []).append((place.offset, place.length))
            self._value_bytes -= place.length
        for number, freed in by_segment.items():
            self._segments[number].free(freed)
