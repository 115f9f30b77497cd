"""Every type of dataset, however its workers are started: torch's own batches, and from the cache."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Subset, get_worker_info

import prefeed
from cover import crossed
from e2e import datasets
from e2e.datasets import LEARNED, TYPES, Build, Given
from e2e.steps import EPOCHS, Setup, assert_same, digest, generator_states, observe, seed_all
from leaks import wait_until
from prefeed.types import Statistics

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")

BATCH_SIZE = 3
WORLD_SIZE = 2

STARTS: dict[str, dict[str, Any]] = {
    "0": {"num_workers": 0},
    "1-kept": {"num_workers": 1, "persistent_workers": True},
    "3": {"num_workers": 3},
}


def epochs_of(num_workers: int) -> int:
    """Two where workers start anew each epoch, which takes the longest: the second finds what the first has left."""
    return 2 if num_workers > 1 else EPOCHS


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files lie on storage that is worth caching; return where to."""
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    return tmp_path / "data"


class CountedEpochs:
    """Fails when epochs were not read through the cache.

    Args:
        num_files: Files that an epoch opens, all loaders together.
        checked: Files are asked for changes each epoch, so that a read may have to wait for the answer.
    """

    def __init__(self, num_files: int, *, checked: bool = True) -> None:
        self._num_files = num_files
        self._checked = checked
        self._before = prefeed.statistics().reads
        self._epochs: list[Statistics] = []

    def before_epoch(self, epoch: int) -> None:
        """Wait until the reads of the epochs before have been counted; each file was one read."""
        num_reads = self._before + epoch * self._num_files
        wait_until(lambda: prefeed.statistics().reads >= num_reads, timeout_seconds=60)
        self._epochs.append(prefeed.statistics())
        assert self._epochs[-1].reads == num_reads

    def finish(self) -> None:
        """The last epoch found every file in memory, and the origin was not asked for one."""
        self.before_epoch(len(self._epochs))
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
    epochs: int | None = None,
    **kwargs: Any,
) -> None:
    """Fail unless the epochs are plain torch's, and read through the cache.

    While every loader is served, the plain one is torch's with ``PREFEED_ENABLED`` 0, and reads nothing through the cache.
    Its workers are forked: batches do not depend on how workers start, and this is the quickest.
    """
    epochs = epochs or epochs_of(kwargs.get("num_workers", 0))
    kwargs = {"batch_size": BATCH_SIZE, "shuffle": True, **kwargs}
    reads = prefeed.statistics().reads
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFEED_ENABLED", "0")
        expected = plain_epochs(given, epochs, **kwargs)
    assert prefeed.statistics().reads == reads
    counted = CountedEpochs(given.num_files, checked=checked)
    loader = loader_class(given.dataset, multiprocessing_context=method, **kwargs)
    seed_all()
    assert_same(expected, observe(loader, Setup({}, before_epoch=counted.before_epoch), epochs=epochs))
    counted.finish()


def plain_epochs(given: Given, epochs: int, **kwargs: Any) -> list[Any]:
    """Return what a loop sees of torch's own loader."""
    seed_all()
    expected = observe(DataLoader(given.plain, **kwargs), Setup({}), epochs=epochs)
    batches = [step[1] for step in expected if " step " in step[0]]
    assert len(set(batches)) == len(batches)  # other random numbers each time
    return expected


# ---------------------------------------------------------------- every type, in every way


def asked(build: Build, root: Path, **kwargs: Any) -> None:
    """Files are asked for changes each epoch."""
    compare(build(root), **kwargs)


def trusted(build: Build, root: Path, **kwargs: Any) -> None:
    """Hits alone while files are trusted; what is declared is cached wherever it lies, what is learned, below the roots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFEED_REVALIDATE", "0")
        if build not in LEARNED:
            patch.delenv("PREFEED_ROOTS")
        compare(build(root), checked=False, **kwargs)


def torchs_own(build: Build, root: Path, **kwargs: Any) -> None:
    """Torch's own loaders, which ``prefeed.auto`` serves."""
    with auto():
        compare(build(root), loader_class=DataLoader, **kwargs)


def ranks(build: Build, root: Path, **kwargs: Any) -> None:
    """Two ranks in one process share what each reads; the second repeats a sample where their number is odd."""
    given = build(root)
    expected = observe_ranks(DataLoader, given.plain, lambda epoch: None, **kwargs)
    counted = CountedEpochs(given.num_files + len(given.plain) % WORLD_SIZE)
    assert_same(expected, observe_ranks(prefeed.DataLoader, given.dataset, counted.before_epoch, **kwargs))
    counted.finish()


