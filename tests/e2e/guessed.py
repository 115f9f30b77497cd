"""Datasets that declare nothing, as people write them: each keeps what its samples open in a way of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

Sample = tuple[int, list[bytes]]


class _Files(Dataset[Sample]):
    """Sample i is the bytes of the files that ``names_of`` tells."""

    length = 0

    def __len__(self) -> int:
        return self.length

    def names_of(self, index: int) -> list[Any]:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Sample:
        return index, [Path(os.fsdecode(name)).read_bytes() for name in self.names_of(index)]


class Listed(_Files):
    """A list of whole paths, under any name; other attributes beside it."""

    def __init__(self, paths: Sequence[Any], **others: Any) -> None:
        self.__dict__.update(others)
        self.files, self.length = paths, len(paths)

    def names_of(self, index: int) -> list[Any]:
        return [self.files[index]]


class InBatches(Listed):
    """Makes a whole batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return [self[index] for index in indices]


class Rooted(_Files):
    """A root, and names below it."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root, self.names, self.length = root, names, len(names)

    def names_of(self, index: int) -> list[Any]:
        return [self.root / self.names[index]]


class Columns(_Files):
    """A dict of columns; two of them are files."""

    def __init__(self, root: Path, names: Sequence[str], masks: Sequence[str]) -> None:
        self.config = SimpleNamespace(data_dir=str(root))
        self.columns = {"name": names, "mask": masks, "y": list(range(len(names)))}
        self.length = len(names)

    def names_of(self, index: int) -> list[Any]:
        return [Path(self.config.data_dir) / self.columns[column][index] for column in ("name", "mask")]


class Dicts(_Files):
    """A list of dicts, of paths and of lists of paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        half = len(paths) // 2
        self.data = [
            {"image": [paths[i], paths[i + half]] if i % 2 else [paths[i]], "label": i, "unused": f"/nowhere/{i}"}
            for i in range(half)
        ]
        self.length = half

    def names_of(self, index: int) -> list[Any]:
        return list(self.data[index]["image"])


@dataclass(slots=True)
class _Row:
    path: str
    label: int


class Rows(_Files):
    """Something that it holds has a list of objects."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.reader = SimpleNamespace(rows=[_Row(path, 0) for path in paths])
        self.length = len(paths)

    def names_of(self, index: int) -> list[Any]:
        return [self.reader.rows[index].path]


class Stems(_Files):
    """Names without suffixes, in two directories, as in Pytorch-UNet."""

    def __init__(self, root: Path, stems: Sequence[str]) -> None:
        self.images_dir, self.mask_dir, self.mask_suffix = root / "images", root / "masks", "_mask"
        self.ids, self.length = stems, len(stems)

    def names_of(self, index: int) -> list[Any]:
        stem = self.ids[index]
        return [self.images_dir / f"{stem}.jpg", self.mask_dir / f"{stem}{self.mask_suffix}.gif"]


class Wrapper(Dataset[Sample]):
    """Passes indices on; it knows itself, too."""

    def __init__(self, inner: Any, chosen: Sequence[int] | None = None) -> None:
        self.inner, self.chosen_indices, self.itself = inner, chosen, self

    def __len__(self) -> int:
        return len(self.inner) if self.chosen_indices is None else len(self.chosen_indices)

    def __getitem__(self, index: int) -> Sample:
        return self.inner[index if self.chosen_indices is None else self.chosen_indices[index]]


MAKES = (
    "paths", "path objects", "bytes in an array", "range", "root and names", "columns", "dicts", "rows", "stems", "wrapper of wrapper",
    "concatenated", "subset", "in batches",
)  # fmt: skip


def make(kind: str, root: Path, length: int) -> Any:
    """Return the dataset of a kind over the files of ``write`` below the root."""
    names = [f"images/{i:04d}.jpg" for i in range(length)]
    masks = [f"masks/{i:04d}_mask.gif" for i in range(length)]
    paths = [str(root / name) for name in names]
    some = list(range(length - 1, 2, -2))
    datasets = {
        "paths": lambda: Listed(paths, labels=names[::-1], rank=1),
        "path objects": lambda: Listed([root / name for name in names]),
        "bytes in an array": lambda: Listed(np.array([path.encode() for path in paths])),
        "range": lambda: Wrapper(Listed(paths), range(length)),
        "root and names": lambda: Rooted(root, names),
        "columns": lambda: Columns(root, names, masks),
        "dicts": lambda: Dicts(paths),
        "rows": lambda: Rows(paths),
        "stems": lambda: Stems(root, [f"{i:04d}" for i in range(length)]),
        "wrapper of wrapper": lambda: Wrapper(Wrapper(Listed(paths), some)),
        "concatenated": lambda: ConcatDataset([Listed(paths[: length // 2]), Rooted(root, names[length // 2 :])]),
        "subset": lambda: Subset(Subset(Rows(paths), some), list(range(1, len(some)))),
        "in batches": lambda: InBatches(paths),
    }
    return datasets[kind]()


def write(root: Path, length: int, *, folder: str = "", parts: Sequence[str] = ("images", "masks")) -> Path:
    """Write images and masks, each other bytes; return the root."""
    for part in parts:
        suffix = {"images": ".jpg", "masks": "_mask.gif"}[part]
        (root / folder / part).mkdir(parents=True)
        for i in range(length):
            (root / folder / part / f"{i:04d}{suffix}").write_bytes(f"{folder}{part}{i}".encode() * 40)
    return root
