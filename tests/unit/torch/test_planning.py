"""Batches on their way to torch, and what the node server is told meanwhile."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from prefeed.client.access import AccessMap
from prefeed.loaders.order import interleave
from prefeed.sources.learned import LearnedMap, LearnedMapWriter
from prefeed.torch.planning import PlannedSampler


class Listener:
    """Stands in for the consumer: remembers what it is told."""

    def __init__(self, *, reads_once: bool = False) -> None:
        self.reads_once = reads_once
        self.is_partial = False
        self.told: list[tuple[str, Any]] = []

    def begin(self, ids: Any, *, is_partial: bool = False) -> None:
        self.is_partial = is_partial
        self.told.append(("begin", ids.tolist()))

    def announce(self, ids: Any, *, begins: bool = False, is_partial: bool = False) -> None:
        self.told.append(("announce, begins" if begins else "announce", ids.tolist()))

    def begin_announced(self, ids: Any, *, is_partial: bool = False) -> None:
        self.is_partial = is_partial
        self.told.append(("begin announced", ids.tolist()))

    def foresee(self, ids: Any) -> None:
        self.told.append(("foresee", ids.tolist()))

    def extend(self, ids: Any, *, are_read_soon: bool = True) -> None:
        self.told.append(("extend" if are_read_soon else "window", ids.tolist()))

    def advance(self, position: int) -> None:
        self.told.append(("advance", position))

    def events(self) -> list[str]:
        return [event for event, _ in self.told]


def access_map(num_objects: int) -> AccessMap:
    dataset: Any = SimpleNamespace(manifest=SimpleNamespace(num_declared=num_objects))
    return AccessMap(dataset=dataset)


def planned(inner: Any, listener: Any, access: AccessMap | None = None, **kwargs: Any) -> PlannedSampler:
    defaults = {"trust": False, "num_workers": 0, "batches_ahead": 1, "seed_source": True}
    return PlannedSampler(inner, access or access_map(20), listener, **{**defaults, **kwargs})


# ------------------------------------------------------------ what is told, and when


def test_known_sampler_is_told_at_once() -> None:
    listener = Listener()
    batches = iter(planned(BatchSampler(SequentialSampler(range(6)), 2, False), listener))
    assert listener.told == []  # nothing before torch asks
    assert next(batches) == [0, 1]
    assert listener.told == [("begin", [0, 1, 2, 3, 4, 5])]


def test_position_is_what_the_loop_has() -> None:
    """Without workers: when batch k is drawn, the loop has those before it, and batch k is not yet read."""
    listener = Listener()
    drawn = list(planned(BatchSampler(SequentialSampler(range(7)), 2, False), listener))
    assert drawn == [[0, 1], [2, 3], [4, 5], [6]]
    assert [position for event, position in listener.told if event == "advance"] == [2, 4, 6]


def test_position_with_workers_is_the_start_of_a_group() -> None:
    """2 workers, 2 batches each: at the 5th draw the loop has batch 0, whose group of 2 is not over."""
    listener = Listener()
    sampler = planned(BatchSampler(SequentialSampler(range(20)), 2, False), listener, num_workers=2, batches_ahead=4)
    list(sampler)
    assert [position for event, position in listener.told if event == "advance"] == [0, 4, 4, 8, 8, 12]


NUM_DRAWN: deque[int] = deque([0], maxlen=1)


class Lazy:
    """Counts how far it was drawn, in its module as well, so that its order is not foreseen."""

    def __init__(self) -> None:
        self.num_drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, 8, 2):
            self.num_drawn += 1
            NUM_DRAWN.append(self.num_drawn)
            yield [start, start + 1]


def test_unknown_sampler_is_drawn_with_torch() -> None:
    listener = Listener()
    lazy = Lazy()
    batches = iter(planned(lazy, listener))
    for step in range(1, 5):
        next(batches)
        assert lazy.num_drawn == step
        assert listener.told[-1] == ("extend", [2 * step - 2, 2 * step - 1])
    assert listener.told[0] == ("begin", [])


def test_trusted_sampler_is_drawn_at_once() -> None:
    listener = Listener()
    lazy = Lazy()
    batches = iter(planned(lazy, listener, trust=True))
    assert next(batches) == [0, 1]
    assert lazy.num_drawn == 4
    assert listener.told[0] == ("begin", list(range(8)))


class Types:
    """Yields batches of many types, and counts in its module."""

    def __iter__(self) -> Iterator[Any]:
        NUM_DRAWN.append(1)
        yield from ({4, 5}, {6: "a", 7: "b"}, map(int, (8, 9)), (index for index in (1, 2)), ["x", 3])


READ = [[4, 5], [6, 7], [8, 9], [1, 2], ["x", 3]]


def test_what_can_be_read_once_is_left_to_torch() -> None:
    for inner in (Types(), list(Types())):
        listener = Listener()
        batches = list(planned(inner, listener))
        assert [type(batch).__name__ for batch in batches] == ["set", "dict", "map", "generator", "list"]
        assert list(map(list, batches)) == READ
        told = [object_id for event, ids in listener.told if event in ("begin", "extend") for object_id in ids]
        assert told == [4, 5, 6, 7, 3]


def test_a_trusted_sampler_may_be_read_with_all_that_it_yields() -> None:
    listener = Listener()
    batches = list(planned(Types(), listener, trust=True))
    assert [isinstance(batch, Iterator) for batch in batches] == [False, False, True, True, False]
    assert list(map(list, batches)) == READ
    assert listener.told[0] == ("begin", [4, 5, 6, 7, 8, 9, 1, 2, 3])


def test_next_epoch_is_announced_and_right() -> None:
    """torch draws the base seed, then asks the sampler: the announced order is the one that comes."""
    torch.manual_seed(4)
    listener = Listener()
    sampler = planned(BatchSampler(RandomSampler(range(20)), 3, False), listener)
    for _ in range(3):
        torch.empty((), dtype=torch.int64).random_()
        list(sampler)
        before = torch.get_rng_state()
        sampler.epoch_ended()
        assert torch.equal(torch.get_rng_state(), before)
    events = [event for event in listener.events() if event != "advance"]
    assert events == ["begin", "announce", "begin announced", "announce", "begin announced", "announce"]


@pytest.mark.parametrize("sampler", [range(6), DistributedSampler(range(6), num_replicas=2, rank=0)])
def test_who_reads_once_is_not_read_ahead_for_across_epochs(sampler: Any) -> None:
    """After the last epoch a whole lookahead would be fetched for nobody."""
    listener = Listener(reads_once=True)
    epochs = planned(sampler, listener)
    for _ in range(2):
        list(epochs)
        epochs.epoch_ended()
    assert [event for event in listener.events() if event != "advance"] == ["begin", "begin"]


def test_wrong_announcement_is_replaced() -> None:
    """Somebody drew from the generator between two epochs: the plan is the order that came."""
    torch.manual_seed(4)
    listener = Listener()
    sampler = planned(RandomSampler(range(20)), listener)
    list(sampler)
    sampler.epoch_ended()
    torch.rand(5)
    order = list(sampler)
    begun = [told for told in listener.told if told[0] == "begin"]
    assert begun[-1] == ("begin", order)


@pytest.mark.parametrize("counted", [True, False], ids=["set_epoch", "no set_epoch"])
def test_distributed_sampler_is_announced_before_the_loop_ends(counted: bool) -> None:
    listener = Listener()
    inner: DistributedSampler[Any] = DistributedSampler(range(20), num_replicas=2, rank=0)
    sampler = planned(inner, listener)
    for epoch in range(4):
        if counted:
            inner.set_epoch(epoch)
        list(sampler)
        assert listener.events()[-2:] == ["announce", "foresee"]
    begins = [event for event in listener.events() if event.startswith("begin")]
    assert begins[2:] == ["begin announced"] * 2


def distributed_orders(number: int, *, batch_size: int = 1, num_workers: int = 0) -> list[list[int]]:
    sampler: DistributedSampler[Any] = DistributedSampler(range(20), num_replicas=2, rank=0)
    orders = []
    for epoch in range(number):
        sampler.set_epoch(epoch)
        order = np.array(list(sampler))
        orders.append(interleave(order, batch_size=batch_size, num_workers=num_workers).tolist())
    return orders


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_node_is_told_which_part_is_its_own_in_the_epoch_after(num_workers: int) -> None:
    """While an epoch is read the server knows what follows it: in the first from its second batch on, then always."""
    listener = Listener()
    inner: DistributedSampler[Any] = DistributedSampler(range(20), num_replicas=2, rank=0)
    sampler = planned(BatchSampler(inner, 2, False), listener, num_workers=num_workers)
    orders = distributed_orders(5, batch_size=2, num_workers=num_workers)
    for epoch in range(3):
        inner.set_epoch(epoch)
        list(sampler)
    told = [(event, ids) for event, ids in listener.told if event != "advance"]
    assert told == [
        ("begin", orders[0]), ("foresee", orders[1]), ("announce", orders[1]), ("foresee", orders[2]),
        ("begin announced", orders[1]), ("announce", orders[2]), ("foresee", orders[3]),
        ("begin announced", orders[2]), ("announce", orders[3]), ("foresee", orders[4]),
    ]  # fmt: skip


def test_a_part_that_was_guessed_wrong_is_told_again() -> None:
    listener = Listener()
    inner: DistributedSampler[Any] = DistributedSampler(range(20), num_replicas=2, rank=0)
    sampler = planned(inner, listener)
    orders = distributed_orders(6)
    list(sampler)
    inner.set_epoch(4)
    list(sampler)
    told = [(event, ids) for event, ids in listener.told if event != "advance"]
    assert told[4:6] == [("begin", orders[4]), ("foresee", orders[5])]


def test_a_node_that_reads_once_is_told_nothing_of_what_follows() -> None:
    listener = Listener(reads_once=True)
    list(planned(DistributedSampler(range(20), num_replicas=2, rank=0), listener))
    assert set(listener.events()) == {"begin", "advance"}


def test_workers_that_start_are_told_what_is_about_to_begin() -> None:
    """torch draws the base seed when it makes an iterator, before it asks for the first batch."""
    torch.manual_seed(4)
    listener = Listener()
    sampler = planned(BatchSampler(RandomSampler(range(20)), 3, False), listener, num_workers=2, batches_ahead=4)
    before = torch.get_rng_state()
    sampler.iterator_begins(True)
    sampler.iterator_begins(True)  # told once
    assert torch.equal(torch.get_rng_state(), before)
    torch.empty((), dtype=torch.int64).random_()
    list(sampler)
    assert [event for event in listener.events() if event != "advance"] == ["announce, begins", "begin announced"]


def test_workers_that_start_say_nothing_of_what_was_announced() -> None:
    torch.manual_seed(4)
    listener = Listener()
    sampler = planned(BatchSampler(RandomSampler(range(20)), 3, False), listener)
    sampler.epoch_ended()
    sampler.iterator_begins(True)
    assert listener.events() == ["announce"]


def test_order_of_an_unknown_sampler_is_not_foreseen() -> None:
    listener = Listener()
    sampler = planned(Lazy(), listener)
    sampler.iterator_begins(True)
    sampler.epoch_ended()
    assert listener.told == []


# ------------------------------------------------------------ samplers without an end


class Repeat:
    """As in timm, ultralytics and YOLOv5: one iterator for the whole run."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Endless:
    """Draws for ever, has no length, and counts in its module."""

    def __init__(self) -> None:
        self.num_drawn = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.num_drawn += 1
            NUM_DRAWN.append(self.num_drawn)
            yield self.num_drawn % 5


