"""A loader that goes on in the middle of an epoch gives what it would have given without the interruption."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import prefeed
from cover import crossed
from e2e import samplers
from e2e.images import Augment, make_image_folder
from e2e.steps import Setup, digest, generator_states, seed_all
from prefeed.errors import ResumeError

Build = Callable[[Any], Setup]
EPOCHS = 3
STOP_EPOCH = 1
STOP_STEP = 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


def thumbnail(image: Any) -> torch.Tensor:
    """Return the pixels of a small picture; nothing is random."""
    return torch.from_numpy(np.array(image.convert("RGB").resize((8, 8))))


class Numbers(Dataset[int]):
    """Remembers which samples were asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        return index


def checkpoint(loader: Any) -> bytes:
    """Save what a training script saves: the loader's state and the global generators."""
    file = io.BytesIO()
    generators = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
    torch.save({"loader": loader.state_dict(), **generators}, file)
    return file.getvalue()


def restore(loader: Any, saved: bytes) -> None:
    state = torch.load(io.BytesIO(saved), weights_only=False)
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["random"])
    loader.load_state_dict(state["loader"])


def trained(
    loader: Any, setup: Setup, *, epochs: int, first_epoch: int = 0, stop: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the epoch and digest of each batch; torch's generator is used between batches, as a dropout does."""
    for epoch in range(first_epoch, epochs):
        setup.before_epoch(epoch)
        for step, batch in enumerate(loader):
            yield epoch, digest(batch)
            torch.rand(3)
            if stop and (epoch, step + 1) == (STOP_EPOCH, STOP_STEP):
                return


def make(dataset: Any, build: Build, **kwargs: Any) -> tuple[Any, Setup]:
    setup = build(dataset)
    return prefeed.DataLoader(dataset, **setup.kwargs, **kwargs), setup


def compare(dataset: Any, build: Build, *, epochs: int = EPOCHS, **kwargs: Any) -> None:
    """Fail unless an interrupted training gives the batches, and leaves the generators, of one that was not."""
    seed_all()
    loader, setup = make(dataset, build, **kwargs)
    expected = list(trained(loader, setup, epochs=epochs))
    expected_generators = generator_states(setup.generators)

    seed_all()
    loader, setup = make(dataset, build, **kwargs)
    actual = list(trained(loader, setup, epochs=epochs, stop=True))
    saved = checkpoint(loader)
    del loader

    seed_all(99)
    loader, setup = make(dataset, build, **kwargs)
    restore(loader, saved)
    actual += trained(loader, setup, epochs=epochs, first_epoch=STOP_EPOCH)
    assert actual == expected
    assert generator_states(setup.generators) == expected_generators


class SavedPairBatches(samplers.PairBatches):
    """What this sampler counts from epoch to epoch is its own, so it has to say it."""

    def state_dict(self) -> dict[str, int]:
        return {"num_drawn": self.num_drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_drawn = state["num_drawn"]


def own_stateful_batch_sampler(dataset: Any) -> Setup:
    return Setup({"batch_sampler": SavedPairBatches(len(dataset))})


SAMPLERS = [*(build for build in samplers.ALL if build is not samplers.own_batch_sampler), own_stateful_batch_sampler]


@pytest.mark.parametrize(("build", "num_workers"), crossed(SAMPLERS, [0, 2]))
def test_every_sampler(root: Path, build: Build, num_workers: int) -> None:
    """A whole epoch after the one that was gone on with is seen where no workers are started for it, which takes the longest."""
    epochs = EPOCHS - 1 if num_workers else EPOCHS
    compare(prefeed.datasets.ImageFolder(root, thumbnail), build, epochs=epochs, num_workers=num_workers)


@pytest.mark.parametrize("build", [samplers.shuffle, samplers.own_sampler], ids=lambda build: build.__name__)
def test_without_a_plan(build: Build) -> None:
    compare(Numbers(30), build)
    compare(Numbers(30), build, num_workers=2)
    compare(Numbers(30), build, num_workers=2, persistent_workers=True)


@pytest.mark.parametrize("build", [samplers.shuffle, samplers.one_generator_for_both], ids=lambda build: build.__name__)
def test_workers_that_stay(root: Path, build: Build) -> None:
    compare(prefeed.datasets.ImageFolder(root, thumbnail), build, num_workers=2, persistent_workers=True)


def test_augmentation_in_the_main_process_continues_too(root: Path) -> None:
    compare(prefeed.datasets.ImageFolder(root, Augment()), samplers.shuffle, num_workers=0)


def test_no_sample_is_made_twice() -> None:
    first = Numbers(1000)
    loader = prefeed.DataLoader(first, batch_size=10, shuffle=True)
    iterator = iter(loader)
    for _ in range(90):
        next(iterator)
    state = loader.state_dict()

    second = Numbers(1000)
    loader = prefeed.DataLoader(second, batch_size=10, shuffle=True)
    loader.load_state_dict(state)
    assert len(list(loader)) == 10
    assert len(second.asked) == 100
    assert sorted(first.asked + second.asked) == list(range(1000))


def test_only_the_rest_is_planned(root: Path) -> None:
    dataset = prefeed.datasets.ImageFolder(root)
    loader = prefeed.DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=list)
    whole = prefeed.DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=list)
    iterator = iter(whole)
    for _ in range(5):
        next(iterator)
    loader.load_state_dict(whole.state_dict())
    before = prefeed.statistics()
    rest = [sample for batch in loader for sample in batch]
    assert len(rest) == len(dataset) - 20
    after = prefeed.statistics()
    assert after.reads - before.reads == len(rest)
    assert after.direct_reads == 0


