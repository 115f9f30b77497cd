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

import numpy as np
import numpy.typing as npt

from prefeed.core import table as states
from prefeed.core.actions import Action, Fetch, Free, Outcome, Placement, Ticket
from prefeed.core.consumers import Consumers
from prefeed.core.inventory import Holdings, Key, Residency
from prefeed.core.lookahead import Lookahead, NextUse
from prefeed.core.plan import Ids, Plan, Window
from prefeed.core.table import ObjectTable
from prefeed.types import ReadCounts


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
        self.holdings: Holdings = Holdings(budget_bytes)
        self._consumers = Consumers(self.holdings)
        self._lookahead = Lookahead(self.holdings, self._consumers, lookahead_bytes=lookahead_bytes)
        self._next_use = NextUse(self.holdings, self._consumers)
        self._demanded: list[Fetch] = []
        self._invalidated: set[Key] = set()  # until they are freed
        self._read_last: dict[int, int] = {}  # bytes of datasets, as they were when a consumer of theirs ended
        self._nobody_reads = True

    @property
    def tables(self) -> dict[int, ObjectTable]:
        """State of every object, by dataset."""
        return self.holdings.tables

    @property
    def residency(self) -> Residency:
        """The byte budget."""
        return self.holdings.residency

    @property
    def counts(self) -> ReadCounts:
        """How the reads of all consumers went, also of those that are gone."""
        return self._consumers.counts

    @property
    def passed_unread(self) -> int:
        """Accesses that a position passed and that no reader reported."""
        return self._consumers.passed_unread

    # ------------------------------------------------------------ events: datasets

    def add_dataset(
        self, dataset: int, sizes: npt.NDArray[np.uint64], stored_bytes: Callable[[int], int]
    ) -> ObjectTable:
        """A manifest was opened; its objects are absent until ``adopt`` says otherwise."""
        return self.holdings.add_table(dataset, sizes, stored_bytes)

    def grow_dataset(self, dataset: int, sizes: npt.NDArray[np.uint64]) -> None:
        """Objects were appended, which are absent; ``sizes`` are those of all, the old ones first."""
        self.tables[dataset].grow(sizes)
        if dataset in self.live_datasets():
            self._lookahead.plan_room()

    def forget_dataset(self, dataset: int) -> bool:
        """Forget a manifest whose objects are not asked for again; False when some are in the tier, or on their way."""
        table = self.tables[dataset]
        if dataset in self.live_datasets() or len(table) != table.num_in(states.ABSENT) + table.num_in(states.FAILED):
            return False
        self._next_use.forget(dataset)
        del self.tables[dataset]
        return True

    def adopt(self, dataset: int, ids: Iterable[int], sizes_bytes: Iterable[int]) -> None:
        """These objects are in the tier already, residents of an earlier life; they count against the budget."""
        self.holdings.adopt(dataset, ids, sizes_bytes)

    def transfer(self, source: int, source_ids: Iterable[int], target: int, target_ids: Iterable[int]) -> None:
        """These residents of one dataset are objects of another."""
        self.holdings.transfer(source, source_ids, target, target_ids)

    def invalidate(self, dataset: int, object_id: int, *, fetch_again: bool = True) -> bool:
        """Free an object that is out of date.

        Args:
            dataset: Number of the manifest.
            object_id: Index of the object in the manifest.
            fetch_again: Whether plans that still need the object fetch it again ahead of their readers.

        Returns:
            False if the object is neither a resident nor a transient.
        """
        if self.tables[dataset].state[object_id] not in (states.RESIDENT, states.TRANSIENT):
            return False
        self.holdings.free(dataset, object_id)
        if fetch_again:
            self._invalidated.add((dataset, object_id))
        return True

    # ------------------------------------------------------------ events: plans

    def register_plan(
        self, consumer: int, dataset: int, ids: Ids | Window, *, warm: bool = False, resident: bool = True
    ) -> None:
        """The consumer begins an epoch; what it had registered before is over.

        Args:
            consumer: Whose plan it is; its counts continue.
            dataset: Number of the manifest that the ids belong to.
            ids: Object ids in reading order, shape (num_accesses,); more may follow by ``extend_plan``.
            warm: Fill the cache with these and expect no reader.
            resident: Keep what is fetched, as far as there is room. If not, each object is freed once it was read.
        """
        self._consumers.register(Plan(consumer, dataset, ids, warm=warm, resident=resident))
        self._begin_epoch(dataset)

    def register_warm_up(
        self, consumer: int, dataset: int, ids: Ids, *, max_in_flight: int | None = None, past_memory: bool = False
    ) -> None:
        """These are to be fetched in this order though no reader reads them; what was registered before is over.

        Args:
            consumer: Whose plan it is.
            dataset: Number of the manifest that the ids belong to.
            ids: Object ids, shape (num_objects,).
            max_in_flight: Nothing more is begun while that many of the dataset are under way; None: as its table says.
            past_memory: They pass by: not for this tier, but for those behind it.
        """
        plan = Plan(consumer, dataset, ids, warm=True)
        plan.max_in_flight = max_in_flight or plan.max_in_flight
        plan.is_past_memory = past_memory
        self._consumers.register(plan)
        if not past_memory:
            self._begin_epoch(dataset)

    def register_upcoming(self, consumer: int, dataset: int, ids: Ids | Window, *, resident: bool = True) -> None:
        """The consumer will probably read these next; a wrong guess costs fetches, never a sample."""
        self._consumers.announce(Plan(consumer, dataset, ids, resident=resident))
        self._next_use.forget(dataset)
        self._lookahead.plan_room()

    def foresee(self, consumer: int, ids: Ids) -> None:
        """After its plans the consumer will probably read these of the same dataset: keep by next use."""
        dataset = self._consumers.foresee(consumer, ids)
        if dataset is not None:
            self._next_use.forget(dataset)

    def adopt_upcoming(self, consumer: int) -> bool:
        """The guess was right: the upcoming plan is the present one now. False when there is none."""
        dataset = self._consumers.adopt_upcoming(consumer)
        if dataset is None:
            return False
        self._begin_epoch(dataset)
        return True

    def extend_plan(self, consumer: int, ids: Ids) -> bool:
        """The sampler went on. True when this is where the plan was cut: more of it is not kept."""
        return self._consumers.extend(consumer, ids)

    def keep(self, consumer: int, *, resident: bool) -> None:
        """From now on, what is fetched for the consumer's plans is kept, or freed once it was read.

        What waits for a reader of theirs already is kept too, as far as there is room; what is resident stays.
        """
        changed = self._consumers.keep(consumer, resident=resident)
        if not changed:
            return
        self._lookahead.plan_room()
        for plan in changed if resident else ():
            for object_id in plan.outstanding:
                self.holdings.try_keep((plan.dataset, object_id))

    def consumed(self, consumer: int, dataset: int, ids: Sequence[int]) -> None:
        """The consumer's workers read these objects, whichever way."""
        self._consumers.consumed(consumer, dataset, ids)

    def position(self, consumer: int, position: int) -> None:
        """The consumer's loop has the samples before this index of its plan."""
        self._consumers.advance(consumer, position)

    def count_reads(self, consumer: int, hits: int, direct_reads: int) -> None:
        """Count reads of the consumer that needed no question, or had no answer; ``demand`` counts those that ask."""
        self._consumers.count(consumer, hits=hits, direct_reads=direct_reads)

    def end_consumer(self, consumer: int) -> None:
        """The consumer is gone."""
        datasets = {plan.dataset for plan in self._consumers.plans() if plan.consumer == consumer}
        if datasets:
            read_before = {} if self._nobody_reads else self._read_last
            self._read_last = {**read_before, **self._live_bytes()}
        if self._consumers.end(consumer):
            self._lookahead.plan_room()  # nothing more has to stream through for it
        if datasets:
            self._nobody_reads = not self.live_datasets()
        for dataset in datasets:
            self._next_use.forget(dataset)

    # ------------------------------------------------------------ events: readers

    def demand(
        self, token: int, consumer: int, dataset: int, object_id: int, *, was_awaited: bool = False, once: bool = False
    ) -> None:
        """A reader could not find the object in the tier by itself, and waits for an answer under this token.

        Args:
            token: See above.
            consumer: Whose read it is.
            dataset: Of the object.
            object_id: Which it is. One that is held is a hit, which the reader counts when it has the bytes.
            was_awaited: The object was on its way when the reader asked, and may have come since.
            once: The reader has no use for it after this read.
        """
        table = self.tables[dataset]
        state = table.state[object_id]
        if state in (states.RESIDENT, states.TRANSIENT):
            if was_awaited:
                self._count(consumer, is_late=True)
            self.holdings.answer_held(token, (dataset, object_id), was_held=not was_awaited)
        elif state == states.FAILED:
            code, message = table.failures[object_id]
            self.holdings.answer(token, (dataset, object_id), Outcome.FAILED, code, message)
        elif state == states.FREEING:
            self.holdings.answer(token, (dataset, object_id), Outcome.READ_ORIGIN)
        else:
            is_late = was_awaited or state == states.FETCHING
            self._count(consumer, is_late=is_late)
            if state == states.ABSENT:
                self._fetch_now(consumer, dataset, object_id, once=once)
            self.holdings.wait((dataset, object_id), token, consumer, is_late=is_late)
            if self.holdings.ticket((dataset, object_id)).placement == Placement.DIRECT:
                self._consumers.pass_over(consumer, dataset, object_id)

    def lost(self, token: int, dataset: int, object_id: int) -> None:
        """A reader was told STORED and found nothing: the entry is gone, and the reader reads the origin."""
        table = self.tables[dataset]
        if table.state[object_id] == states.RESIDENT:
            self.holdings.free(dataset, object_id)
        self.holdings.answer(token, (dataset, object_id), Outcome.READ_ORIGIN)

    # ------------------------------------------------------------ events: fetches

    def arrived(self, ticket: Ticket, size_bytes: int, *, changed: bool) -> Placement:
        """The bytes are here; return where to put them. RESIDENT and TRANSIENT must be followed by ``stored`` or ``refused``.

        Args:
            ticket: The ticket of the fetch.
            size_bytes: Their number, which may differ from the listing's.
            changed: The origin holds another version than the manifest: served, never kept.
        """
        key = (ticket.dataset, ticket.object_id)
        cost = self.holdings.tables[ticket.dataset].observe_size(ticket.object_id, size_bytes)
        wanted = self._wanted_placement(ticket, changed=changed)
        if wanted is not ticket.placement or cost != ticket.reserved_bytes:
            self.holdings.unreserve(ticket)
            ticket.placement = self.holdings.reserve(cost, wanted, is_expected=self.holdings.is_expected(key))
            ticket.reserved_bytes = 0 if ticket.placement == Placement.DIRECT else cost
        if ticket.placement is Placement.TRANSIENT and not changed:
            if self._next_use.make_room(*key, cost):
                self.holdings.exchange(ticket)
            elif ticket.dataset in self._consumers.kept_datasets():  # perhaps not yet when it was asked for
                self.holdings.try_exchange(ticket)
        if ticket.placement is Placement.DIRECT:
            self.holdings.settle(ticket, states.ABSENT)
            self.holdings.answer_waiters(ticket, Outcome.INLINE)
        return ticket.placement

    def stored(self, ticket: Ticket) -> None:
        """The entry is committed: readers find it from now on."""
        self.holdings.keep(ticket)

    def share(self, ticket: Ticket, size_bytes: int) -> None:
        """The bytes are in the tier, as a resident of another dataset: this one has them too, and nothing is stored."""
        self.tables[ticket.dataset].observe_size(ticket.object_id, size_bytes)
        self.holdings.share(ticket)

    def refused(self, ticket: Ticket) -> None:
        """Give the bytes to the waiting readers only, because the tier did not take the entry.

        If a plan expects a reader that has not requested the object yet, the object is fetched again then.
        """
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
        self._lookahead.plan_room()

    def press(self, budget_bytes: int) -> None:
        """Memory is short: no more than that may be held, and what is too much goes now.

        Transients first, which are only on their way; then residents, those that are read last first.
        """
        self.holdings.drop_transients(budget_bytes, in_order=self._lookahead.farthest_first)
        self.set_budget(budget_bytes)

    def failed(self, ticket: Ticket, *, code: str, message: str, permanent: bool) -> None:
        """The fetch is given up. A permanent error is remembered until the next epoch begins."""
        self.holdings.unreserve(ticket)
        if permanent:
            self.holdings.settle(ticket, states.FAILED)
            self.tables[ticket.dataset].failures[ticket.object_id] = (code, message)
            waiters = self.holdings.answer_waiters(ticket, Outcome.FAILED, code, message)
        else:
            self.holdings.settle(ticket, states.ABSENT)
            waiters = self.holdings.answer_waiters(ticket, Outcome.READ_ORIGIN)
        for _, consumer, is_late in waiters:  # the reader counts a direct read, if it reads the origin itself
            self._consumers.count(consumer, late=-int(is_late), misses=-int(not is_late))

    def forget_failures(self, dataset: int) -> None:
        """What was refused may be granted now: it is fetched when it is wanted."""
        self.tables[dataset].forget_failures()
        self._lookahead.plan_room()

    def freed(self, free: Free) -> None:
        """The entry is gone from the tier: its room may be used again."""
        self.holdings.freed(free)
        key = (free.dataset, free.object_id)
        if key in self._invalidated:
            self._invalidated.remove(key)
            self._consumers.add_missing(*key)

    # ------------------------------------------------------------ decisions

    def take_actions(self) -> list[Action]:
        """Return everything to be done now; each action exactly once."""
        actions: list[Action] = [*self.holdings.take_actions(), *self._demanded]
        self._demanded.clear()
        actions.extend(self._lookahead.plan_fetches())
        actions.extend(self.holdings.take_actions())  # room to be made
        return actions

    @property
    def num_in_flight(self) -> int:
        """Fetches under way."""
        return self.holdings.num_in_flight

    @property
    def num_plans(self) -> int:
        """Consumers with a plan."""
        return self._consumers.num_plans

    @property
    def num_transients(self) -> int:
        """Objects in the tier that are freed once consumed."""
        return self.holdings.num_transients

    def plans(self) -> list[tuple[Plan, bool]]:
        """Return the plans that consumers follow now, and of each whether it is known what its consumer reads next."""
        return self._consumers.present()

    def has_work(self, consumer: int) -> bool:
        """Return True while the consumer's plan has entries that were not looked at."""
        plan = self._consumers.plan_of(consumer)
        return plan is not None and plan.cursor < len(plan)

    def dataset_of(self, consumer: int) -> int | None:
        """Return the dataset that the consumer reads; None when it has no plan."""
        plan = self._consumers.plan_of(consumer)
        return None if plan is None else plan.dataset

    def counts_of(self, consumer: int) -> ReadCounts | None:
        """Return how the consumer's reads went since it was registered first; None when it is not registered."""
        return self._consumers.counts_of(consumer)

    def live_datasets(self) -> set[int]:
        """Return the datasets that some consumer reads."""
        return self._consumers.live_datasets()

    def working_set_bytes(self) -> int:
        """Return about what all datasets with a consumer would cost in the tier; of those that were read last, when there is none."""
        return sum((self._live_bytes() or self._read_last).values())

    def validate(self) -> None:
        """Check every invariant; raises AssertionError."""
        self.holdings.validate(self._consumers.validate())

    # ------------------------------------------------------------ inside

    def _live_bytes(self) -> dict[int, int]:
        return {dataset: self.tables[dataset].total_bytes for dataset in self.live_datasets()}

    def _begin_epoch(self, dataset: int) -> None:
        self.tables[dataset].forget_failures()
        self._next_use.forget(dataset)
        self._lookahead.plan_room()

    def _count(self, consumer: int, *, is_late: bool) -> None:
        self._consumers.count(consumer, late=int(is_late), misses=int(not is_late))

    def _fetch_now(self, consumer: int, dataset: int, object_id: int, *, once: bool) -> None:
        """Fetch an absent object for a reader that waits; one that reads once keeps it only until it was read."""
        key, cost = (dataset, object_id), self.tables[dataset].stored_bytes(object_id)
        reads_once = once or self._consumers.reads_once(consumer, dataset)
        if reads_once and dataset not in self._consumers.kept_datasets():
            placement = self.holdings.reserve(cost, Placement.TRANSIENT, is_expected=self.holdings.is_expected(key))
        else:
            placement = self.holdings.reserve(cost, Placement.RESIDENT, is_expected=False)
        reserved = 0 if placement == Placement.DIRECT else cost
        fetch = self.holdings.start(dataset, object_id, placement, reserved)
        fetch.ticket.is_demanded = True
        self._demanded.append(fetch)

    def _wanted_placement(self, ticket: Ticket, *, changed: bool) -> Placement:
        """Return where the object should go now: expected readers may have come or gone since the request."""
        if ticket.placement is Placement.RESIDENT and not changed:
            return Placement.RESIDENT
        if self.holdings.is_expected((ticket.dataset, ticket.object_id)):
            return Placement.TRANSIENT
        return Placement.DIRECT
