from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prefeed.copying.space import CopySelection, footprint, parse_order, select_copies
from prefeed.transfer.entries import Entry

SIZES = {"large": 50_000, "small": 100, "middle": 10_000}
ITEMS = [Entry(path, size) for path, size in SIZES.items()]


def chosen(budget: int, *, there: tuple[str, ...] = (), positions: Mapping[str, int] | None = None) -> list[str]:
    is_there = np.array([item.path in there for item in ITEMS])
    choice = select_copies(ITEMS, budget_bytes=budget, is_there=is_there, positions=positions)
    check(choice, budget)
    return [ITEMS[i].path for i in choice.order]


def check(choice: CopySelection, budget: int) -> None:
    assert sorted(choice.order) == list(np.flatnonzero(choice.chosen))
    assert choice.room_bytes == sum(footprint(ITEMS[i].size_bytes) for i in choice.order) <= budget


def test_small_files_come_first() -> None:
    assert chosen(1 << 30) == ["small", "middle", "large"]
    assert chosen(footprint(50_000)) == ["small", "middle"]
    assert chosen(0) == []


def test_what_is_there_is_kept_before_others_are_copied() -> None:
    assert chosen(footprint(50_000) + footprint(100), there=("large",)) == ["large", "small"]


def test_an_order_overrules_and_what_does_not_fit_is_skipped() -> None:
    positions = parse_order(["large", "", "./middle"], root="/data")

    assert chosen(1 << 30, positions=positions) == ["large", "middle", "small"]
    assert chosen(footprint(50_000) - 1, positions=positions) == ["middle", "small"]
    assert chosen(footprint(50_000) + footprint(100), there=("small", "middle"), positions=positions) == [
        "large",
        "small",
    ]


def test_an_order_names_paths_below_the_root_or_in_full() -> None:
    assert parse_order(["/data/a/b", "c", "a/b"], root="/data") == {"a/b": 0, "c": 1}
