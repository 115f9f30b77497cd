"""What to fetch ahead for a plan, and where there is room for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core import table as states
from prefeed.core.actions import Fetch, Placement
from prefeed.core.consumers import Consumers
from prefeed.core.inventory import Holdings
from prefeed.core.plan import Ids, Plan

_NEVER: Final = np.iinfo(np.uint32).max
_LEAST_CANDIDATES: Final = 64
_PART: Final = 16
"""Number of parts into which the residents are split; one is put in order at a time."""

Ranks = npt.NDArray[np.uint32]


class NextUse:
    """Decides on exchanges in the datasets whose next order every consumer has told: keep by next use, where it is known.

    While an epoch is read, the order of the one after it may be known already: a distributed sampler's depends on nothing
    but its epoch. Then what is kept need not be what came first:

        this epoch        a b c d e f | g h          an object that arrives to be read now, and is wanted again in the next
        the next one      c k a p | f q              epoch, stays in place of one that is wanted later, or not at all
                                  ^ room ends

    What is still to be read in this epoch never goes. Source: L. A. Belady, "A study of replacement
    algorithms for a virtual-storage computer", 1966.

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
        """Put residents that are not read any more in this epoch in order, those that are read last at the end."""
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


_NOT_RESIDENT = np.ones(256, dtype=bool)
_NOT_RESIDENT[[states.RESIDENT, states.FAILED]] = False

_WARM_WANTED = np.zeros(256, dtype=bool)
_WARM_WANTED[states.ABSENT] = True


