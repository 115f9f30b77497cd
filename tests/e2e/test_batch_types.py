"""Batches of whatever type a batch sampler yields, and indices of whatever type: what torch takes, prefeed takes."""

from __future__ import annotations

import array
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, StackDataset, Subset

import prefeed
import profiles
from e2e.steps import seed_all
from prefeed.config import resolve

TorchLoader = torch.utils.data.DataLoader
BATCHES = [[3, 0, 7], [5], [2, 9, 1, 4]]


class OldSequence:
    """Iterable by ``__getitem__`` alone."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __getitem__(self, place: int) -> int:
        return self.indices[place]


class Pass:
    """Iterable, of no length; each pass goes on where the one before has ended."""

    def __init__(self, indices: list[int]) -> None:
        self.rest = iter(indices)

    def __iter__(self) -> Iterator[int]:
        return self.rest


def _is_index(index: int) -> bool:
    return index >= 0


REUSABLE: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict.fromkeys,
    "deque": deque,
    "numpy": np.array,
    "array": lambda indices: array.array("q", indices),
    "numpy's numbers": lambda indices: [np.int32(index) for index in indices],
    "numpy's numbers in a set": lambda indices: {np.int64(index) for index in indices},
    "names": lambda indices: [f"0{index}" for index in indices],
    "names in a dict": lambda indices: {f"0{index}": index for index in indices},
    "floats": lambda indices: [index + 0.5 for index in indices],
    "negative": lambda indices: {index - 10 for index in indices},
    "pairs": lambda indices: {(index, 1) for index in indices},
    "an old sequence": OldSequence,
}
READ_ONCE: dict[str, Callable[[list[int]], Any]] = {
    "map": lambda indices: map(int, indices),
    "filter": lambda indices: filter(_is_index, indices),
    "chain": lambda indices: itertools.chain(indices[:1], indices[1:]),
    "reversed": reversed,
    "iterator": iter,
    "a pass": Pass,
}
SINGLE_PROCESS: dict[str, Callable[[list[int]], Any]] = {  # cannot be sent to a worker: there torch waits for ever
    "generator": lambda indices: (index for index in indices),
    "generator that draws": lambda indices: (random.choice(indices) for _ in indices),
    "keys": lambda indices: dict.fromkeys(indices).keys(),
    "tensors": lambda indices: [torch.tensor(index) for index in indices],
    "tensor": torch.tensor,
}


class Again:
    """A batch sampler whose batches are made anew in each epoch."""

    def __init__(self, make: Callable[[list[int]], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, BATCHES)


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "class": Again,
    "list": lambda make: [make(indices) for indices in BATCHES],
    "list after lists": lambda make: [[6, 8], *(make(indices) for indices in BATCHES)],
    "generator": lambda make: (make(indices) for indices in BATCHES),
}
"""Some of which yield other batches in the second epoch, or none."""


class Files(Dataset[Any]):
    """A sample is its file's text, which index was asked for, and a random number."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.files = [str(root / f"{index}") for index in range(10)]
        for index, name in enumerate(self.files):
            Path(name).write_text(f"text {index}")

    def train_data_list(self) -> list[str]:
        return self.files

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> Any:
        asked = f"{type(index).__name__} {index}"
        place = int(index[0] if isinstance(index, tuple) else index)
        with open(self.files[place]) as file:
            return file.read(), asked, random.random()


class InBatches(Files):
    """Makes batches in one go, and says of what it was asked."""

    def __getitems__(self, batch: Any) -> list[Any]:
        samples = [self[index] for index in batch]
        return [f"{len(samples)} of {isinstance(batch, Iterator)} {type(batch).__name__}", *samples, len(list(batch))]


def plain(batch: Any) -> Any:
    return batch


def see(loader_class: Any, dataset: Any, sampler: Any, **kwargs: Any) -> list[Any]:
    """Return the batches and errors of two epochs."""
    seed_all()
    loader = loader_class(dataset, batch_sampler=sampler, collate_fn=plain, **kwargs)
    return [step for _ in range(2) for step in steps(iter(loader))] + [random.random()]


def steps(iterator: Iterator[Any]) -> Iterator[Any]:
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except Exception as err:  # noqa: BLE001
            yield type(err).__name__, str(err).splitlines()[-1:]


def compare(dataset: Any, types: dict[str, Any], place: int, **kwargs: Any) -> None:
    """Compare each type by one of the samplers: in four places that follow each other, by each of them."""
    for number, (name, make) in enumerate(types.items()):
        chosen = (number + place) % len(SAMPLERS)
        for container, sampler_of in list(SAMPLERS.items()) if profiles.ARE_ALL else [list(SAMPLERS.items())[chosen]]:
            expected = see(TorchLoader, dataset, sampler_of(make))
            assert see(prefeed.DataLoader, dataset, sampler_of(make), **kwargs) == expected, (container, name)
    assert prefeed.statistics().reads > 0


KINDS = ["files", "batches", "subset", "stack", "stack of batches"]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_type(tmp_path: Path, kind: str) -> None:
    files, batches = Files(tmp_path / "data"), InBatches(tmp_path / "data")
    datasets = {
        "files": files,
        "batches": batches,
        "subset": Subset(batches, range(10)),  # type: ignore[arg-type]
        "stack": StackDataset(files, files),
        "stack of batches": StackDataset(one=batches, other=files),
    }
    compare(datasets[kind], REUSABLE | READ_ONCE | SINGLE_PROCESS, KINDS.index(kind))


def test_batches_of_any_type_of_trusted_samplers(tmp_path: Path) -> None:
    """They may be read to their end when the epoch begins, and so may what they yield."""
    types = REUSABLE | READ_ONCE | SINGLE_PROCESS
    del types["generator that draws"]
    compare(Files(tmp_path / "data"), types, len(KINDS), config=resolve({"trust_samplers": True}))


class All:
    """A batch sampler that yields a batch of each type."""

    def __init__(self, types: dict[str, Callable[[list[int]], Any]]) -> None:
        self.types = types

    def __iter__(self) -> Iterator[Any]:
        return (make(indices) for make in self.types.values() for indices in BATCHES[:2])


@pytest.mark.parametrize("kind", [Files, InBatches])
def test_batches_of_any_type_in_workers(tmp_path: Path, kind: Any) -> None:
    dataset = kind(tmp_path / "data")
    for sampler_of in (All, lambda types: list(All(types))):
        expected, seen = (
            see(loader_class, dataset, sampler_of(REUSABLE | READ_ONCE), num_workers=2)
            for loader_class in (TorchLoader, prefeed.DataLoader)
        )
        assert seen == expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_indices_of_any_type(tmp_path: Path, num_workers: int) -> None:
    """Without batches, the dataset gets what the sampler yields: nobody else reads what can be read once."""
    dataset = AnyIndex(tmp_path / "data")
    types = REUSABLE | READ_ONCE | ({} if num_workers else SINGLE_PROCESS)
    for sampler_of in (All, lambda types: list(All(types))):
        seen = []
        for loader_class in (TorchLoader, prefeed.DataLoader):
            seed_all()
            kwargs = {"batch_size": None, "sampler": sampler_of(types), "num_workers": num_workers}
            seen.append(list(loader_class(dataset, **kwargs)))
        assert seen[0] == seen[1]


class AnyIndex(Files):
    """Its indices are what is otherwise a batch."""

    def __getitem__(self, index: Any) -> Any:
        return [super(AnyIndex, self).__getitem__(part)[:2] for part in index]
