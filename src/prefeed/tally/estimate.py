"""Opens of samples, reckoned from a part of them: Python tells of each ``open``, and to hear that costs a third of it.

Groups of samples, such as batches, are made inside an ``Estimate``. Of some, the opens are counted one by one; for those of the
others, ``opens`` listens to nothing, and what the counted ones of the same epoch opened per sample is added when the group has ended.
"""

from __future__ import annotations

import os
from threading import get_ident

from prefeed.tally.program import ESTIMATED, add

_PERIOD = 128
"""One group of so many is counted, and the first one of each epoch: a dataset may keep what it has read."""

groups: dict[int, Estimate] = {}
"""Groups that are being made, by thread."""

deaf: set[int] = set()
"""Threads whose group is not counted: what they open is not listened to."""


class Estimate:
    """Counts the opens of one dataset's samples in this process. A context manager: inside it, a group is made.

    **Threads and processes.** One thread at a time; a forked child has none of the groups that its parent is making.

    Attributes:
        num_samples: Of the group; to be set before it ends, also by an error.
        is_counting: Each open of this group is counted.
    """

    def __init__(self) -> None:
        self.num_samples = 0
        self.is_counting = True
        self._epoch = 0
        self._num_groups = 0
        self._num_counted = 0  # samples whose opens were counted
        self._counted: dict[bytes, int] = {}  # what these opened, by key
        self._owed: dict[bytes, float] = {}  # parts of an open
        self._num_made = 0  # samples whose opens are to be reckoned
        self._around: Estimate | None = None
        self._was_deaf = False

    def of(self, epoch: int) -> Estimate:
        """Return this for the next group, which is of the epoch with this number: other epochs say nothing of it."""
        if epoch != self._epoch:
            self.add_reckoned()
            self._epoch, self._num_groups, self._num_counted = epoch, 0, 0
            self._counted.clear()
        return self

    def is_reckoned(self, epoch: int) -> bool:
        """Return whether the opens of the next group, of this epoch, are reckoned from those of groups before; else they are counted."""
        return epoch == self._epoch and self._num_counted > 0 and self._num_groups % _PERIOD > 0

    def __enter__(self) -> Estimate:
        self.num_samples = 0
        self.is_counting = not self.is_reckoned(self._epoch)
        if self.is_counting:
            self.add_reckoned()  # by what was counted so far
        self._num_groups += 1
        thread = get_ident()
        self._around, self._was_deaf = groups.get(thread), thread in deaf
        groups[thread] = self
        _listen(thread, self.is_counting)
        return self

    def __exit__(self, *_: object) -> None:
        thread, around = get_ident(), self._around
        if around is None:
            groups.pop(thread, None)
        else:
            groups[thread], self._around = around, None
        _listen(thread, not self._was_deaf)
        if self.is_counting:
            self._num_counted += self.num_samples
        else:
            self._num_made += self.num_samples
            self.add_reckoned()

    def opened(self, key: bytes) -> None:
        """A sample of a group that is counted has opened a file."""
        self._counted[key] = self._counted.get(key, 0) + 1

    def was_made(self, num_samples: int) -> None:
        """A group whose opens are reckoned was made by a thread that is ``deaf``, and not inside this; its opens are added later."""
        self._num_groups += 1
        self._num_made += num_samples

    def add_reckoned(self) -> None:
        """Add what the samples opened that were made since the last time; the end of each group inside this does it."""
        num_samples, self._num_made = self._num_made, 0
        if not num_samples or not self._num_counted:
            return
        total = 0
        for key, num_opens in self._counted.items():
            owed = self._owed.get(key, 0.0) + num_opens * num_samples / self._num_counted
            whole = round(owed)
            self._owed[key] = owed - whole
            if whole > 0:
                add(key, whole)
                total += whole
        if total:
            add(ESTIMATED, total)


def _listen(thread: int, is_counting: bool) -> None:
    if is_counting:
        deaf.discard(thread)
    else:
        deaf.add(thread)


def _begin_forked() -> None:
    groups.clear()
    deaf.clear()


os.register_at_fork(after_in_child=_begin_forked)
