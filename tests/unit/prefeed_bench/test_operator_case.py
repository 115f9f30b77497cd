"""The benchmark of the operator: its counts are exact."""

from __future__ import annotations

import pytest

from prefeed_bench.cases.operator import run
from prefeed_bench.harness import Options

pytestmark = pytest.mark.usefixtures("sandbox")


def test_requests_do_not_grow_with_the_number_of_sets() -> None:
    fields = run(Options(quick=True, runs=1)).fields

    assert (fields["sets"], fields["jobs"]) == (20, 20)
    counts = {name: value for name, value in fields.items() if "requests" in name or "writes" in name}
    assert counts == {
        "requests_per_set": 13,
        "requests_per_job": 11,
        "requests_of_a_change": 4,
        "requests_of_no_change": 0,
        "requests_of_a_look_at_all": 8,
        "writes_of_a_restart": 0,
    }
    assert 0 < float(fields["objects_mib"] or 0) < float(fields["program_mib"] or 0)
