"""Orders that are read a window at a time: the same batches, and the same generators at every step, as torch alone."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import prefeed.torch.order
from prefeed.client.access import AccessMap
from prefeed.loaders.order import interleave
from prefeed.torch import pass_plan, windows
from prefeed.torch.order import Buffered, Shadow, drawn_order, read_ahead, samplers_of, shadow_order
from prefeed.torch.planning import PlannedSampler

DATA = range(50)
CHUNK, WINDOW = 8, 16


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (windows, prefeed.torch.order):
        monkeypatch.setattr(module, "CHUNK", CHUNK)
        monkeypatch.setattr(module, "FIRST", CHUNK)
        monkeypatch.setattr(module, "WINDOW", WINDOW)
    monkeypatch.setattr(pass_plan, "WINDOW", WINDOW)
    monkeypatch.setattr(pass_plan, "_TOLD_EVERY", 10)


class Listener:
    """Stands in for the consumer: holds the order as far as it was told, and how far the loop is."""

    def __init__(self, *, reads_once: bool = True) -> None:
        self.reads_once = reads_once
        self.kept: list[bool] = []
        self.orders: list[list[int]] = []
        self.first: list[int] = []
        self.is_partial: list[bool] = []
        self.position = 0
        self.most_ahead = 0
        self.num_foreseen = 0

    def begin(self, ids: Any, *, is_partial: bool = False) -> None:
        self.orders.append(ids.tolist())
        self.first.append(len(ids))
        self.is_partial.append(is_partial)
        self.position = 0

    def begin_announced(self, ids: Any, *, is_partial: bool = False) -> None:
        self.begin(ids, is_partial=is_partial)

    def announce(self, ids: Any, *, begins: bool = False, is_partial: bool = False) -> None:
        self.num_foreseen += 1

    def foresee(self, ids: Any) -> None:
        self.num_foreseen += 1

    def keep(self, *, resident: bool) -> None:
        self.kept.append(resident)

    def extend(self, ids: Any, *, are_read_soon: bool = True) -> None:
        self.orders[-1] += ids.tolist()
        self.most_ahead = max(self.most_ahead, len(self.orders[-1]) - self.position)

    def advance(self, position: int) -> None:
        self.position = position


def access_map(num_objects: int = 100, **attributes: Any) -> AccessMap:
    dataset: Any = SimpleNamespace(manifest=SimpleNamespace(num_declared=num_objects))
    return AccessMap(dataset=dataset, **attributes)


def planned(inner: Any, listener: Any, **kwargs: Any) -> PlannedSampler:
    defaults = {"access": access_map(), "trust": False, "num_workers": 0, "batches_ahead": 1, "seed_source": True}
    return PlannedSampler(inner, consumer=listener, **{**defaults, **kwargs})


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


KNOWN: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(DATA),
    "shuffle": lambda: RandomSampler(DATA),
    "shuffle, own": lambda: RandomSampler(DATA, generator=seeded()),
    "part of a shuffle, own": lambda: RandomSampler(DATA, num_samples=41, generator=seeded()),
    "several shuffles, own": lambda: RandomSampler(range(10), num_samples=95, generator=seeded()),
    "replacement": lambda: RandomSampler(DATA, replacement=True, num_samples=133),
    "replacement, own": lambda: RandomSampler(DATA, replacement=True, num_samples=128, generator=seeded()),
    "subset, own": lambda: SubsetRandomSampler(range(40), generator=seeded()),
    "weighted": lambda: WeightedRandomSampler([1.0] * 50, 90),
    "weighted, own": lambda: WeightedRandomSampler([1.0] * 50, 90, generator=seeded()),
    "distributed": lambda: DistributedSampler(range(99), num_replicas=2, rank=1),
    "list": lambda: [*range(45), 3],
    "range": lambda: range(50),
    "accelerate's": lambda: BatchSamplerShard(
        BatchSampler(SeedableRandomSampler(DATA, data_seed=7), 2, False), num_processes=2, process_index=1
    ),
}

BATCHED = {
    "plain": lambda inner: inner,
    "batches": lambda inner: BatchSampler(inner, 4, False),
    "whole batches": lambda inner: BatchSampler(inner, 4, True),
    "batches of 5": lambda inner: BatchSampler(inner, 5, False),
}


def steps(batches: Any, sampler: Any) -> Iterator[tuple[Any, ...]]:
    """Yield what comes, and the state of every generator after it; those of the end, too."""
    own = getattr(samplers_of(sampler)[-1], "generator", None)
    iterator = iter(batches)
    for batch in itertools.chain(iterator, ["the end"]):
        yield batch, torch.get_rng_state().tolist(), own.get_state().tolist() if own else None


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "batched"),
    [(kind, batched) for kind in KNOWN for batched in BATCHED if kind != "accelerate's" or batched == "plain"],
)
def test_batches_and_generators_are_torchs_at_every_step(kind: str, batched: str, num_workers: int) -> None:
    """Two epochs; what the server is told is the beginning of what comes, and of all of it but a batch at the end."""
    torchs, ours = BATCHED[batched](KNOWN[kind]()), BATCHED[batched](KNOWN[kind]())
    listener = Listener()
    sampler = planned(ours, listener, num_workers=num_workers, batches_ahead=max(1, 2 * num_workers))
    for epoch in range(2):
        torch.manual_seed(epoch)
        expected = list(steps(torchs, torchs))
        torch.manual_seed(epoch)
        found = list(steps(sampler, ours))
        assert found == expected
        order = drawn_order([batch for batch, *_ in expected[:-1]]).tolist()
        told = listener.orders[epoch]
        # Workers read side by side: the plan is in their order, and so is what is left of the last group.
        assert len(told) >= len(order) - 5 * max(1, num_workers)
        if num_workers == 0 or (batched == "plain" and kind != "accelerate's"):
            assert told == order[: len(told)]
        else:
            assert not set(told) - set(order)
        assert listener.first[epoch] <= 2 * WINDOW
        assert listener.is_partial[epoch] == (len(order) > listener.first[epoch])
    assert listener.most_ahead <= 16 * CHUNK + 2 * WINDOW


def test_windows_of_workers_that_read_side_by_side_are_those_of_the_whole_order() -> None:
    inner = BatchSampler(RandomSampler(DATA, replacement=True, num_samples=180, generator=seeded()), 5, False)
    whole = interleave(shadow_order(inner), batch_size=5, num_workers=3).tolist()
    listener = Listener()
    list(planned(inner, listener, num_workers=3, batches_ahead=6))
    assert listener.orders == [whole]
    assert listener.first == [15]  # a group is larger than a chunk


def test_a_first_batch_needs_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """10⁸ draws are as quick to begin as a hundred, and what is kept does not grow."""
    listener = Listener()
    inner = BatchSampler(RandomSampler(DATA, replacement=True, num_samples=10**8), 4, False)
    batches = iter(planned(inner, listener))
    next(batches)
    assert listener.orders[0] == listener.orders[0][:CHUNK]
    list(itertools.islice(batches, 1000))
    assert 0 < len(listener.orders[0]) - listener.position <= 16 * CHUNK + CHUNK


class Stage:
    """Stands in for the cache of a stage that holds nothing, and is full after so many questions."""

    def __init__(self, full_after: int) -> None:
        self.left = full_after

    def are_cached(self, samples: Any) -> Any:
        return np.zeros(len(samples), dtype=bool)

    def has_room(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize(("reads_once", "follows"), [(False, [False] * 3 + [True] * 8), (True, [False] * 11)])
@pytest.mark.parametrize("is_known", [True, False])
def test_objects_are_kept_from_the_batch_on_before_which_their_stage_is_full(
    is_known: bool, reads_once: bool, follows: list[bool]
) -> None:
    listener = Listener(reads_once=reads_once)
    sampler = BatchSampler(SequentialSampler(range(40)), 4, False)
    inner: Any = sampler if is_known else list(sampler).__iter__()
    list(planned(inner, listener, access=access_map(cached=Stage(3))))
    assert listener.kept[: len(follows)] == follows


def test_a_batch_size_that_is_changed_meanwhile_is_that_of_the_next_batch() -> None:
    inner = BatchSampler(RandomSampler(DATA, generator=seeded()), 4, False)
    batches = iter(planned(inner, Listener()))
    expected = list(RandomSampler(DATA, generator=seeded()))
    assert next(batches) == expected[:4]
    inner.batch_size = 7
    assert next(batches) == expected[4:11]


def test_what_the_user_draws_from_the_same_generator_is_drawn_as_with_torch() -> None:
    """The order that was foreseen is then another one than that which comes, which costs fetches and no sample."""

    def drawn(wrap: Callable[[Any], Any]) -> list[Any]:
        generator = seeded()
        inner = BatchSampler(RandomSampler(DATA, replacement=True, num_samples=200, generator=generator), 4, False)
        return [(batch, torch.rand(1, generator=generator).item()) for batch in wrap(inner)]

    assert drawn(lambda inner: planned(inner, Listener())) == drawn(lambda inner: inner)


@pytest.mark.parametrize("replicas", [1, 8])
def test_a_long_distributed_order_is_told_once_and_not_foreseen(replicas: int) -> None:
    listener = Listener(reads_once=False)
    inner = DistributedSampler(range(WINDOW * 5 * replicas), num_replicas=replicas, rank=0)
    sampler = planned(BatchSampler(inner, 4, False), listener, access=access_map(WINDOW * 5 * replicas))
    for epoch in range(2):
        inner.set_epoch(epoch)
        assert list(itertools.chain(*sampler)) == list(inner)
        sampler.epoch_ended()
    assert listener.num_foreseen == 0
    assert [len(order) for order in listener.orders] == [WINDOW * 5] * 2


def test_an_order_of_many_objects_a_sample_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_MOST_IDS", 24)
    starts = np.arange(0, 151, 3)
    listener = Listener()
    inner = BatchSampler(RandomSampler(DATA, generator=seeded()), 4, False)
    drawn = list(itertools.chain(*planned(inner, listener, access=access_map(150, starts=starts))))
    assert listener.first == [24]
    assert listener.orders[0] == [3 * sample + part for sample in drawn for part in range(3)]


# ------------------------------------------------------------ samplers of the user's


NUM_DRAWN: deque[int] = deque(maxlen=1)


class Counted:
    """Draws without end, or as many as it is told, and counts in its module; says any length, or none."""

    def __init__(self, length: int | None = None, *, says: int | None = None) -> None:
        self.num_drawn = 0
        self._length = length
        if says is not None:
            self.__class__ = type("Says", (Counted,), {"__len__": lambda _: says})

    def __iter__(self) -> Iterator[int]:
        while self._length is None or self.num_drawn < self._length:
            self.num_drawn += 1
            NUM_DRAWN.append(self.num_drawn)
            yield self.num_drawn % 50


@pytest.mark.parametrize("says", [None, 3, 10**9])
@pytest.mark.parametrize("length", [None, 10**8, 1000])
def test_a_trusted_sampler_is_drawn_a_window_ahead(length: int | None, says: int | None) -> None:
    counted, listener = Counted(length, says=says), Listener()
    sampler = planned(counted, listener, trust=True, access=access_map(10**7))
    batches = iter(sampler)
    assert next(batches) == 1
    assert counted.num_drawn == CHUNK
    assert list(itertools.islice(batches, 900)) == [number % 50 for number in range(2, 902)]
    assert counted.num_drawn <= 901 + 17 * CHUNK
    assert counted.num_drawn == 901 + sampler.num_read_ahead
    assert listener.orders == [[number % 50 for number in range(1, counted.num_drawn + 1)]]
    assert len(listener.orders[0]) - listener.position <= 17 * CHUNK + 1
    if length == 1000:
        assert len(list(batches)) == 99
        assert counted.num_drawn == 1000


def test_what_a_trusted_sampler_raises_comes_when_torch_is_there() -> None:
    def failing() -> Iterator[int]:
        yield from range(20)
        raise ValueError("the user's own")

    batches = iter(planned(failing(), Listener(), trust=True))
    assert list(itertools.islice(batches, 20)) == list(range(20))
    with pytest.raises(ValueError, match="the user's own"):
        next(batches)


def test_an_order_that_is_told_as_it_is_drawn_is_forgotten_as_it_is_read() -> None:
    listener = Listener()
    list(itertools.islice(planned(Counted(), listener, access=access_map(10**7), batches_ahead=4), 500))
    assert len(listener.orders[0]) == 500
    assert 500 - listener.position <= 4 + 10


# ------------------------------------------------------------ readers


def test_torchs_samplers_that_draw_all_at_once_are_drawn_once() -> None:
    at_once = ("shuffle", "part of a shuffle, own", "weighted", "distributed")
    for kind, make in KNOWN.items():
        expected = Buffered if kind in at_once or kind in ("shuffle, own", "weighted, own") else Shadow
        assert isinstance(read_ahead(make()), expected), kind


def test_a_shadow_that_was_skipped_continues_behind_what_torch_has() -> None:
    inner = RandomSampler(DATA, replacement=True, num_samples=200, generator=seeded())
    expected = list(RandomSampler(DATA, replacement=True, num_samples=200, generator=seeded()))
    reader = read_ahead(BatchSampler(inner, 4, False))
    assert list(itertools.chain(*itertools.islice(iter(reader), 20))) == expected[:80]
    reader.skip(80)
    assert reader.read(40).tolist() == expected[80:120]
    assert list(itertools.chain(*itertools.islice(iter(reader), 5))) == expected[80:100]
