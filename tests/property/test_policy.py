"""What is fetched, against the fewest fetches that any policy needs and against least-recently-used."""

from __future__ import annotations

import random
from collections import OrderedDict
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from policies import belady_misses, lru_hit_ratio
from prefeed.core import plan
from prefeed.core.table import RESIDENT
from profiles import examples
from ring import Ring, as_ids

CONSUMER, DATASET = 7, 1
NUM_OBJECTS = 400
EPOCHS = 4


def shuffled_epochs(seed: int, *, num_objects: int = NUM_OBJECTS, epochs: int = EPOCHS) -> list[list[int]]:
    generator = random.Random(seed)
    return [generator.sample(range(num_objects), num_objects) for _ in range(epochs)]


def run(ring: Ring, epochs: list[list[int]]) -> int:
    """Read every epoch in its order, each fetch back before the next read; return how many reads were hits."""
    hits = 0
    for order in epochs:
        ring.plan(CONSUMER, DATASET, order)
        for index, object_id in enumerate(order):
            ring.arrive_all()
            hits += ring.read(CONSUMER, DATASET, object_id)
            ring.scheduler.position(CONSUMER, index + 1)
    ring.scheduler.end_consumer(CONSUMER)
    ring.arrive_all()
    return hits


def lru_misses(accesses: list[int], *, capacity: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for object_id in accesses:
        misses += object_id not in cache
        cache[object_id] = None
        cache.move_to_end(object_id)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return misses


@settings(max_examples=examples(15))
@given(seed=st.integers(0, 2**32), capacity=st.integers(120, 360))
def test_never_evicting_fetches_as_little_as_any_policy_but_for_what_is_lent(seed: int, capacity: int) -> None:
    epochs = shuffled_epochs(seed)
    accesses = [object_id for order in epochs for object_id in order]
    ring = Ring(budget=capacity, is_checked=False)
    ring.add(DATASET, [1] * NUM_OBJECTS, max_in_flight=8)
    hits = run(ring, epochs)
    ring.check()
    fewest = belady_misses(accesses, capacity=capacity)
    lent = ring.scheduler.residency.lent_bytes
    assert 0 < lent <= 24
    assert fewest <= len(ring.fetched) <= fewest + EPOCHS * lent
    assert len(ring.fetched) < lru_misses(accesses, capacity=capacity)
    assert hits == len(accesses)  # what is not kept was fetched ahead


@settings(max_examples=examples(15))
@given(seed=st.integers(0, 2**32))
def test_everything_is_fetched_once_when_it_fits(seed: int) -> None:
    ring = Ring(budget=NUM_OBJECTS * 2, is_checked=False)
    ring.add(DATASET, [1] * NUM_OBJECTS, max_in_flight=8)
    run(ring, shuffled_epochs(seed))
    assert sorted(ring.fetched) == [(DATASET, object_id) for object_id in range(NUM_OBJECTS)]


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(120, 2 * NUM_OBJECTS),
    share=st.floats(0, 1),
    ahead=st.integers(1, NUM_OBJECTS),
    near=st.integers(1, 2 * NUM_OBJECTS),
)
def test_what_changes_is_fetched_again_before_its_reader_comes(
    seed: int, capacity: int, share: float, ahead: int, near: int
) -> None:
    """As in files that are checked ahead of their reader: each entry may be found out of date, once an epoch."""
    ring, generator = Ring(budget=capacity, is_checked=False), random.Random(seed)
    ring.add(DATASET, [1] * NUM_OBJECTS, max_in_flight=8)
    hits = num_changed = 0
    with mock.patch.object(plan, "_NEAR", near):
        for order in shuffled_epochs(seed):
            ring.plan(CONSUMER, DATASET, order)
            checked = 0
            for index, object_id in enumerate(order):
                for other in order[checked : index + ahead]:
                    if generator.random() < share:
                        num_changed += ring.scheduler.invalidate(DATASET, other)
                checked = index + ahead
                ring.arrive_all()
                hits += ring.read(CONSUMER, DATASET, object_id)
                ring.scheduler.position(CONSUMER, index + 1)
    ring.check()
    assert hits == EPOCHS * NUM_OBJECTS
    if capacity >= NUM_OBJECTS * 1.02:
        assert len(ring.fetched) == NUM_OBJECTS + num_changed


