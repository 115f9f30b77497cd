"""Which files of a plan to ask whether they have changed, ahead of their reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core import table as states
from prefeed.core.plan import Ids

Published = Callable[[Ids], npt.NDArray[np.bool_]]
"""Says of each of these objects whether its bytes are known to be the present ones."""

_MIN_CHUNK: Final = 512

_IN_TIER = np.zeros(256, dtype=bool)
_IN_TIER[[states.RESIDENT, states.TRANSIENT]] = True


class CheckAhead:
    """Goes through one plan ahead of its reader; pure.

    Entries that need no check cost no Python work: they are looked at as arrays. What is fetched meanwhile needs none.

        ids     3 17 4 9 | 8 1 12 6 | 2 5 ...
                consumed   looked at   not yet, or not yet near enough
                         ^position   ^cursor

    Args:
        ids: Object ids in reading order, shape (num_accesses,); ids may repeat.
        ahead: Entries past the position that are looked at.
        batch: Most ids a batch.
        max_batches: Most batches under way.
    """

    __slots__ = ("_ahead", "_batch", "_cursor", "_ids", "_most", "_position", "_under_way")

    def __init__(self, ids: Ids, *, ahead: int = 4096, batch: int = 64, max_batches: int = 64) -> None:
        self._ids = ids
        self._ahead = ahead
        self._batch = batch
        self._most = max_batches * batch
        self._position = 0
        self._cursor = 0
        self._under_way: set[int] = set()

    def advance(self, position: int) -> None:
        """The reader has what comes before this index of the plan."""
        self._position = max(self._position, min(position, len(self._ids)))
        self._cursor = max(self._cursor, self._position)

    def next_batch(self, states: npt.NDArray[np.uint8], published: Published) -> Ids:
        """Return the next ids to be checked, which are under way from now on; empty when there is nothing to do now.

        Args:
            states: State of every object of the dataset.
            published: Asked of objects in the tier only.
        """
        batch: list[int] = []
        if len(self._under_way) + self._batch <= self._most:
            end = min(len(self._ids), self._position + self._ahead)
            while self._cursor < end and len(batch) < self._batch:
                self._look(end, batch, states, published)
        self._under_way.update(batch)
        return np.array(batch, dtype=np.int64)

    def done(self, ids: Ids) -> None:
        """These were checked; ids that were not under way are passed over."""
        self._under_way.difference_update(ids.tolist())

    def _look(self, end: int, batch: list[int], states: npt.NDArray[np.uint8], published: Published) -> None:
        """Look at a chunk of entries; stop behind the one that completes the batch."""
        start = self._cursor
        chunk = self._ids[start : min(end, start + max(_MIN_CHUNK, 4 * self._batch))]
        offsets = np.flatnonzero(_IN_TIER[states[chunk]])
        offsets = offsets[~published(chunk[offsets])] if len(offsets) else offsets
        for offset in offsets.tolist():
            object_id = int(chunk[offset])
            if object_id not in self._under_way and object_id not in batch:
                batch.append(object_id)
                if len(batch) == self._batch:
                    self._cursor = start + offset + 1
                    return
        self._cursor = start + len(chunk)
