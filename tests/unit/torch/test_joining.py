"""A plan that begins in the middle of an epoch, when the loader joins the server."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from prefeed.client.access import AccessMap
from prefeed.client.in_place import Samples, Unheard
from prefeed.loaders.order import interleave
from prefeed.torch.planning import PlannedSampler
from unit.torch.test_planning import Endless, Lazy, Listener, Repeat, access_map, begun


def in_place(
    inner: Any, *, num_samples: int = 20, num_workers: int = 0, batches_ahead: int = 1, trust: bool = False
) -> PlannedSampler:
    return PlannedSampler(
        inner, Samples(num_samples), Unheard(),
        trust=trust, num_workers=num_workers, batches_ahead=batches_ahead, seed_source=True,
    )  # fmt: skip


def join(sampler: PlannedSampler, access: AccessMap | None = None) -> Listener:
    listener: Any = Listener()
    sampler.join(access or access_map(20), listener)
    return listener


def two_each(num_samples: int) -> AccessMap:
    """Sample i is made of objects 2 i and 2 i + 1."""
    access = access_map(2 * num_samples)
    return AccessMap(dataset=access.dataset, starts=2 * np.arange(num_samples + 1))


def test_what_the_loop_has_not_got_is_the_plan() -> None:
    sampler = in_place(BatchSampler(SequentialSampler(range(9)), 2, False))
    batches = iter(sampler)
    assert [next(batches) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    listener = join(sampler)
    assert listener.told == [("begin", [4, 5, 6, 7, 8])]
    assert not listener.goes_on
    assert list(batches) == [[6, 7], [8]]
    assert listener.told[1:] == [("advance", 2), ("advance", 4)]


@pytest.mark.parametrize("num_drawn", range(11))
def test_positions_after_joining_with_workers_and_several_objects_a_sample(num_drawn: int) -> None:
    """The plan and the positions in it are the rest of those of a loader that had joined before."""
    inner = BatchSampler(SequentialSampler(range(20)), 2, False)
    listener: Any = Listener()
    whole = PlannedSampler(
        inner, two_each(20), listener, trust=False, num_workers=2, batches_ahead=4, seed_source=True
    )  # fmt: skip
    assert len(list(whole)) == 10
    (plan,) = begun(listener)
    sampler = in_place(inner, num_workers=2, batches_ahead=4)
    batches = iter(sampler)
    before = list(itertools.islice(batches, num_drawn))
    joined = join(sampler, two_each(20))
    assert before + list(batches) == list(inner)
    (rest,) = begun(joined)
    assert rest == plan[len(plan) - len(rest) :]
    start = len(plan) - len(rest)
    # The loop has so much when batch number num_drawn is drawn, in whole groups.
    assert start == 4 * (max(0, num_drawn - 4) // 2 * 2)
    expected = [position for event, position in listener.told if event == "advance"][max(0, num_drawn - 4) :]
    assert [start + position for event, position in joined.told if event == "advance"] == expected


def test_the_order_is_interleaved_when_it_is_told() -> None:
    sampler = in_place(BatchSampler(SequentialSampler(range(16)), 4, False), num_workers=2, batches_ahead=4)
    next(iter(sampler))
    listener = join(sampler)
    assert begun(listener) == [interleave(np.arange(16), batch_size=4, num_workers=2).tolist()]


def test_a_sampler_that_is_drawn_with_torch() -> None:
    sampler = in_place(Lazy(), num_workers=1, batches_ahead=2)
    batches = iter(sampler)
    list(itertools.islice(batches, 3))
    listener = join(sampler)
    assert listener.told == [("begin", [2, 3, 4, 5])]
    assert listener.goes_on
    assert list(batches) == [[6, 7]]
    assert listener.told[1:] == [("extend", [6, 7])]


def test_joining_before_the_first_batch_and_between_epochs() -> None:
    sampler = in_place(BatchSampler(SequentialSampler(range(4)), 2, False))
    listener = join(sampler)
    assert listener.told == []
    assert list(sampler) == [[0, 1], [2, 3]]
    assert listener.told[0] == ("begin", [0, 1, 2, 3])
    sampler.leave()
    listener.told.clear()
    assert list(sampler) == [[0, 1], [2, 3]]
    assert listener.told == []
    again = join(sampler)
    list(sampler)
    assert begun(again)[-1] == [0, 1, 2, 3]


def test_joining_while_workers_are_ahead_in_the_next_pass() -> None:
    sampler = in_place(Repeat(BatchSampler(range(8), 1, False)), num_samples=8, num_workers=2, batches_ahead=4)
    batches = iter(sampler)
    list(itertools.islice(batches, 10))  # the loop has 6 of the first pass
    listener = join(sampler, access_map(8))
    assert begun(listener) == [[6, 7, *range(8)]] or begun(listener) == [[4, 5, 6, 7, *range(8)]]
    sampler.pass_begins()
    assert begun(listener)[1:] == [[*range(8)]]


def test_joining_a_sampler_without_an_end() -> None:
    sampler = in_place(Endless(), num_workers=2, batches_ahead=4)
    batches = iter(sampler)
    list(itertools.islice(batches, 7))
    listener = join(sampler)
    assert listener.told == [("begin", [4, 0, 1, 2])]
    next(batches)
    assert listener.told[1:] == [("extend", [3])]


def test_joining_a_trusted_sampler_without_an_end() -> None:
    """The rest of its pass is the plan."""
    sampler = in_place(Endless(), num_samples=8, trust=True)
    batches = iter(sampler)
    assert [next(batches) for _ in range(3)] == [1, 2, 3]
    listener = join(sampler, access_map(8))
    assert listener.told == [("begin", [3, 4, 0, 1, 2, 3])]