def begun(listener: Listener) -> list[list[int]]:
    return [ids for event, ids in listener.told if event == "begin"]


def test_each_pass_of_a_repeated_sampler_is_an_epoch() -> None:
    torch.manual_seed(4)
    listener = Listener()
    inner = BatchSampler(RandomSampler(range(20)), 3, False)
    state = torch.get_rng_state()
    drawn = list(itertools.islice(planned(Repeat(inner), listener), 21))
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    assert drawn == list(itertools.islice(Repeat(inner), 21))  # and nothing else was drawn from the generator
    assert torch.equal(torch.get_rng_state(), after)
    orders = [list(itertools.chain.from_iterable(drawn[start : start + 7])) for start in (0, 7, 14)]
    first, second, third = begun(listener)
    assert first == orders[0]
    assert second == orders[0][18:] + orders[1]  # the loop has not got the last batch yet
    assert third == orders[1][18:] + orders[2]
    assert sorted(first) == list(range(20))


def test_workers_are_ahead_of_a_pass_that_the_loop_comes_to() -> None:
    """When the first batch is drawn, what the loop has not got stays planned; when it comes there, files count anew."""
    listener = Listener()
    sampler = planned(Repeat(BatchSampler(range(8), 1, False)), listener, num_workers=2, batches_ahead=4)
    batches = iter(sampler)
    list(itertools.islice(batches, 8))
    sampler.pass_begins()  # nothing of another pass was drawn
    assert begun(listener) == [[*range(8)]]
    list(itertools.islice(batches, 4))  # and so the loop has 8
    assert begun(listener)[1:] == [[4, 5, 6, 7, *range(8)]]
    for _ in range(2):  # the second time it has begun
        sampler.pass_begins()
        assert begun(listener)[2:] == [[*range(8)]]
    list(itertools.islice(batches, 3))
    assert advances(listener)[-1] == 2
    list(itertools.islice(batches, 2))
    assert begun(listener)[3:] == [[4, 5, 6, 7, *range(8)]]


