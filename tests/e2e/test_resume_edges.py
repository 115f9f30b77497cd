"""Going on where it is easy to go on wrongly: at an epoch's edges, with samplers of one's own, among several iterators."""

from __future__ import annotations

import io
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, Sampler

import prefeed
from cover import crossed
from prefeed.errors import ResumeError

LENGTH = 40
BATCH_SIZE = 4


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return int(index)


def loader_of(sampler: Any = None, **kwargs: Any) -> Any:
    return prefeed.DataLoader(Numbers(), batch_size=BATCH_SIZE, sampler=sampler, shuffle=sampler is None, **kwargs)


def epoch(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def epoch_after(state: Any, loader: Any) -> list[list[int]]:
    loader.load_state_dict(state)
    return epoch(loader)


def test_the_epoch_after_a_finished_one_is_the_one_that_is_set() -> None:
    def make() -> tuple[Any, Any]:
        sampler: Any = DistributedSampler(Numbers(), num_replicas=1, rank=0)
        return sampler, loader_of(sampler)

    sampler, loader = make()
    epoch(loader)
    state = loader.state_dict()
    sampler.set_epoch(1)
    expected = epoch(loader)

    sampler, loader = make()
    loader.load_state_dict(state)
    sampler.set_epoch(1)
    assert epoch(loader) == expected


class OneByOne(Sampler[int]):
    """Draws each index when it is asked, from a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            yield int(torch.randint(LENGTH, (), generator=self.generator))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_generator_that_is_drawn_from_one_by_one(num_workers: int) -> None:
    loader = loader_of(OneByOne(), num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = [epoch(iterator), epoch(loader)]

    other = loader_of(OneByOne(), num_workers=num_workers)
    other.load_state_dict(state)
    assert [epoch(other), epoch(other)] == expected


@pytest.mark.parametrize("sampler", [None, OneByOne], ids=["shuffled", "one by one"])
def test_it_is_the_last_iterator_that_counts(sampler: Any) -> None:
    def make() -> Any:
        return loader_of(None if sampler is None else sampler(), num_workers=1)

    loader = make()
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    next(older)
    state = loader.state_dict()
    assert state["_num_yielded"] == 1
    assert len(state["ahead"]) == (0 if sampler is None else 2)
    expected = epoch(newer)
    if sampler is None:  # two iterators that draw from one generator by turns are nobody's to draw again
        assert epoch_after(state, make()) == expected
    before = len(prefeed.statistics().epochs)
    epoch(older)
    assert len(prefeed.statistics().epochs) == before


def test_an_epoch_that_was_not_seen_just_begins() -> None:
    """With all generators as they were; else what is drawn after it would be other than it was."""
    loader = loader_of()
    state, generator = loader.state_dict(), torch.get_rng_state()
    expected = [epoch(loader), epoch(loader)]
    other = loader_of()
    torch.set_rng_state(generator)
    other.load_state_dict(state)
    assert [epoch(other), epoch(other)] == expected


@pytest.mark.parametrize(("num_seen", "num_workers"), crossed([3, LENGTH // BATCH_SIZE], [0, 1]))
def test_an_iterator_that_is_not_asked_changes_nothing(num_workers: int, num_seen: int) -> None:
    """Lightning makes one of the epoch that its checkpoint ended, and then another one for the next epoch."""
    loader = loader_of(generator=torch.Generator().manual_seed(3), num_workers=num_workers)
    iterator = iter(loader)
    for _ in range(num_seen):
        next(iterator)
    state = loader.state_dict()
    expected = epoch(loader)
    other = loader_of(generator=torch.Generator(), num_workers=num_workers)
    other.load_state_dict(state)
    iter(other)
    assert epoch(other) == expected


def test_another_generator_is_refused() -> None:
    state = loader_of().state_dict()
    with pytest.raises(ResumeError, match="number of generators 0, and this loader's is 1"):
        loader_of(generator=torch.Generator()).load_state_dict(state)
    with pytest.raises(ResumeError, match=r"number of samplers, .* 2, and this loader's is 1"):
        other = prefeed.DataLoader(Numbers(), batch_sampler=[[0, 1, 2, 3]] * (LENGTH // BATCH_SIZE))
        other.load_state_dict({**state, "batch_size": None})


class NumpyOrder(Sampler[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[Any]:
        yield from np.random.permutation(LENGTH)


class NumpyBatches(NumpyOrder):
    def __len__(self) -> int:
        return LENGTH // BATCH_SIZE

    def __iter__(self) -> Iterator[Any]:
        yield from np.random.permutation(LENGTH).reshape(-1, BATCH_SIZE)


@pytest.mark.parametrize("kwargs", [{"sampler": NumpyOrder(), "batch_size": 4}, {"batch_sampler": NumpyBatches()}])
def test_numbers_of_numpy_are_loaded_unasked(kwargs: dict[str, Any]) -> None:
    def make() -> Any:
        return prefeed.DataLoader(Numbers(), num_workers=1, **kwargs)

    loader = make()
    iterator = iter(loader)
    next(iterator)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    assert epoch_after(torch.load(file, weights_only=True), make()) == epoch(iterator)


class Unknown(Sampler[int]):
    """Draws from where nobody looks."""

    def __init__(self) -> None:
        self.random = random.Random(3)

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        yield from self.random.sample(range(LENGTH), LENGTH)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_that_draws_otherwise_is_told_of(num_workers: int, caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(Unknown(), num_workers=num_workers)
    for seen_before, warns in ((0, False), (1, True)):
        caplog.clear()
        iterator = iter(loader)
        next(iterator)
        other = loader_of(Unknown(), num_workers=num_workers)
        with caplog.at_level(logging.WARNING, "prefeed"):
            epoch_after(loader.state_dict(), other)
        told = [record for record in caplog.records if "Unknown drew other batches" in record.getMessage()]
        assert bool(told) is warns, seen_before


class Shuffled(Sampler[int]):
    """Draws its order when the epoch is set."""

    def __init__(self) -> None:
        self.set_epoch(0)

    def set_epoch(self, number: int) -> None:
        self.epoch = number
        self.order = random.Random(number).sample(range(LENGTH), LENGTH)

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


def test_an_order_that_is_drawn_when_the_epoch_is_set() -> None:
    sampler = Shuffled()
    loader = loader_of(sampler)
    sampler.set_epoch(5)
    iterator = iter(loader)
    next(iterator)
    assert epoch_after(loader.state_dict(), loader_of(Shuffled())) == epoch(iterator)


class Counting(Sampler[int]):
    """Gives out its own state, and changes it as it goes."""

    def __init__(self) -> None:
        self.state = {"begins": 0}

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        begins = self.state["begins"]
        self.state["begins"] += 7
        return iter([(begins + index) % LENGTH for index in range(LENGTH)])

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = dict(state)


def test_a_sampler_that_gives_out_what_it_changes() -> None:
    loader = loader_of(Counting())
    epoch(loader)
    iterator = iter(loader)
    next(iterator)
    assert epoch_after(loader.state_dict(), loader_of(Counting())) == epoch(iterator)


class Typed:
    """Yields batches of a type of its own, drawn one after the other."""

    def __init__(self, make: Callable[[list[int]], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return LENGTH // BATCH_SIZE

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, LENGTH, BATCH_SIZE):
            yield self.make(list(range(start, start + BATCH_SIZE)))


def mapped(indices: list[int]) -> Any:
    return map(int, indices)


@pytest.mark.parametrize(("make", "num_workers"), crossed([set, dict.fromkeys, tuple, mapped], [0, 1]))
def test_batches_of_other_types(make: Any, num_workers: int) -> None:
    def loader() -> Any:
        return prefeed.DataLoader(Numbers(), batch_sampler=Typed(make), num_workers=num_workers)  # type: ignore[arg-type]

    expected = epoch(loader())
    interrupted = loader()
    iterator = iter(interrupted)
    assert [next(iterator).tolist() for _ in range(3)] == expected[:3]
    if num_workers and make is mapped:
        with pytest.raises(ResumeError, match="a Typed, yields batches that can be read only once, and 2 of them"):
            interrupted.state_dict()
        return
    file = io.BytesIO()
    torch.save(interrupted.state_dict(), file)
    file.seek(0)
    assert epoch_after(torch.load(file), loader()) == expected[3:]
