"""Sample sets as ``prefeed top`` shows them: looked at now and then."""

from __future__ import annotations

import pytest

from nodes import FakeClock
from prefeed.cli.top import SampleSets
from prefeed.config import resolve
from sandbox import Sandbox
from unit.sampleset.documents import apply, sample_set

pytestmark = pytest.mark.usefixtures("sandbox")


def test_sets_of_the_home_are_shown_by_name(sandbox: Sandbox) -> None:
    for name in ("photos", "audio"):
        (sandbox.root / name).mkdir()
        apply(sample_set(name, source={"uri": str(sandbox.root / name)}))

    rows = SampleSets(resolve(), clock=FakeClock()).rows()

    assert [(row.name, row.cached_bytes, row.total_bytes) for row in rows] == [("audio", 0, None), ("photos", 0, None)]
    assert all(row.phase for row in rows)


def test_they_are_looked_at_now_and_then(sandbox: Sandbox) -> None:
    clock = FakeClock()
    sets = SampleSets(resolve(), clock=clock)
    assert sets.rows() == ()
    apply(sample_set("photos", source={"uri": str(sandbox.root)}))
    assert sets.rows() == ()
    clock.now += 5.0
    assert [row.name for row in sets.rows()] == ["photos"]


def test_a_damaged_record_hides_no_other(sandbox: Sandbox) -> None:
    for name in ("photos", "audio"):
        apply(sample_set(name, source={"uri": str(sandbox.root / name)}))
    for path in (sandbox.home / "samplesets" / "photos").glob("*.json"):
        path.write_text("{")

    assert [row.name for row in SampleSets(resolve(), clock=FakeClock()).rows()] == ["audio"]