def test_a_pass_that_is_not_planned_begins_twice_as_well() -> None:
    listener = Listener()
    sampler = planned(Endless(), listener, num_workers=2, batches_ahead=4)
    list(itertools.islice(sampler, 24))
    listener.told.clear()
    sampler.pass_begins()
    assert listener.told == [("begin", []), *(("extend", [number % 5]) for number in range(21, 25))]


def test_a_pass_of_a_sampler_without_a_length_is_as_long_as_the_dataset() -> None:
    listener, endless = Listener(), Endless()
    assert list(itertools.islice(planned(endless, listener), 45)) == [number % 5 for number in range(1, 46)]
    assert endless.num_drawn == 45
    events = [event for event in listener.events() if event != "advance"]
    assert events == ["begin", *["extend"] * 20, "begin", *["extend"] * 21, "begin", *["extend"] * 6]


def test_a_trusted_sampler_without_an_end_is_drawn_a_pass_at_a_time() -> None:
    listener, endless = Listener(), Endless()
    batches = iter(planned(endless, listener, trust=True))
    next(batches)
    assert endless.num_drawn == 20
    list(itertools.islice(batches, 20))
    assert endless.num_drawn == 40
    assert len(begun(listener)) == 2


def test_a_pass_that_continues_ends_where_it_would_have() -> None:
    listener, endless = Listener(), Endless()
    sampler = planned(endless, listener)
    sampler.resume(iter(endless), num_seen=33)
    list(itertools.islice(sampler, 8))
    events = [event for event in listener.events() if event != "advance"]
    assert events == ["begin", *["extend"] * 7, "begin", "extend", "extend"]