def observe_ranks(loader_class: Any, dataset: Any, before_epoch: Any, **kwargs: Any) -> list[Any]:
    """Return what two ranks in one process see, batch by batch in turns, and the states of the generators."""
    seed_all()
    samplers: list[DistributedSampler[Any]] = [
        DistributedSampler(dataset, num_replicas=WORLD_SIZE, rank=rank) for rank in range(WORLD_SIZE)
    ]
    loaders = [loader_class(dataset, sampler=sampler, batch_size=BATCH_SIZE, **kwargs) for sampler in samplers]
    seen: list[Any] = []
    for epoch in range(epochs_of(kwargs["num_workers"])):
        before_epoch(epoch)
        for sampler in samplers:
            sampler.set_epoch(epoch)
        seen += [([digest(batch) for batch in batches], generator_states([])) for batches in zip(*loaders, strict=True)]
        seen.append((f"epoch {epoch} ended", generator_states([])))
    return seen


@contextmanager
def auto() -> Iterator[None]:
    """Every loader is served."""
    module: Any = importlib.import_module("prefeed.auto")  # to import it is to enable it
    module.enable()
    try:
        yield
    finally:
        module.disable()


@pytest.mark.parametrize(("build", "way", "start"), crossed(TYPES, [asked, trusted, torchs_own, ranks], STARTS))
def test_type(build: Build, way: Callable[..., None], start: dict[str, Any], roots: Path) -> None:
    way(build, roots, **start)


@pytest.mark.parametrize(
    ("build", "num_files", "num_workers"),
    [(datasets.stacked, 3, 0), (datasets.learned_stack, 2, 2)],
    ids=["declared", "learned"],
)
def test_subset_of_stacked_datasets(build: Build, num_files: int, num_workers: int, roots: Path) -> None:
    """Torch asks the parts one after the other, for the samples that the subset names."""
    chosen = Subset(build(roots).dataset, [index for index in range(datasets.NUM_SAMPLES) if index % 4])
    compare(Given(dataset=chosen, plain=chosen, num_files=num_files * len(chosen)), num_workers=num_workers)


class SampledStream(IterableDataset[Any]):
    """A map-style dataset as a stream in the order of a sampler, of which each worker yields its share.

    ``ToIterableDataset`` of detectron2 (detectron2/data/common.py) does the same.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.sampler = RandomSampler(dataset)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.dataset[index] for index in islice(self.sampler, first, None, step))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_in_the_order_of_a_sampler(num_workers: int, roots: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its order is not known to a loader: torch's batches, and the reason in the log."""
    stream = SampledStream(datasets.dataset_folder(roots).dataset)
    given = Given(dataset=stream, plain=stream, num_files=0)
    expected = plain_epochs(given, 2, batch_size=BATCH_SIZE, num_workers=num_workers)
    seed_all()
    loader = prefeed.DataLoader(stream, batch_size=BATCH_SIZE, num_workers=num_workers)
    assert_same(expected, observe(loader, Setup({}), epochs=2))
    assert "an IterableDataset has no order to know beforehand" in caplog.text


# ---------------------------------------------------------------- workers of every kind


@pytest.fixture
def _quick_forkserver() -> Iterator[None]:
    """Workers that are forked by a server need not import torch each."""
    multiprocessing.set_forkserver_preload(["torchvision.datasets", "cv2", "prefeed.torch.loader"])
    yield
    multiprocessing.set_forkserver_preload(["__main__"])


def as_they_are(samples: list[Any]) -> list[Any]:
    """Collate samples of different kinds."""
    return samples


@pytest.mark.usefixtures("_quick_forkserver")
@pytest.mark.parametrize(
    ("build", "method", "served", "kept"),
    crossed(
        [datasets.declared_together, datasets.learned_together],
        ["fork", "forkserver", "spawn"],
        {"ours": nullcontext, "auto": auto},
        {"kept": True, "anew": False},
    ),
)
def test_workers(build: Build, method: str, served: Callable[[], Any], kept: bool, roots: Path) -> None:
    """All types at once: a worker that is spawned imports all that they need, which takes seconds."""
    loader_class = prefeed.DataLoader if served is nullcontext else DataLoader
    kwargs = {"persistent_workers": kept, "num_workers": 2, "batch_size": 20, "collate_fn": as_they_are}
    with served():
        compare(build(roots), loader_class=loader_class, method=method, epochs=2, **kwargs)


@pytest.mark.whole  # ``test_workers`` pickles all types at once
@pytest.mark.usefixtures("_quick_forkserver")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_of_each_type(method: str, roots: Path, subtests: pytest.Subtests) -> None:
    """Each type alone is pickled for its workers; those of one server need not import torch each."""
    for build in TYPES:
        with subtests.test(build=build.__name__):
            compare(build(roots / build.__name__), method=method, epochs=2, num_workers=1, persistent_workers=True)
