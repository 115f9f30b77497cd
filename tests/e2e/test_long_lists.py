"""A dataset with a long list of paths: prefeed adds nothing to what each worker copies of it, and ``doctor`` reports its size."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import prefeed
from prefeed.diagnose.loader_clone import list_bytes_of

NUM_PATHS = 200_000
NUM_FILES = 12
MEGABYTE = 1 << 20


class Listed(Dataset[tuple[int, int]]):
    """Opens a few files, and returns the private memory of the process that does, in bytes."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.paths = [f"{root}/{number:08d}.bin" for number in range(NUM_PATHS)]

    def __len__(self) -> int:
        return NUM_PATHS

    def __getitem__(self, index: int) -> tuple[int, int]:
        with open(self.paths[index], "rb") as file:
            file.read()
        return os.getpid(), private_bytes()


def private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def most_private(cls: Any, dataset: Listed) -> int:
    """Return the most that a worker had at the end of two epochs."""
    loader = cls(dataset, batch_size=4, sampler=range(NUM_FILES), num_workers=2, collate_fn=list)
    return max(last for _ in range(2) for last in dict(one for batch in loader for one in batch).values())


def test_workers_copy_no_more_of_a_long_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Listed(tmp_path)
    for path in dataset.paths[:NUM_FILES]:
        Path(path).write_bytes(b"data")
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    own = most_private(DataLoader, dataset)
    assert most_private(prefeed.DataLoader, dataset) < own + 8 * MEGABYTE
    assert prefeed.statistics().reads == 2 * NUM_FILES


def test_size_of_lists(tmp_path: Path) -> None:
    dataset = Listed(tmp_path)
    size = sys.getsizeof(dataset.paths) + sum(map(sys.getsizeof, dataset.paths))
    assert size > 15 * MEGABYTE
    wrapped: Any = ConcatDataset([Subset(dataset, [1, 2]), Subset(dataset, [3])])
    assert list_bytes_of(dataset) == pytest.approx(size, rel=0.01)
    assert list_bytes_of(wrapped) >= list_bytes_of(dataset)
    dataset.paths = dataset.paths[:1000]
    assert list_bytes_of(dataset) == 0
