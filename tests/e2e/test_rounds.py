"""Loaders that go round torch's ``DataLoader`` are served, or one line says why not."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import prefeed
from cover import crossed
from e2e import rounds
from e2e.automatic import auto
from e2e.steps import digest
from leaks import wait_until
from prefeed.client.untold import untold_epochs
from prefeed.torch import loader as module

NUM = 22
BATCH = 4


class Numbered(Dataset[Any]):
    """Sample i is what file i says; nobody knows that it is file i."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def __len__(self) -> int:
        return NUM

    def path(self, index: int) -> str:
        if not 0 <= index < NUM:
            raise IndexError(index)
        return os.path.join(self.root, f"{index}.bin")

    def __getitem__(self, index: int) -> Any:
        with open(self.path(index), "rb") as file:
            return index, np.frombuffer(file.read(), np.uint8).copy()


class Declared(Numbered):
    """The same, and says so."""

    def prefeed_paths(self, index: int) -> str:
        return self.path(index)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    root = tmp_path / "data"
    root.mkdir()
    for index in range(NUM):
        (root / f"{index}.bin").write_bytes(np.random.default_rng(index).bytes(3000))
    return root


def seen(loader: Any, epochs: int = 2) -> list[str]:
    return [digest(batch) for _ in range(epochs) for batch in loader]


def counts_after(num_reads: int) -> Any:
    """Return the node's counts, once it has heard of so many reads."""
    assert wait_until(lambda: prefeed.statistics().reads >= num_reads, timeout_seconds=60)
    return prefeed.statistics()


def assert_served(num_reads: int, *, in_first: bool = True) -> None:
    """Each file was opened once at the origin, by the server; all reads of later epochs were planned."""
    counts = counts_after(num_reads)
    assert counts.reads == num_reads
    assert counts.origin_requests == NUM
    assert counts.direct_reads == 0
    assert counts.hits + counts.late >= num_reads - (0 if in_first else NUM)


# ---------------------------------------------------------------- fastai


@pytest.mark.parametrize(("cls", "num_workers"), crossed([Declared, Numbered], [0, 2]))
def test_loaders_that_make_items_are_served(root: Path, cls: Any, num_workers: int) -> None:
    """fastai's: the batches are its own, the plan is that of the order that it drew."""
    torch.manual_seed(3)
    kwargs = {"num_workers": num_workers, "shuffle": True}
    expected = seen(rounds.DataLoader(cls(root), BATCH, **kwargs))
    with auto():
        loader = rounds.DataLoader(cls(root), BATCH, **kwargs)
        assert seen(loader) == expected
        assert_served(2 * NUM, in_first=cls is Declared)
        assert [(epoch.epoch, epoch.batches) for epoch in prefeed.statistics().epochs] == [(1, 6), (2, 6)]


def test_two_loaders_that_make_items_are_told_apart(root: Path) -> None:
    """A learner goes over both, in turns, in one line of the program."""
    with auto():
        loaders = [rounds.DataLoader(Declared(root), BATCH, shuffle=is_first) for is_first in (True, False)]
        for _ in range(2):
            for loader in loaders:
                seen(loader, epochs=1)
        passes = [(epoch.loader, epoch.epoch) for epoch in prefeed.statistics().epochs]
    train, valid = dict.fromkeys(name for name, _ in passes)
    assert passes == [(train, 1), (valid, 1), (train, 2), (valid, 2)]


@pytest.mark.parametrize("kwargs", [{"bs": None}, {"bs": BATCH, "drop_last": True}], ids=["items", "whole batches"])
def test_batches_of_items_of_any_kind(root: Path, kwargs: dict[str, Any]) -> None:
    """One batch is taken first, by this process, as fastai does to look at the data."""
    expected = seen(rounds.DataLoader(Declared(root), num_workers=2, **kwargs), epochs=1)
    with auto():
        loader = rounds.DataLoader(Declared(root), num_workers=2, **kwargs)
        first = loader.one_batch()
        assert digest(first) == expected[0]
        assert seen(loader, epochs=1) == expected
    num_reads = NUM + (kwargs["bs"] or 1)
    counts = counts_after(num_reads)
    assert (counts.reads, counts.direct_reads, counts.misses) == (num_reads, 0, 0)


def test_items_without_an_order_are_left_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), auto():
        loader = rounds.DataLoader(Declared(root), BATCH, indexed=False)
        batches = iter(loader)
        assert [int(index) for index in next(batches)[0]] == [0, 1, 2, 3]
    (line,) = [message for message in caplog.messages if "not used for this loader" in message]
    assert "its class, DataLoader, draws items from an iterator, and no order is known beforehand" in line
    assert prefeed.statistics().reads == 0


# ---------------------------------------------------------------- torch's iterators, made by others


def _direct(loader: Any) -> Any:
    return (_SingleProcessDataLoaderIter if loader.num_workers == 0 else _MultiProcessingDataLoaderIter)(loader)


MAKERS: dict[str, Any] = {
    "direct": lambda loader: _direct(loader),
    "subclass": rounds.Doubled,
    "fake": lambda loader: _direct(rounds.faked(loader)),
}


