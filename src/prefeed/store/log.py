"""A tier: one index and the segments that it points into."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.errors import TierFullError
from prefeed.store.index import Index, IndexReader, Place
from prefeed.store.segment import PAGE_BYTES, TRAILER_BYTES, Segment, read_into, read_value
from prefeed.types import ENTRY_KEY_BYTES, Buffer

MIN_BUDGET_BYTES: Final = 4 * 1024**2
"""Least budget of a memory tier."""

TRANSIENT: Final = 1
"""A flag of entries that are freed after they were read."""

_INDEX_BYTES: Final = 160
"""Of the index for one entry, at most: a table that is five eighths full, while it is doubled."""

_SPARE_SHARE: Final = 1 / 64
"""Share of the budget for partly used pages and a growing table. After so much was freed in small values, others are moved together."""

_MOST_VALUE_BYTES: Final = 2**32 - 1
_UNREADABLE: Final = (OSError, IndexError, OverflowError, MemoryError)
"""Errors of a read at the place of a damaged record."""

_MOST_SORTED: Final = 1 << 18
"""Values among which those are chosen: a tenth of a second."""

_SMALL_BYTES: Final = 2 * PAGE_BYTES
"""Smaller values have no page of their own."""

_FULL_BYTES: Final = PAGE_BYTES * 7 // 8
"""A page with so many bytes of entries is left alone."""

_MOST_MOVED: Final = 4096
"""Values that are moved at a time: some tens of milliseconds."""

_LOOK_EVERY: Final = 64
"""Values that are granted places after one look at what the files take."""

_GROUP_MOVED: Final = 16
"""Values that are there twice for a moment."""

Corrupt = Callable[[bytes], None]


def capacity_within(budget_bytes: int) -> int:
    """Return what values may cost together, counted by ``stored_bytes``, in a tier that may take so much. Pure."""
    return int(budget_bytes * (1 - _SPARE_SHARE))


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
        place = self._find(key)
        while place is not None:
            try:
                value = read_value(self._segments[place.segment], key, place.offset, place.length, verify=self._verify)
            except _UNREADABLE:
                value = None
            if value is not None:
                return value
            before, place = place, self._find(key)  # another one, if the value was replaced or moved meanwhile
            if place == before:
                if self._on_corrupt is not None:
                    self._on_corrupt(key)
                break
        return None

    def keys(self) -> bytes:
        """Return the keys of all values, one after the other."""
        try:
            return self._index.keys()
        except OSError:
            return b""

    def size_of(self, key: bytes) -> int | None:
        """Return the size of a value, None if the tier does not hold it."""
        place = self._find(key)
        return None if place is None else place.length

    def lend(self, key: bytes, from_bytes: int) -> bytes | StoredValue | None:
        """Return a value that is smaller than this, a larger one as something to be read in parts; None if it is not held."""
        size_bytes = self.size_of(key)
        if size_bytes is not None and size_bytes >= from_bytes:
            return StoredValue(self, key, size_bytes)
        return self.get(key)

    def read(self, key: bytes, start: int, size_bytes: int) -> bytes | None:
        """Return a part of a value, shorter at its end; None if the tier does not hold the value."""
        part = bytearray(size_bytes)
        copied = self.read_into(key, memoryview(part), start)
        return None if copied is None else bytes(memoryview(part)[:copied])

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
        before, place = None, self._find(key)
        while place is not None and place != before:
            try:
                copied = read_into(self._segments[place.segment], key, place.offset, place.length, start, target)
            except _UNREADABLE:
                copied = None
            if copied is not None:
                return copied
            before, place = place, self._find(key)
        return None

    def _find(self, key: bytes) -> Place | None:
        try:
            return self._index.find(key)
        except OSError:
            return None


class StoredValue:
    """A value of the tier of which parts are read. Nothing is held between two reads.

    **Threads and processes.** Any thread, and a forked child.
    """

    __slots__ = ("_reader", "_size_bytes", "key")

    def __init__(self, reader: LogReader, key: bytes, size_bytes: int) -> None:
        self._reader = reader
        self.key = key
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._size_bytes

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at the end; None if the tier does not hold the value any more."""
        return self._reader.read_into(self.key, target, start)

    def read(self, start: int, size_bytes: int) -> bytes | None:
        """Return a part, shorter at the end; None if the tier does not hold the value any more."""
        return self._reader.read(self.key, start, max(0, min(size_bytes, self._size_bytes - start)))


