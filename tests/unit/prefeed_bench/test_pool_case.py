"""The benchmark of nodes that share a pool, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefeed_bench.cases import run_case
from prefeed_bench.harness import Options

pytestmark = pytest.mark.usefixtures("sandbox")


def test_each_object_is_asked_of_the_origin_once_by_all_nodes_together(tmp_path: Path) -> None:
    found = run_case("pool", Options(runs=1, num_photos=160, quick=True, data_dir=tmp_path)).to_json()
    assert found["objects"] == 160
    assert 160 <= found["origin_requests_first_epoch"] <= 1.10 * 160
    assert found["origin_requests_later_epochs"] <= 0.01 * 160
    assert found["pool_hit_ratio"] >= 0.99


def test_a_pool_server_that_is_lost_costs_no_byte_and_no_error(tmp_path: Path) -> None:
    found = run_case("pool_fault", Options(runs=1, num_photos=300, quick=True, data_dir=tmp_path)).to_json()
    assert (found["wrong_bytes"], found["errors"]) == (0, 0)
    assert (found["paused_wrong_bytes"], found["paused_errors"]) == (0, 0)
    assert 0 <= found["stall_s"] <= found["longest_wait_s"]