@pytest.mark.parametrize(
    ("maker", "num_workers"), [("direct", 0), ("direct", 2), ("subclass", 0), ("fake", 0), ("fake", 2)]
)
def test_iterators_that_others_make_are_served(root: Path, maker: str, num_workers: int) -> None:
    loader = TorchDataLoader(Declared(root), batch_size=BATCH, shuffle=True, num_workers=num_workers)
    torch.manual_seed(3)
    expected = [digest(batch) for _ in range(2) for batch in MAKERS[maker](loader)]
    state = torch.get_rng_state()
    with auto():
        torch.manual_seed(3)
        found: list[str] = []
        for _ in range(2):
            iterator = MAKERS[maker](loader)
            found += map(digest, iterator)
            if maker == "subclass":
                assert type(iterator).__name__ == "Doubled"
                assert isinstance(iterator, rounds.Doubled)
                assert iterator.num_given == len(loader)
        assert found == expected
        assert torch.equal(torch.get_rng_state(), state)
        assert_served(2 * NUM)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_class_with_a_factory_of_its_own_is_served(root: Path, num_workers: int) -> None:
    with auto():
        loader = rounds.OwnFactory(Declared(root), batch_size=BATCH, num_workers=num_workers)
        assert seen(loader) == seen(prefeed.DataLoader(Declared(root), batch_size=BATCH))
        assert_served(4 * NUM)


# ---------------------------------------------------------------- workers that are threads


@pytest.mark.parametrize("cls", [Declared, Numbered])
def test_workers_that_are_threads_are_served(root: Path, cls: Any) -> None:
    """MONAI's ``use_thread_workers``: each has a reader of its own, and what it learns is of the sample that it made."""
    kwargs: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": 3}
    expected = seen(TorchDataLoader(cls(root), generator=torch.Generator().manual_seed(3), **kwargs), epochs=3)
    generator = torch.Generator().manual_seed(3)
    dataset = cls(root)
    loader = TorchDataLoader(dataset, multiprocessing_context=rounds.thread_context(), generator=generator, **kwargs)
    with auto():
        assert seen(loader, epochs=3) == expected
        assert_served(3 * NUM, in_first=cls is Declared)
        served: Any = module._attachment_of(loader, explicit=False).served
        access = served._access
        for index in range(NUM):
            files = [access.dataset.manifest.path(number) for number in access.objects_of(index)]
            assert files == [dataset.path(index)]


# ---------------------------------------------------------------- loaders made anew


def test_loader_of_each_epoch_continues_counting(root: Path) -> None:
    """DeepSpeed makes a loader for each epoch: what was learned is known, the plan is there, and epochs have numbers."""
    known = untold_epochs()
    with auto():
        loader = rounds.DeepSpeedDataLoader(dataset=Numbered(root), batch_size=BATCH, shuffle=True)
        torch.manual_seed(3)
        found = seen(loader, epochs=3)
        assert_served(3 * NUM, in_first=False)
        epochs = [(epoch.epoch, epoch.batches) for epoch in prefeed.statistics().epochs if epoch not in known]
        assert epochs == [(1, 6), (2, 6), (3, 6)]
        seen(TorchDataLoader(loader.kwargs["dataset"], batch_size=BATCH), epochs=1)  # of another kind
        assert prefeed.statistics().epochs[-1].epoch == 1
    torch.manual_seed(3)
    assert found == seen(loader, epochs=3)


def test_other_datasets_epochs_are_their_own(root: Path) -> None:
    """Those of a dataset that is gone, and those of two that get a loader each in turns."""
    train, valid = (Subset(Declared(root), range(length)) for length in (8, 12))
    with auto():
        for _ in range(2):
            seen(TorchDataLoader(Subset(Declared(root), range(8)), batch_size=BATCH), epochs=2)
        for _ in range(2):
            for dataset in (train, valid):
                seen(TorchDataLoader(dataset, batch_size=BATCH), epochs=1)
        numbers = [(epoch.epoch, epoch.batches) for epoch in prefeed.statistics().epochs]
        assert numbers == [(1, 2), (2, 2)] * 2 + [(1, 2), (1, 3), (2, 2), (2, 3)]


# ---------------------------------------------------------------- libraries


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Lightning's own
def test_combined_loaders_are_served(root: Path) -> None:
    from lightning.pytorch.utilities import CombinedLoader

    with auto():
        parts = {name: TorchDataLoader(Declared(root), batch_size=BATCH) for name in ("a", "b")}
        for _ in range(2):
            assert len(list(CombinedLoader(parts, "min_size"))) == len(parts["a"])
        assert_served(4 * NUM)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_loaders_of_torchdata_are_left_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    from torchdata import nodes  # type: ignore[import-untyped]
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    dataset = Declared(root)
    with caplog.at_level(logging.INFO), auto():
        stateful = StatefulDataLoader(dataset, batch_size=BATCH)
        expected = seen(TorchDataLoader(dataset, batch_size=BATCH))
        reads = counts_after(2 * NUM).reads
        assert seen(stateful) == expected
        root_node: Any = nodes.Batcher(nodes.MapStyleWrapper(dataset, range(NUM)), BATCH, drop_last=False)
        assert len(list(nodes.Loader(root_node))) == len(list(nodes.Loader(root_node))) == len(stateful)
        assert prefeed.statistics().reads == reads
    lines = [message for message in caplog.messages if "not used for this loader" in message]
    of_stateful = [
        line for line in lines if "its class, StatefulDataLoader, makes iterators of a class of its own" in line
    ]
    of_nodes = [line for line in lines if "Loader of torchdata.nodes.loader makes no iterator of torch's" in line]
    assert (len(of_stateful), len(of_nodes), len(lines)) == (1, 2, 3)
