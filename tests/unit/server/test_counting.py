"""What fetches count as."""

from __future__ import annotations

from prefeed.core.schedule import Scheduler
from prefeed.server.counting import Counts, Where, read_counts_of, statistics_of


def test_no_ratio_is_the_best_before_anything_is_read() -> None:
    """A dashboard that shows 1.000 then says that all fits."""
    scheduler = Scheduler(budget_bytes=1, lookahead_bytes=1)
    assert statistics_of(Counts(), scheduler, None, None).best_hit_ratio is None
    assert read_counts_of(scheduler, 5).best_hit_ratio is None


def test_only_the_origin_is_asked() -> None:
    counts = Counts()
    for where in (Where.DISK, Where.POOL, Where.ORIGIN):
        counts.arrived(where, 100, 0.5)
    counts.asked_origin(0.25)  # and it failed

    seen = statistics_of(counts, Scheduler(budget_bytes=1, lookahead_bytes=1), None, None)

    assert (seen.origin_requests, seen.origin_bytes, seen.origin_seconds) == (2, 100, 0.75)
    assert (counts.fetched[Where.DISK], counts.fetched[Where.POOL]) == (1, 1)