# ------------------------------------------------------------ samples of several objects


STARTS = np.array([0, 2, 2, 3, 7], dtype=np.int64)
"""Sample 0 is objects 0 and 1; sample 1 nothing; sample 2 object 2; sample 3 objects 3 to 6."""


def several() -> AccessMap:
    dataset: Any = SimpleNamespace(manifest=SimpleNamespace(num_declared=7))
    return AccessMap(dataset=dataset, starts=STARTS)


def advances(listener: Listener) -> list[int]:
    return [position for event, position in listener.told if event == "advance"]


def test_plan_holds_objects_and_positions_count_them() -> None:
    listener = Listener()
    assert list(planned(BatchSampler([3, 0, 1, 2], 1, False), listener, several(), trust=True)) == [[3], [0], [1], [2]]
    assert listener.told[0] == ("begin", [3, 4, 5, 6, 0, 1, 2])
    assert advances(listener) == [4, 6, 6]


def test_position_with_workers_counts_the_objects_of_whole_groups() -> None:
    listener = Listener()
    inner = BatchSampler(SequentialSampler(range(4)), 1, False)
    list(planned(inner, listener, several(), num_workers=2, batches_ahead=2))
    assert listener.told[0] == ("begin", [0, 1, 2, 3, 4, 5, 6])
    assert advances(listener) == [0, 2]  # the first group is samples 0 and 1


def test_plan_of_workers_that_read_side_by_side() -> None:
    listener = Listener()
    list(planned(BatchSampler([0, 3, 2, 1], 2, False), listener, several(), num_workers=2))
    assert listener.told[0] == ("begin", [0, 1, 2, 3, 4, 5, 6])  # samples 0, 2, 3, 1


def test_position_before_any_sample_is_the_beginning() -> None:
    listener = Listener()
    list(planned(BatchSampler(SequentialSampler(range(4)), 2, False), listener, several(), num_workers=3))
    assert advances(listener) == [0]


def test_samples_without_any_object() -> None:
    listener = Listener()
    list(planned(BatchSampler([1, 1, 1], 1, False), listener, several(), trust=True))
    assert listener.told == [("begin", []), ("advance", 0), ("advance", 0)]


def test_objects_of_what_is_drawn_with_torch() -> None:
    class Drawn:
        def __iter__(self) -> Iterator[list[int]]:
            NUM_DRAWN.append(1)
            yield [3, 1]
            yield [0]

    listener = Listener()
    list(planned(Drawn(), listener, several()))
    assert listener.told == [("begin", []), ("extend", [3, 4, 5, 6]), ("extend", [0, 1])]


def test_announced_plan_to_which_something_was_learned_is_registered_again(tmp_path: Path) -> None:
    torch.manual_seed(4)
    writer = LearnedMapWriter.open_or_create(tmp_path / "catalogue", 4)
    writer.record(1, [5, 6])
    dataset: Any = SimpleNamespace(num_samples=4)
    access = AccessMap(dataset=dataset, learned=LearnedMap.open(writer.directory, 4))
    listener = Listener()
    sampler = planned(SequentialSampler(range(4)), listener, access)
    sampler.epoch_ended()
    writer.record(3, range(10_000))  # it has to be mapped anew
    list(sampler)
    sampler.epoch_ended()
    list(sampler)
    told = [told for told in listener.told if told[0] != "advance"]
    assert told == [
        ("announce", [5, 6]),
        ("begin", [5, 6, *range(10_000)]),
        ("announce", [5, 6, *range(10_000)]),
        ("begin announced", [5, 6, *range(10_000)]),
    ]
    writer.close()
