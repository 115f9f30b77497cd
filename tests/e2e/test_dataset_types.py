"""Every type of dataset, however its workers are started: torch's own batches, and from the cache."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, Subset

import prefeed
from e2e import datasets
from e2e.datasets import LEARNED, TYPES, Build, Given
from e2e.steps import EPOCHS, Setup, assert_same, digest, generator_states, observe, seed_all
from leaks import wait_until
from prefeed.types import Statistics

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
]

BATCH_SIZE = 3
WORLD_SIZE = 2
WORKERS: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
IDS = ["0", "2", "2-kept"]


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files lie on storage that is worth caching; return where to."""
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    return tmp_path / "data"


@pytest.fixture
def _auto() -> Iterator[None]:
    """Every loader is served."""
    auto: Any = importlib.import_module("prefeed.auto")  # to import it is to enable it
    auto.enable()
    yield
    auto.disable()


@pytest.fixture
def _quick_forkserver() -> Iterator[None]:
    """Workers that are forked by a server need not import torch each."""
    multiprocessing.set_forkserver_preload(["torchvision.datasets", "cv2", "prefeed.torch.loader"])
    yield
    multiprocessing.set_forkserver_preload(["__main__"])


class CountedEpochs:
    """Fails when epochs were not read through the cache.

    Args:
        num_files: Files that an epoch opens, all loaders together.
        checked: Files are asked for changes each epoch, so that a read may have to wait for the answer.
    """

    def __init__(self, num_files: int, *, checked: bool = True) -> None:
        self._num_files = num_files
        self._checked = checked
        self._epochs: list[Statistics] = []

    def before_epoch(self, epoch: int) -> None:
        """Wait until the reads of the epochs before have been counted; each file was one read."""
        num_reads = epoch * self._num_files
        wait_until(lambda: prefeed.statistics().reads >= num_reads, timeout_seconds=10)
        self._epochs.append(prefeed.statistics())
        assert self._epochs[-1].reads == num_reads

    def finish(self) -> None:
        """The last epoch found every file in memory, and the origin was not asked for one."""
        self.before_epoch(EPOCHS)
        last, end = self._epochs[-2:]
        assert end.origin_requests == last.origin_requests
        assert end.misses == last.misses
        assert end.direct_reads == 0
        assert end.errors == {}
        if not self._checked:
            assert end.hits - last.hits == self._num_files


def compare(
    given: Given,
    *,
    loader_class: Any = prefeed.DataLoader,
    method: str | None = None,
    checked: bool = True,
    **kwargs: Any,
) -> None:
    """Fail unless three epochs are plain torch's, and read through the cache.

    Workers of the plain loader are forked: batches do not depend on how workers start, and this is the quickest.
    """
    kwargs |= {"batch_size": BATCH_SIZE, "shuffle": True}
    expected = plain_epochs(given, **kwargs)
    counted = CountedEpochs(given.num_files, checked=checked)
    loader = loader_class(given.dataset, multiprocessing_context=method, **kwargs)
    seed_all()
    assert_same(expected, observe(loader, Setup({}, before_epoch=counted.before_epoch)))
    counted.finish()


def plain_epochs(given: Given, **kwargs: Any) -> list[Any]:
    """Return what a loop sees of torch's own loader."""
    seed_all()
    expected = observe(DataLoader(given.plain, **kwargs), Setup({}))
    batches = [step[1] for step in expected if " step " in step[0]]
    assert len(set(batches)) == len(batches)  # other random numbers each time
    return expected


@pytest.mark.parametrize("build", TYPES, ids=lambda build: build.__name__)
def test_without_workers(build: Build, roots: Path) -> None:
    compare(build(roots), num_workers=0)


