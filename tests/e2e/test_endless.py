"""Loaders whose one iterator lasts for the whole run: each pass over the sampler is an epoch all the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

import prefeed
from e2e.automatic import auto
from leaks import wait_until
from prefeed.client.untold import untold_epochs
from sandbox import Sandbox, end_all, servers_of

NUM_SAMPLES = 30
BATCH_SIZE = 2
AHEAD = 2 * 2 * BATCH_SIZE
"""Samples that workers may have made before the loop comes to the pass."""


class Labels(Dataset[tuple[int, int]]):
    """Sample i is what its file says."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        root.mkdir(parents=True, exist_ok=True)
        self.write(0)

    def write(self, value: int) -> None:
        """Write all labels, by another program: nobody here sees that."""
        names = " ".join(str(index) for index in range(NUM_SAMPLES))
        write = f"for i in {names}; do echo {value + 1000} > new/$i.txt; done"
        script = f"cd {self.root} && mkdir -p new && {write} && mv new/*.txt ."  # whole at any time
        subprocess.run(["sh", "-c", script], check=True)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int]:
        with open(os.path.join(self.root, f"{index}.txt")) as file:
            return index, int(file.read()) - 1000


class RepeatSampler:
    """As in timm, ultralytics and YOLOv5."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class MultiEpochsDataLoader(DataLoader[Any]):
    """As in timm."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        if self.batch_sampler is None:
            self.sampler = RepeatSampler(self.sampler)  # type: ignore[assignment]
        else:
            self.batch_sampler = RepeatSampler(self.batch_sampler)  # type: ignore[assignment]
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        repeated: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        return len(repeated.sampler)

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


class InfiniteDataLoader(DataLoader[Any]):
    """As in ultralytics and YOLOv5."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        repeated: Any = self.batch_sampler
        return len(repeated.sampler)

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


class EndlessSampler(Sampler[int]):
    """As many write it by themselves: it has no end, no length and nothing inside."""

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(3)
        while True:
            yield from torch.randperm(NUM_SAMPLES, generator=generator).tolist()


def endless(dataset: Any, cls: Any, **kwargs: Any) -> Any:
    """Return what gives an epoch of a loader with a sampler of one's own at a time."""
    iterator = iter(cls(dataset, sampler=EndlessSampler(), **kwargs))
    while True:
        yield [next(iterator) for _ in range(NUM_SAMPLES // BATCH_SIZE)]


def epochs_of(kind: str, dataset: Any, cls: Any, **kwargs: Any) -> Any:
    """Yield epochs, each a list of batches."""
    if kind == "own":
        yield from endless(dataset, cls, **kwargs)
    if kind == "distributed":
        kwargs["sampler"] = DistributedSampler(dataset, num_replicas=1, rank=0)
    loader: Any = (InfiniteDataLoader if kind == "ultralytics" else MultiEpochsDataLoader)(
        dataset, **({} if "sampler" in kwargs else {"shuffle": True}), **kwargs
    )
    for epoch in range(100):
        if "sampler" in kwargs:
            kwargs["sampler"].set_epoch(epoch)
        yield list(loader)


def samples(batches: list[Any]) -> list[tuple[int, int]]:
    return [(int(index), int(value)) for batch in batches for index, value in zip(*batch, strict=True)]


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Labels:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    return Labels(tmp_path / "labels")


KINDS = ["timm", "ultralytics", "distributed", "own"]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_torchs_and_labels_are_those_of_the_epoch(dataset: Labels, kind: str) -> None:
    """Without workers nothing is made ahead of the loop: all is exactly as with torch."""
    seen: list[list[Any]] = []
    for is_ours in (True, False):
        torch.manual_seed(7)
        dataset.write(0)
        found = []
        with auto() if is_ours else torch.no_grad():
            epochs = epochs_of(kind, dataset, DataLoader, batch_size=BATCH_SIZE)
            for epoch in range(4):
                found += [samples(next(epochs)), torch.get_rng_state().tolist()]
                dataset.write(epoch + 1)
            epochs.close()
        seen.append(found)
    assert seen[0] == seen[1]
    assert {value for _, value in seen[0][6]} == {3}


@pytest.mark.parametrize(
    ("kind", "workers"), [*((kind, {}) for kind in KINDS), ("timm", {"persistent_workers": True})],
    ids=[*KINDS, "timm-kept"],
)  # fmt: skip
def test_workers_read_the_labels_of_the_epoch(
    dataset: Labels, sandbox: Sandbox, kind: str, workers: dict[str, Any]
) -> None:
    """But for what torch's own workers have read before the loop came to the epoch. A killed server changes nothing."""
    torch.manual_seed(7)
    with auto():
        epochs = epochs_of(kind, dataset, DataLoader, batch_size=BATCH_SIZE, num_workers=2, **workers)
        for epoch in range(5):
            found = samples(next(epochs))
            assert sorted(index for index, _ in found) == list(range(NUM_SAMPLES))
            assert {value for _, value in found[AHEAD:]} == {epoch}
            assert {value for _, value in found[:AHEAD]} <= {epoch - 1, epoch}
            if epoch == 3:
                end_all(servers_of(sandbox))
            dataset.write(epoch + 1)
        epochs.close()


@pytest.mark.parametrize(("kind", "num_workers"), [*((kind, 2) for kind in KINDS), ("timm", 0), ("own", 0)])
def test_each_pass_is_reported_and_fetched_once(dataset: Labels, kind: str, num_workers: int) -> None:
    num_batches, known = NUM_SAMPLES // BATCH_SIZE, untold_epochs()
    making = partial(epochs_of, kind, dataset, DataLoader, batch_size=BATCH_SIZE, num_workers=num_workers)
    with auto(), closing(making()) as epochs:
        for number in range(1, 4):
            assert len(next(epochs)) == num_batches
            reported = [(epoch.epoch, epoch.batches) for epoch in prefeed.statistics().epochs if epoch not in known]
            assert reported == [(epoch, num_batches) for epoch in range(1, number + 1)]
    assert wait_until(lambda: prefeed.statistics().reads >= 3 * NUM_SAMPLES, timeout_seconds=60)
    counts = prefeed.statistics()
    # A file whose first request is under way when another epoch begins is asked for once more.
    most_again = AHEAD if num_workers else 0
    assert NUM_SAMPLES <= counts.origin_requests <= NUM_SAMPLES + most_again
    assert counts.direct_reads <= most_again
    assert counts.hits + counts.late >= 2 * NUM_SAMPLES - most_again
