"""Workers of every kind: forked, spawned, served; kept between epochs or not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info
from torchvision import datasets as torchvision_datasets

import prefeed
from e2e import samplers
from e2e.images import Augment, Pixels, make_image_folder
from e2e.steps import Setup, assert_same, digest, observe, seed_all


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


def see(loader_class: Any, dataset: Any, *, epochs: int = 3, **kwargs: Any) -> list[Any]:
    """Return what a loop sees of a loader that is shuffled by the global generator."""
    seed_all()
    return observe(loader_class(dataset, batch_size=4, shuffle=True, **kwargs), Setup({}), epochs=epochs)


FORKED: list[dict[str, Any]] = [
    {"num_workers": 1},
    {"num_workers": 3},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "prefetch_factor": 5},
    {"num_workers": 2, "persistent_workers": True, "drop_last": True, "prefetch_factor": 1},
]


@pytest.mark.parametrize("kwargs", FORKED, ids=lambda kwargs: "-".join(f"{k}={v}" for k, v in kwargs.items()))
def test_forked(root: Path, kwargs: dict[str, Any]) -> None:
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    own = prefeed.datasets.ImageFolder(root, Augment())
    expected = see(torch.utils.data.DataLoader, reference, **kwargs)
    for dataset in (reference, own):
        assert_same(expected, see(prefeed.DataLoader, dataset, **kwargs))


def test_batches_in_any_order(root: Path) -> None:
    """Compared as a set, and without augmentation: torch promises no more."""
    kwargs = {"num_workers": 2, "in_order": False}
    reference = torchvision_datasets.ImageFolder(str(root), Pixels())
    expected = see(torch.utils.data.DataLoader, reference, epochs=1, **kwargs)
    for dataset in (reference, prefeed.datasets.ImageFolder(root, Pixels())):
        actual = see(prefeed.DataLoader, dataset, epochs=1, **kwargs)
        assert sorted(step[1] for step in expected) == sorted(step[1] for step in actual)


@pytest.mark.parametrize(
    ("own", "method"),
    [
        pytest.param(
            True, "spawn", id="prefeed-spawn", marks=pytest.mark.cold
        ),  # by a new interpreter, as everywhere else
        pytest.param(True, "forkserver", id="prefeed-forkserver"),
        pytest.param(False, "spawn", id="torchvision-spawn"),
        pytest.param(False, "forkserver", id="torchvision-forkserver", marks=pytest.mark.cold),
    ],
)
def test_not_forked(root: Path, method: str, own: bool) -> None:
    """Two epochs with a worker that is kept."""
    kwargs = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": method}
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    dataset = prefeed.datasets.ImageFolder(root, Augment()) if own else reference
    # The batches do not depend on how workers start, so the quick way gives the reference.
    expected = see(torch.utils.data.DataLoader, reference, epochs=2, num_workers=1, persistent_workers=True)
    assert_same(expected, see(prefeed.DataLoader, dataset, epochs=2, **kwargs))
    assert prefeed.statistics().direct_reads == 0


def test_spawned_again_each_epoch(root: Path) -> None:
    kwargs = {"num_workers": 1, "multiprocessing_context": multiprocessing.get_context("spawn")}
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    expected = see(torch.utils.data.DataLoader, reference, epochs=2, num_workers=1)
    assert_same(expected, see(prefeed.DataLoader, reference, epochs=2, **kwargs))


def test_persistent_workers_with_a_generator(root: Path) -> None:
    kwargs = {"num_workers": 2, "persistent_workers": True}
    reference = torchvision_datasets.ImageFolder(str(root), Augment())

    def run(loader_class: Any) -> list[Any]:
        seed_all()
        setup = samplers.one_generator_for_both(reference)
        return observe(loader_class(reference, **setup.kwargs, **kwargs), setup)

    assert_same(run(torch.utils.data.DataLoader), run(prefeed.DataLoader))


class TellWorker:
    """Transform that puts what the worker knows of itself into the sample."""

    def __call__(self, image: Any) -> tuple[int, int, int, int]:
        info = get_worker_info()
        assert info is not None
        return info.id, info.num_workers, info.seed, len(info.dataset.samples)


class SetMark:
    """Worker's start function: marks the dataset, which is the user's own."""

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.target_transform = Mark(worker_id, type(info.dataset).__name__)


class Mark:
    def __init__(self, worker_id: int, dataset: str) -> None:
        self.worker_id = worker_id
        self.dataset = dataset

    def __call__(self, target: int) -> str:
        return f"{self.dataset} {self.worker_id} {target}"


def test_worker_init_fn_sees_the_users_dataset(root: Path) -> None:
    kwargs = {"num_workers": 2, "worker_init_fn": SetMark()}
    reference = torchvision_datasets.ImageFolder(str(root), TellWorker())
    own = prefeed.datasets.ImageFolder(root, TellWorker())
    expected = see(torch.utils.data.DataLoader, reference, epochs=2, **kwargs)
    for dataset in (reference, own):
        assert_same(expected, see(prefeed.DataLoader, dataset, epochs=2, **kwargs))


class Trouble:
    """Transform that fails on one image."""

    def __init__(self, error: type[Exception], at: int) -> None:
        self.error = error
        self.at = at
        self.pixels = Pixels()

    def __call__(self, image: Any) -> torch.Tensor:
        pixels = self.pixels(image)
        if int(pixels.sum()) == self.at:
            raise self.error("no such label")
        return pixels


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_exception_is_torchs(root: Path, num_workers: int, error: type[Exception]) -> None:
    """The same exception, at the same step, in the same words; the loop may go on after it, and begin anew. Ours has a note in addition."""
    plain = torchvision_datasets.ImageFolder(str(root), Pixels())
    trouble = Trouble(error, int(plain[13][0].sum()))
    reference = torchvision_datasets.ImageFolder(str(root), trouble)
    own = prefeed.datasets.ImageFolder(root, trouble)

    note = [f"raised while prefeed's dataset decoded {reference.samples[13][0]}"]

    def run(loader: Any, notes: list[str]) -> list[Any]:
        return [step for _ in range(2) for step in steps_and_errors(loader, error, notes)]

    kwargs = {"batch_size": 4, "num_workers": num_workers}
    expected = run(torch.utils.data.DataLoader(reference, **kwargs), [])
    assert len(expected) == 14
    assert expected[3][0] is error
    for dataset, notes in ((reference, []), (own, note)):
        assert run(prefeed.DataLoader(dataset, **kwargs), notes) == expected


def steps_and_errors(loader: Any, expected: type[Exception], notes: list[str]) -> Iterator[Any]:
    """Yield what each step gives: a batch, or an exception with its first and last line; assert that the exception has these notes."""
    iterator = iter(loader)
    while True:
        try:
            yield digest(next(iterator))
        except StopIteration:
            return
        except expected as err:  # not kept: its traceback holds the workers
            lines = [*str(err).strip().splitlines(), *getattr(err, "__notes__", [])]
            kept = lines[: len(lines) - len(notes)]
            assert lines[len(kept) :] == notes
            yield type(err), kept[0], kept[-1]
