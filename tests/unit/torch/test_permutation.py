"""The order of torch's random sampler as an array: index for index, and draw for draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from prefeed.torch import order, permutation
from prefeed.torch.order import read_ahead, shadow_order
from prefeed.torch.permutation import Permutation, is_permuted

DATA = range(300)


def sampler_of(num_samples: int | None, has_generator: bool) -> RandomSampler:
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5) if has_generator else None
    return RandomSampler(DATA, num_samples=num_samples, generator=generator)


def states(sampler: RandomSampler) -> list[Any]:
    own = sampler.generator
    return [torch.get_rng_state().tolist(), None if own is None else own.get_state().tolist()]


@pytest.fixture(autouse=True)
def _generator_as_before() -> Iterator[None]:
    state = torch.get_rng_state()
    yield
    permutation._draws_as_torch.cache_clear()
    torch.set_rng_state(state)


@pytest.mark.parametrize("has_generator", [False, True])
@pytest.mark.parametrize("num_samples", [None, 300, 299, 1])
def test_generators_move_as_with_torch_at_every_index(num_samples: int | None, has_generator: bool) -> None:
    sampler = sampler_of(num_samples, has_generator)
    assert is_permuted(sampler)
    expected = [(index, states(sampler)) for index in sampler]
    end = states(sampler)
    sampler = sampler_of(num_samples, has_generator)
    drawn = Permutation(sampler)
    for index, state in expected:
        assert next(drawn) == index
        assert states(sampler) == state
    assert list(drawn) == []
    assert states(sampler) == end


@pytest.mark.parametrize("taken", [0, 7, 300, 1000])
def test_what_is_taken_is_not_given_again(taken: int) -> None:
    expected = list(sampler_of(None, True))
    sampler = sampler_of(None, True)
    drawn = Permutation(sampler)
    first = [next(drawn), next(drawn)]
    before = states(sampler)
    part = drawn.take(taken)
    assert states(sampler) == before, "the draw behind the last index is torch's to ask for"
    rest = list(drawn)
    assert [*first, *part.tolist(), *rest] == expected
    assert all(type(index) is int for index in rest)
    assert not part.flags.writeable


def test_other_samplers_are_drawn_as_torch_does() -> None:
    class Own(RandomSampler):
        pass

    assert not is_permuted(Own(DATA))
    assert not is_permuted(RandomSampler(DATA, replacement=True))
    assert not is_permuted(RandomSampler(DATA, num_samples=301))
    assert not is_permuted(DATA)


def test_a_torch_that_draws_in_another_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: RandomSampler) -> Iterator[int]:
        yield from torch.randperm(len(self.data_source), generator=self.generator).flip(0).tolist()

    state = torch.get_rng_state()
    permutation._draws_as_torch.cache_clear()
    monkeypatch.setattr(RandomSampler, "__iter__", other)
    assert not is_permuted(RandomSampler(DATA))
    sampler = sampler_of(None, True)
    assert shadow_order(BatchSampler(sampler, 7, False)).tolist() == list(sampler)
    monkeypatch.undo()
    permutation._draws_as_torch.cache_clear()
    torch.set_rng_state(state)
    assert is_permuted(RandomSampler(DATA))
    assert torch.equal(torch.get_rng_state(), state), "the trial moves no generator"


@pytest.mark.parametrize("most", [1, 64, 299, 300, 5000])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_what_was_read_ahead(most: int, drop_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "CHUNK", 50)
    expected = list(BatchSampler(sampler_of(None, True), 7, drop_last))
    ahead = read_ahead(BatchSampler(sampler_of(None, True), 7, drop_last))
    batches = iter(ahead)
    seen = list(itertools.islice(batches, 3))
    read = ahead.read(most)
    assert read.dtype == np.int64
    seen.extend(batches)
    assert seen == expected
    indices = [index for batch in expected for index in batch]
    assert read.tolist() == indices[21 : 21 + most]


def test_no_index_is_an_object_until_torch_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: RandomSampler) -> Iterator[int]:
        raise AssertionError("torch makes a list of all indices")

    sampler = BatchSampler(sampler_of(None, True), 7, False)
    expected = list(sampler_of(None, True))
    assert is_permuted(sampler.sampler)
    monkeypatch.setattr(RandomSampler, "__iter__", refuse)
    assert shadow_order(sampler).tolist() == expected
    assert read_ahead(sampler).read(300).tolist() == expected
