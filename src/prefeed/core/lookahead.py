"""What to fetch ahead for a plan, and where there is room for it."""

from __future__ import annotations

import numpy as np

from prefeed.core import table as states
from prefeed.core.actions import Fetch, Placement
from prefeed.core.consumers import Consumers
from prefeed.core.inventory import Holdings
from prefeed.core.next_use import first_uses
from prefeed.core.plan import Plan

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
        for plan in sorted(self._consumers.plans(), key=lambda plan: plan.ahead_bytes):
            table = self._holdings.tables[plan.dataset]
            capacity = min(table.max_in_flight, plan.max_in_flight) - table.in_flight
            if capacity > 0:
                fetches += self._scan_warm(plan, capacity) if plan.warm else self._scan(plan, capacity)
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

    def _scan(self, plan: Plan, capacity: int) -> list[Fetch]:
        table = self._holdings.tables[plan.dataset]
        fetches: list[Fetch] = []
        for index, object_id in plan.scan(_NOT_RESIDENT, table.states):
            state = table.state[object_id]
            if plan.take_skip(object_id):
                plan.pass_entry()
                continue
            cost = table.stored_bytes(object_id)
            if plan.is_full or (plan.ahead_bytes and plan.ahead_bytes + cost > self.lookahead_bytes):
                break
            if state == states.FREEING:
                break  # it is absent in a moment, and then fetched again
            if state == states.ABSENT:
                placement = self._reserve(plan, cost) if len(fetches) < capacity else None
                if placement is None:
                    break
                if placement == Placement.DIRECT:
                    plan.pass_entry()  # no room will come: its reader asks for it
                    continue
                fetches.append(self._holdings.start(plan.dataset, object_id, placement, cost))
            plan.add_outstanding(index, object_id, cost)
            self._holdings.expect((plan.dataset, object_id))
            plan.pass_entry()
        return fetches

    def _reserve(self, plan: Plan, cost: int) -> Placement | None:
        """Return where there is room, reserved now; DIRECT when there will be none; None when some comes back."""
        holdings = self._holdings
        wanted = Placement.RESIDENT if plan.resident else Placement.TRANSIENT
        placement = holdings.reserve(cost, wanted)
        if placement == wanted:
            return placement
        is_worth_freeing = plan.resident or holdings.residency.could_lend(cost)
        if is_worth_freeing and holdings.make_room(cost, live=self._consumers.live_datasets()):
            holdings.cancel(placement, cost)
            return None  # there is room in a moment
        if placement != Placement.DIRECT:
            return placement
        if holdings.may_get_room(cost):
            return None  # a reader gives room back
        if holdings.residency.lent_bytes == 0:
            self.plan_room()  # objects turned out larger, or more, than was thought when the epoch began
            if holdings.residency.lent_bytes:
                return self._reserve(plan, cost)
        return Placement.DIRECT

    def _scan_warm(self, plan: Plan, capacity: int) -> list[Fetch]:
        table, residency = self._holdings.tables[plan.dataset], self._holdings.residency
        fetches: list[Fetch] = []
        for _, object_id in plan.scan(_WARM_WANTED, table.states):
            if table.state[object_id] != states.ABSENT:
                plan.pass_entry()  # it is in the plan twice
                continue
            if len(fetches) >= capacity:
                break
            if plan.is_past_memory:
                fetches.append(self._holdings.start(plan.dataset, object_id, Placement.DIRECT, 0))
                plan.pass_entry()
                continue
            cost = table.stored_bytes(object_id)
            if not residency.try_reserve_resident(cost):
                if not self._holdings.make_room(cost, live=self._consumers.live_datasets()):
                    plan.advance(len(plan))
                break
            fetches.append(self._holdings.start(plan.dataset, object_id, Placement.RESIDENT, cost))
            plan.pass_entry()
        return fetches
