"""What the node holds and what is on its way: state, room and waiting readers of every object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core import table as states
from prefeed.core.actions import Action, Answer, Fetch, Free, Outcome, Placement, Ticket
from prefeed.core.table import ObjectTable

LENT_SHARE: Final = 0.01
"""Part of the budget lent to transients when not everything fits: 1 % costs at most 1 % of the hit ratio."""

FITS_SHARE: Final = 0.99
"""A working set fits when its estimate is below this part of the budget."""

MIN_LENT_OBJECTS: Final = 24
"""Mean objects that the lent part always holds, however small the budget."""


@dataclass(slots=True)
class Residency:
    """Bytes reserved, by kind. Reserved before the fetch, released after the entry is gone from the store.

    Never evict (docs/adr/0002-policy.md): with one job and a fresh shuffle per epoch every object is used once before and
    once after the epoch boundary, so no choice of objects beats any other, and the cheapest is to keep those that came
    first. The others stream through a small lent part and are freed once consumed.

        budget  |------------------ resident ------------------|-- lent --|
                grows until it meets the lent part, then stays   transients

    A plan that is read once keeps nothing: all of it streams, through as much as those that keep leave, half of the
    budget at most; through the whole budget where no plan keeps. Objects kept before stay as long as they leave the part
    that is always lent.

    Attributes:
        budget_bytes: Most bytes that values may take, as stored.
        lent_bytes: Most that transients may take, and that new residents leave to them; 0 while everything fits.
        always_lent_bytes: Part of it that residents are freed for, should they take more.
        resident_bytes, transient_bytes: Reserved now.

    Invariants: neither is negative; nothing is reserved beyond ``budget_bytes``, which may be lowered below what is
    reserved: then nothing more is reserved until enough was released.
    """

    budget_bytes: int
    lent_bytes: int = 0
    always_lent_bytes: int = 0
    resident_bytes: int = 0
    transient_bytes: int = 0

    def plan_lending(
        self, demanded_bytes: int, mean_object_bytes: int, *, keeps: bool = True, streams: bool = False
    ) -> None:
        """Set the lent part.

        Args:
            demanded_bytes: About what everything that some plan keeps would cost; nothing is lent when all of it fits.
            mean_object_bytes: About what one object costs.
            keeps: Some plan keeps what it reads.
            streams: Some plan reads once, and keeps nothing: something is lent in any case.
        """
        least = max(int(self.budget_bytes * LENT_SHARE), MIN_LENT_OBJECTS * mean_object_bytes)
        least = min(least, self.budget_bytes // 2)
        if streams:
            most = self.budget_bytes // 2 if keeps else self.budget_bytes
            self.lent_bytes = max(least, min(most, self.budget_bytes - demanded_bytes))
        else:
            least = 0 if demanded_bytes <= self.budget_bytes * FITS_SHARE else least
            self.lent_bytes = least
        self.always_lent_bytes = least

    def try_reserve_resident(self, stored_bytes: int) -> bool:
        """Reserve room that is kept; False when it would eat into the lent part or into what is lent now."""
        taken = self.resident_bytes + max(self.lent_bytes, self.transient_bytes)
        if taken + stored_bytes > self.budget_bytes:
            return False
        self.resident_bytes += stored_bytes
        return True

    def try_reserve_transient(self, stored_bytes: int) -> bool:
        """Reserve room that comes back once the object is consumed; False when the lent part is full."""
        free = self.budget_bytes - self.resident_bytes - self.transient_bytes
        if self.transient_bytes + stored_bytes > self.lent_bytes or stored_bytes > free:
            return False
        self.transient_bytes += stored_bytes
        return True

    def try_exchange(self, stored_bytes: int) -> bool:
        """Keep what was lent, and is no transient any more; False when it would eat into what others are lent."""
        self.transient_bytes -= stored_bytes
        if self.try_reserve_resident(stored_bytes):
            return True
        self.transient_bytes += stored_bytes
        return False

    def could_lend(self, stored_bytes: int) -> bool:
        """Return True when the lent part has that room, should residents be freed for it."""
        return self.transient_bytes + stored_bytes <= self.lent_bytes

    def release_resident(self, stored_bytes: int) -> None:
        """Give back room of a resident that is no longer stored."""
        self.resident_bytes -= stored_bytes
        assert self.resident_bytes >= 0

    def release_transient(self, stored_bytes: int) -> None:
        """Give back lent room."""
        self.transient_bytes -= stored_bytes
        assert self.transient_bytes >= 0

    def validate(self) -> None:
        """Check the invariants."""
        assert self.resident_bytes >= 0 and self.transient_bytes >= 0
        assert 0 <= self.always_lent_bytes <= self.lent_bytes <= self.budget_bytes


_FREE_GROUP = 64
"""Entries of an abandoned dataset freed at a time."""

Key = tuple[int, int]
"""(number of the dataset, object id)."""


class Holdings:
    """The books that the scheduler decides by; each method keeps them consistent with each other.

    Attributes:
        tables: State of every object, by dataset.
        residency: The byte budget.
        num_transients: Objects in the tier that are freed once consumed.

    **Invariants**: see ``validate``.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.tables: dict[int, ObjectTable] = {}
        self.residency: Residency = Residency(budget_bytes)
        self.num_transients: int = 0
        self._tickets: dict[Key, Ticket] = {}
        self._waiters: dict[Key, list[tuple[int, int, bool]]] = {}
        self._uses: dict[Key, int] = {}
        self._actions: list[Action] = []
        self._freeing_bytes = 0
        self._guests: set[Key] = set()

    def add_table(self, dataset: int, sizes: npt.NDArray[np.uint64], stored_bytes: Callable[[int], int]) -> ObjectTable:
        """A manifest was opened; its objects are absent until ``adopt`` says otherwise."""
        self.tables[dataset] = ObjectTable(sizes, stored_bytes)
        return self.tables[dataset]

    def take_actions(self) -> list[Action]:
        """Return what follows from the changes so far; each action exactly once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def num_in_flight(self) -> int:
        """Fetches under way."""
        return len(self._tickets)

    def state(self, key: Key) -> int:
        """Return the object's state."""
        return self.tables[key[0]].state[key[1]]

    def is_expected(self, key: Key) -> bool:
        """True while a plan expects a reader of the object, which is on its way or transient."""
        return key in self._uses

    def expect(self, key: Key) -> None:
        """A plan expects one more reader of the object."""
        self._uses[key] = self._uses.get(key, 0) + 1

    def unexpect(self, key: Key) -> None:
        """One expected reader is done, or will not come; a transient that no reader expects is freed."""
        count = self._uses.get(key, 0)
        if count > 1:
            self._uses[key] = count - 1
            return
        self._uses.pop(key, None)
        if self.state(key) == states.TRANSIENT:
            self.free(*key)

    def adopt(self, dataset: int, ids: Iterable[int], sizes_bytes: Iterable[int]) -> None:
        """These objects are in the tier already, residents of an earlier life; they count against the budget."""
        table = self.tables[dataset]
        for object_id, size in zip(ids, sizes_bytes, strict=True):
            if table.state[object_id] == states.ABSENT:
                cost = table.observe_size(object_id, size)
                table.state[object_id] = states.RESIDENT
                table.resident_bytes += cost
                self.residency.resident_bytes += cost

    def transfer(self, source: int, source_ids: Iterable[int], target: int, target_ids: Iterable[int]) -> None:
        """These residents of one dataset are objects of another: a manifest was refreshed, or opened after a restart."""
        old, new = self.tables[source], self.tables[target]
        for old_id, new_id in zip(source_ids, target_ids, strict=True):
            if (source, old_id) in self._guests:
                continue  # another dataset pays for it
            if old.state[old_id] == states.RESIDENT and new.state[new_id] == states.ABSENT:
                cost = old.stored_bytes(old_id)
                new.observe_size(new_id, old.size_bytes(old_id))
                old.state[old_id], new.state[new_id] = states.ABSENT, states.RESIDENT
                old.resident_bytes -= cost
                new.resident_bytes += cost

    def start(self, dataset: int, object_id: int, placement: Placement, reserved: int) -> Fetch:
        """Return the request for an absent object, for which room was reserved."""
        ticket = Ticket(dataset, object_id, placement, reserved)
        self._tickets[dataset, object_id] = ticket
        table = self.tables[dataset]
        table.state[object_id] = states.FETCHING
        table.in_flight += 1
        return Fetch(ticket)

    def ticket(self, key: Key) -> Ticket:
        """Return the ticket of an object on its way."""
        return self._tickets[key]

    def wait(self, key: Key, token: int, consumer: int, *, is_late: bool) -> None:
        """Keep the token of a reader that waits for an object on its way, and how its read was counted."""
        self._waiters.setdefault(key, []).append((token, consumer, is_late))

    def answer(self, token: int, key: Key, outcome: Outcome, code: str = "", message: str = "") -> None:
        """Tell one reader how its question ended."""
        self._actions.append(Answer(token, *key, outcome, code, message))

    def answer_held(self, token: int, key: Key, *, was_held: bool) -> None:
        """Tell one reader where the object is, which has come, and whether it was there when the reader asked."""
        self._actions.append(Answer(token, *key, Outcome.STORED, was_held=was_held))

    def settle(self, ticket: Ticket, state: int) -> None:
        """The object is no longer on its way."""
        del self._tickets[ticket.dataset, ticket.object_id]
        table = self.tables[ticket.dataset]
        table.state[ticket.object_id] = state
        table.in_flight -= 1

    def answer_waiters(
        self, ticket: Ticket, outcome: Outcome, code: str = "", message: str = ""
    ) -> list[tuple[int, int, bool]]:
        """Answer every reader that waits for the object; return them, as given to ``wait``."""
        waiters = self._waiters.pop((ticket.dataset, ticket.object_id), [])
        for token, *_ in waiters:
            self._actions.append(Answer(token, ticket.dataset, ticket.object_id, outcome, code, message))
        return waiters

    def reserve(
        self, cost: int, wanted: Placement, *, transient_bytes: int | None = None, is_expected: bool = True
    ) -> Placement:
        """Reserve bytes for an object and return its placement; DIRECT if the budget does not allow it.

        An object that no plan expects is never a transient, because it would be freed before its reader looks.

        Args:
            cost: Bytes to reserve for a resident.
            wanted: The placement to try first.
            transient_bytes: Bytes to reserve for a transient, if they are not the cost.
            is_expected: Whether a plan expects a reader of the object.
        """
        if wanted == Placement.RESIDENT and self.residency.try_reserve_resident(cost):
            return Placement.RESIDENT
        lent = cost if transient_bytes is None else transient_bytes
        if wanted != Placement.DIRECT and is_expected and self.residency.try_reserve_transient(lent):
            return Placement.TRANSIENT
        return Placement.DIRECT

    def exchange(self, ticket: Ticket) -> None:
        """What was lent to the object becomes its own: as much is being freed, which others will be lent."""
        self.residency.release_transient(ticket.reserved_bytes)
        self.residency.resident_bytes += ticket.reserved_bytes
        ticket.placement = Placement.RESIDENT

    def try_exchange(self, ticket: Ticket) -> None:
        """Where there is room for the object, which is on its way, it is kept; else it stays a transient."""
        if self.residency.try_exchange(ticket.reserved_bytes):
            ticket.placement = Placement.RESIDENT

    def try_keep(self, key: Key) -> None:
        """Where there is room for a transient in the tier, it is a resident from now on; its entry lies where it lay."""
        if self.state(key) != states.TRANSIENT:
            return
        table = self.tables[key[0]]
        cost = table.stored_bytes(key[1])
        if self.residency.try_exchange(cost):
            table.state[key[1]] = states.RESIDENT
            table.resident_bytes += cost
            self.num_transients -= 1

    def cancel(self, placement: Placement, cost: int) -> None:
        """Give back what ``reserve`` returned."""
        if placement == Placement.RESIDENT:
            self.residency.release_resident(cost)
        elif placement == Placement.TRANSIENT:
            self.residency.release_transient(cost)

    def may_get_room(self, cost: int) -> bool:
        """Return True when a transient of that cost has room once others are consumed and what is being freed is gone."""
        residency = self.residency
        left = residency.budget_bytes - residency.resident_bytes + self._freeing_bytes
        return cost <= min(residency.lent_bytes, left)

    def unreserve(self, ticket: Ticket) -> None:
        """Give back the ticket's room."""
        self.cancel(ticket.placement, ticket.reserved_bytes)
        ticket.reserved_bytes = 0

    def free(self, dataset: int, object_id: int) -> None:
        """Delete the entry; its room is free once the tier says so."""
        table = self.tables[dataset]
        cost = 0 if self.is_guest((dataset, object_id)) else table.stored_bytes(object_id)
        self._guests.discard((dataset, object_id))
        was_resident = table.state[object_id] == states.RESIDENT
        table.state[object_id] = states.FREEING
        self._freeing_bytes += cost
        self._actions.append(Free(dataset, object_id, cost, was_resident))

    def freed(self, free: Free) -> None:
        """The entry is gone from the tier: its room may be used again."""
        table = self.tables[free.dataset]
        if free.was_resident:
            self.residency.release_resident(free.stored_bytes)
            table.resident_bytes -= free.stored_bytes
        else:
            self.residency.release_transient(free.stored_bytes)
            self.num_transients -= 1
        table.state[free.object_id] = states.ABSENT
        self._freeing_bytes -= free.stored_bytes

    def make_room(self, wanted_bytes: int, *, live: Collection[int]) -> bool:
        """Free residents that no consumer can want, as their next use is never; True while room is being made."""
        if self._freeing_bytes >= wanted_bytes:
            return True
        for dataset, table in self.tables.items():
            if dataset in live or table.resident_bytes == 0:
                continue
            for object_id in table.ids_in(states.RESIDENT)[:_FREE_GROUP].tolist():
                self.free(dataset, object_id)
        return self._freeing_bytes >= wanted_bytes

    def trim(self, target_bytes: int, *, live: Collection[int], in_order: Callable[[int, int], Sequence[int]]) -> None:
        """Free residents until no more than that is left; first those that no consumer can want, last the unread.

        Args:
            target_bytes: See above.
            live: Datasets that some consumer reads.
            in_order: Returns the objects of a dataset in a state, those first that go first.
        """
        if self.residency.resident_bytes - self._freeing_bytes <= target_bytes:
            return
        order = sorted(self.tables, key=lambda dataset: dataset in live)
        for dataset, is_unread in [*((dataset, False) for dataset in order), *((dataset, True) for dataset in order)]:
            for object_id in in_order(dataset, states.RESIDENT):
                if self.residency.resident_bytes - self._freeing_bytes <= target_bytes:
                    return
                key = (dataset, object_id)
                if self.is_expected(key) == is_unread and not self.is_guest(key):
                    self.free(dataset, object_id)

    def drop_transients(self, target_bytes: int, *, in_order: Callable[[int, int], Sequence[int]]) -> None:
        """Free transients, also those that a reader is expected of, until all together take no more than that."""
        residency = self.residency
        for dataset in self.tables:
            for object_id in in_order(dataset, states.TRANSIENT) if residency.transient_bytes else ():
                if residency.resident_bytes + residency.transient_bytes - self._freeing_bytes <= target_bytes:
                    return
                self.free(dataset, object_id)

    def keep(self, ticket: Ticket) -> None:
        """The entry is committed: readers find it from now on."""
        key, is_resident = (ticket.dataset, ticket.object_id), ticket.placement is Placement.RESIDENT
        if is_resident:
            self.settle(ticket, states.RESIDENT)
            self.tables[ticket.dataset].resident_bytes += ticket.reserved_bytes
        else:
            self.settle(ticket, states.TRANSIENT)
            self.num_transients += 1
        if key in self._waiters:
            self.answer_waiters(ticket, Outcome.STORED)
        if not is_resident and not self.is_expected(key):
            self.free(*key)

    def share(self, ticket: Ticket) -> None:
        """The entry is there: another dataset has it as a resident, and pays for it. This one is its guest."""
        self.unreserve(ticket)
        ticket.placement = Placement.RESIDENT
        self._guests.add((ticket.dataset, ticket.object_id))
        self.settle(ticket, states.RESIDENT)
        self.answer_waiters(ticket, Outcome.STORED)

    def has_entry(self, key: Key) -> bool:
        """True of an object that readers find in the tier."""
        return self.state(key) in (states.RESIDENT, states.TRANSIENT)

    def become_guest(self, key: Key) -> None:
        """This resident's entry is also another dataset's, which pays for it."""
        table = self.tables[key[0]]
        cost = table.stored_bytes(key[1])
        table.resident_bytes -= cost
        self.residency.release_resident(cost)
        self._guests.add(key)

    def is_guest(self, key: Key) -> bool:
        """True of a resident that another dataset pays for, which has the same entry."""
        return key in self._guests

    @property
    def num_guests(self) -> int:
        """Residents that are no entries of their own."""
        return len(self._guests)

    def bequeath(self, free: Free, holders: Iterable[Key]) -> None:
        """The entry stays, for these hold it as well: if who leaves it paid for it, a guest among them does from now on."""
        heir = next((key for key in holders if key in self._guests), None)
        if heir is None or not free.was_resident or not free.stored_bytes:
            return
        self._guests.discard(heir)
        self.tables[heir[0]].resident_bytes += free.stored_bytes
        self.residency.resident_bytes += free.stored_bytes

    def validate(self, expected: dict[Key, int]) -> None:
        """Check the invariants against the readers that the plans expect, by object."""
        self.residency.validate()
        assert expected == self._uses, (expected, self._uses)
        assert self._waiters.keys() <= self._tickets.keys()
        for key in self._tickets:
            assert self.state(key) == states.FETCHING
        assert all(self.state(key) == states.RESIDENT for key in self._guests)
        for dataset, table in self.tables.items():
            assert table.in_flight == sum(1 for key in self._tickets if key[0] == dataset)
            assert table.failures.keys() == set(table.ids_in(states.FAILED).tolist())
            for object_id in table.ids_in(states.TRANSIENT).tolist():
                assert (dataset, object_id) in expected, "a transient without consumers was not freed"
