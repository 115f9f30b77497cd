"""An entry that objects of several datasets have in common: one pays for it, the others are its guests."""

from __future__ import annotations

import numpy as np

from prefeed.core.actions import Answer, Free, Outcome, Placement, Ticket
from prefeed.core.inventory import Holdings
from prefeed.core.table import RESIDENT

COST = 10


def holdings_of(*, datasets: int) -> Holdings:
    holdings = Holdings(100 * COST)
    for dataset in range(1, 1 + datasets):
        holdings.add_table(dataset, np.full(3, COST, dtype=np.uint64), lambda size: size)
    return holdings


def requested(holdings: Holdings, dataset: int) -> Ticket:
    assert holdings.reserve(COST, Placement.RESIDENT) == Placement.RESIDENT
    return holdings.start(dataset, 0, Placement.RESIDENT, COST).ticket


def free(holdings: Holdings, dataset: int, *, others: list[int]) -> Free:
    """Free an object whose entry others have as well."""
    holdings.free(dataset, 0)
    (action,) = holdings.take_actions()
    assert isinstance(action, Free)
    holdings.bequeath(action, [(other, 0) for other in others])
    holdings.freed(action)
    holdings.validate({})
    return action


def paid(holdings: Holdings) -> list[int]:
    """Return what each dataset pays."""
    each = [table.resident_bytes for table in holdings.tables.values()]
    assert sum(each) == holdings.residency.resident_bytes
    return each


def test_a_guest_has_its_answer_and_costs_nothing() -> None:
    holdings = holdings_of(datasets=2)
    holdings.keep(requested(holdings, 1))
    ticket = requested(holdings, 2)
    holdings.wait((2, 0), 5, 0, is_late=False)
    holdings.share(ticket)
    assert holdings.take_actions() == [Answer(5, 2, 0, Outcome.STORED, "", "")]
    assert holdings.state((2, 0)) == RESIDENT
    assert (paid(holdings), holdings.num_guests) == ([COST, 0], 1)
    holdings.validate({})


def test_who_stays_pays_until_the_last_has_left() -> None:
    holdings = holdings_of(datasets=3)
    for dataset in (1, 2, 3):
        holdings.keep(requested(holdings, dataset))
    for dataset in (2, 3):
        holdings.become_guest((dataset, 0))
    assert paid(holdings) == [COST, 0, 0]
    assert free(holdings, 2, others=[1, 3]).stored_bytes == 0
    assert paid(holdings) == [COST, 0, 0]
    assert free(holdings, 1, others=[3]).stored_bytes == COST
    assert paid(holdings) == [0, 0, COST]
    assert free(holdings, 3, others=[]).stored_bytes == COST
    assert (paid(holdings), holdings.num_guests) == ([0, 0, 0], 0)


def test_a_guest_is_not_handed_over_with_what_others_pay_for() -> None:
    holdings = holdings_of(datasets=3)
    holdings.keep(requested(holdings, 1))
    holdings.share(requested(holdings, 2))
    holdings.transfer(2, [0], 3, [0])
    assert holdings.is_guest((2, 0))
    assert paid(holdings) == [COST, 0, 0]


def test_room_is_made_of_what_is_paid_for() -> None:
    """A guest that goes would leave its entry where it is."""
    holdings = holdings_of(datasets=2)
    holdings.keep(requested(holdings, 2))
    holdings.share(requested(holdings, 1))
    holdings.trim(0, live={1, 2}, in_order=lambda dataset, state: holdings.tables[dataset].ids_in(state).tolist())
    assert holdings.take_actions() == [Free(2, 0, COST, True)]
