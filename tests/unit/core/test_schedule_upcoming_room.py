"""A loader's first plan is announced before its workers start: room must be lent from then on."""

from __future__ import annotations

import numpy as np

from prefeed.core.actions import Fetch, Placement
from prefeed.core.schedule import Scheduler


def test_an_announced_plan_leaves_room_for_transients() -> None:
    scheduler = Scheduler(budget_bytes=100_000, lookahead_bytes=1 << 30)
    scheduler.add_dataset(1, np.full(400, 1000, dtype=np.uint64), lambda size: size)
    scheduler.register_upcoming(7, 1, np.arange(400))
    placements = []
    while fetches := [action for action in scheduler.take_actions() if isinstance(action, Fetch)]:
        for fetch in fetches:
            placements.append(scheduler.arrived(fetch.ticket, 1000, changed=False))
            scheduler.stored(fetch.ticket)
    assert placements.count(Placement.TRANSIENT) > 0
    assert scheduler.adopt_upcoming(7)
    scheduler.validate()