@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(1, 80),
    lookahead=st.integers(1, 100),
    max_in_flight=st.integers(1, 40),
    weights=st.lists(st.integers(1, 50), min_size=2, max_size=60),
)
def test_samples_that_repeat_are_all_read_and_leave_nothing_behind(
    seed: int, capacity: int, lookahead: int, max_in_flight: int, weights: list[int]
) -> None:
    generator = random.Random(seed)
    epochs = [generator.choices(range(len(weights)), weights, k=100) for _ in range(3)]
    ring = Ring(budget=capacity, lookahead=lookahead)
    ring.add(DATASET, [1] * len(weights), max_in_flight=max_in_flight)
    hits = run(ring, epochs)
    counts = ring.scheduler.counts
    assert hits + counts.misses + counts.late == 300
    assert not ring.waiting
    assert ring.scheduler.num_transients == 0
    assert ring.scheduler.residency.transient_bytes == 0
    assert len(ring.holds(DATASET)) == ring.scheduler.residency.resident_bytes


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**32), capacity=st.integers(60, 360))
def test_least_recently_used_reaches_what_the_formula_says(seed: int, capacity: int) -> None:
    epochs = shuffled_epochs(seed, epochs=20)
    misses = lru_misses([object_id for order in epochs for object_id in order], capacity=capacity)
    measured = 1 - (misses - NUM_OBJECTS) / (19 * NUM_OBJECTS)
    assert abs(measured - lru_hit_ratio(capacity / NUM_OBJECTS)) < 0.03


@settings(max_examples=examples(200))
@given(accesses=st.lists(st.integers(0, 4), max_size=9), capacity=st.integers(0, 3))
def test_belady_is_the_least_of_all_choices(accesses: list[int], capacity: int) -> None:
    assert belady_misses(accesses, capacity=capacity) == _fewest(tuple(accesses), frozenset(), capacity)


def _fewest(accesses: tuple[int, ...], cached: frozenset[int], capacity: int) -> int:
    """Try every choice of what to keep."""
    if not accesses:
        return 0
    first, rest = accesses[0], accesses[1:]
    if first in cached:
        return _fewest(rest, cached, capacity)
    choices = [cached]  # not let in
    if len(cached) < capacity:
        choices.append(cached | {first})
    elif capacity:
        choices += [cached - {out} | {first} for out in cached]
    return 1 + min(_fewest(rest, choice, capacity) for choice in choices)


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 2**32),
    budget=st.integers(1, 600),
    kept=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    are_known=st.booleans(),
)
def test_what_is_read_once_is_read_whole_and_never_kept(
    seed: int, budget: int, kept: int, sizes: list[int], are_known: bool
) -> None:
    ring = Ring(budget=budget)
    table = ring.add(DATASET, sizes if are_known else [None] * len(sizes), max_in_flight=8)
    table.guess_mean(30)
    ring.add(DATASET + 1, [10] * 40)
    ring.plan(CONSUMER + 1, DATASET + 1, range(kept))
    order = random.Random(seed).sample(range(len(sizes)), len(sizes))
    ring.scheduler.register_plan(CONSUMER, DATASET, as_ids(order), resident=False)
    for index, object_id in enumerate(order):
        ring.settle_frees()
        for dataset, arriving in list(ring.fetching):
            ring.arrive(dataset, arriving, size=sizes[arriving] if dataset == DATASET else None)
        ring.read(CONSUMER, DATASET, object_id)
        ring.scheduler.position(CONSUMER, index + 1)
        assert not len(table.ids_in(RESIDENT))
    counts = ring.scheduler.counts_of(CONSUMER)
    ring.scheduler.end_consumer(CONSUMER)
    ring.arrive_all()
    assert counts is not None
    assert ring.holds(DATASET) == set()
    assert not ring.waiting
    if are_known and sum(sizes) <= ring.scheduler.residency.budget_bytes // 2 and kept == 0:
        assert counts.misses == 0
