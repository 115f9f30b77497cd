"""Datasets that nobody can look into: each sample's files are named after a hash of its index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

Sample = tuple[int, list[bytes]]

SMALLEST_BYTES = 500


def name_of(index: int, part: int = 0, generation: int = 0) -> str:
    """Return where a file of a sample lies, relative to the root."""
    digest = hashlib.md5(f"{index}/{part}/{generation}".encode()).hexdigest()
    return f"{digest[:1]}/{digest}.bin"


def read(root: str, name: str) -> bytes:
    """Return a file's bytes, read as datasets do."""
    with open(os.path.join(root, name), "rb") as file:
        return file.read()


class Hashed(Dataset[Sample]):
    """Sample i is the bytes of its files; ``parts`` and ``generation`` may change at any time.

    Attributes:
        parts: How many files the samples open, in turns.
        generation: Which files.
    """

    def __init__(self, root: Path, length: int, parts: Sequence[int] = (1,)) -> None:
        self.root = str(root)
        self.length = length
        self.parts = parts
        self.generation = 0

    def __len__(self) -> int:
        return self.length

    def names_of(self, index: int) -> list[str]:
        """Return the files of a sample, relative to the root."""
        return [name_of(index, part, self.generation) for part in range(self.parts[index % len(self.parts)])]

    def __getitem__(self, index: int) -> Sample:
        return index, [read(self.root, name) for name in self.names_of(index)]


class HashedInBatches(Hashed):
    """Makes a whole batch at a time, as torch lets datasets do."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        names = [self.names_of(index) for index in indices]
        data = {name: read(self.root, name) for name in sorted(chain.from_iterable(names))}
        return [(index, [data[name] for name in of_sample]) for index, of_sample in zip(indices, names, strict=True)]


class InMemory(Dataset[int]):
    """Opens nothing; nothing about it says so."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index * index


def write_hashed(root: Path, dataset: Hashed) -> Path:
    """Write the files that a dataset opens now, each of another size; return the root."""
    rng = np.random.default_rng(dataset.generation)
    for index in range(len(dataset)):
        for name in dataset.names_of(index):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if not (root / name).exists():
                (root / name).write_bytes(rng.bytes(SMALLEST_BYTES + index))
    return root


def kept(batch: list[Any]) -> list[Any]:
    """Collate to what the samples are."""
    return batch
