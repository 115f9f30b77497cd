"""A dataset that opens its files by path, for loaders of any framework, and a node that counts what it fetches."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

NUM = 22


def content(index: int) -> bytes:
    return np.random.default_rng(index).bytes(2000)


class Files:
    """Each sample is the bytes of a file."""

    def __init__(self, root: Path) -> None:
        self.paths = [str(root / f"{index:02}.bin") for index in range(NUM)]

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()

    def __repr__(self) -> str:
        return "Files()"


def make_files(root: Path) -> Path:
    """Write the files, an hour ago as it were."""
    root.mkdir()
    for index in range(NUM):
        path = root / f"{index:02}.bin"
        path.write_bytes(content(index))
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return root
