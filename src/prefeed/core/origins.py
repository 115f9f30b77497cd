"""How samples are read, by origin: sums over the epochs that loaders reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from prefeed.types import OriginReads

MOST_ORIGINS: Final = 64
"""Origins with sums of their own; those of any more are summed together."""

OTHERS: Final = "others"
"""Name under which these stand."""


def summed(*reports: Iterable[OriginReads]) -> tuple[OriginReads, ...]:
    """Return one record per origin: counts are added up, all else is as it was reported last.

    Args:
        reports: In the order in which the epochs ended; sums may be reports again.
    """
    found: dict[str, OriginReads] = {}
    for report in reports:
        for one in report:
            add(found, one)
    return tuple(found.values())


def add(sums: dict[str, OriginReads], one: OriginReads) -> None:
    """Add a report to the sum of its origin. Beyond ``MOST_ORIGINS`` origins, reports of new ones are summed as ``OTHERS``."""
    if one.origin not in sums and len(sums) >= MOST_ORIGINS:
        one = replace(one, origin=OTHERS)
    before = sums.get(one.origin)
    if before is not None:
        one = replace(
            one,
            why=one.why or (before.why if before.in_place is one.in_place else ""),
            open_seconds=before.open_seconds if one.open_seconds is None else one.open_seconds,
            round_trip_seconds=before.round_trip_seconds if one.round_trip_seconds is None else one.round_trip_seconds,
            samples=before.samples + one.samples,
            files=before.files + one.files,
            bytes=before.bytes + one.bytes,
        )
    sums[one.origin] = one