class Lookahead:
    """Goes through the plans ahead of their readers.

    Args:
        holdings: Where room is reserved, and each fetch noted.
        consumers: Whose plans they are.
        lookahead_bytes: Most bytes outstanding for one plan.
    """

    def __init__(self, holdings: Holdings, consumers: Consumers, *, lookahead_bytes: int) -> None:
        self.lookahead_bytes = lookahead_bytes
        self._holdings = holdings
        self._consumers = consumers

    def plan_fetches(self) -> list[Fetch]:
        """Return what is to be fetched now; the plan that is shortest of data comes first."""
        fetches: list[Fetch] = []
        kept = self._consumers.kept_datasets()
        for plan in sorted(self._consumers.plans(), key=lambda plan: plan.ahead_bytes):
            table = self._holdings.tables[plan.dataset]
            capacity = min(table.max_in_flight, plan.max_in_flight) - table.in_flight
            if capacity > 0:
                fetches += (
                    self._scan_warm(plan, capacity)
                    if plan.warm
                    else self._scan(plan, capacity, keeps=plan.dataset in kept)
                )
        return fetches

    def plan_room(self) -> None:
        """Lend what the plans need; free residents for the part that is always lent."""
        consumers, tables, residency = self._consumers, self._holdings.tables, self._holdings.residency
        live, kept = consumers.live_datasets(), consumers.kept_datasets()
        residency.plan_lending(
            sum(tables[dataset].total_bytes for dataset in kept),
            max((tables[dataset].mean_stored_bytes for dataset in live), default=0),
            keeps=bool(kept),
            streams=not all(plan.resident for plan in consumers.plans()),
        )
        # More may be resident than was expected to be wanted: what cannot stay needs room to stream through.
        self._holdings.trim(
            residency.budget_bytes - residency.always_lent_bytes, live=live, in_order=self.farthest_first
        )

    def farthest_first(self, dataset: int, state: int) -> list[int]:
        """Return the objects of a dataset in a state, those first that are read last, or never."""
        table = self._holdings.tables[dataset]
        ids = table.ids_in(state)
        if dataset not in self._consumers.live_datasets() or not len(ids):
            return list(map(int, ids))
        rest = [plan.rest for plan in self._consumers.plans() if plan.dataset == dataset]
        ranks = first_uses(rest, len(table)).astype(np.int64)
        after = self._consumers.orders_after(dataset)
        if after is not None:
            longest = max((len(order) for order in rest), default=0)
            ranks = np.minimum(ranks, longest + first_uses(after, len(table)).astype(np.int64))
        return list(map(int, ids[np.argsort(-ranks[ids], kind="stable")]))

    def _scan(self, plan: Plan, capacity: int, *, keeps: bool) -> list[Fetch]:
        """Fetch missing objects near the position, then go on; ``keeps``: some plan of the dataset keeps what it reads."""
        table = self._holdings.tables[plan.dataset]
        fetches: list[Fetch] = []
        for index, object_id in chain(plan.scan_missing(), plan.scan(_NOT_RESIDENT, table.states)):
            state = table.state[object_id]
            is_missing = index < plan.cursor
            if not _NOT_RESIDENT[state] or (not is_missing and plan.take_skip(object_id)):
                plan.pass_entry(index, object_id)
                continue
            cost = table.stored_bytes(object_id)
            is_expected = is_missing and index in plan.outstanding.get(
                object_id, ()
            )  # fetched before it was invalidated
            is_far = plan.is_full or (plan.ahead_bytes and plan.ahead_bytes + cost > self.lookahead_bytes)
            if is_far and not is_expected:
                break
            if state == states.FREEING:
                break  # it is absent in a moment, and then fetched again
            if state == states.ABSENT:
                lent = table.transient_bytes(object_id)
                placement = self._reserve(cost, lent, keeps=keeps) if len(fetches) < capacity else None
                if placement is None:
                    break
                if placement == Placement.DIRECT:
                    plan.pass_entry(index, object_id)  # no room will come: its reader asks for it
                    continue
                reserved = lent if placement is Placement.TRANSIENT else cost
                fetches.append(self._holdings.start(plan.dataset, object_id, placement, reserved))
            elif keeps:
                self._holdings.try_keep((plan.dataset, object_id))  # another plan reads it once
            if not is_expected:
                plan.add_outstanding(index, object_id, cost)
                self._holdings.expect((plan.dataset, object_id))
            plan.pass_entry(index, object_id)
        return fetches

    def _reserve(self, cost: int, transient_bytes: int, *, keeps: bool) -> Placement | None:
        """Reserve bytes and return the placement; None if space will come, DIRECT if none will.

        Args:
            cost: Bytes that a resident takes.
            transient_bytes: Bytes that a transient takes.
            keeps: Whether a plan of the dataset keeps its objects.
        """
        holdings = self._holdings
        wanted = Placement.RESIDENT if keeps else Placement.TRANSIENT
        placement = holdings.reserve(cost, wanted, transient_bytes=transient_bytes)
        if placement == wanted:
            return placement
        is_worth_freeing = keeps or holdings.residency.could_lend(cost)
        if is_worth_freeing and holdings.make_room(cost, live=self._consumers.live_datasets()):
            holdings.cancel(placement, transient_bytes)  # only a transient gets here
            return None  # there is room in a moment
        if placement != Placement.DIRECT:
            return placement
        if holdings.may_get_room(transient_bytes):
            return None  # a reader gives room back
        if holdings.residency.lent_bytes == 0:
            self.plan_room()  # objects turned out larger, or more, than was thought when the epoch began
            if holdings.residency.lent_bytes:
                return self._reserve(cost, transient_bytes, keeps=keeps)
        return Placement.DIRECT

    def _scan_warm(self, plan: Plan, capacity: int) -> list[Fetch]:
        table, residency = self._holdings.tables[plan.dataset], self._holdings.residency
        fetches: list[Fetch] = []
        for index, object_id in plan.scan(_WARM_WANTED, table.states):
            if table.state[object_id] != states.ABSENT:
                plan.pass_entry(index, object_id)  # it is in the plan twice
                continue
            if len(fetches) >= capacity:
                break
            if plan.is_past_memory:
                fetches.append(self._holdings.start(plan.dataset, object_id, Placement.DIRECT, 0))
                plan.pass_entry(index, object_id)
                continue
            cost = table.stored_bytes(object_id)
            if not residency.try_reserve_resident(cost):
                if not self._holdings.make_room(cost, live=self._consumers.live_datasets()):
                    plan.advance(len(plan))
                break
            fetches.append(self._holdings.start(plan.dataset, object_id, Placement.RESIDENT, cost))
            plan.pass_entry(index, object_id)
        return fetches
