"""Loaders side by side, broken off, pickled, and around datasets that nothing is known about."""

from __future__ import annotations

import gc
import io
import logging
import multiprocessing.resource_sharer
import pickle
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset
from torchvision import datasets as torchvision_datasets

import prefeed
from cover import crossed
from e2e import samplers
from e2e.automatic import auto
from e2e.images import Augment, Pixels, load_by_path, load_with_numpy, make_image_folder
from e2e.steps import Setup, assert_same, digest, observe, seed_all
from prefeed.config import resolve

TorchLoader = torch.utils.data.DataLoader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    """Samples that were read outside a loader have a reader that the process keeps."""
    yield
    prefeed.datasets._readers.close()


def see(loader_class: Any, dataset: Any, *, epochs: int = 2, steps: int | None = None, **kwargs: Any) -> list[Any]:
    seed_all()
    kwargs.setdefault("batch_size", 4)
    return observe(loader_class(dataset, **kwargs), Setup({}), epochs=epochs, steps=steps)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_early_break(root: Path, num_workers: int) -> None:
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    kwargs = {"shuffle": True, "num_workers": num_workers, "steps": 2}
    expected = see(TorchLoader, reference, **kwargs)
    for dataset in (reference, prefeed.datasets.ImageFolder(root, Augment())):
        assert_same(expected, see(prefeed.DataLoader, dataset, **kwargs))


