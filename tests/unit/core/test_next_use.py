"""Residents are exchanged for what is read again sooner, when the order after the present plans is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from prefeed.core.actions import Placement
from prefeed.core.lookahead import NextUse
from ring import Ring, as_ids

BIG = 100
"""Bytes of every object here."""


def epochs(num_objects: int, *, nodes: int, number: int) -> list[list[int]]:
    """Return what the first node reads in each epoch: a distributed sampler's part of a shuffle."""
    return [random.Random(seed).sample(range(num_objects), num_objects)[::nodes] for seed in range(number)]


def fetches_of(orders: Sequence[list[int]], *, num_objects: int, budget: int, knows_next: bool) -> list[int]:
    """Return how many objects each epoch fetches."""
    ring = Ring(budget=budget * BIG, lookahead=8 * BIG, is_checked=False)
    ring.add(0, [BIG] * num_objects, max_in_flight=4)
    counts = []
    for number, order in enumerate(orders):
        before = len(ring.fetched)
        ring.plan(1, 0, order)
        if knows_next and number + 1 < len(orders):
            ring.scheduler.foresee(1, as_ids(orders[number + 1]))
        for position, object_id in enumerate(order):
            ring.settle_frees()
            ring.arrive_all()
            ring.read(1, 0, object_id)
            ring.scheduler.position(1, position + 1)
        counts.append(len(ring.fetched) - before)
        ring.check()
    return counts


def test_a_part_of_each_epoch_is_kept_by_next_use() -> None:
    """A quarter of what is read now is read in the next epoch, too, and has room; what came first is a tenth of it."""
    orders = epochs(2000, nodes=4, number=5)
    never_evict = fetches_of(orders, num_objects=2000, budget=200, knows_next=False)
    by_next_use = fetches_of(orders, num_objects=2000, budget=200, knows_next=True)
    common = [len(set(now) & set(following)) for now, following in itertools.pairwise(orders)]
    for number in range(1, len(orders)):
        assert never_evict[number] > 0.85 * 500
        assert by_next_use[number] <= 500 - 0.9 * common[number - 1]


def test_what_fits_is_fetched_once() -> None:
    orders = epochs(400, nodes=2, number=6)
    counts = fetches_of(orders, num_objects=400, budget=450, knows_next=True)
    assert sum(counts) == len(set().union(*orders))


def ring_with_full_tier() -> Ring:
    """Room for 50 objects, of which a half is lent: objects 0 to 24 stay; 0 to 39 are read."""
    ring = Ring(budget=50 * BIG, lookahead=8 * BIG)
    ring.add(0, [BIG] * 100, max_in_flight=1)
    ring.plan(1, 0, range(60))
    read(ring, range(40))
    return ring


def read(ring: Ring, ids: Sequence[int]) -> None:
    for object_id in ids:
        ring.arrive_all()
        ring.read(1, 0, object_id)
        ring.scheduler.position(1, object_id + 1)
    ring.settle_frees()


def kept(ring: Ring) -> set[int]:
    return set(ring.scheduler.tables[0].ids_in(2).tolist())


def test_without_the_next_order_what_came_first_stays() -> None:
    ring = ring_with_full_tier()
    before = kept(ring)
    read(ring, range(40, 60))
    assert before
    assert kept(ring) == before


def test_what_is_wanted_again_takes_the_place_of_what_is_not() -> None:
    ring = ring_with_full_tier()
    before = kept(ring)
    wanted = [59, 55]
    ring.scheduler.foresee(1, as_ids([*wanted, *sorted(before)[2:]]))
    read(ring, range(40, 60))
    assert kept(ring) == (before - set(sorted(before)[:2])) | set(wanted)


def test_what_is_wanted_later_takes_no_place() -> None:
    ring = ring_with_full_tier()
    before = kept(ring)
    ring.scheduler.foresee(1, as_ids([*sorted(before), 59]))
    read(ring, range(40, 60))
    assert kept(ring) == before


def test_what_is_still_to_be_read_in_this_epoch_stays() -> None:
    ring = Ring(budget=50 * BIG, lookahead=8 * BIG)
    ring.add(0, [BIG] * 100, max_in_flight=1)
    ring.plan(1, 0, range(60))
    ring.arrive_all()
    ring.plan(1, 0, [*range(60, 100), *range(60)])  # residents are read last
    before = kept(ring)
    ring.scheduler.foresee(1, as_ids(range(60, 100)))
    for position, object_id in enumerate(range(60, 100)):
        ring.arrive_all()
        ring.read(1, 0, object_id)
        ring.scheduler.position(1, position + 1)
    assert before <= kept(ring)


def test_two_consumers_exchange_nothing_when_one_does_not_answer() -> None:
    ring = ring_with_full_tier()
    before = kept(ring)
    ring.plan(2, 0, range(10))
    ring.scheduler.foresee(1, as_ids([59, 55]))
    read(ring, range(40, 60))
    assert kept(ring) == before