class LogWriter:
    """Appends values to segments and publishes them in the index, within a budget.

    Other processes write values as well, each to places that it was granted: they touch no other place, and the index never.

    **Ownership.** One process grants, publishes and frees; the descriptors belong to the caller.
    **Threads.** One at a time.

    Args:
        index: The index file.
        segments: The segments, by their numbers. Transients are appended to the last one, other values to the first one.
        budget_bytes: The most that the files may take together.
        sums: Give values checksums.

    Attributes:
        num_impossible: Records found that named no place in the segments, or shared a key, and were removed.

    Raises:
        OSError: The files cannot be read or written.
    """

    def __init__(self, index: int, segments: Sequence[int], *, budget_bytes: int, sums: bool = False) -> None:
        self._sums = sums
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
        self._granted: set[Place] = set()
        self._sparse = places[:0]
        self._freed_bytes = 0

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
    def budget_bytes(self) -> int:
        """The most that the files may take together."""
        return self._budget_bytes

    @budget_bytes.setter
    def budget_bytes(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._sure_bytes = self._sure_entries = 0

    @property
    def segments(self) -> list[int]:
        """The descriptors of the segments, by their numbers."""
        return [segment.descriptor for segment in self._segments]

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
        """Return the bytes that the files take, with granted places."""
        index_bytes = os.fstat(self._index_descriptor).st_blocks * 512
        return index_bytes + sum(segment.taken_bytes() for segment in self._segments)

    def free_bytes(self, num_entries: int = 1) -> int:
        """Return the remaining budget for ``num_entries`` more values, in units of ``stored_bytes``."""
        return self.budget_bytes - self.file_bytes() - self._index.growth_bytes(num_entries)

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
        what = f"no room for {len(items)} values of {needed} bytes together"
        if not self._has_room(needed, len(items)) or max(sizes, default=0) > _MOST_VALUE_BYTES:
            taken = self.file_bytes()
            raise TierFullError(
                f"{what}: {taken} of {self.budget_bytes} bytes are taken, and a value has at most {_MOST_VALUE_BYTES}",
                needed_bytes=needed, used_bytes=taken, capacity_bytes=self.budget_bytes,
            )  # fmt: skip
        try:
            places = self._append(items, sizes)
        except OSError as err:
            if err.errno == errno.EFBIG and self._sums:
                self.clear()  # the segment begins anew
            raise TierFullError(f"{what}: {err}") from err
        try:
            self._publish([key for key, _, _ in items], places)
        except TierFullError:
            self._free_pages(places, were_named=False)
            raise

    def grant(self, size_bytes: int, *, transient: bool) -> Place | None:
        """Return a place that another process may fill with a value and its trailer; None if there is no room.

        It counts as taken until ``publish`` or ``release``.
        """
        if not self._has_room(stored_bytes(size_bytes), 1) or size_bytes > _MOST_VALUE_BYTES:
            return None
        number, flags = (len(self._segments) - 1, TRANSIENT) if transient else (0, 0)
        (offset,) = self._segments[number].reserve([size_bytes])
        place = Place(offset, size_bytes, number, flags)
        self._granted.add(place)
        return place

    def publish(self, items: Sequence[tuple[bytes, Place]]) -> None:
        """Name the values at granted places, which are written; a value replaces the one that has its key.

        Raises:
            TierFullError: The index has no room, or the tier was cleared since; the places stay granted.
        """
        places = [place for _, place in items]
        if not self._granted.issuperset(places):
            raise TierFullError(f"no room for {len(items)} values: the tier was cleared while they were written")
        self._publish([key for key, _ in items], places)
        self._granted.difference_update(places)

    def release(self, places: Iterable[Place]) -> None:
        """Take granted places back after their writers have ended."""
        granted = [place for place in places if place in self._granted]
        self._granted.difference_update(granted)
        self._free_pages(granted, were_named=False)

    def read(self, key: bytes, place: Place) -> bytes | None:
        """Return the value at a granted place, None if the tier was cleared since."""
        if place not in self._granted:
            return None
        return read_value(self.segments[place.segment], key, place.offset, place.length, verify=False)

    def _has_room(self, needed_bytes: int, num_entries: int) -> bool:
        """Return whether there is room, made if need be."""
        if needed_bytes <= self._sure_bytes and num_entries <= self._sure_entries:
            self._sure_bytes -= needed_bytes
            self._sure_entries -= num_entries
            return True
        while needed_bytes > (room := self.free_bytes(num_entries)):
            if not self._repack():
                return False
        # Until the next look only so much is taken: what is freed meanwhile comes on top.
        self._sure_bytes, self._sure_entries = room - needed_bytes, _LOOK_EVERY
        return True

    def _repack(self) -> bool:
        """Append small values of pages with holes again, and free the pages; return whether there is more room.

        A page stays allocated as long as one entry has a part of it. So when small values are freed in any order, most of
        a tier can be pages with one entry each.
        """
        taken = sum(segment.taken_bytes() for segment in self._segments)
        if not all(segment.can_punch for segment in self._segments):
            return False
        if not len(self._sparse):
            if self._freed_bytes < taken * _SPARE_SHARE:
                return False  # too little was freed since the last look
            self._freed_bytes = 0
            places = self._index.places()
            if len(places) > _MOST_SORTED:  # the oldest: most holes are there
                places = places[np.argpartition(places["offset"], _MOST_SORTED)[:_MOST_SORTED]]
            self._sparse = np.concatenate(
                [_on_sparse_pages(places[places["segment"] == number]) for number in range(len(self._segments))]
            )
        chosen, self._sparse = self._sparse[:_MOST_MOVED], self._sparse[_MOST_MOVED:]
        try:
            for first in range(0, len(chosen), _GROUP_MOVED):
                self._move(chosen[first : first + _GROUP_MOVED])
        except (OSError, TierFullError):
            return False
        return sum(segment.taken_bytes() for segment in self._segments) < taken

    def _move(self, records: npt.NDArray[np.void]) -> None:
        """Append values again that are still at these places, and free the places."""
        keys: list[bytes] = []
        items: list[tuple[bytes, Buffer, bool]] = []
        columns = (records[name].tolist() for name in Place._fields)
        for key, *place in zip(_keys_of(records), *columns, strict=True):
            offset, length, number, flags = place
            if self._index.find(key) == Place(offset, length, number, flags):
                value = read_value(self.segments[number], key, offset, length, verify=self._sums)
                if value is not None:
                    keys.append(key)
                    items.append((key, value, bool(flags & TRANSIENT)))
        places = self._append(items, [value_size(value) for _, value, _ in items])
        try:
            self._publish(keys, places)
        except TierFullError:
            self._free_pages(places, were_named=False)
            raise

    def _append(self, items: Sequence[tuple[bytes, Buffer, bool]], sizes: Sequence[int]) -> list[Place]:
        """Append values to the segments of their kinds, all or none; return their places."""
        places: dict[int, Place] = {}
        try:
            for number, is_transient in ((0, False), (len(self._segments) - 1, True)):
                rows = [row for row, (_, _, transient) in enumerate(items) if transient == is_transient]
                offsets = self._segments[number].append([items[row][:2] for row in rows]) if rows else []
                flags = TRANSIENT if is_transient else 0
                places.update(
                    (row, Place(at, sizes[row], number, flags)) for row, at in zip(rows, offsets, strict=True)
                )
        except OSError:
            for place in places.values():
                self._segments[place.segment].free([(place.offset, place.length)], were_named=False)
            raise
        return [places[row] for row in range(len(items))]

    def _publish(self, keys: Sequence[bytes], places: Sequence[Place]) -> None:
        """Name places in the index, all or none; free what they replace."""
        replaced: list[Place | None] = []
        try:
            for key, place in zip(keys, places, strict=True):
                replaced.append(self._index.put(key, place))
        except OSError as err:
            for key, place, before in reversed(list(zip(keys, places, replaced, strict=False))):
                if before is None:
                    self._index.remove(key)
                elif before != place:
                    self._index.put(key, before)
            raise TierFullError(f"no room for {len(keys)} records in the index: {err}") from err
        self._value_bytes += sum(place.length for place in places)
        self._free([place for place in replaced if place is not None])

    def free_many(self, keys: Sequence[bytes]) -> None:
        """Free values; keys that are not held are passed over."""
        removed = [self._index.remove(key) for key in keys]
        self._free([place for place in removed if place is not None])

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
        self._granted.clear()
        self._sparse = self._sparse[:0]

    def _free(self, places: Sequence[Place]) -> None:
        self._value_bytes -= sum(place.length for place in places)
        self._free_pages(places)

    def _free_pages(self, places: Iterable[Place], *, were_named: bool = True) -> None:
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for place in places:
            by_segment.setdefault(place.segment, []).append((place.offset, place.length))
            if place.length < _SMALL_BYTES:
                self._freed_bytes += place.length + TRAILER_BYTES
        for number, freed in by_segment.items():
            self._segments[number].free(freed, were_named=were_named)


def _on_sparse_pages(records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return the records of one segment whose entries have parts of pages with holes only, those of the emptiest pages first."""
    starts = records["offset"].astype(np.int64)
    ends = starts + records["length"].astype(np.int64) + TRAILER_BYTES
    first, last = starts // PAGE_BYTES, (ends - 1) // PAGE_BYTES
    pages, rows = np.unique(np.concatenate([first, last]), return_inverse=True)
    of_first, of_last = rows[: len(first)], rows[len(first) :]
    on_first = np.minimum(ends, (first + 1) * PAGE_BYTES) - starts
    on_last = np.where(first == last, 0, ends - last * PAGE_BYTES)
    used = np.bincount(of_first, on_first, len(pages)) + np.bincount(of_last, on_last, len(pages))
    fuller_page = np.where(last - first > 1, PAGE_BYTES, np.maximum(used[of_first], used[of_last]))
    order = np.argsort(fuller_page, kind="stable")
    found: npt.NDArray[np.void] = records[order[: np.count_nonzero(fuller_page < _FULL_BYTES)]]
    return found


def _keys_of(records: npt.NDArray[np.void]) -> list[bytes]:
    return [key.tobytes() for key in np.stack([records["low"], records["high"]], axis=1)]


def value_size(value: Buffer) -> int:
    """Return the size of a value in bytes."""
    return value.nbytes if isinstance(value, memoryview) else len(value)
