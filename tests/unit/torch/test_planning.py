"""Batches on their way to torch, and what the node server is told meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from prefeed.client.access import AccessMap
from prefeed.torch.planning import PlannedSampler


class Listener:
    """Stands in for the consumer: remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def begin(self, ids: Any) -> None:
        self.told.append(("begin", ids.tolist()))

    def announce(self, ids: Any) -> None:
        self.told.append(("announce", ids.tolist()))

    def begin_announced(self, ids: Any) -> None:
        self.told.append(("begin announced", ids.tolist()))

    def extend(self, ids: Any) -> None:
        self.told.append(("extend", ids.tolist()))

    def advance(self, position: int) -> None:
        self.told.append(("advance", position))

    def events(self) -> list[str]:
        return [event for event, _ in self.told]


def access_map(num_objects: int, ids: list[int] | None = None) -> AccessMap:
    dataset: Any = SimpleNamespace(manifest=SimpleNamespace(num_objects=num_objects))
    return AccessMap(dataset=dataset, ids=None if ids is None else np.array(ids, dtype=np.int64))


def planned(inner: Any, listener: Any, **kwargs: Any) -> PlannedSampler:
    defaults = {"trust": False, "num_workers": 0, "batches_ahead": 1, "seed_source": True}
    return PlannedSampler(inner, access_map(20), listener, **{**defaults, **kwargs})


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


class Lazy:
    """Counts how far it was drawn."""

    def __init__(self) -> None:
        self.num_drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, 8, 2):
            self.num_drawn += 1
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
        assert listener.told[-1][0] == "announce"
    begins = [event for event in listener.events() if event.startswith("begin")]
    assert begins[2:] == ["begin announced"] * 2


# ------------------------------------------------------------ the access map


def test_access_map() -> None:
    whole, mapped = access_map(10), access_map(10, [7, 5, 3])
    assert whole.object_ids(np.array([0, 9, -1])).tolist() == [0, 9, 9]
    assert mapped.object_ids(np.array([2, -3, 0])).tolist() == [3, 7, 7]
    assert mapped.object_ids(np.array([], dtype=np.int64)).tolist() == []
    assert [mapped.object_id(i) for i in (0, -1, torch.tensor(1), np.int8(2))] == [7, 3, 5, 3]


def test_access_map_of_what_it_does_not_have() -> None:
    """The dataset will say what is wrong with such an index, if anything is."""
    whole, mapped = access_map(10), access_map(10, [7, 5, 3])
    assert whole.object_ids(np.array([10, 3, -11])).tolist() == [3]
    assert mapped.object_ids(np.array([3, 1])).tolist() == [5]
    assert [mapped.object_id(i) for i in (3, -4, "1", (1, 2), None, 1.0)] == [None] * 6