def test_early_break_of_kept_workers_then_a_whole_epoch(root: Path) -> None:
    reference = torchvision_datasets.ImageFolder(str(root), Augment())

    def run(loader_class: Any, dataset: Any) -> list[Any]:
        seed_all()
        loader = loader_class(dataset, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
        return observe(loader, Setup({}), epochs=1, steps=1) + observe(loader, Setup({}), epochs=2)

    assert_same(run(TorchLoader, reference), run(prefeed.DataLoader, prefeed.datasets.ImageFolder(root, Augment())))


def test_two_iterators_of_one_loader(root: Path) -> None:
    reference = torchvision_datasets.ImageFolder(str(root), Pixels())

    def run(loader_class: Any) -> list[str]:
        seed_all()
        loader = loader_class(reference, batch_size=4, shuffle=True)
        return [digest(pair) for pair in zip(loader, loader, strict=True)]

    assert run(TorchLoader) == run(prefeed.DataLoader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_train_and_evaluation_in_turns(tmp_path: Path, num_workers: int) -> None:
    roots = [make_image_folder(tmp_path / name, seed=seed) for seed, name in enumerate(("train", "eval"))]

    def run(loader_class: Any, dataset_class: Any) -> list[Any]:
        seed_all()
        train, evaluation = (dataset_class(str(root), Augment()) for root in roots)
        kwargs = {"batch_size": 4, "num_workers": num_workers}
        train_loader = loader_class(train, shuffle=True, **kwargs)
        evaluation_loader = loader_class(evaluation, **kwargs)
        seen: list[Any] = []
        for epoch in range(2):
            for step, batch in enumerate(train_loader):
                seen.append((epoch, step, digest(batch)))
                if step % 3 == 2:
                    seen += observe(evaluation_loader, Setup({}), epochs=1)
        return seen

    expected = run(TorchLoader, torchvision_datasets.ImageFolder)
    assert_same(expected, run(prefeed.DataLoader, torchvision_datasets.ImageFolder))
    assert_same(expected, run(prefeed.DataLoader, prefeed.datasets.ImageFolder))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_combined_datasets(root: Path, num_workers: int, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is planned for them, and everything is right."""
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    own = prefeed.datasets.ImageFolder(root, Augment())

    def combine(dataset: Any) -> list[Any]:
        return [Subset(dataset, [3, 5, 8, 1, 25]), ConcatDataset([dataset, dataset])]

    for expected, *others in zip(*map(combine, (reference, reference, own)), strict=True):
        kwargs = {"shuffle": True, "num_workers": num_workers}
        truth = see(TorchLoader, expected, **kwargs)
        for dataset in others:
            assert_same(truth, see(prefeed.DataLoader, dataset, **kwargs))


def test_pickled_loader(root: Path) -> None:
    """Before its first epoch and after, a loader can be pickled as torch's can."""
    dataset = prefeed.datasets.ImageFolder(root, Pixels())
    loader = prefeed.DataLoader(dataset, batch_size=4, num_workers=0)
    expected = [digest(batch) for batch in loader]
    for source in (loader, prefeed.DataLoader(dataset, batch_size=4)):
        copied = pickle.loads(pickle.dumps(source))
        assert type(copied) is prefeed.DataLoader
        assert [digest(batch) for batch in copied] == expected


def test_loader_in_a_spawned_process(root: Path) -> None:
    dataset = prefeed.datasets.ImageFolder(root, Pixels())
    loader = prefeed.DataLoader(dataset, batch_size=4)
    expected = [digest(batch) for batch in loader]
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=send_digests, args=(loader, sender))
    process.start()
    sender.close()
    assert receiver.recv() == expected
    process.join()
    receiver.close()
    process.close()


def send_digests(loader: Any, sender: Any) -> None:
    sender.send([digest(batch) for batch in loader])


def test_dataset_read_outside_a_loader(root: Path) -> None:
    own = prefeed.datasets.ImageFolder(root, Pixels())
    loader = prefeed.DataLoader(own, batch_size=None)
    first = [digest(own[i]) for i in range(len(own))]
    assert [digest(list(sample)) for sample in loader] == [digest(list(own[i])) for i in range(len(own))]
    assert [digest(own[i]) for i in range(len(own))] == first


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(11)


@pytest.mark.parametrize("dataset", [Numbers(), TensorDataset(torch.arange(11)), list(range(11))], ids=["it", "t", "l"])
def test_unknown_dataset_is_read_as_torch_does(
    dataset: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", "")  # whatever is mounted here
    with caplog.at_level(logging.INFO, logger="prefeed"):
        assert_same(see(TorchLoader, dataset), see(prefeed.DataLoader, dataset))
    lines = [record.getMessage() for record in caplog.records if record.name == "prefeed"]
    epochs = [line for line in lines[1:] if "spent waiting for data" in line]
    assert len(lines) == 1 + len(epochs), lines
    assert "not used for this loader" in lines[0]
    assert type(dataset).__name__.replace("Numbers", "IterableDataset") in lines[0]


def test_switched_off(root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PREFEED_ENABLED", "0")
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    own = prefeed.datasets.ImageFolder(root, Augment())
    for dataset in (reference, own):
        kwargs = {"shuffle": True, "num_workers": 1}
        assert_same(see(TorchLoader, reference, **kwargs), see(prefeed.DataLoader, dataset, **kwargs))
    assert prefeed.statistics().reads == 0
    assert "PREFEED_ENABLED is 0" in caplog.text


class Repeated(torchvision_datasets.ImageFolder):
    """Each image twice in an epoch: its indices are not those of ``samples``."""

    def __len__(self) -> int:
        return 2 * super().__len__()

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index // 2)


class RepeatedOwn(prefeed.datasets.ImageFolder):
    def __len__(self) -> int:
        return 2 * super().__len__()

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index // 2)


class Sized(torchvision_datasets.ImageFolder):
    """Indices are pairs of a sample and a size, as in multi-scale training."""

    def __getitem__(self, index: Any) -> Any:
        sample, size = index
        image, target = super().__getitem__(sample)
        return torch.nn.functional.interpolate(image[None].float(), size=(size, 3)), target


class Mixed(torchvision_datasets.ImageFolder):
    """Each sample is made of two files."""

    def __getitem__(self, index: int) -> Any:
        one, target = super().__getitem__(index)
        other, _ = super().__getitem__((index * 7 + 1) % len(self))
        return one + other, target


class Named(torchvision_datasets.DatasetFolder):
    """Indices are names."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(int(index) if isinstance(index, str) else index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_subclass_with_other_indices(root: Path, num_workers: int) -> None:
    kwargs = {"shuffle": True, "num_workers": num_workers}
    reference = Repeated(str(root), Augment())
    expected = see(TorchLoader, reference, **kwargs)
    for dataset in (reference, RepeatedOwn(root, Augment())):
        assert_same(expected, see(prefeed.DataLoader, dataset, **kwargs))
    mixed = Mixed(str(root), Augment())
    assert_same(see(TorchLoader, mixed, **kwargs), see(prefeed.DataLoader, mixed, **kwargs))


@pytest.mark.parametrize(("trust", "num_workers"), crossed([False, True], [0, 2]))
def test_indices_that_are_no_numbers(root: Path, num_workers: int, trust: bool) -> None:
    sized = Sized(str(root), Augment())
    named = Named(str(root), load_by_path, (".png",), transform=Augment())
    config = resolve({"trust_samplers": trust})
    for dataset, kwargs in (
        (sized, {"batch_sampler": [[(3, 4), (1, 4)], [(2, 6), (9, 6), (11, 6)]]}),
        (sized, {"batch_size": 2, "sampler": [(3, 4), (1, 4), (2, 6)]}),
        (named, {"batch_size": 2, "sampler": ["3", "7", "0"]}),
        (named, {"batch_size": None, "sampler": ["3", "7", "0"]}),
    ):
        kwargs = {"num_workers": num_workers, "batch_size": 1, **kwargs}
        expected = see(TorchLoader, dataset, **kwargs)
        assert_same(expected, see(prefeed.DataLoader, dataset, config=config, **kwargs))


class TensorIndices:
    """Batches as tensors, samples as tensors without dimensions."""

    def __init__(self, *, batched: bool) -> None:
        self.batched = batched

    def __len__(self) -> int:
        return 5 if self.batched else 20

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(20).reshape(5, 4) if self.batched else torch.arange(20)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_indices_as_tensors(root: Path, num_workers: int) -> None:
    reference = torchvision_datasets.ImageFolder(str(root), Augment())
    for kwargs in (
        {"batch_sampler": TensorIndices(batched=True), "batch_size": 1},
        {"sampler": TensorIndices(batched=False)},
    ):
        kwargs = {**kwargs, "num_workers": num_workers}
        expected = see(TorchLoader, reference, **kwargs)
        for dataset in (reference, prefeed.datasets.ImageFolder(root, Augment())):
            assert_same(expected, see(prefeed.DataLoader, dataset, **kwargs))
    multiprocessing.resource_sharer.stop()  # type: ignore[attr-defined]  # torch sends tensors to workers with it


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_folder(root: Path, num_workers: int) -> None:
    """Files that a loader opens by path come from the cache; those read in other ways from the disk."""
    for load, transform in ((load_by_path, Augment()), (load_with_numpy, None), (read_twice, None)):
        dataset = torchvision_datasets.DatasetFolder(str(root), load, (".png",), transform=transform)
        kwargs = {"shuffle": True, "num_workers": num_workers}
        assert_same(see(TorchLoader, dataset, **kwargs), see(prefeed.DataLoader, dataset, **kwargs))


def read_twice(path: str) -> torch.Tensor:
    """Open in several ways: what is not ``open(path, "rb")`` must be the real one."""
    with open(path, "rb") as file:
        first = file.read()
        assert file.name == path
        assert file.seekable()
    assert Path(path).read_bytes() == first
    with io.open(path, mode="rb", buffering=0) as unbuffered:  # noqa: UP020
        assert unbuffered.read() == first
        assert unbuffered.fileno() > 0
    with open(path, encoding="latin-1", newline="") as text:
        assert text.read().encode("latin-1") == first
    with Image.open(path) as image:
        image.load()
    return torch.frombuffer(bytearray(first[:60]), dtype=torch.uint8)


def test_trusted_sampler_is_planned(root: Path) -> None:
    """Read ahead because the user says that it may be: the batches are the same for a sampler with its own state."""
    dataset = prefeed.datasets.ImageFolder(root, Pixels())
    config = resolve({"trust_samplers": True})

    def run(loader_class: Any, **kwargs: Any) -> list[str]:
        seed_all()
        setup = samplers.own_sampler(dataset)
        loader = loader_class(dataset, **setup.kwargs, **kwargs)
        return [digest(batch) for _ in range(3) for batch in loader]

    assert run(TorchLoader) == run(prefeed.DataLoader, config=config)


class Counting(type):
    """Counts what happens to instances of a class, by the hooks that a class may have."""

    seen: list[str] = []  # noqa: RUF012

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        Counting.seen.append("made")
        return super().__call__(*args, **kwargs)


def hooked(base: Any) -> Any:
    """Return a subclass whose instances are all equal, cannot be copied, and tell what happens to them."""
    kinds = {type(base), Counting}
    metaclass = type("Both", tuple(kind for kind in (Counting, *kinds - {Counting, type})), {})

    class Hooked(base, metaclass=metaclass):
        __slots__ = ("more",)

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            Counting.seen.append("new")
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            Counting.seen.append(f"set {name}")
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"nothing of mine: {name}")

        def __eq__(self, other: object) -> bool:
            return isinstance(other, base)

        def __hash__(self) -> int:
            return 1

        def __copy__(self) -> Any:
            raise AssertionError("not to be copied")

        __reduce_ex__ = __copy__

        @property
        def worker_init_fn(self) -> Any:
            return self.more

        @worker_init_fn.setter
        def worker_init_fn(self, value: Any) -> None:
            self.more = value

        def __del__(self) -> None:
            Counting.seen.append(f"del {len(self.dataset)}")

    return Hooked


@pytest.mark.parametrize(("how", "num_workers"), crossed(["auto", "explicit", "not served"], [0, 1]))
def test_the_loader_is_the_only_one_of_its_class(
    root: Path, how: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its class does when one is made, copied, changed, compared or collected, it does as with torch's."""
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    reference = torchvision_datasets.ImageFolder(str(root), Pixels())
    datasets = [Subset(reference, range(length)) for length in (9, 6)]
    if how == "not served":
        datasets = [list(range(length)) for length in (9, 6)]  # type: ignore[misc]

    def run(base: Any) -> tuple[list[str], list[str]]:
        Counting.seen.clear()
        loader_class = hooked(base)
        loaders = [loader_class(dataset, batch_size=4, num_workers=num_workers) for dataset in datasets]
        gone: list[Any] = []
        refs = [weakref.ref(loader, gone.append) for loader in loaders]
        batches = [digest(batch) for _ in range(2) for loader in loaders for batch in loader]
        assert not gone
        del loaders
        gc.collect()
        assert len(gone) == len(refs)
        return batches, list(Counting.seen)

    expected = run(TorchLoader)
    assert expected[1].count("new") == 2
    with auto() if how == "auto" else nullcontext():
        assert run(TorchLoader if how == "auto" else prefeed.DataLoader) == expected
    if how != "not served":
        assert prefeed.statistics().reads > 0


class Repeating:
    """Yields what a batch sampler yields, again and again."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.inner


def endless(base: Any, how: str) -> Any:
    """Return a subclass whose workers live as long as it does, as timm's and ultralytics' do."""

    class Endless(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if how == "timm":
                self._DataLoader__initialized = False
                self.batch_sampler = Repeating(self.batch_sampler)
                self._DataLoader__initialized = True
            else:
                object.__setattr__(self, "batch_sampler", Repeating(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.inner)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def __del__(self) -> None:
            if self.iterator is not None and hasattr(self.iterator, "_shutdown_workers"):
                self.iterator._shutdown_workers()
            self.iterator = None

    return Endless


@pytest.mark.parametrize(("how", "num_workers"), crossed(["timm", "ultralytics"], [0, 2]))
def test_loaders_whose_iterator_is_kept(
    root: Path, how: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    dataset = torchvision_datasets.ImageFolder(str(root), Augment())
    kwargs = {"shuffle": True, "num_workers": num_workers}
    expected = see(endless(TorchLoader, how), dataset, **kwargs)
    with auto():
        assert_same(expected, see(endless(TorchLoader, how), dataset, **kwargs))
    assert_same(expected, see(endless(prefeed.DataLoader, how), dataset, **kwargs))
    assert prefeed.statistics().reads > 0
