"""Any events in any order: the books stay right, the budget holds, every reader is answered once, nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefeed.core.actions import Outcome
from prefeed.core.table import FAILED, FREEING, RESIDENT, TRANSIENT, UNKNOWN_SIZE
from profiles import examples
from ring import Key, Ring, as_ids

CONSUMERS = st.integers(1, 3)
OBJECTS = 12
MOST_OBJECTS = 40
IDS = st.lists(st.integers(0, OBJECTS - 1), max_size=20)
SIZES = st.none() | st.integers(1, 60)


def cost_of(size: int) -> int:
    """Return a size as stored: in pages of 8, and a page's head."""
    return -(-size // 8) * 8 + 8


class Scheduling(RuleBasedStateMachine):
    """Two datasets, three consumers, one tier; arrivals, failures and deletions in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(budget=1)
        self.dataset_of: dict[int, int] = {}
        self.unstored: set[Key] = set()
        self.sizes: dict[int, list[int | None]] = {}
        self.counted: dict[int, int] = {}

    @initialize(
        budget=st.integers(1, 1500),
        lookahead=st.integers(0, 400),
        sizes=st.lists(st.lists(SIZES, min_size=OBJECTS, max_size=OBJECTS), min_size=2, max_size=2),
        most=st.integers(1, 6),
        left=st.lists(st.integers(1, 60), max_size=5),
    )
    def begin(self, budget: int, lookahead: int, sizes: list[list[int | None]], most: int, left: Sequence[int]) -> None:
        self.ring = Ring(budget=budget, lookahead=lookahead, cost=cost_of)
        self.ring.add(0, left)
        self.ring.scheduler.adopt(0, range(len(left)), left)
        self.ring.tier.update({(0, index): cost_of(size) for index, size in enumerate(left)})
        self.ring.set_budget(budget)
        for dataset, listed in enumerate(sizes, start=1):
            self.ring.add(dataset, listed, max_in_flight=most)
            self.sizes[dataset] = list(listed)

    # ------------------------------------------------------------ consumers

    @rule(consumer=CONSUMERS, dataset=st.integers(1, 2), ids=IDS, warm=st.booleans(), resident=st.booleans())
    def register(self, consumer: int, dataset: int, ids: list[int], warm: bool, resident: bool) -> None:
        self.ring.scheduler.register_plan(consumer, dataset, as_ids(ids), warm=warm, resident=resident)
        self.dataset_of[consumer] = dataset
        self.counted.setdefault(consumer, 0)

    @rule(consumer=CONSUMERS, data=st.data())
    def register_all(self, consumer: int, data: Any) -> None:
        """An epoch of everything there is, those objects too that were appended."""
        dataset = data.draw(st.integers(1, 2))
        order = data.draw(st.permutations(range(len(self.sizes[dataset]))))
        self.register(consumer, dataset, list(order), warm=False, resident=data.draw(st.booleans()))

    @rule(consumer=CONSUMERS, ids=IDS, resident=st.booleans())
    def announce(self, consumer: int, ids: list[int], resident: bool) -> None:
        dataset = self.dataset_of.setdefault(consumer, 1)
        self.ring.scheduler.register_upcoming(consumer, dataset, as_ids(ids), resident=resident)
        self.counted.setdefault(consumer, 0)

    @rule(consumer=CONSUMERS, resident=st.booleans())
    def keep(self, consumer: int, resident: bool) -> None:
        self.ring.keep(consumer, resident=resident)

    @rule(consumer=CONSUMERS, ids=IDS)
    def foresee(self, consumer: int, ids: list[int]) -> None:
        self.ring.scheduler.foresee(consumer, as_ids(ids))

    @rule(consumer=CONSUMERS)
    def begin_announced(self, consumer: int) -> None:
        self.ring.scheduler.adopt_upcoming(consumer)

    @rule(consumer=CONSUMERS, ids=IDS)
    def extend(self, consumer: int, ids: list[int]) -> None:
        self.ring.scheduler.extend_plan(consumer, as_ids(ids))

    @rule(consumer=CONSUMERS, dataset=st.integers(1, 2), ids=IDS)
    def report(self, consumer: int, dataset: int, ids: list[int]) -> None:
        self.ring.scheduler.consumed(consumer, dataset, ids)

    @rule(consumer=CONSUMERS, position=st.integers(-1, 30))
    def move(self, consumer: int, position: int) -> None:
        self.ring.scheduler.position(consumer, position)

    @rule(consumer=CONSUMERS)
    def end(self, consumer: int) -> None:
        self.ring.scheduler.end_consumer(consumer)
        self.dataset_of.pop(consumer, None)
        self.counted.pop(consumer, None)

    # ------------------------------------------------------------ datasets

    @rule(dataset=st.integers(1, 2), more=st.lists(SIZES, max_size=6))
    def grow(self, dataset: int, more: list[int | None]) -> None:
        """Files that nobody had named before were opened."""
        listed = self.sizes[dataset]
        listed += more[: MOST_OBJECTS - len(listed)]
        column = np.array([UNKNOWN_SIZE if size is None else size for size in listed], dtype=np.uint64)
        self.ring.scheduler.grow_dataset(dataset, column)

    @rule(dataset=st.integers(1, 2), mean=st.integers(0, 100))
    def guess(self, dataset: int, mean: int) -> None:
        self.ring.scheduler.tables[dataset].guess_mean(mean)

    @rule(dataset=st.integers(0, 2), object_id=st.integers(0, OBJECTS - 1))
    def invalidate(self, dataset: int, object_id: int) -> None:
        table = self.ring.scheduler.tables[dataset]
        if object_id < len(table):
            before = table.state[object_id]
            is_held = before in (RESIDENT, TRANSIENT)
            assert self.ring.scheduler.invalidate(dataset, object_id) == is_held
            assert table.state[object_id] == (FREEING if is_held else before)

    # ------------------------------------------------------------ readers

    @rule(consumer=st.integers(0, 3), dataset=st.integers(1, 2), object_id=st.integers(0, OBJECTS - 1))
    def read(self, consumer: int, dataset: int, object_id: int) -> None:
        """A worker looks into the tier first, and asks only if there is nothing."""
        if (dataset, object_id) not in self.ring.tier:
            self.ask(consumer, dataset, object_id)
        else:
            self.ring.scheduler.count_reads(consumer, 1, 0)
            self._count(consumer)
        self.ring.scheduler.consumed(consumer, dataset, [object_id])

    @rule(
        consumer=st.integers(0, 3), dataset=st.integers(1, 2), object_id=st.integers(0, OBJECTS - 1), once=st.booleans()
    )
    def ask(self, consumer: int, dataset: int, object_id: int, once: bool = False) -> None:
        """Its look may also have been long ago."""
        state = self.ring.scheduler.tables[dataset].state[object_id]
        if state != FAILED:
            self._count(consumer)
        self.ring.demand(dataset, object_id, consumer=consumer, once=once)
        if state in (RESIDENT, TRANSIENT):
            self.ring.scheduler.count_reads(consumer, 1, 0)  # the reader does, when it has the bytes
        elif state == FREEING:
            self.ring.scheduler.count_reads(consumer, 0, 1)  # the reader does, which reads the origin itself

    def _count(self, consumer: int) -> None:
        if consumer in self.counted:
            self.counted[consumer] += 1

    @rule(dataset=st.integers(1, 2), object_id=st.integers(0, OBJECTS - 1))
    def lose(self, dataset: int, object_id: int) -> None:
        token = self.ring.lost(dataset, object_id)
        assert self.ring.outcome(token) == Outcome.READ_ORIGIN

    # ------------------------------------------------------------ origin and tier

    def _one_on_its_way(self, data: Any) -> Key:
        return data.draw(st.sampled_from([key for key in self.ring.fetching if key not in self.unstored]))

    def _is_any_on_its_way(self) -> bool:
        return len(self.ring.fetching) > len(self.unstored)

    @precondition(_is_any_on_its_way)
    @rule(data=st.data(), size=st.none() | st.integers(0, 200), changed=st.booleans())
    def arrive(self, data: Any, size: int | None, changed: bool) -> None:
        self.ring.arrive(*self._one_on_its_way(data), size=size, changed=changed)

    @precondition(_is_any_on_its_way)
    @rule(data=st.data(), size=st.none() | st.integers(0, 200))
    def arrive_in_a_group(self, data: Any, size: int | None) -> None:
        """It is stored, or refused, together with others, later."""
        key = self._one_on_its_way(data)
        self.ring.arrive_unstored(*key, size=size)
        if key in self.ring.fetching:
            self.unstored.add(key)

    @precondition(lambda self: self.unstored)
    @rule(is_refused=st.booleans(), less=st.integers(0, 100))
    def commit(self, is_refused: bool, less: int) -> None:
        for key in sorted(self.unstored):
            if is_refused:
                self.ring.refuse(*key)
            else:
                self.ring.store(*key)
        self.unstored.clear()
        if is_refused and less:
            self.ring.set_budget(max(0, self.ring.scheduler.residency.budget_bytes - less))

    @rule(budget=st.integers(0, 1500))
    def press(self, budget: int) -> None:
        """Memory is short, or there is more again."""
        self.ring.press(budget)

    @precondition(_is_any_on_its_way)
    @rule(data=st.data(), permanent=st.booleans())
    def fail(self, data: Any, permanent: bool) -> None:
        key = self._one_on_its_way(data)
        waiters = self.ring.scheduler.holdings._waiters.get(key, ())
        self.ring.fail(*key, permanent=permanent)
        for _, consumer, _ in waiters:
            self.ring.scheduler.count_reads(consumer, 0, 1)  # the reader does, which reads the origin itself

    @precondition(lambda self: self.ring.freeing)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        self.ring.free(data.draw(st.integers(0, len(self.ring.freeing) - 1)))

    @rule(dataset=st.integers(0, 2))
    def clear(self, dataset: int) -> None:
        self.ring.clear(dataset)

    @rule(data=st.data())
    def hand_over(self, data: Any) -> None:
        """The second dataset is a newer listing of the first, which nobody reads any more."""
        if 1 in self.dataset_of.values():
            return
        residents = self.ring.scheduler.tables[1].ids_in(RESIDENT).tolist()
        others = data.draw(st.permutations(range(len(self.sizes[2]))))[: len(residents)]
        residents = residents[: len(others)]
        before = {other for other in others if self.ring.scheduler.tables[2].state[other] == RESIDENT}
        self.ring.scheduler.transfer(1, residents, 2, others)
        for old, new in zip(residents, others, strict=True):
            if new not in before and self.ring.scheduler.tables[2].state[new] == RESIDENT:
                self.ring.tier[2, new] = self.ring.tier.pop((1, old))

    # ------------------------------------------------------------ what always holds

    @invariant()
    def books_are_right(self) -> None:
        self.ring.collect()

    @invariant()
    def reads_are_counted_by_consumer(self) -> None:
        for consumer in range(4):
            counts = self.ring.scheduler.counts_of(consumer)
            assert (None if counts is None else counts.reads) == self.counted.get(consumer)

    @invariant()
    def tables_are_as_long_as_their_datasets(self) -> None:
        for dataset, listed in self.sizes.items():
            table = self.ring.scheduler.tables[dataset]
            assert len(table) == len(table.states) == len(listed)
            assert table.total_bytes >= 0

    @invariant()
    def residents_are_in_the_tier(self) -> None:
        for dataset, table in self.ring.scheduler.tables.items():
            residents = set(table.ids_in(RESIDENT).tolist())
            assert residents <= self.ring.holds(dataset)
            assert table.resident_bytes == sum(self.ring.tier[dataset, object_id] for object_id in residents) + sum(
                free.stored_bytes for free in self.ring.freeing if free.was_resident and free.dataset == dataset
            )

    def teardown(self) -> None:
        ring = self.ring
        for key in sorted(self.unstored):
            ring.store(*key)
        for consumer in range(1, 4):
            ring.scheduler.end_consumer(consumer)
        ring.arrive_all()
        ring.check()
        assert not ring.waiting, "readers were not answered"
        assert ring.scheduler.num_in_flight == 0
        assert ring.scheduler.num_transients == 0
        assert ring.scheduler.residency.transient_bytes == 0
        assert sum(ring.tier.values()) == ring.scheduler.residency.resident_bytes
        for dataset in ring.scheduler.tables:
            ring.clear(dataset)
        ring.settle_frees()
        assert not ring.tier
        assert ring.scheduler.residency.resident_bytes == 0


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=examples(100), stateful_step_count=50)
