"""The ring without hands: a scheduler whose actions are kept in dicts, so that a test decides what happens when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from prefeed.core.actions import Answer, Fetch, Free, Outcome, Placement, Ticket
from prefeed.core.schedule import Scheduler
from prefeed.core.table import RESIDENT, UNKNOWN_SIZE, ObjectTable

Key = tuple[int, int]
"""Number of the dataset, object id."""

PLENTY = 1 << 40


class Ring:
    """Interprets actions only when told to.

    Attributes:
        tier: What the tier holds: cost in bytes, by object.
        fetching: Requests under way, in order.
        freeing: Deletions that were asked for and not made yet.
        answers: What readers were told, by token.
        waiting: Tokens of readers that were told nothing yet.
        fetched: Every request that was ever made, in order.
    """

    def __init__(
        self,
        *,
        budget: int,
        lookahead: int = PLENTY,
        cost: Callable[[int], int] = lambda size: size,
        is_checked: bool = True,
    ) -> None:
        self.scheduler = Scheduler(budget_bytes=budget, lookahead_bytes=lookahead)
        self.tier: dict[Key, int] = {}
        self.fetching: dict[Key, Ticket] = {}
        self.freeing: list[Free] = []
        self.answers: dict[int, Answer] = {}
        self.waiting: set[int] = set()
        self.fetched: list[Key] = []
        self._cost = cost
        self._is_checked = is_checked
        self._tokens = 0
        self._is_over = False

    # ------------------------------------------------------------ events

    def add(self, dataset: int, sizes: Sequence[int | None], *, max_in_flight: int = 1000) -> ObjectTable:
        """Add a dataset; a size of None is one that the listing does not give."""
        column = np.array([UNKNOWN_SIZE if size is None else size for size in sizes], dtype=np.uint64)
        table = self.scheduler.add_dataset(dataset, column, self._cost)
        table.max_in_flight = max_in_flight
        return table

    def plan(self, consumer: int, dataset: int, ids: Sequence[int], *, warm: bool = False) -> list[Key]:
        """Register a plan; return what is fetched for it at once."""
        self.scheduler.register_plan(consumer, dataset, as_ids(ids), warm=warm)
        return self.collect()

    def upcoming(self, consumer: int, dataset: int, ids: Sequence[int]) -> list[Key]:
        """Register what comes next."""
        self.scheduler.register_upcoming(consumer, dataset, as_ids(ids))
        return self.collect()

    def keep(self, consumer: int, *, resident: bool) -> list[Key]:
        """What the consumer's plans fetch from now on is kept, or not; return what is fetched because of it."""
        self.scheduler.keep(consumer, resident=resident)
        return self.collect()

    def demand(
        self, dataset: int, object_id: int, *, consumer: int = 0, was_awaited: bool = False, once: bool = False
    ) -> int:
        """A reader waits; return its token."""
        self._tokens += 1
        self.waiting.add(self._tokens)
        self.scheduler.demand(self._tokens, consumer, dataset, object_id, was_awaited=was_awaited, once=once)
        self.collect()
        return self._tokens

    def lost(self, dataset: int, object_id: int) -> int:
        """A reader found nothing where it was told to look."""
        self._tokens += 1
        self.waiting.add(self._tokens)
        self.scheduler.lost(self._tokens, dataset, object_id)
        self.collect()
        return self._tokens

    def clear(self, dataset: int) -> None:
        """Free what the tier holds of the dataset, as for ``prefeed clear``; ask for the deletions, and make none."""
        for object_id in self.scheduler.tables[dataset].ids_in(RESIDENT).tolist():
            assert self.scheduler.invalidate(dataset, object_id, fetch_again=False)

    def consume(self, consumer: int, dataset: int, ids: Sequence[int]) -> list[Key]:
        """The consumer's readers are done with these; return what is fetched because of it."""
        self.scheduler.consumed(consumer, dataset, ids)
        return self.settle_frees()

    def collect(self) -> list[Key]:
        """Take the scheduler's actions; return what is to be fetched."""
        asked = []
        for action in self.scheduler.take_actions():
            if isinstance(action, Fetch):
                key = (action.ticket.dataset, action.ticket.object_id)
                assert key not in self.fetching, f"{key} is fetched twice at once"
                self.fetching[key] = action.ticket
                self.fetched.append(key)
                asked.append(key)
            elif isinstance(action, Answer):
                assert action.token in self.waiting, f"reader {action.token} is answered twice, or did not ask"
                self.waiting.remove(action.token)
                self.answers[action.token] = action
            else:
                self.freeing.append(action)
        if self._is_checked:
            self.check()
        return asked

    def arrive(self, dataset: int, object_id: int, *, size: int | None = None, changed: bool = False) -> Placement:
        """The object is here; store it where it belongs."""
        placement = self.arrive_unstored(dataset, object_id, size=size, changed=changed)
        if (dataset, object_id) in self.fetching:
            self.store(dataset, object_id)
        self.collect()
        return placement

    def arrive_unstored(
        self, dataset: int, object_id: int, *, size: int | None = None, changed: bool = False
    ) -> Placement:
        """The object is here, and not yet in the tier."""
        ticket = self.fetching[dataset, object_id]
        if size is None:
            size = self.scheduler.tables[dataset].size_bytes(object_id)
        placement = self.scheduler.arrived(ticket, size, changed=changed)
        if placement is Placement.DIRECT:
            del self.fetching[dataset, object_id]
        return placement

    def store(self, dataset: int, object_id: int) -> None:
        """The tier took the entry."""
        ticket = self.fetching.pop((dataset, object_id))
        self.tier[dataset, object_id] = ticket.reserved_bytes
        self.scheduler.stored(ticket)

    def refuse(self, dataset: int, object_id: int) -> None:
        """Refuse the entry, as a tier without room does."""
        self.scheduler.refused(self.fetching.pop((dataset, object_id)))
        self.collect()

    def press(self, budget: int) -> None:
        """Memory is short."""
        self.scheduler.press(budget)
        self._is_over = self.reserved > budget
        self.collect()

    def set_budget(self, budget: int) -> None:
        """The tier holds that much from now on."""
        self.scheduler.set_budget(budget)
        self._is_over = self.reserved > budget
        self.collect()

    def fail(self, dataset: int, object_id: int, *, permanent: bool) -> None:
        """The origin did not give the object."""
        ticket = self.fetching.pop((dataset, object_id))
        self.scheduler.failed(ticket, code="object-not-found", message="no such object", permanent=permanent)
        self.collect()

    def free(self, index: int = 0) -> None:
        """Make one of the deletions that were asked for."""
        action = self.freeing.pop(index)
        self.tier.pop((action.dataset, action.object_id), None)
        self.scheduler.freed(action)

    def settle_frees(self) -> list[Key]:
        """Make all deletions that were asked for; return what is fetched because of it."""
        asked = self.collect()
        while self.freeing:
            self.free()
            asked += self.collect()
        return asked

    def arrive_all(self) -> None:
        """Let everything arrive that is on its way or follows from it, in order."""
        self.settle_frees()
        while self.fetching:
            self.arrive(*next(iter(self.fetching)))
            self.settle_frees()

    # ------------------------------------------------------------ what is there

    def outcome(self, token: int) -> Outcome | None:
        """Return what the reader was told; None if nothing yet."""
        return self.answers[token].outcome if token in self.answers else None

    def holds(self, dataset: int) -> set[int]:
        """Return the ids of the dataset that are in the tier."""
        return {object_id for number, object_id in self.tier if number == dataset}

    def read(self, consumer: int, dataset: int, object_id: int) -> bool:
        """Read as a worker does: look, else ask and let the answer come; True for a hit. Then it is consumed."""
        is_hit = (dataset, object_id) in self.tier
        if not is_hit:
            token = self.demand(dataset, object_id, consumer=consumer)
            if (dataset, object_id) in self.fetching:
                self.arrive(dataset, object_id)
            assert self.outcome(token) in (Outcome.STORED, Outcome.INLINE, Outcome.READ_ORIGIN)
            is_hit = self.answers[token].was_held
        self.consume(consumer, dataset, [object_id])
        return is_hit

    def check(self) -> None:
        """The books are right, and the tier holds no more than the budget."""
        self.scheduler.validate()
        assert sum(self.tier.values()) <= self.reserved
        is_over = self.reserved > self.scheduler.residency.budget_bytes
        assert self._is_over or not is_over, "more is reserved than the budget"
        self._is_over = is_over

    @property
    def reserved(self) -> int:
        """Bytes of the tier that are spoken for."""
        return self.scheduler.residency.resident_bytes + self.scheduler.residency.transient_bytes


def as_ids(ids: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return ids as a plan holds them."""
    return np.asarray(ids, dtype=np.int64)
