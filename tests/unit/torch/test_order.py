"""What samplers will draw, found out without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from prefeed.torch.order import (
    batch_size_of,
    distributed_sampler,
    drawn_order,
    indices_of,
    is_readable_ahead,
    shadow_order,
    with_epoch,
)

DATA = range(50)


def seeded(seed: int = 3) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


KNOWN: list[Any] = [
    SequentialSampler(DATA),
    RandomSampler(DATA),
    RandomSampler(DATA, replacement=True, num_samples=90),
    RandomSampler(DATA, replacement=True, num_samples=90, generator=seeded()),
    RandomSampler(DATA, num_samples=120),
    SubsetRandomSampler([4, 2, 8]),
    SubsetRandomSampler(range(10), generator=seeded()),
    WeightedRandomSampler([1.0] * 50, 30),
    WeightedRandomSampler([1.0] * 50, 30, generator=seeded()),
    DistributedSampler(DATA, num_replicas=2, rank=1),
    list(range(7)),
    (3, 1, 2),
    range(9),
]


@pytest.mark.parametrize("index", range(len(KNOWN)))
@pytest.mark.parametrize("batched", [None, False, True], ids=["plain", "batches", "whole batches"])
def test_shadow_is_what_comes(index: int, batched: bool | None) -> None:
    """The shadow's order is the real one, and leaves every generator as it was."""
    torch.manual_seed(1)
    inner = KNOWN[index]
    sampler = inner if batched is None else BatchSampler(inner, 4, batched)
    own = getattr(inner, "generator", None)
    before = torch.get_rng_state(), own.get_state() if own else None
    foreseen = shadow_order(sampler)
    assert foreseen.dtype == np.int64
    assert torch.equal(torch.get_rng_state(), before[0])
    assert own is None or torch.equal(own.get_state(), before[1])
    assert foreseen.tolist() == drawn_order(list(sampler)).tolist()


@pytest.mark.parametrize("generator", [None, seeded(8)], ids=["default", "own"])
def test_seed_drawn_before(generator: torch.Generator | None) -> None:
    """torch draws the epoch's base seed first: the shadow does so too."""
    sampler = RandomSampler(DATA, generator=generator)
    foreseen = shadow_order(sampler, draw_seed_from=generator or True)
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    assert foreseen.tolist() == list(sampler)


def test_generators_are_restored_after_an_error() -> None:
    sampler = WeightedRandomSampler([-1.0, 1.0], 3)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        shadow_order(sampler, draw_seed_from=True)
    assert torch.equal(torch.get_rng_state(), before)


class Subclass(RandomSampler):
    pass


class Own:
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class OwnBatches(BatchSampler):
    pass


def test_what_may_be_read_ahead() -> None:
    assert all(is_readable_ahead(sampler) for sampler in KNOWN)
    assert all(is_readable_ahead(BatchSampler(sampler, 2, False)) for sampler in KNOWN)
    for unknown in (Subclass(DATA), Own(), iter([1, 2]), OwnBatches(SequentialSampler(DATA), 2, False)):
        assert not is_readable_ahead(unknown)
    assert not is_readable_ahead(BatchSampler(Subclass(DATA), 2, False))


@pytest.mark.parametrize(
    ("batch", "indices"),
    [
        (3, [3]),
        (np.int64(3), [3]),
        (torch.tensor(3), [3]),
        ([1, np.int32(2), torch.tensor(3)], [1, 2, 3]),
        ((4, 5), [4, 5]),
        (torch.tensor([6, 7]), [6, 7]),
        (np.array([8]), [8]),
        ([(1, 224), (2, 320)], []),
        (["a", 1, None, 2.5], [1]),
        ("name", []),
        (None, []),
        ([], []),
    ],
    ids=repr,
)
def test_indices_of(batch: Any, indices: list[int]) -> None:
    assert indices_of(batch) == indices


def test_epoch_of_a_distributed_sampler() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=2, rank=0)
    for outer in (sampler, BatchSampler(sampler, 4, False)):
        assert distributed_sampler(outer) is sampler
        following = drawn_order(list(with_epoch(outer, 5)))
        assert sampler.epoch == 0
        sampler.set_epoch(5)
        assert following.tolist() == drawn_order(list(outer)).tolist()
        sampler.set_epoch(0)
    assert distributed_sampler(RandomSampler(DATA)) is None


# ---------------------------------------------------------------- Accelerate's samplers


@pytest.mark.parametrize("split", [False, True], ids=["whole batches", "split batches"])
@pytest.mark.parametrize("length", [24, 29])
@pytest.mark.parametrize("has_generator", [False, True], ids=["own generator", "given generator"])
def test_shadow_of_accelerates_samplers(split: bool, length: int, has_generator: bool) -> None:
    generator = torch.Generator().manual_seed(5) if has_generator else None
    inner = SeedableRandomSampler(range(length), generator=generator, data_seed=7)
    sampler = BatchSamplerShard(
        BatchSampler(inner, batch_size=4, drop_last=False), num_processes=2, process_index=1, split_batches=split
    )
    assert is_readable_ahead(sampler)
    assert batch_size_of(sampler) == (2 if split else 4)
    for epoch in range(3):
        assert inner.epoch == epoch
        state = None if generator is None else generator.get_state()
        foreseen = shadow_order(sampler)
        assert inner.epoch == epoch
        assert state is None or (generator is not None and torch.equal(generator.get_state(), state))
        assert foreseen.tolist() == [index for batch in sampler for index in batch]


def test_skipped_batches_of_accelerate() -> None:
    sampler = SkipBatchSampler(BatchSampler(range(10), batch_size=2, drop_last=False), skip_batches=3)
    assert shadow_order(sampler).tolist() == [6, 7, 8, 9]


def test_somebody_elses_subclass_is_not_run_in_the_shadow() -> None:
    class Mine(SeedableRandomSampler):
        pass

    assert not is_readable_ahead(BatchSamplerShard(BatchSampler(Mine(range(4)), 2, False)))


def test_what_only_looks_like_a_number_is_no_index() -> None:
    """Keys of a dataset that is a mapping; numpy would take them for numbers."""
    for sampler in (["12", "7"], [["12"], ["7"]], BatchSampler(["12", "7"], 1, False), [1.5, 2.0], [[1.5]]):
        assert shadow_order(sampler).tolist() == []
    assert shadow_order([True, np.uint8(3), 2]).tolist() == [1, 3, 2]