def test_state_before_the_first_epoch_is_its_beginning() -> None:
    loader = prefeed.DataLoader(Numbers(20), batch_size=4, shuffle=True)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in loader]
    other = prefeed.DataLoader(Numbers(20), batch_size=4, shuffle=True)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert [batch.tolist() for batch in other] == expected


def test_after_the_last_batch() -> None:
    """As torchdata's: an epoch that was told its end is followed by a whole one, else by the nothing that is left."""
    loader = prefeed.DataLoader(Numbers(20), batch_size=4)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    unfinished = loader.state_dict()
    assert next(iterator, None) is None
    finished = loader.state_dict()

    for state, lengths in ((unfinished, [0, 5]), (finished, [5, 5])):
        other = prefeed.DataLoader(Numbers(20), batch_size=4)
        other.load_state_dict(state)
        assert [len(list(other)) for _ in range(2)] == lengths


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


def test_a_stream_is_iterated_up_to_the_place() -> None:
    loader = prefeed.DataLoader(Stream(), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    other = prefeed.DataLoader(Stream(), batch_size=4)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in iterator]


def test_states_of_other_loaders_are_refused() -> None:
    state = prefeed.DataLoader(Numbers(20), batch_size=4).state_dict()
    with pytest.raises(ResumeError, match="batch_size 4, and this loader's is 5"):
        prefeed.DataLoader(Numbers(20), batch_size=5).load_state_dict(state)
    with pytest.raises(ResumeError, match="num_batches 5, and this loader's is 6"):
        prefeed.DataLoader(Numbers(24), batch_size=4).load_state_dict(state)
    with pytest.raises(ResumeError, match="not a state of prefeed's DataLoader"):
        prefeed.DataLoader(Numbers(20), batch_size=4).load_state_dict({"_snapshot": 1})


def test_state_is_small_and_plain(root: Path) -> None:
    loader = prefeed.DataLoader(prefeed.datasets.ImageFolder(root), batch_size=4, shuffle=True, collate_fn=list)
    next(iter(loader))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    assert len(file.getvalue()) < 40_000
    file.seek(0)
    assert torch.load(file, weights_only=True)["_num_yielded"] == 1
