from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prefeed.copying.room import Choice, choose, ranks_of, room_of
from prefeed.transfer.entries import Entry

SIZES = {"large": 50_000, "small": 100, "middle": 10_000}
ITEMS = [Entry(path, size) for path, size in SIZES.items()]


def chosen(budget: int, *, there: tuple[str, ...] = (), ranks: Mapping[str, int] | None = None) -> list[str]:
    is_there = np.array([item.path in there for item in ITEMS])
    choice = choose(ITEMS, budget_bytes=budget, is_there=is_there, ranks=ranks)
    check(choice, budget)
    return [ITEMS[i].path for i in choice.order]


def check(choice: Choice, budget: int) -> None:
    assert sorted(choice.order) == list(np.flatnonzero(choice.chosen))
    assert choice.room_bytes == sum(room_of(ITEMS[i].size_bytes) for i in choice.order) <= budget


def test_small_files_come_first() -> None:
    assert chosen(1 << 30) == ["small", "middle", "large"]
    assert chosen(room_of(50_000)) == ["small", "middle"]
    assert chosen(0) == []


def test_what_is_there_is_kept_before_others_are_copied() -> None:
    assert chosen(room_of(50_000) + room_of(100), there=("large",)) == ["large", "small"]


def test_an_order_overrules_and_what_does_not_fit_is_skipped() -> None:
    ranks = ranks_of(["large", "", "./middle"], root="/data")

    assert chosen(1 << 30, ranks=ranks) == ["large", "middle", "small"]
    assert chosen(room_of(50_000) - 1, ranks=ranks) == ["middle", "small"]
    assert chosen(room_of(50_000) + room_of(100), there=("small", "middle"), ranks=ranks) == ["large", "small"]


def test_an_order_names_paths_below_the_root_or_in_full() -> None:
    assert ranks_of(["/data/a/b", "c", "a/b"], root="/data") == {"a/b": 0, "c": 1}