@pytest.mark.parametrize("build", TYPES, ids=lambda build: build.__name__)
def test_hits_alone_while_files_are_trusted(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared is cached wherever it lies; what is learned, below the roots."""
    monkeypatch.setenv("PREFEED_REVALIDATE", "0")
    if build in LEARNED:
        monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    compare(build(tmp_path), num_workers=2, checked=False)


@pytest.mark.parametrize(
    ("build", "num_files"), [(datasets.stacked, 3), (datasets.learned_stack, 2)], ids=["declared", "learned"]
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_subset_of_stacked_datasets(build: Build, num_files: int, num_workers: int, roots: Path) -> None:
    """Torch asks the parts one after the other, for the samples that the subset names."""
    chosen = Subset(build(roots).dataset, [index for index in range(datasets.NUM_SAMPLES) if index % 4])
    compare(Given(dataset=chosen, plain=chosen, num_files=num_files * len(chosen)), num_workers=num_workers)


# ---------------------------------------------------------------- workers of every kind


@pytest.mark.usefixtures("_quick_forkserver")
@pytest.mark.parametrize("build", [datasets.image_folder, datasets.learned], ids=lambda build: build.__name__)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kept", [False, True], ids=["anew", "kept"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_workers(build: Build, method: str, kept: bool, num_workers: int, roots: Path) -> None:
    compare(build(roots), method=method, persistent_workers=kept, num_workers=num_workers)


OTHERS = [build for build in TYPES if build not in (datasets.image_folder, datasets.learned)]
PAIRWISE: list[list[tuple[str, bool, int]]] = [
    [("fork", False, 3), ("forkserver", False, 1), ("spawn", True, 1)],
    [("fork", True, 1), ("forkserver", False, 3), ("spawn", True, 1)],
    [("fork", False, 1), ("forkserver", True, 3), ("spawn", True, 1)],
]
"""How the workers of every third type are started: each value of each of the three meets each type. Workers that are
spawned anew, or are three, take long: ``test_workers`` has them."""


@pytest.mark.usefixtures("_quick_forkserver")
@pytest.mark.parametrize(
    ("build", "method", "kept", "num_workers"),
    [
        pytest.param(build, *start, id=f"{build.__name__}-{start[0]}-{'kept' if start[1] else 'anew'}-{start[2]}")
        for at, build in enumerate(OTHERS)
        for start in PAIRWISE[at % len(PAIRWISE)]
    ],
)
def test_workers_pairwise(build: Build, method: str, kept: bool, num_workers: int, roots: Path) -> None:
    compare(build(roots), method=method, persistent_workers=kept, num_workers=num_workers)


# ---------------------------------------------------------------- two ranks


def observe_ranks(loader_class: Any, dataset: Any, before_epoch: Any, **kwargs: Any) -> list[Any]:
    """Return what two ranks in one process see, batch by batch in turns, and the states of the generators."""
    seed_all()
    samplers: list[DistributedSampler[Any]] = [
        DistributedSampler(dataset, num_replicas=WORLD_SIZE, rank=rank) for rank in range(WORLD_SIZE)
    ]
    loaders = [loader_class(dataset, sampler=sampler, batch_size=BATCH_SIZE, **kwargs) for sampler in samplers]
    seen: list[Any] = []
    for epoch in range(EPOCHS):
        before_epoch(epoch)
        for sampler in samplers:
            sampler.set_epoch(epoch)
        seen += [([digest(batch) for batch in batches], generator_states([])) for batches in zip(*loaders, strict=True)]
        seen.append((f"epoch {epoch} ended", generator_states([])))
    return seen


@pytest.mark.parametrize("kwargs", WORKERS, ids=IDS)
@pytest.mark.parametrize(
    "build",
    [
        datasets.train_data_list_of_two, datasets.image_folder, datasets.voc_detection, datasets.stacked,
        datasets.learned, datasets.prefeeds_image_folder,
    ],
    ids=lambda build: build.__name__,
)  # fmt: skip
def test_ranks(build: Build, kwargs: dict[str, Any], roots: Path) -> None:
    given = build(roots)
    assert len(given.plain) % WORLD_SIZE == 0  # no rank repeats a sample
    expected = observe_ranks(DataLoader, given.plain, lambda epoch: None, **kwargs)
    counted = CountedEpochs(given.num_files)
    assert_same(expected, observe_ranks(prefeed.DataLoader, given.dataset, counted.before_epoch, **kwargs))
    counted.finish()


# ---------------------------------------------------------------- torch's own loaders


@pytest.mark.usefixtures("_auto", "_quick_forkserver")
@pytest.mark.parametrize("build", TYPES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("num_workers", [0, 3])
def test_auto(build: Build, num_workers: int, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_auto(build(roots), monkeypatch, num_workers=num_workers)


@pytest.mark.usefixtures("_auto", "_quick_forkserver")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("build", [datasets.concatenated, datasets.learned], ids=lambda build: build.__name__)
def test_auto_not_forked(build: Build, method: str, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_auto(build(roots), monkeypatch, num_workers=2, persistent_workers=True, multiprocessing_context=method)


def compare_auto(given: Given, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> None:
    """Fail unless loaders of torch's give what they give while ``PREFEED_ENABLED`` is 0, and read through the cache."""
    kwargs |= {"batch_size": BATCH_SIZE, "shuffle": True}
    with monkeypatch.context() as patch:
        patch.setenv("PREFEED_ENABLED", "0")
        expected = plain_epochs(given, **{**kwargs, "multiprocessing_context": None})
    assert prefeed.statistics().reads == 0
    counted = CountedEpochs(given.num_files)
    loader: Any = DataLoader(given.dataset, **kwargs)
    seed_all()
    assert_same(expected, observe(loader, Setup({}, before_epoch=counted.before_epoch)))
    counted.finish()
