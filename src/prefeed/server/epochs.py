"""What loaders said of the epochs that have ended: the last ones, and sums that only grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from prefeed.types import EPOCHS_KEPT, EpochWait

MOST_LOADERS: Final = 64
"""Loaders and ranks with sums of their own; the epochs of any more are summed together."""

OTHERS: Final = ("others", None)
"""Loader and rank under which these stand."""


@dataclass(slots=True)
class EpochTotals:
    """All epochs of one loader and rank.

    Attributes:
        loader, rank: As in ``EpochWait``.
        last: The epoch that ended last.
        epochs: Their number.
        seconds: How long they took.
        waited_seconds: How much of it the loop waited.
    """

    loader: str
    rank: int | None
    last: EpochWait
    epochs: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0


class Epochs:
    """Remembers epochs.

    **Threads**: the loop's thread.
    """

    def __init__(self) -> None:
        self._last: deque[EpochWait] = deque(maxlen=EPOCHS_KEPT)
        self._of_consumers: dict[int, EpochWait] = {}
        self._totals: dict[tuple[str, int | None], EpochTotals] = {}

    def add(self, epoch: EpochWait, consumers: Iterable[int]) -> None:
        """An epoch is over, of a loader with these consumers."""
        self._last.append(epoch)
        self._of_consumers.update(dict.fromkeys(consumers, epoch))
        key = (epoch.loader, epoch.rank)
        if key not in self._totals and len(self._totals) >= MOST_LOADERS:
            key = OTHERS
        totals = self._totals.setdefault(key, EpochTotals(*key, last=epoch))
        totals.last = epoch
        totals.epochs += 1
        totals.seconds += epoch.seconds
        totals.waited_seconds += epoch.waited_seconds

    @property
    def last(self) -> tuple[EpochWait, ...]:
        """The last epochs, in the order in which they ended."""
        return tuple(self._last)

    def last_of(self, consumer: int) -> EpochWait | None:
        """Return the last epoch of a consumer's loader; None before the first has ended."""
        return self._of_consumers.get(consumer)

    def keep(self, consumers: Collection[int]) -> None:
        """Forget what was said of consumers but these: they are gone."""
        for consumer in self._of_consumers.keys() - set(consumers):
            del self._of_consumers[consumer]

    def totals(self) -> tuple[EpochTotals, ...]:
        """Return the sums of each loader and rank; ``MOST_LOADERS`` and one at most."""
        return tuple(
            EpochTotals(t.loader, t.rank, t.last, t.epochs, t.seconds, t.waited_seconds) for t in self._totals.values()
        )
