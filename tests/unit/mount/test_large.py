"""When all of a large object is fetched because its readers jump."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefeed.mount.large import fits_in_tiers, should_fetch_all
from prefeed.types import DiskCounts, Statistics

MIB = 1024 * 1024


@pytest.mark.parametrize(("num_blocks", "most_jumps"), [(17, 64), (2048, 64), (6400, 200)])
def test_all_of_it_is_fetched_after_jumps_that_took_as_long(num_blocks: int, most_jumps: int) -> None:
    assert not any(should_fetch_all(num_jumps, num_blocks) for num_jumps in range(most_jumps))
    assert should_fetch_all(most_jumps, num_blocks)


def test_there_is_room_in_memory_and_on_disk_together() -> None:
    counts = Statistics(budget_bytes=100 * MIB, resident_bytes=60 * MIB, transient_bytes=10 * MIB)
    assert fits_in_tiers(counts, 30 * MIB)
    assert not fits_in_tiers(counts, 30 * MIB + 1)
    with_disk = replace(counts, disk=DiskCounts(budget_bytes=50 * MIB, bytes=20 * MIB))
    assert fits_in_tiers(with_disk, 60 * MIB)
    assert not fits_in_tiers(with_disk, 60 * MIB + 1)
    full = replace(with_disk, resident_bytes=200 * MIB)  # the budget was made smaller
    assert fits_in_tiers(full, 30 * MIB)
