"""The machine that turns events into actions: what to fetch, where to keep it, what to free, whom to answer.

Events are the methods of ``Scheduler``; each changes the state and remembers what follows from it. ``take_actions``
then returns everything to be done, fetches last, as many as may be in flight. State of one object:

                 fetch                arrived + stored
    ABSENT ────────────────→ FETCHING ────────────────→ RESIDENT
       ↑  ↑                   │  │  └─────────────────→ TRANSIENT
       │  └── failed, dropped ┘  └ refused → FAILED         │ last expected reader is done
       └───────────── freed ←────────── FREEING ←───────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefeed.core import table as states
from prefeed.core.actions import Action, Fetch, Free, Outcome, Placement, Ticket
from prefeed.core.holdings import Holdings, Key
from prefeed.core.plan import Ids, Plan
from prefeed.core.residency import Residency
from prefeed.core.table import ObjectTable

_NOT_RESIDENT = np.ones(256, dtype=bool)
_NOT_RESIDENT[[states.RESIDENT, states.FAILED]] = False

_WARM_WANTED = np.zeros(256, dtype=bool)
_WARM_WANTED[states.ABSENT] = True


@dataclass(slots=True)
class Counts:
    """What the scheduler counts itself."""

    late: int = 0
    misses: int = 0
    passed_unread: int = 0


@dataclass(slots=True)
class _Consumer:
    dataset: int
    plan: Plan | None = None
    upcoming: Plan | None = None


class Scheduler:
    """Decides for one node; pure.

    Args:
        budget_bytes: Most bytes that values may take in the tier.
        lookahead_bytes: Most bytes outstanding for one plan.

    How many fetches of a dataset are under way ahead of demand is bounded by its ``ObjectTable.max_in_flight``;
    demand fetches come on top, one a waiting reader.

    **Invariants**: see ``validate``. **Threads**: one thread owns it.
    """

    def __init__(self, *, budget_bytes: int, lookahead_bytes: int) -> None:
        self.holdings = Holdings(budget_bytes)
        self.lookahead_bytes = lookahead_bytes
        self.counts = Counts()
        self._consumers: dict[int, _Consumer] = {}
        self._demanded: list[Fetch] = []

    @property
    def tables(self) -> dict[int, ObjectTable]:
        """State of every object, by dataset."""
        return self.holdings.tables

    @property
    def residency(self) -> Residency:
        """The byte budget."""
        return self.holdings.residency

    # ------------------------------------------------------------ events: datasets

    def add_dataset(
        self, dataset: int, sizes: npt.NDArray[np.uint64], stored_bytes: Callable[[int], int]
    ) -> ObjectTable:
        """A manifest was opened; its objects are absent until ``adopt`` says otherwise."""
        return self.holdings.add_table(dataset, sizes, stored_bytes)

    def adopt(self, dataset: int, ids: Iterable[int], sizes_bytes: Iterable[int]) -> None:
        """These objects are in the tier already, residents of an earlier life; they count against the budget."""
        self.holdings.adopt(dataset, ids, sizes_bytes)

    def transfer(self, source: int, source_ids: Iterable[int], target: int, target_ids: Iterable[int]) -> None:
        """These residents of one dataset are objects of another."""
        self.holdings.transfer(source, source_ids, target, target_ids)

    def clear(self, dataset: int) -> None:
        """Free every resident of the dataset."""
        self.holdings.clear(dataset)

    # ------------------------------------------------------------ events: plans

    def register_plan(self, consumer: int, dataset: int, ids: Ids, *, warm: bool = False) -> None:
        """The consumer begins an epoch; what it had registered before is over."""
        self.end_consumer(consumer)
        self._consumers[consumer] = _Consumer(dataset, plan=Plan(consumer, dataset, ids, warm=warm))
        self._begin_epoch(dataset)

    def register_upcoming(self, consumer: int, dataset: int, ids: Ids) -> None:
        """The consumer will probably read these next; a wrong guess costs fetches, never a sample."""
        entry = self._consumers.setdefault(consumer, _Consumer(dataset))
        self._end_plan(entry.upcoming)
        entry.upcoming = Plan(consumer, dataset, ids)
        self._plan_room()

    def adopt_upcoming(self, consumer: int) -> bool:
        """The guess was right: the upcoming plan is the present one now. False when there is none."""
        entry = self._consumers.get(consumer)
        if entry is None or entry.upcoming is None:
            return False
        self._end_plan(entry.plan)
        entry.plan, entry.upcoming = entry.upcoming, None
        entry.dataset = entry.plan.dataset
        self._begin_epoch(entry.plan.dataset)
        return True

    def extend_plan(self, consumer: int, ids: Ids) -> None:
        """The sampler went on."""
        entry = self._consumers.get(consumer)
        if entry is not None and entry.plan is not None:
            entry.plan.extend(ids)

    def consumed(self, consumer: int, dataset: int, ids: Sequence[int]) -> None:
        """The consumer's workers read these objects, whichever way."""
        entry = self._consumers.get(consumer)
        plans = [] if entry is None else [p for p in (entry.plan, entry.upcoming) if p and p.dataset == dataset]
        state = self.tables[dataset].state
        for object_id in ids:
            if any(plan.try_consume(object_id) for plan in plans):
                self.holdings.unexpect((dataset, object_id))
            elif plans and state[object_id] != states.RESIDENT and not plans[0].take_expected_report(object_id):
                plans[0].skip_once(object_id)

    def position(self, consumer: int, position: int) -> None:
        """The consumer's loop has the samples before this index of its plan."""
        entry = self._consumers.get(consumer)
        if entry is not None and entry.plan is not None:
            for object_id in entry.plan.advance(position):
                self.counts.passed_unread += 1
                self.holdings.unexpect((entry.plan.dataset, object_id))

    def end_consumer(self, consumer: int) -> None:
        """The consumer is gone, or begins anew."""
        entry = self._consumers.pop(consumer, None)
        if entry is not None:
            self._end_plan(entry.plan)
            self._end_plan(entry.upcoming)

    # ------------------------------------------------------------ events: readers

    def demand(self, token: int, consumer: int, dataset: int, object_id: int) -> None:
        """A reader did not find the object in the tier and waits for an answer under this token."""
        table = self.tables[dataset]
        state = table.state[object_id]
        if state in (states.RESIDENT, states.TRANSIENT):
            self.counts.late += 1  # it came between the reader's look and its question
            self.holdings.answer(token, (dataset, object_id), Outcome.STORED)
        elif state == states.FAILED:
            code, message = table.failures[object_id]
            self.holdings.answer(token, (dataset, object_id), Outcome.FAILED, code, message)
        elif state == states.FREEING:
            self.counts.misses += 1
            self.holdings.answer(token, (dataset, object_id), Outcome.READ_ORIGIN)
        else:
            self._demand_fetch(token, dataset, object_id, is_late=state == states.FETCHING)
            if self.holdings.ticket((dataset, object_id)).placement == Placement.DIRECT:
                self._pass_over(consumer, dataset, object_id)

    def lost(self, token: int, dataset: int, object_id: int) -> None:
        """A reader was told STORED and found nothing: the entry is gone, and the reader reads the origin."""
        table = self.tables[dataset]
        if table.state[object_id] == states.RESIDENT:
            self.holdings.free(dataset, object_id)
        self.holdings.answer(token, (dataset, object_id), Outcome.READ_ORIGIN)

    # ------------------------------------------------------------ events: fetches

    def arrived(self, ticket: Ticket, size_bytes: int, *, changed: bool) -> Placement:
        """The bytes are here; return where to put them. Anything but DIRECT must be followed by ``stored``.

        Args:
            ticket: The ticket of the fetch.
            size_bytes: Their number, which may differ from the listing's.
            changed: The origin holds another version than the manifest: served, never kept.
        """
        key = (ticket.dataset, ticket.object_id)
        cost = self.tables[ticket.dataset].observe_size(ticket.object_id, size_bytes)
        wanted = self._wanted_placement(ticket, changed=changed)
        if wanted != ticket.placement or cost != ticket.reserved_bytes:
            self.holdings.unreserve(ticket)
            ticket.placement = self.holdings.reserve(cost, wanted, is_expected=self.holdings.is_expected(key))
            ticket.reserved_bytes = 0 if ticket.placement == Placement.DIRECT else cost
        if ticket.placement == Placement.DIRECT:
            self.holdings.settle(ticket, states.ABSENT)
            self.holdings.answer_waiters(ticket, Outcome.INLINE)
        return ticket.placement

    def stored(self, ticket: Ticket) -> None:
        """The entry is committed: readers find it from now on."""
        self.holdings.keep(ticket)

    def store_failed(self, ticket: Ticket) -> None:
        """The tier refused the entry; readers that wait get the bytes all the same."""
        self.holdings.unreserve(ticket)
        ticket.placement = Placement.DIRECT
        self.holdings.settle(ticket, states.ABSENT)
        self.holdings.answer_waiters(ticket, Outcome.INLINE)

    def set_budget(self, budget_bytes: int) -> None:
        """The tier holds that much: less than was thought, or an earlier life left more than it may hold now.

        Residents are freed until the rest and the lent part fit.
        """
        residency = self.holdings.residency
        if budget_bytes == residency.budget_bytes and residency.resident_bytes <= budget_bytes:
            return
        residency.budget_bytes = budget_bytes
        self._plan_room()

    def failed(self, ticket: Ticket, *, code: str, message: str, permanent: bool) -> None:
        """The fetch is given up. A permanent error is remembered until the next epoch begins."""
        self.holdings.unreserve(ticket)
        if permanent:
            self.holdings.settle(ticket, states.FAILED)
            self.tables[ticket.dataset].failures[ticket.object_id] = (code, message)
            self.holdings.answer_waiters(ticket, Outcome.FAILED, code, message)
        else:
            self.holdings.settle(ticket, states.ABSENT)
            self.holdings.answer_waiters(ticket, Outcome.READ_ORIGIN)

    def freed(self, free: Free) -> None:
        """The entry is gone from the tier: its room may be used again."""
        self.holdings.freed(free)

    # ------------------------------------------------------------ decisions

    def take_actions(self) -> list[Action]:
        """Return everything to be done now; each action exactly once."""
        actions: list[Action] = [*self.holdings.take_actions(), *self._demanded]
        self._demanded.clear()
        for plan in sorted(self._plans(), key=lambda plan: plan.ahead_bytes):
            table = self.tables[plan.dataset]
            capacity = table.max_in_flight - table.in_flight
            if capacity > 0:
                actions.extend(self._scan_warm(plan, capacity) if plan.warm else self._scan(plan, capacity))
        actions.extend(self.holdings.take_actions())  # room to be made
        return actions

    @property
    def num_in_flight(self) -> int:
        """Fetches under way."""
        return self.holdings.num_in_flight

    @property
    def num_plans(self) -> int:
        """Consumers with a plan."""
        return sum(1 for entry in self._consumers.values() if entry.plan is not None)

    @property
    def num_transients(self) -> int:
        """Objects in the tier that are freed once consumed."""
        return self.holdings.num_transients

    def has_work(self, consumer: int) -> bool:
        """Return True while the consumer's plan has entries that were not looked at."""
        entry = self._consumers.get(consumer)
        return entry is not None and entry.plan is not None and entry.plan.cursor < len(entry.plan)

    def dataset_of(self, consumer: int) -> int | None:
        """Return the dataset that the consumer reads; None when it has no plan."""
        entry = self._consumers.get(consumer)
        return None if entry is None or entry.plan is None else entry.plan.dataset

    def working_set_bytes(self) -> int:
        """Return about what all datasets with a consumer would cost in the tier."""
        return sum(self.tables[dataset].total_bytes for dataset in self.live_datasets())

    def validate(self) -> None:
        """Check every invariant; raises AssertionError."""
        expected: dict[Key, int] = {}
        for plan in self._plans():
            plan.validate()
            for object_id, indices in plan.outstanding.items():
                key = (plan.dataset, object_id)
                expected[key] = expected.get(key, 0) + len(indices)
        self.holdings.validate(expected)

    # ------------------------------------------------------------ inside

    def _plans(self) -> list[Plan]:
        entries = self._consumers.values()
        return [plan for entry in entries for plan in (entry.plan, entry.upcoming) if plan is not None]

    def live_datasets(self) -> set[int]:
        """Return the datasets that some consumer reads."""
        return {entry.dataset for entry in self._consumers.values()}

    def _begin_epoch(self, dataset: int) -> None:
        self.tables[dataset].forget_failures()
        self._plan_room()

    def _plan_room(self) -> None:
        live = self.live_datasets()
        mean = max((self.tables[dataset].mean_stored_bytes for dataset in live), default=0)
        self.residency.plan_lending(self.working_set_bytes(), mean)
        # More may be resident than was expected to be wanted: what cannot stay needs room to stream through.
        self.holdings.trim(self.residency.budget_bytes - self.residency.lent_bytes, live=live)

    def _scan(self, plan: Plan, capacity: int) -> list[Fetch]:
        table = self.tables[plan.dataset]
        fetches: list[Fetch] = []
        for index, object_id in plan.scan(_NOT_RESIDENT, table.states):
            state = table.state[object_id]
            if plan.take_skip(object_id):
                plan.pass_entry()
                continue
            cost = table.stored_bytes(object_id)
            if plan.ahead_bytes and plan.ahead_bytes + cost > self.lookahead_bytes:
                break
            if state == states.FREEING:
                break  # it is absent in a moment, and then fetched again
            if state == states.ABSENT:
                if len(fetches) >= capacity:
                    break
                placement = self.holdings.reserve(cost, Placement.RESIDENT)
                if placement != Placement.RESIDENT and self.holdings.make_room(cost, live=self.live_datasets()):
                    self.holdings.cancel(placement, cost)
                    break  # there is room in a moment
                if placement == Placement.DIRECT:
                    if cost <= self.residency.lent_bytes:
                        break  # a reader gives room back
                    plan.pass_entry()  # no room will come: its reader asks for it
                    continue
                fetches.append(self.holdings.start(plan.dataset, object_id, placement, cost))
            plan.add_outstanding(index, object_id, cost)
            self.holdings.expect((plan.dataset, object_id))
            plan.pass_entry()
        return fetches

    def _scan_warm(self, plan: Plan, capacity: int) -> list[Fetch]:
        table = self.tables[plan.dataset]
        fetches: list[Fetch] = []
        for _, object_id in plan.scan(_WARM_WANTED, table.states):
            if table.state[object_id] != states.ABSENT:
                plan.pass_entry()  # it is in the plan twice
                continue
            if len(fetches) >= capacity:
                break
            cost = table.stored_bytes(object_id)
            if not self.residency.try_reserve_resident(cost):
                if not self.holdings.make_room(cost, live=self.live_datasets()):
                    plan.advance(len(plan))
                break
            fetches.append(self.holdings.start(plan.dataset, object_id, Placement.RESIDENT, cost))
            plan.pass_entry()
        return fetches

    def _demand_fetch(self, token: int, dataset: int, object_id: int, *, is_late: bool) -> None:
        if is_late:
            self.counts.late += 1
        else:
            self.counts.misses += 1
            cost = self.tables[dataset].stored_bytes(object_id)
            placement = Placement.RESIDENT if self.residency.try_reserve_resident(cost) else Placement.DIRECT
            reserved = 0 if placement == Placement.DIRECT else cost
            self._demanded.append(self.holdings.start(dataset, object_id, placement, reserved))
        self.holdings.wait((dataset, object_id), token)

    def _wanted_placement(self, ticket: Ticket, *, changed: bool) -> Placement:
        """Return where the object should go now: expected readers may have come or gone since the request."""
        is_expected = self.holdings.is_expected((ticket.dataset, ticket.object_id))
        if ticket.placement == Placement.RESIDENT and not changed:
            return Placement.RESIDENT
        if is_expected:
            return Placement.TRANSIENT
        return Placement.DIRECT

    def _pass_over(self, consumer: int, dataset: int, object_id: int) -> None:
        """The reader gets the bytes by its question: no fetch ahead for this access, should it not be planned yet."""
        entry = self._consumers.get(consumer)
        plan = None if entry is None else entry.plan
        if plan is not None and plan.dataset == dataset and object_id not in plan.outstanding:
            plan.skip_once(object_id)
            plan.expect_report(object_id)

    def _end_plan(self, plan: Plan | None) -> None:
        if plan is None:
            return
        for object_id in plan.drop_outstanding():
            self.holdings.unexpect((plan.dataset, object_id))
