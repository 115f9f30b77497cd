from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from prefeed.store.layout import (
    INLINE_MAX_BYTES,
    LOCK_BYTES,
    MIN_BUDGET_BYTES,
    PAGE_BYTES,
    capacity_of_map,
    map_bytes_for,
    piece_key,
    stored_bytes,
)


def test_a_value_costs_whole_pages_and_little_more() -> None:
    for size in (PAGE_BYTES - 16, 84_000, 10**9):
        pages = -(-(size + 16) // PAGE_BYTES)
        assert pages * PAGE_BYTES < stored_bytes(size) <= pages * PAGE_BYTES + 128


def test_cost_grows_with_size() -> None:
    costs = [stored_bytes(size) for size in range(3 * PAGE_BYTES)]
    assert costs == sorted(costs)
    assert all(cost > size for size, cost in enumerate(costs))


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        stored_bytes(-1)


def test_lmdb_keeps_values_in_the_tree_up_to_the_size_we_think(tmp_path: Path) -> None:
    for size, overflow_pages in (
        (INLINE_MAX_BYTES, 0),
        (INLINE_MAX_BYTES + 1, 1),
        (PAGE_BYTES - 16, 1),
        (PAGE_BYTES - 15, 2),
    ):
        with lmdb.open(str(tmp_path / str(size)), map_size=2**22) as env, env.begin(write=True) as txn:
            txn.put(b"k" * 16, b"v" * size)
            assert txn.stat()["overflow_pages"] == overflow_pages


def test_the_reserve_is_about_one_percent() -> None:
    for mib in (32, 256, 4096, 1 << 20):
        budget = mib * 1024**2
        assert budget - capacity_of_map(map_bytes_for(budget)) <= budget * 0.01 + 1024**2


def test_all_files_together_stay_within_the_budget() -> None:
    for budget in (MIN_BUDGET_BYTES, MIN_BUDGET_BYTES + 1, 123_456_789):
        assert map_bytes_for(budget) + LOCK_BYTES <= budget
        assert map_bytes_for(budget) % PAGE_BYTES == 0


def test_too_small_a_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        map_bytes_for(MIN_BUDGET_BYTES - 1)


def test_pieces_lie_right_behind_their_key_and_in_order() -> None:
    key, next_key = b"\x00" * 15 + b"\x01", b"\x00" * 15 + b"\x02"
    keys = [key, *(piece_key(key, i) for i in (0, 1, 255, 256, 70_000)), next_key]
    assert keys == sorted(keys)
