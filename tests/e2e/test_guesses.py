"""Datasets that declare nothing, in their first epoch: what they list is planned as far as it proves right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

import prefeed
from e2e.guessed import MAKES, InBatches, Listed, make, write
from leaks import wait_until
from prefeed.client.consumer import Consumer
from prefeed.loaders.guesses import FIRST
from slow_files import SlowDirectory, slow_files

LENGTH = 24
MANY = 900
BATCH_SIZE = 8


def kept(batch: list[Any]) -> list[Any]:
    return batch


def loader_of(dataset: Any, cls: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    arguments = {"batch_size": BATCH_SIZE, "shuffle": True, "generator": torch.Generator().manual_seed(5)}
    return cls(dataset, collate_fn=kept, **{**arguments, **kwargs})


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The objects of every plan that this process has registered, as they were told."""
    told: list[int] = []
    begin, extend = Consumer.begin, Consumer.extend

    def begins(self: Consumer, ids: Any, **kwargs: Any) -> None:
        told.extend(ids.tolist())
        begin(self, ids, **kwargs)

    def extends(self: Consumer, ids: Any, **kwargs: Any) -> None:
        told.extend(ids.tolist())
        extend(self, ids, **kwargs)

    monkeypatch.setattr(Consumer, "begin", begins)
    monkeypatch.setattr(Consumer, "extend", extends)
    monkeypatch.setattr(Consumer, "begin_announced", begins)
    return told


@pytest.fixture
def many(tmp_path: Path) -> Iterator[SlowDirectory]:
    """Files of ``MANY`` samples, and as many that nobody opens."""
    root = write(tmp_path / "data", MANY, parts=["images"])
    with slow_files(write(root, MANY, folder="others", parts=["images"])) as slow:
        yield slow


def images_of(root: Path, folder: str = "") -> list[str]:
    return [str(root / folder / "images" / f"{i:04d}.jpg") for i in range(MANY)]


def opens_of(slow: SlowDirectory, folder: str) -> dict[str, int]:
    return {name: count for name, count in slow.opens_by_file().items() if name.startswith(folder)}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_planned_in_the_first_epoch(tmp_path: Path, planned: list[int], num_workers: int) -> None:
    """Every sample's files are planned before the first batch; each is opened once; later epochs open nothing."""
    kinds = MAKES if num_workers == 0 else MAKES[::6]
    for kind in kinds:
        write(tmp_path / "data", LENGTH, folder=kind)
    with slow_files(tmp_path / "data") as slow:
        for kind in kinds:
            del planned[:]
            ours = loader_of(make(kind, slow.path / kind, LENGTH), num_workers=num_workers)
            truth = loader_of(make(kind, tmp_path / "data" / kind, LENGTH), DataLoader)
            batches = list(ours)
            assert batches == list(truth), kind
            num_files = sum(len(files) for batch in batches for _, files in batch)
            assert len(set(planned)) == len(planned) == num_files, kind
            assert list(ours) == list(truth), kind
            opens = opens_of(slow, kind)
            assert set(opens.values()) == {1}, kind
            assert len(opens) == num_files, kind


@pytest.mark.parametrize("cls", [Listed, InBatches])
def test_a_guess_that_proves_right_plans_all(many: SlowDirectory, planned: list[int], cls: type[Listed]) -> None:
    """Few are planned at first, and then more and more; columns that nobody opens are left out soon."""
    dataset = cls(images_of(many.path), others=images_of(many.path, "others"))
    ours = loader_of(dataset)
    iterator = iter(ours)
    first = next(iterator)
    assert len(planned) <= FIRST
    assert [first, *iterator] == list(loader_of(dataset, DataLoader))
    images = opens_of(many, "images")
    assert len(images) == MANY
    assert set(images.values()) == {2}  # ours, and torch's own
    others = opens_of(many, "others")
    assert 0 < len(others) <= FIRST // 2
    assert len(planned) == MANY + len(others)


