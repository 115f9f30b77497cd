"""The part of an order that is still needed: what was read is dropped, what the sampler drew since is appended.

order     3 17 4 9 8 1 12 6 2 5 7 …
          dropped |   kept    | not known yet
                  ^start      ^end
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]

MOST_BYTES: Final = 40 * 1024**2
"""What the ids of one order may take: 10 million of them, where 4 bytes are enough for one."""

_LEAST_ROOM: Final = 1024


class Window:
    """Object ids by their index in the whole order, of which only some are kept.

    Args:
        ids: The first of the order, shape (num_accesses,), any integer dtype, which stays; not copied.
        most_bytes: What is kept may take so much.

    Attributes:
        ids: What is kept.
        start: Index of the first that is kept.
        is_cut: More came than may be kept: the order ends here for whoever follows it, whatever comes after that.

    Invariants: what is kept takes ``most_bytes`` at most, the room for more included.
    """

    __slots__ = ("_most", "_room", "ids", "is_cut", "start")

    def __init__(self, ids: Ids, *, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes // ids.itemsize
        self.is_cut = len(ids) > self._most
        self.ids = ids[: self._most].copy() if self.is_cut else ids
        self.start = 0
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
