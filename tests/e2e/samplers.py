"""Every sampler that the loader must leave as it is, each as a function of the dataset."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from e2e.steps import Setup

BATCH_SIZE = 4


def _generator(seed: int = 11) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


class LazySampler(Sampler[int]):
    """Draws each index when it is asked for, from every global generator; counts what was drawn."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_drawn = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            self.num_drawn += 1
            drawn = int(np.random.randint(1 << 20)) + random.randrange(1 << 20) + int(torch.randint(1 << 20, ()))
            yield drawn % self.length


class EvenThenOdd(RandomSampler):
    """A subclass of a known sampler is not known."""

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        random.shuffle(order)
        yield from sorted(order, key=lambda index: index % 2)


class PairBatches(Sampler[list[int]]):
    """A batch sampler of its own, with batches of 2 and 5 in turns, drawn lazily from numpy."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        left = self.length
        while left > 0:
            size = min(left, 2 if self.num_drawn % 2 else 5)
            left -= size
            self.num_drawn += 1
            yield [int(index) for index in np.random.randint(self.length, size=size)]


class BatchesAtOnce(Sampler[list[int]]):
    """Draws all batches when it is iterated, before torch draws the base seed."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        return iter(
            torch.randperm(self.length)[: self.length // BATCH_SIZE * BATCH_SIZE].reshape(-1, BATCH_SIZE).tolist()
        )


class OwnList(list[int]):
    """A list whose order is drawn anew."""

    def __iter__(self) -> Iterator[int]:
        yield from random.sample(range(len(self)), len(self))


def _batched(**kwargs: Any) -> dict[str, Any]:
    return {"batch_size": BATCH_SIZE, **kwargs}


def shuffle(dataset: Any) -> Setup:
    return Setup(_batched(shuffle=True))


def shuffle_with_generator(dataset: Any) -> Setup:
    generator = _generator()
    return Setup(_batched(shuffle=True, generator=generator), [generator])


def shuffle_drop_last(dataset: Any) -> Setup:
    return Setup(_batched(shuffle=True, drop_last=True))


def sequential(dataset: Any) -> Setup:
    return Setup(_batched())


def sequential_drop_last(dataset: Any) -> Setup:
    return Setup(_batched(drop_last=True))


def one_by_one(dataset: Any) -> Setup:
    return Setup({"batch_size": None, "shuffle": True})


def one_by_one_sequential(dataset: Any) -> Setup:
    return Setup({"batch_size": None})


def with_replacement(dataset: Any) -> Setup:
    return Setup(_batched(sampler=RandomSampler(dataset, replacement=True, num_samples=70)))


def with_replacement_and_generator(dataset: Any) -> Setup:
    generator = _generator()
    sampler = RandomSampler(dataset, replacement=True, num_samples=70, generator=generator)
    return Setup(_batched(sampler=sampler), [generator])


def longer_than_the_dataset(dataset: Any) -> Setup:
    return Setup(_batched(sampler=RandomSampler(dataset, num_samples=2 * len(dataset) + 3)))


def one_generator_for_both(dataset: Any) -> Setup:
    generator = _generator()
    sampler = RandomSampler(dataset, generator=generator)
    return Setup(_batched(sampler=sampler, generator=generator), [generator])


def subset_random(dataset: Any) -> Setup:
    return Setup(_batched(sampler=SubsetRandomSampler(range(3, len(dataset), 2))))


def subset_random_with_generator(dataset: Any) -> Setup:
    generator = _generator()
    return Setup(_batched(sampler=SubsetRandomSampler(range(3, len(dataset), 2), generator=generator)), [generator])


def weighted(dataset: Any) -> Setup:
    return Setup(_batched(sampler=WeightedRandomSampler(list(range(len(dataset))), 30)))


def weighted_with_generator(dataset: Any) -> Setup:
    generator = _generator()
    weights = list(range(1, len(dataset) + 1))
    sampler = WeightedRandomSampler(weights, 20, replacement=False, generator=generator)
    return Setup(_batched(sampler=sampler), [generator])


def distributed_first(dataset: Any) -> Setup:
    return _distributed(dataset, rank=0, drop_last=False)


def distributed_second(dataset: Any) -> Setup:
    return _distributed(dataset, rank=1, drop_last=True)


def _distributed(dataset: Any, *, rank: int, drop_last: bool) -> Setup:
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=2, rank=rank, drop_last=drop_last)
    return Setup(_batched(sampler=sampler), before_epoch=sampler.set_epoch)


def known_batch_sampler(dataset: Any) -> Setup:
    return Setup({"batch_sampler": BatchSampler(SequentialSampler(dataset), 5, drop_last=True)})


def batches_as_list(dataset: Any) -> Setup:
    return Setup({"batch_sampler": [[0, 5, 1], [2], [9, 9, 8, 7], list(range(10, 20))]})


def own_batch_sampler(dataset: Any) -> Setup:
    sampler = PairBatches(len(dataset))
    return Setup({"batch_sampler": sampler}, probe=lambda: sampler.num_drawn)


def batches_at_once(dataset: Any) -> Setup:
    return Setup({"batch_sampler": BatchesAtOnce(len(dataset))})


def own_list(dataset: Any) -> Setup:
    return Setup(_batched(sampler=OwnList(range(len(dataset)))))


def own_sampler(dataset: Any) -> Setup:
    sampler = LazySampler(len(dataset))
    return Setup(_batched(sampler=sampler), probe=lambda: sampler.num_drawn)


def own_sampler_one_by_one(dataset: Any) -> Setup:
    sampler = LazySampler(len(dataset))
    return Setup({"batch_size": None, "sampler": sampler}, probe=lambda: sampler.num_drawn)


def subclass_of_known(dataset: Any) -> Setup:
    return Setup(_batched(sampler=EvenThenOdd(dataset)))


def plain_list(dataset: Any) -> Setup:
    return Setup(_batched(sampler=[5, 3, 1, 20, 3, 3, 0, 25, 7]))


def numpy_indices(dataset: Any) -> Setup:
    return Setup(_batched(sampler=list(np.arange(len(dataset) - 1, 0, -2))))


def negative_indices(dataset: Any) -> Setup:
    return Setup(_batched(sampler=[-1, 0, -2, 1, -26]))


ALL: list[Callable[[Any], Setup]] = [
    shuffle, shuffle_with_generator, shuffle_drop_last, sequential, sequential_drop_last, one_by_one,
    one_by_one_sequential, with_replacement, with_replacement_and_generator, longer_than_the_dataset,
    one_generator_for_both, subset_random, subset_random_with_generator, weighted, weighted_with_generator,
    distributed_first, distributed_second, known_batch_sampler, batches_as_list, batches_at_once, own_list, own_batch_sampler, own_sampler,
    own_sampler_one_by_one, subclass_of_known, plain_list, numpy_indices, negative_indices,
]  # fmt: skip