class Backwards(Sampler[int]):
    """Nobody knows what a sampler of the user's own does."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_drawn = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length - 1, -1, -1):
            self.num_drawn += 1
            yield index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_that_is_not_read_ahead(
    many: SlowDirectory, planned: list[int], monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    """It is drawn as torch draws it. Each batch is told when the next one is drawn, and so are its files, once."""
    length = 200
    supposed: list[str] = []
    suppose = Consumer.suppose

    def supposes(self: Consumer, samples: Any, paths: list[str]) -> bool:
        supposed.extend(paths)
        was_told = suppose(self, samples, paths)
        self.read_counts()  # answered after what was told: here the server is always quick enough
        return was_told

    monkeypatch.setattr(Consumer, "suppose", supposes)
    monkeypatch.setattr("prefeed.torch.planning.try_forecast", lambda sampler: None)
    paths = images_of(many.path)[:length]
    drawn: list[list[int]] = []
    batches: list[list[Any]] = []
    for cls in (prefeed.DataLoader, DataLoader):
        sampler = Backwards(length)
        loader = loader_of(Listed(paths), cls, shuffle=None, sampler=sampler, num_workers=num_workers)
        drawn.append([])
        batches.append([])
        for batch in loader:
            batches[-1].append(batch)
            drawn[-1].append(sampler.num_drawn)
        if cls is prefeed.DataLoader:
            assert set(opens_of(many, "images").values()) == {1}
    assert batches[0] == batches[1]
    assert drawn[0] == drawn[1]
    assert supposed == paths[::-1]
    assert len(planned) == len(set(planned)) == length - BATCH_SIZE  # nothing is drawn after the last batch


def test_a_wrong_guess_costs_few_fetches(many: SlowDirectory, planned: list[int]) -> None:
    """A list of as many files that nobody opens is tried once, and never again."""

    class Misleading(Listed):
        def names_of(self, index: int) -> list[Any]:
            return [self.files[index].replace("/others", "")]

    dataset = Misleading(images_of(many.path, "others"))
    ours, truth = loader_of(dataset), loader_of(dataset, DataLoader)
    for _ in range(2):
        assert list(ours) == list(truth)
    assert 0 < len(opens_of(many, "others")) <= FIRST
    assert set(opens_of(many, "images").values()) == {3}  # once for ours, and torch's own two epochs


def test_a_guess_that_is_right_at_first_and_wrong_later(many: SlowDirectory, planned: list[int]) -> None:
    num_right = 100

    class Misleading(Listed):
        def names_of(self, index: int) -> list[Any]:
            return [self.files[index].replace("/others", "")]

    paths = images_of(many.path)[:num_right] + images_of(many.path, "others")[num_right:]
    dataset = Misleading(paths)
    ours, truth = loader_of(dataset, shuffle=False), loader_of(dataset, DataLoader, shuffle=False)
    assert list(ours) == list(truth)
    assert 0 < len(opens_of(many, "others")) <= FIRST + num_right < MANY - num_right
    assert set(opens_of(many, "images").values()) == {2}


def test_files_that_are_not_there(many: SlowDirectory, planned: list[int]) -> None:
    """Samples raise what they raise without prefeed, and go on."""

    class Patient(Listed):
        def __getitem__(self, index: int) -> Any:
            try:
                return super().__getitem__(index)
            except FileNotFoundError as err:
                return index, err.filename

    paths = images_of(many.path)[:100]
    paths[::3] = [f"{path}.gone" for path in paths[::3]]
    dataset = Patient(paths)
    assert list(loader_of(dataset)) == list(loader_of(dataset, DataLoader))
    assert wait_until(lambda: prefeed.statistics().reads >= 66, timeout_seconds=60)


def test_order_is_that_of_plain_torch_with_numpy_in_the_way(many: SlowDirectory) -> None:
    """Neither the search nor a guess draws a random number."""
    dataset = Listed(np.array(images_of(many.path)[:64]))
    torch.manual_seed(3)
    np.random.seed(3)
    batches, after = list(loader_of(dataset, generator=None)), (torch.rand(1), np.random.rand())
    torch.manual_seed(3)
    np.random.seed(3)
    assert batches == list(loader_of(dataset, DataLoader, generator=None))
    assert after == (torch.rand(1), np.random.rand())
