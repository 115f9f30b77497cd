from __future__ import annotations

import pytest

from fake_sources import MemorySource
from prefeed.transfer.flow import BandwidthLimit, PacedSource


def test_bytes_are_paid_for_one_after_the_other() -> None:
    now = 0.0
    limit = BandwidthLimit(100, clock=lambda: now)

    assert limit.charge(50) == 0.5
    assert limit.charge(50) == 1.0
    now = 3.0
    assert limit.charge(10) == pytest.approx(0.1), "what was not used is not saved up"


def test_a_paced_source_waits_for_what_it_gave() -> None:
    waited: list[float] = []
    source = PacedSource(MemorySource({"a": b"x" * 200}), BandwidthLimit(100, clock=lambda: 0.0), wait=waited.append)  # type: ignore[arg-type]

    assert bytes(source.fetch("a").data) == b"x" * 200
    assert waited == [2.0]
