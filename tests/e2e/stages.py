"""Datasets for caches of stages: they write down each sample that they make."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from prefeed.stage_cache.making import is_checking


class Log:
    """A line for each sample that was made, by whatever process; not for those that are made to be compared."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: str) -> None:
        if is_checking():
            return
        # Not open(): a file that a sample opens is one that it is made of.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def take(self) -> list[str]:
        """Return the lines, and forget them."""
        lines = self.path.read_text().split() if self.path.exists() else []
        self.path.unlink(missing_ok=True)
        return lines


class Files:
    """Sample i is what the file of that number holds, as an array, and i."""

    def __init__(self, root: Path, num_samples: int, log: Log, *, times: int = 1) -> None:
        self.root = root
        self.num_samples = num_samples
        self.log = log
        self.times = times

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        self.log.add(str(index))
        return np.frombuffer((self.root / f"{index}.bin").read_bytes(), np.uint8) * np.uint8(self.times), index


def write_files(root: Path, num_samples: int, *, size: int = 3000) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for index in range(num_samples):
        write_file(root, index, index, size=size)
    return root


def write_file(root: Path, index: int, value: int, *, size: int = 3000, seconds: int = 1) -> None:
    path = root / f"{index}.bin"
    path.write_bytes(bytes([value % 251]) * size)
    os.utime(path, (seconds, seconds))


def values(samples: Any) -> list[tuple[int, int]]:
    """Return (first byte, number) of each sample; all bytes of a sample are the same."""
    found = []
    for array, number in samples:
        array = np.asarray(array)
        assert (array == array.flat[0]).all()
        found.append((int(array.flat[0]), int(number)))
    return found
