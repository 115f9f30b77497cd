"""State and size of each object."""

from __future__ import annotations

import numpy as np

from prefeed.core.table import ABSENT, FAILED, RESIDENT, TRANSIENT, UNKNOWN_SIZE, ObjectTable

UNKNOWN = int(UNKNOWN_SIZE)


def table_of(*sizes: int) -> ObjectTable:
    return ObjectTable(np.array(sizes, dtype=np.uint64), lambda size: -(-size // 10) * 10)


def test_cost_is_the_size_as_stored() -> None:
    table = table_of(1, 10, 11)
    assert [table.stored_bytes(i) for i in range(3)] == [10, 10, 20]
    assert (table.total_bytes, table.mean_stored_bytes) == (40, 13)


def test_an_observed_size_counts_from_then_on() -> None:
    table = table_of(10)
    assert table.observe_size(0, 25) == 30
    assert (table.size_bytes(0), table.stored_bytes(0)) == (25, 30)


def test_a_size_that_is_as_listed_again_is_no_longer_the_other_one() -> None:
    table = table_of(10)
    table.observe_size(0, 25)
    assert table.observe_size(0, 10) == 10
    assert table.stored_bytes(0) == 10


def test_an_unknown_size_is_guessed_from_those_seen() -> None:
    table = table_of(*[UNKNOWN] * 3)
    assert table.stored_bytes(2) > 100_000
    table.observe_size(0, 20)
    table.observe_size(1, 40)
    assert table.stored_bytes(2) == 30
    assert table.stored_bytes(0) == 20


def test_the_total_is_estimated_from_the_known_sizes() -> None:
    assert table_of(10, 30, UNKNOWN, UNKNOWN).total_bytes == 80
    assert table_of().mean_stored_bytes == 0


def test_the_total_is_guessed_from_those_seen_where_the_listing_gives_no_size() -> None:
    table = table_of(*[UNKNOWN] * 4)
    assert table.total_bytes > 1_000_000
    table.observe_size(0, 20)
    assert table.total_bytes == 80


def test_states_are_seen_through_both_views() -> None:
    table = table_of(1, 1, 1, 1)
    table.state[1], table.state[3] = RESIDENT, TRANSIENT
    assert table.ids_in(RESIDENT).tolist() == [1]
    assert table.ids_in(RESIDENT, TRANSIENT).tolist() == [1, 3]
    assert table.ids_in(ABSENT).tolist() == [0, 2]


def test_failures_are_forgotten_together_with_their_state() -> None:
    table = table_of(1, 1)
    table.state[1] = FAILED
    table.failures[1] = ("object-not-found", "no such object")
    table.forget_failures()
    assert (table.state[1], table.failures) == (ABSENT, {})


def test_a_table_that_grows_keeps_its_states_and_has_as_many_as_objects() -> None:
    table = table_of(1, 1)
    table.state[1] = RESIDENT
    for length in range(3, 2501):
        table.grow(np.full(length, 10, dtype=np.uint64))
        assert len(table.states) == len(table) == length
    assert table.ids_in(RESIDENT).tolist() == [1]
    table.state[2499] = TRANSIENT
    assert table.states[2499] == TRANSIENT
    assert len(table.ids_in(ABSENT)) == 2498
    assert table.total_bytes == 2500 * 10


def test_growing_by_one_seldom_moves_the_states() -> None:
    table = table_of()
    moves = 0
    for length in range(1, 5000):
        before = table.state
        table.grow(np.full(length, UNKNOWN, dtype=np.uint64))
        moves += table.state is not before
    assert moves <= 4


def test_a_sample_replaces_the_first_guess() -> None:
    table = table_of(*[UNKNOWN] * 4)
    table.guess_mean(30)
    assert (table.stored_bytes(0), table.total_bytes, table.mean_stored_bytes) == (30, 120, 30)