def test_a_guess_ends_with_the_plan_that_it_follows() -> None:
    ring = ring_with_full_tier()
    ring.scheduler.foresee(1, as_ids([59, 55]))
    ring.plan(1, 0, range(40, 60))
    before = kept(ring)
    read(ring, range(40, 60))
    assert kept(ring) == before


def test_a_guess_continues_when_the_announced_plan_begins() -> None:
    ring = ring_with_full_tier()
    ring.upcoming(1, 0, list(range(40, 60)))
    ring.scheduler.foresee(1, as_ids([59, 55]))
    ring.scheduler.adopt_upcoming(1)
    for position, object_id in enumerate(range(40, 60)):
        ring.arrive_all()
        ring.read(1, 0, object_id)
        ring.scheduler.position(1, position + 1)
    ring.settle_frees()
    assert {59, 55} <= kept(ring)


def test_it_is_known_of_a_plan_whether_something_is_to_follow() -> None:
    ring = ring_with_full_tier()
    ((plan, has_next),) = ring.scheduler.plans()
    assert (plan.consumer, has_next) == (1, False)
    ring.scheduler.foresee(1, as_ids([1]))
    assert [has_next for _, has_next in ring.scheduler.plans()] == [True]


def test_a_changed_object_is_not_kept() -> None:
    ring = Ring(budget=50 * BIG, lookahead=1 * BIG)
    ring.add(0, [BIG] * 100, max_in_flight=1)
    ring.plan(1, 0, range(60))
    read(ring, range(40))
    ring.scheduler.foresee(1, as_ids([40]))
    ring.collect()
    assert ring.arrive(0, 40, changed=True) == Placement.TRANSIENT


def test_who_goes_before_its_first_plan_began_wants_nothing_any_more() -> None:
    """Of two loaders one has said nothing of what follows; then it is gone."""
    ring = ring_with_full_tier()
    ring.upcoming(2, 0, range(10))
    ring.scheduler.foresee(1, as_ids([59, 55]))
    read(ring, range(40, 50))
    ring.scheduler.end_consumer(2)
    read(ring, range(50, 60))
    assert 59 in kept(ring)


def test_in_any_order_of_events_books_and_budget_hold_and_nothing_goes_that_is_still_to_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchanges = 0

    def make_room(self: NextUse, dataset: int, object_id: int, cost: int) -> bool:
        nonlocal exchanges
        before = kept(ring)
        is_made = original(self, dataset, object_id, cost)
        gone = before - kept(ring)
        assert not any(gone & set(plan.rest.tolist()) for plan in self._consumers.plans())
        exchanges += is_made
        return is_made

    original = NextUse.make_room
    monkeypatch.setattr(NextUse, "make_room", make_room)
    for seed in range(30):
        rng = random.Random(seed)
        ring = Ring(budget=rng.randint(2000, 6000), lookahead=rng.choice([200, 800, 5000]))
        ring.add(0, [rng.choice([None, rng.randint(1, 200)]) for _ in range(100)], max_in_flight=rng.randint(1, 8))
        run_at_random(ring, rng)
    assert exchanges > 20


def run_at_random(ring: Ring, rng: random.Random) -> None:
    """Two consumers read epochs side by side; what is asked for arrives, or does not, and is freed, whenever."""
    orders: dict[int, list[int]] = {1: [], 2: []}
    following = {consumer: rng.sample(range(100), 40) for consumer in orders}
    is_kept = {1: True, 2: rng.random() < 0.7}
    positions = dict.fromkeys(orders, 0)
    for _ in range(400):
        event, consumer = rng.random(), rng.choice([1, 2])
        if event < 0.5 and positions[consumer] < len(orders[consumer]):
            object_id = orders[consumer][positions[consumer]]
            positions[consumer] += 1
            if (0, object_id) not in ring.tier:
                ring.demand(0, object_id, consumer=consumer)
            ring.consume(consumer, 0, [object_id])
            ring.scheduler.position(consumer, positions[consumer])
        elif event < 0.5:
            orders[consumer], positions[consumer] = following[consumer], 0
            following[consumer] = rng.sample(range(100), 40)
            ring.scheduler.register_plan(consumer, 0, as_ids(orders[consumer]), resident=is_kept[consumer])
            ring.scheduler.foresee(consumer, as_ids(following[consumer]))
        elif event < 0.9 and ring.fetching:
            key = rng.choice(list(ring.fetching))
            if rng.random() < 0.9:
                ring.arrive(*key, size=rng.choice([None, rng.randint(1, 200)]))
            elif ring.arrive_unstored(*key) != Placement.DIRECT:
                ring.refuse(*key)
        elif event < 0.97 and ring.freeing:
            ring.free(rng.randrange(len(ring.freeing)))
        elif event > 0.99:
            ring.scheduler.invalidate(0, rng.randrange(100))
        ring.collect()
    for consumer in orders:
        ring.scheduler.end_consumer(consumer)
    ring.arrive_all()
    ring.check()
    assert not ring.waiting
    assert ring.scheduler.num_transients == ring.scheduler.residency.transient_bytes == 0
    assert sum(ring.tier.values()) == ring.scheduler.residency.resident_bytes
