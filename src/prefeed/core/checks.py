"""Which files of a plan to ask whether they have changed, ahead of their reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core import table as states
from prefeed.core.plan import Ids, Window

Published = Callable[[Ids], npt.NDArray[np.bool_]]
"""Says of each of these objects whether its bytes are known to be the present ones."""

_MIN_CHUNK: Final = 512

_IN_TIER = np.zeros(256, dtype=bool)
_IN_TIER[[states.RESIDENT, states.TRANSIENT]] = True


FIRST_BATCH: Final = 16
_MAX_BATCH: Final = 64
_BATCH_SECONDS: Final = 0.005
_WEIGHT: Final = 0.2


class CheckPace:
    """How many files one thread is asked after the other: as many as take some 5 ms, from 64 down to one.

    Where a question waits 20 ms for a server, more threads ask side by side; where it takes microseconds, handing it
    to a thread costs more than the answer.
    """

    def __init__(self) -> None:
        self._seconds = _BATCH_SECONDS / FIRST_BATCH

    @property
    def batch(self) -> int:
        """Files a batch, from now on."""
        return max(1, min(_MAX_BATCH, int(_BATCH_SECONDS / self._seconds)))

    def observe(self, seconds: float, num_files: int) -> None:
        """A batch of that many files took so long."""
        if seconds > 0 and num_files:
            self._seconds += _WEIGHT * (seconds / num_files - self._seconds)


class CheckAhead:
    """Goes through one plan ahead of its reader; pure.

    Entries that need no check cost no Python work: they are looked at as arrays. What is fetched meanwhile needs none.

        ids     3 17 4 9 | 8 1 12 6 | 2 5 ...
                consumed   looked at   not yet, or not yet near enough
                         ^position   ^cursor

    Args:
        ids: Object ids in reading order, shape (num_accesses,); ids may repeat. A window is that of the plan, and grows with it.
        ahead: Entries past the position that are looked at.
    """

    __slots__ = ("_ahead", "_cursor", "_position", "_under_way", "_window")

    def __init__(self, ids: Ids | Window, *, ahead: int = 4096) -> None:
        self._window = ids if isinstance(ids, Window) else Window(ids)
        self._ahead = ahead
        self._position = 0
        self._cursor = 0
        self._under_way: set[int] = set()

    def advance(self, position: int) -> None:
        """The reader has what comes before this index of the plan."""
        self._position = max(self._position, min(position, self._window.end))
        self._cursor = max(self._cursor, self._position)

    def pass_all(self) -> None:
        """What is known of the order is asked in another way."""
        self._cursor = self._window.end

    def next_batch(self, most: int, states: npt.NDArray[np.uint8], published: Published) -> Ids:
        """Return the next ids to be checked, which are under way from now on; empty when there is nothing to do now.

        Args:
            most: Ids in the batch.
            states: State of every object of the dataset.
            published: Asked of objects in the tier only.
        """
        batch: list[int] = []
        end = min(self._window.end, self._position + self._ahead)
        while self._cursor < end and len(batch) < most:
            self._look(end, batch, most, states, published)
        self._under_way.update(batch)
        return np.array(batch, dtype=np.int64)

    def done(self, ids: Ids) -> None:
        """These were checked; ids that were not under way are passed over."""
        self._under_way.difference_update(ids.tolist())

    def _look(self, end: int, batch: list[int], most: int, states: npt.NDArray[np.uint8], published: Published) -> None:
        """Look at a chunk of entries; stop behind the one that completes the batch."""
        start = self._cursor
        chunk = self._window.part(start, min(end, start + max(_MIN_CHUNK, 4 * most)))
        offsets = np.flatnonzero(_IN_TIER[states[chunk]])
        offsets = offsets[~published(chunk[offsets])] if len(offsets) else offsets
        for offset in offsets.tolist():
            object_id = int(chunk[offset])
            if object_id not in self._under_way and object_id not in batch:
                batch.append(object_id)
                if len(batch) == most:
                    self._cursor = start + offset + 1
                    return
        self._cursor = start + len(chunk)
