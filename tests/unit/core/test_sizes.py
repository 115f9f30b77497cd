"""Sizes that are listed, seen or guessed, and what all together cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from prefeed.core.table import UNKNOWN_SIZE, ObjectSizes

UNKNOWN = int(UNKNOWN_SIZE)
HUGE = (1 << 32) - 1
"""The first size that does not fit into the own copy."""


def column(sizes: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(sizes, dtype=np.uint64)


def sizes_of(*sizes: int) -> ObjectSizes:
    return ObjectSizes(column(sizes), lambda size: -(-size // 10) * 10)


def test_what_is_not_known_is_guessed_from_what_is() -> None:
    sizes = sizes_of(10, 30, UNKNOWN, UNKNOWN)
    assert [sizes.get(i) for i in range(4)] == [10, 30, 20, 20]
    assert sizes.total_cost == 80


def test_a_catalogue_of_an_earlier_run_keeps_its_mean_when_new_files_are_unknown() -> None:
    sizes = sizes_of(*[100] * 2000)
    sizes.grow(column([100] * 2000 + [UNKNOWN] * 2000))
    assert sizes.total_cost == 4000 * 100
    sizes.observe(2000, 5000)  # one large one among the new does not make all of them large
    assert sizes.total_cost < 4000 * 100 + 5000 + 1999 * 10


def test_a_sample_replaces_the_first_guess_and_gives_way_to_what_is_seen() -> None:
    sizes = sizes_of(*[UNKNOWN] * 1000)
    sizes.guess_mean(200)
    assert sizes.total_cost == 1000 * 200
    sizes.observe(0, 100_000)
    assert sizes.get(1) < 2000
    for object_id in range(1, 600):
        sizes.observe(object_id, 500)
    assert 400 < sizes.get(999) < 700


def test_a_sample_changes_nothing_when_sizes_are_known() -> None:
    sizes = sizes_of(10, UNKNOWN)
    sizes.guess_mean(1_000_000)
    assert sizes.total_cost == 20
    empty = sizes_of()
    empty.guess_mean(40)
    empty.grow(column([UNKNOWN]))
    assert empty.get(0) == 40


def test_seen_sizes_add_up_exactly() -> None:
    sizes = sizes_of(*[UNKNOWN] * 3)
    for object_id, size in enumerate([1, 10, 11]):
        sizes.observe(object_id, size)
    assert sizes.total_cost == 10 + 10 + 20
    sizes.observe(2, 35)
    assert sizes.total_cost == 10 + 10 + 40


@pytest.mark.parametrize("size", [HUGE - 1, HUGE, HUGE + 1, 1 << 40])
def test_sizes_of_4_gib_and_more_are_kept(size: int) -> None:
    sizes = sizes_of(size, UNKNOWN, UNKNOWN)
    sizes.observe(1, size)
    assert [sizes.get(0), sizes.get(1)] == [size, size]
    sizes.grow(column([0, 0, 0, size]))
    assert [sizes.get(0), sizes.get(1), sizes.get(3)] == [size, size, size]
    sizes.observe(1, 5)
    assert sizes.get(1) == 5


def test_a_changed_size_survives_growth() -> None:
    sizes = sizes_of(10, 20)
    sizes.observe(0, 70)
    sizes.grow(column([10, 20, 30]))
    assert [sizes.get(i) for i in range(3)] == [70, 20, 30]
    sizes.observe(0, 10)
    assert sizes.get(0) == 10


def test_an_array_that_its_owner_changes_later_changes_no_cost() -> None:
    listed = column([UNKNOWN, UNKNOWN])
    sizes = ObjectSizes(listed, lambda size: size)
    sizes.observe(0, 10)
    listed[:] = 99
    assert (sizes.get(0), sizes.get(1), sizes.total_cost) == (10, 10, 20)


def test_growing_one_at_a_time_is_the_same_as_at_once() -> None:
    every = [*range(1, 500), UNKNOWN, HUGE, *[UNKNOWN] * 50]
    sizes = sizes_of()
    for end in range(1, len(every) + 1):
        sizes.grow(column(every[:end]))
    at_once = sizes_of(*every)
    assert len(sizes) == len(every)
    known = [i for i, size in enumerate(every) if size != UNKNOWN]
    assert [sizes.get(i) for i in known] == [at_once.get(i) for i in known]


def test_only_what_was_appended_is_looked_at() -> None:
    costs: list[int] = []

    def stored_bytes(size: int) -> int:
        costs.append(size)
        return size

    sizes = ObjectSizes(column([7] * 5000), stored_bytes)
    sizes.grow(column([7] * 5000 + [8]))
    costs.clear()
    sizes.grow(column([0] * 5001 + [9]))  # the old ones are taken as they were
    assert costs == [9]
    assert sizes.get(4999) == 7


def test_a_listing_does_not_shrink() -> None:
    with pytest.raises(ValueError, match="1 sizes for 2 objects"):
        sizes_of(1, 2).grow(column([1]))
