"""Guesses: files that unknown samples probably open, planned only as far as they prove right.

A dataset that declares nothing mostly keeps its paths somewhere (``searching``). That is a guess: some lists are of files
that are never opened, and some are right for a while. So a guess is tried, and what samples really open is the judge:

    files of the first samples → planned → made → seen: opened? ─yes→ as many again → …
                                                        └─no→ the column is dropped

What is planned by a guess and was not seen to be right is never more than ``FIRST`` files and as many as were right.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.loaders.kinds import Order

_log = logging.getLogger("prefeed")

FIRST: Final = 512
"""Files that are planned by a guess before any of them was seen to be right."""

MOST_AHEAD: Final = 4096
"""Most files that are planned by a guess and that no sample was seen to open, or not to open: enough for any origin."""

_RECENT: Final = 32
"""Samples by which a column is judged, the last ones that were made."""

_FEWEST: Final = 4
"""Samples that must have been made before a column is dropped."""

LOOK: Final = 1 << 13
"""Samples of an order that are looked at in one go: 0.2 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Files of samples, as some list of the dataset has them.

    Attributes:
        start, stop: The samples that it tells of: all of a dataset, or of one of those that it was concatenated from.
        files: Of sample ``start + i``, by i: absolute paths, perhaps none. May raise anything.
    """

    start: int
    stop: int
    files: Callable[[int], Sequence[str]]


@dataclass(slots=True, eq=False)
class _Tried:
    """A column, and whether its files were opened by the samples made last."""

    column: Column
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def is_wrong(self) -> bool:
        return len(self.recent) >= _FEWEST and 2 * sum(self.recent) < len(self.recent)

    def files_of(self, sample: int) -> Sequence[str]:
        if not self.column.start <= sample < self.column.stop:
            return ()
        try:
            files = self.column.files(sample - self.column.start)
            return [path for path in files if path.startswith("/") and "\0" not in path]
        except Exception:  # noqa: BLE001 - the list is the user's
            return ()


_Files = list[tuple[_Tried, Sequence[str]]]


class Guess:
    """Which files samples probably open, and how far that proved right.

    Args:
        columns: Each may be right, or not; a sample opens the files of all that are, in this order.

    **Invariants**: of the files that were given out, those that no sample was seen to open are at most ``FIRST`` and as
    many as were opened; those of samples that were not judged yet are at most ``MOST_AHEAD``.
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        self._columns = [_Tried(column) for column in columns]
        self._pending: dict[int, tuple[int, _Files]] = {}  # by sample: which one it was, its files
        self._num_pending = 0
        self._num_given = 0
        self._num_right = 0
        self._serial = 0

    @property
    def is_over(self) -> bool:
        """True when no column is left."""
        return not self._columns

    @property
    def pending(self) -> npt.NDArray[np.int64]:
        """Samples whose files were given out, and that were not judged yet."""
        return np.fromiter(self._pending, dtype=np.int64, count=len(self._pending))

    def tells_of(self, sample: int) -> bool:
        """Return True when the sample probably opens some file."""
        return sample in self._pending or any(tried.files_of(sample) for tried in self._columns)

    def take(self, samples: Iterable[int]) -> tuple[list[tuple[int, int]], list[str]]:
        """Give out the files of these samples, in order, as long as that number may be tried.

        Returns:
            Samples with their number of files, without those that have no guess or whose files were given out before;
            and all paths.
        """
        counts: list[tuple[int, int]] = []
        paths: list[str] = []
        for sample in samples if self._columns else ():
            if self._allowed <= 0:
                break
            if sample in self._pending:
                continue
            found = [(tried, files) for tried in self._columns if (files := tried.files_of(sample))]
            count = sum(len(files) for _, files in found)
            if count > self._allowed:
                break
            if count:
                self._serial += 1
                self._pending[sample] = self._serial, found
                self._num_pending += count
                self._num_given += count
                counts.append((sample, count))
                paths += [path for _, files in found for path in files]
        return counts, paths

    def judge(self, sample: int, opened: Container[str]) -> None:
        """A sample was made, and opened these files: what proves wrong is dropped."""
        pending = self._pending.pop(sample, None)
        if pending is None:
            return
        serial, found = pending
        for tried, files in found:
            num_opened = sum(path in opened for path in files)
            self._num_pending -= len(files)
            self._num_right += num_opened
            tried.recent.append(2 * num_opened >= len(files))
        self._columns = [tried for tried in self._columns if not tried.is_wrong]
        while self._pending:
            oldest = next(iter(self._pending))
            before, found = self._pending[oldest]
            if serial - before <= MOST_AHEAD:
                break
            self._num_pending -= sum(len(files) for _, files in found)  # it was not made, or not watched
            del self._pending[oldest]

    @property
    def _allowed(self) -> int:
        unproved = self._num_given - self._num_right
        return min(FIRST + self._num_right - unproved, MOST_AHEAD - self._num_pending)


class Supposing:
    """Plans unknown samples by a guess: tells the server, and learns from it how right that was.

    Args:
        access: Of a dataset whose files are learned; it takes in what was supposed.
        consumer: Tells the server.
        guess: Of the samples of the dataset below all ``indices``.
    """

    def __init__(self, access: AccessMap, consumer: Consumer, guess: Guess) -> None:
        self._access = access
        self._consumer = consumer
        self._guess = guess

    def look(self) -> None:
        """Take in what samples were seen to open since."""
        if not self._guess.is_over:
            self._access.refresh()
            self._judge()

    def reach(self, order: Order, *, may_wait: bool = False) -> int:
        """Return how many samples can be planned now, and tell the server what those after them probably open.

        Args:
            order: Samples that are not planned, in the order of reading; some ``LOOK``.
            may_wait: An epoch is about to begin, so the server may be waited for.
        """
        if self._guess.is_over:
            return len(order)
        reached, unknown = self._reached(order)
        counts, paths = self._guess.take(map(int, unknown))
        if counts and self._consumer.suppose(np.array(counts, dtype=np.int64), paths) and may_wait:
            self._consumer.read_counts()  # answered after all that was sent before
            self._access.refresh()
            reached, _ = self._reached(order)
        return reached

    def _reached(self, order: Order) -> tuple[int, npt.NDArray[np.int64]]:
        """Return how many samples come before the first that has no record but a guess.

        And the samples without a record, from that one on.
        """
        learned = self._access.learned
        assert learned is not None
        samples, places = self._access.base_samples(order)
        missing = ~learned.have_records(samples)
        samples, places = samples[missing], places[missing]
        for at in range(len(samples)):
            if self._guess.tells_of(int(samples[at])):
                return int(places[at]), samples[at:]
        return len(order), samples[:0]

    def _judge(self) -> None:
        learned, path = self._access.learned, self._access.dataset.manifest.path
        assert learned is not None
        pending = self._guess.pending
        for sample in pending[learned.are_seen(pending)].tolist():
            ids = learned.seen(sample)
            if ids is not None:
                self._guess.judge(sample, {path(object_id) for object_id in ids})
        if self._guess.is_over:
            _log.info(
                "prefeed: samples do not open the files that their dataset lists: their files are learned while samples are made"
            )
