"""Which residents may go for an object that is read again sooner: keep by next use, where it is known.

While an epoch is read, the order of the one after it may be known already: a distributed sampler's depends on nothing
but its epoch. Then what is kept need not be what came first:

    this epoch        a b c d e f | g h          an object that arrives to be read now, and is wanted again in the next
    the next one      c k a p | f q              epoch, stays in place of one that is wanted later, or not at all
                              ^ room ends

What is still to be read in this epoch never goes. Source: L. A. Belady, 1966; see ``policy.belady_misses``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core import table as states
from prefeed.core.consumers import Consumers
from prefeed.core.inventory import Holdings
from prefeed.core.plan import Ids

_NEVER: Final = np.iinfo(np.uint32).max
_LEAST_CANDIDATES: Final = 64
_PART: Final = 16
"""So many parts of the residents are put in order at a time."""

Ranks = npt.NDArray[np.uint32]


class NextUse:
    """Decides on exchanges in the datasets whose next order every consumer has told.

    Args:
        holdings: Where what goes is freed.
        consumers: What they read now, and after it.
    """

    def __init__(self, holdings: Holdings, consumers: Consumers) -> None:
        self._holdings = holdings
        self._consumers = consumers
        self._ranks: dict[int, Ranks | None] = {}
        self._candidates: dict[int, list[int]] = {}
        self._pauses: dict[int, int] = {}

    def forget(self, dataset: int) -> None:
        """Plans of the dataset have changed, or what is known to follow them."""
        self._ranks.pop(dataset, None)
        self._candidates.pop(dataset, None)
        self._pauses.pop(dataset, None)

    def make_room(self, dataset: int, object_id: int, cost: int) -> bool:
        """Free residents that are read later than this object is read again, worth its cost; False when there are none."""
        ranks = self._ranks_of(dataset)
        if ranks is None or ranks[object_id] == _NEVER:
            return False
        chosen = self._choose(dataset, ranks, int(ranks[object_id]), cost)
        if not chosen and self._is_time_to_look(dataset):
            self._look(dataset, ranks)
            chosen = self._choose(dataset, ranks, int(ranks[object_id]), cost)
        for candidate in chosen:
            self._holdings.free(dataset, candidate)
        return bool(chosen)

    def _ranks_of(self, dataset: int) -> Ranks | None:
        """Return where in what follows each object is read first, shape (num_objects,); None when that is not known."""
        if dataset not in self._ranks:
            orders = self._consumers.orders_after(dataset)
            self._ranks[dataset] = None if orders is None else first_uses(orders, len(self._holdings.tables[dataset]))
        ranks = self._ranks[dataset]
        if ranks is not None and len(ranks) < len(self._holdings.tables[dataset]):  # files were added since
            return None
        return ranks

    def _choose(self, dataset: int, ranks: Ranks, rank: int, cost: int) -> list[int]:
        """Take candidates that are read after the rank off the list until they are worth the cost; none if that is not to be had."""
        table, candidates = self._holdings.tables[dataset], self._candidates.get(dataset, [])
        chosen: list[int] = []
        missing = cost
        while missing > 0 and candidates and ranks[candidates[-1]] > rank:
            candidate = candidates.pop()
            key = (dataset, candidate)
            if table.state[candidate] != states.RESIDENT or self._holdings.is_guest(key):
                continue
            if not self._holdings.is_expected(key):
                chosen.append(candidate)
                missing -= table.stored_bytes(candidate)
        if missing > 0:
            candidates.extend(reversed(chosen))
            return []
        return chosen

    def _is_time_to_look(self, dataset: int) -> bool:
        """A look takes time, and finds nothing new before something was read: not at every object."""
        self._pauses[dataset] = self._pauses.get(dataset, 0) - 1
        return self._pauses[dataset] < 0

    def _look(self, dataset: int, ranks: Ranks) -> None:
        """Put residents that nobody reads any more in this epoch in order, those that are read last at the end."""
        table = self._holdings.tables[dataset]
        residents = table.ids_in(states.RESIDENT)
        unread = np.zeros(len(table), dtype=bool)
        for plan in self._consumers.plans():
            if plan.dataset == dataset:
                unread[plan.rest] = True
        free = residents[~unread[residents]]
        ordered = free[np.argsort(ranks[free], kind="stable")]
        part = max(_LEAST_CANDIDATES, len(residents) // _PART)
        self._candidates[dataset] = ordered[-part:].tolist()
        self._pauses[dataset] = len(residents) // _PART


def first_uses(orders: Sequence[Ids], num_objects: int) -> Ranks:
    """Return where each object is read first, in any of these orders, shape (num_objects,); the largest number: in none."""
    ranks = np.full(num_objects, _NEVER, dtype=np.uint32)
    for order in orders:
        places = np.arange(len(order), dtype=np.uint32)
        np.minimum.at(ranks, order, places)
    return ranks
