"""What one consumer will read, in order, and how far it has come.

    ids       3 17 4 9 | 8 1 12 6 | 2 5 ...
              consumed   scanned    not looked at yet
                       ^position  ^cursor

An entry between the two that was not resident when the cursor passed it is *outstanding*: it is being fetched or
waits, transient, for its reader. It counts against the lookahead until it is consumed, or until the position
passes it, which means that the sample was read some other way or not at all.

An entry between the two whose object was invalidated is *missing*: the cursor has passed it, but its object is to be
fetched again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]

MOST_BYTES: Final = 40 * 1024**2
"""What the ids of one order may take: 10 million of them, where 4 bytes are enough for one."""

_LEAST_ROOM: Final = 1024


class Window:
    """Object ids by their index in the whole order; only the part that is still needed is kept.

        order     3 17 4 9 8 1 12 6 2 5 7 ...
                  dropped |   kept    | not known yet
                          ^start      ^end

    Args:
        ids: The first of the order, shape (num_accesses,), any integer dtype, which stays; not copied.
        most_bytes: What is kept may take so much.

    Attributes:
        ids: What is kept.
        start: Index of the first that is kept.
        is_cut: More came than may be kept: the order ends here for its readers, whatever comes after that.

    Invariants: what is kept takes ``most_bytes`` at most, the room for more included.
    """

    __slots__ = ("_most", "_room", "ids", "is_cut", "start")

    def __init__(self, ids: Ids, *, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes // ids.itemsize
        self.is_cut: bool = len(ids) > self._most
        self.ids = ids[: self._most].copy() if self.is_cut else ids
        self.start: int = 0
        self._room: Ids = self.ids[:0]

    @property
    def end(self) -> int:
        """Index behind the last id that is known."""
        return self.start + len(self.ids)

    @property
    def nbytes(self) -> int:
        """What it takes of memory, in bytes."""
        return max(self.ids.nbytes, self._room.nbytes)

    def part(self, start: int, stop: int) -> Ids:
        """Return the ids from one index to another, as far as they are kept; a view."""
        return self.ids[max(0, start - self.start) : max(0, stop - self.start)]

    def extend(self, ids: Ids, *, needed_from: int) -> None:
        """Append what the sampler drew next; amortised O(1) an id.

        Args:
            ids: Shape (num_accesses,).
            needed_from: What comes before this index may be dropped.
        """
        if self.is_cut:
            return
        kept = self.part(needed_from, self.end)
        self.is_cut = len(kept) + len(ids) > self._most
        ids = ids[: self._most - len(kept)]
        used = len(self.ids) if len(self._room) else 0  # the ids are the first of the room
        if used and used + len(ids) <= len(self._room):
            self._room[used : used + len(ids)] = ids
            self.ids = self._room[: used + len(ids)]
            return
        self.start = self.end - len(kept)
        new = len(kept) + len(ids)
        room = np.empty(min(self._most, max(_LEAST_ROOM, 2 * new)), dtype=self.ids.dtype)
        room[: len(kept)] = kept
        room[len(kept) : new] = ids
        self._room, self.ids = room, room[:new]


__all__ = ["Ids", "Plan"]

MOST_OUTSTANDING: Final = 1 << 15
"""Accesses of one plan that are expected, or noted, at a time: some 20 MB, however small the objects are."""

_OUTSTANDING_BYTES: Final = 460
_NOTED_BYTES: Final = 130
"""About what one of them takes of memory."""

_NEAR: Final = 4096
"""Entries past the position among which missing ones are looked for: files are checked for changes no further ahead."""

_FIRST_CHUNK = 64
_LARGEST_CHUNK = 4096
_NO_LIMIT = 1 << 62


class Plan:
    """Object ids in reading order; ids may repeat, and more may be appended while the sampler continues.

    Indices count from the beginning of the order; the part that the position has passed may be dropped.

    Args:
        consumer: Whose plan it is.
        dataset: Number of the manifest that the ids belong to.
        ids: Shape (num_accesses,), any integer dtype; not copied. A window is shared with who else follows this order.
        warm: Fill the cache with these and expect no reader.
        resident: Keep what is fetched, as far as there is room; if not, each object is freed once it was read.
            A warm plan always keeps.

    Attributes:
        max_in_flight: Of a warm plan: it begins nothing more while that many of its dataset are under way.
        is_past_memory: Of a warm plan: the tier has no room, and what is fetched is for what lies behind it.

    Invariants: ``position <= cursor <= len``; ``ahead_bytes`` is the sum over ``outstanding``, which has
    ``MOST_OUTSTANDING`` accesses at most.
    """

    __slots__ = (
        "_costs", "_missing", "_missing_from", "_num_outstanding", "_order", "_reports", "_skip", "ahead_bytes", "consumer",
        "cursor", "dataset", "is_past_memory", "max_in_flight", "outstanding", "position", "resident", "warm", "window",
    )  # fmt: skip

    def __init__(
        self, consumer: int, dataset: int, ids: Ids | Window, *, warm: bool = False, resident: bool = True
    ) -> None:
        self.consumer: int = consumer
        self.dataset: int = dataset
        # What a warm-up fills is bounded by its dataset; no reader reads along, and nothing of it is known to be read again.
        most_bytes = _NO_LIMIT if warm else MOST_BYTES
        self.window: Window = ids if isinstance(ids, Window) else Window(ids, most_bytes=most_bytes)
        self.warm: bool = warm
        self.resident: bool = resident or warm
        self.max_in_flight: int = _NO_LIMIT
        self.is_past_memory: bool = False
        self.cursor: int = 0
        self.position: int = 0
        self.ahead_bytes: int = 0
        self.outstanding: dict[int, list[int]] = {}
        self._costs: dict[int, int] = {}
        self._num_outstanding = 0
        self._order: deque[tuple[int, int]] = deque()
        self._skip: dict[int, int] = {}
        self._reports: set[int] = set()
        self._missing: npt.NDArray[np.bool_] = np.zeros(1, dtype=bool)  # by object id; the last one is never set
        self._missing_from: int = 0

    def __len__(self) -> int:
        """Return how many accesses of the order are known, those included that were dropped."""
        return self.window.end

    @property
    def rest(self) -> Ids:
        """What the position has not passed, as far as it is known."""
        return self.window.part(self.position, self.window.end)

    @property
    def is_full(self) -> bool:
        """True while no more accesses may be outstanding."""
        return self._num_outstanding >= MOST_OUTSTANDING

    @property
    def memory_bytes(self) -> int:
        """About what is kept for the plan, in bytes."""
        noted = len(self._skip) + len(self._reports)
        return self.window.nbytes + self._missing.nbytes + len(self._order) * _OUTSTANDING_BYTES + noted * _NOTED_BYTES

    def extend(self, ids: Ids) -> None:
        """Append what the sampler drew next; amortised O(1) an id."""
        self.window.extend(ids, needed_from=self.position)

    def scan(self, wanted: npt.NDArray[np.bool_], states: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
        """Yield (index, object id) of entries from the cursor on whose state is wanted.

        The cursor stands at the entry yielded: the caller moves past it with ``pass_entry`` or stops, and the
        same entry comes again. ``states`` is looked at a chunk at a time, so the caller checks it once more.
        """
        length = _FIRST_CHUNK  # mostly a few are asked for, and the next ones are among the next
        while self.cursor < len(self):
            start = self.cursor
            chunk = self.window.part(start, start + length)
            length = min(_LARGEST_CHUNK, 4 * length)
            hits = np.flatnonzero(wanted[states[chunk]]).tolist()
            for offset in hits:
                self.cursor = start + offset
                yield self.cursor, int(chunk[offset])
                if self.cursor == start + offset:
                    return
            self.cursor = start + len(chunk)

    def add_missing(self, object_id: int, num_objects: int) -> None:
        """Note that the object was invalidated, so that ``scan_missing`` yields its next entry.

        Args:
            object_id: Index of the object in its manifest.
            num_objects: Number of objects in the manifest.
        """
        if object_id >= len(self._missing) - 1:
            known, self._missing = self._missing, np.zeros(num_objects + 1, dtype=bool)
            self._missing[: len(known)] = known
        self._missing[object_id] = True
        self._missing_from = self.position

    def scan_missing(self) -> Iterator[tuple[int, int]]:
        """Yield (index, object id) of missing entries near the position.

        The caller calls ``pass_entry`` with the index, or stops, and the same entry comes again.
        """
        last = len(self._missing) - 1
        start, stop = max(self._missing_from, self.position), min(self.cursor, self.position + _NEAR)
        if not last or start >= stop:
            return
        part = self.window.part(start, stop)
        for offset in np.flatnonzero(self._missing[np.minimum(part, last)]).tolist():
            self._missing_from, object_id = start + offset, int(part[offset])
            if self._missing[object_id]:
                yield self._missing_from, object_id
                if self._missing[object_id]:
                    return
        self._missing_from = stop

    def pass_entry(self, index: int, object_id: int) -> None:
        """Move the cursor past the entry at this index, if it stands there; the entry is not missing any more."""
        if index == self.cursor:
            self.cursor += 1
        self._forget_missing(object_id)

    def _forget_missing(self, object_id: int) -> None:
        if object_id < len(self._missing):
            self._missing[object_id] = False

    def take_skip(self, object_id: int) -> bool:
        """Return True, once, when the entry was consumed before the cursor came to it."""
        count = self._skip.get(object_id)
        if count is None:
            return False
        if count == 1:
            del self._skip[object_id]
        else:
            self._skip[object_id] = count - 1
        return True

    def expect_report(self, object_id: int) -> None:
        """The access was passed over when its reader asked; the report that it was read changes nothing more."""
        if len(self._reports) < MOST_OUTSTANDING:
            self._reports.add(object_id)

    def take_expected_report(self, object_id: int) -> bool:
        """Return True, once, for an access that was passed over already."""
        if object_id in self._reports:
            self._reports.remove(object_id)
            return True
        return False

    def add_outstanding(self, index: int, object_id: int, stored_bytes: int) -> None:
        """Count the entry against the lookahead until it is consumed or passed."""
        indices = self.outstanding.get(object_id)
        if indices is None:
            self.outstanding[object_id] = [index]
            self._costs[object_id] = stored_bytes
            self.ahead_bytes += stored_bytes
        else:
            indices.append(index)
        self._order.append((index, object_id))
        self._num_outstanding += 1
        if (
            len(self._order) > 2 * self._num_outstanding + _LARGEST_CHUNK
        ):  # most were consumed, before the loop had them
            self._order = deque(entry for entry in self._order if entry[0] in self.outstanding.get(entry[1], ()))

    def try_consume(self, object_id: int) -> bool:
        """Take one outstanding access of the object as done; False when there is none."""
        indices = self.outstanding.get(object_id)
        if indices is None:
            return False
        self._forget_missing(object_id)
        indices.pop(0)
        self._num_outstanding -= 1
        if not indices:
            self._forget(object_id)
        return True

    def skip_once(self, object_id: int) -> None:
        """Let the cursor pass the object's next entry: it was read before the cursor came to it, or while it was missing."""
        self._forget_missing(object_id)
        if self.cursor < len(self) and len(self._skip) < MOST_OUTSTANDING:
            self._skip[object_id] = self._skip.get(object_id, 0) + 1

    def advance(self, position: int) -> list[int]:
        """Move the position; return one id for each outstanding access that it passed."""
        self.position = max(self.position, min(position, len(self)))
        self.cursor = max(self.cursor, self.position)
        passed = []
        while self._order and self._order[0][0] < self.position:
            index, object_id = self._order.popleft()
            indices = self.outstanding.get(object_id)
            if indices and index in indices:
                indices.remove(index)
                self._num_outstanding -= 1
                passed.append(object_id)
                if not indices:
                    self._forget(object_id)
        return passed

    def drop_outstanding(self) -> list[int]:
        """End the plan: return one id for each access that will not come."""
        dropped = [object_id for object_id, indices in self.outstanding.items() for _ in indices]
        self.outstanding.clear()
        self._costs.clear()
        self._order.clear()
        self._skip.clear()
        self._reports.clear()
        self._missing = self._missing[-1:]
        self.ahead_bytes = self._num_outstanding = 0
        self.cursor = self.position = len(self)
        return dropped

    def validate(self) -> None:
        """Check the invariants."""
        assert self.window.start <= self.position <= self.cursor <= len(self)
        assert self._num_outstanding == sum(map(len, self.outstanding.values())) <= len(self._order)
        assert self.ahead_bytes == sum(self._costs.values())
        assert self._costs.keys() == self.outstanding.keys()
        assert all(self.outstanding.values())
        assert not self._missing[-1]

    def _forget(self, object_id: int) -> None:
        del self.outstanding[object_id]
        self.ahead_bytes -= self._costs.pop(object_id)
