"""Loaders over the same files open each of them once between them, whatever their datasets are; ranks learn together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import prefeed
import warm
from e2e.hashed import Hashed, kept, name_of, read, write_hashed
from slow_files import SlowDirectory, slow_files

NUM_FILES = 24
ONCE = {name_of(index): 1 for index in range(NUM_FILES)}


class Evaluated(Hashed):
    """The same files, another class: as of a loader that evaluates."""


class Listed(Dataset[Any]):
    """The same files, declared, and in another order."""

    def __init__(self, root: Path) -> None:
        self.paths = [str(root / name_of(index)) for index in reversed(range(NUM_FILES))]

    def train_data_list(self) -> list[str]:
        return self.paths

    def __len__(self) -> int:
        return NUM_FILES

    def __getitem__(self, index: int) -> tuple[int, list[bytes]]:
        return index, [read("/", self.paths[index])]


class Oversampled(Listed):
    """Each file twice in one list."""

    def train_data_list(self) -> list[str]:
        return self.paths * 2

    def __len__(self) -> int:
        return 2 * NUM_FILES

    def __getitem__(self, index: int) -> tuple[int, list[bytes]]:
        return super().__getitem__(index % NUM_FILES)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_hashed(tmp_path / "data", Hashed(tmp_path / "data", NUM_FILES))


@pytest.fixture
def slow(source: Path) -> Iterator[SlowDirectory]:
    with slow_files(source) as slow:
        yield slow


def datasets(root: Path) -> list[Any]:
    learned: list[Any] = [Hashed(root, NUM_FILES), Evaluated(root, NUM_FILES)]
    learned[1].rank = 1
    return [*learned, Listed(root), Oversampled(root)]


def loaders(cls: Any, root: Path, **kwargs: Any) -> list[Any]:
    generators = [torch.Generator().manual_seed(seed) for seed in range(4)]
    return [
        cls(dataset, batch_size=4, shuffle=True, collate_fn=kept, generator=generator, **kwargs)
        for dataset, generator in zip(datasets(root), generators, strict=True)
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_after_the_other(source: Path, slow: SlowDirectory, num_workers: int) -> None:
    for ours, truth in zip(
        loaders(prefeed.DataLoader, slow.path, num_workers=num_workers), loaders(DataLoader, source), strict=True
    ):
        for _ in range(2):
            assert list(ours) == list(truth)
            assert slow.opens_by_file() == ONCE
    assert prefeed.statistics().resident_objects == NUM_FILES


def test_at_once(source: Path, slow: SlowDirectory) -> None:
    """As of a trainer that evaluates while it trains; all ask for all at the same time."""
    ours, truth = loaders(prefeed.DataLoader, slow.path, num_workers=1), loaders(DataLoader, source)
    for _ in range(2):
        iterators = [iter(loader) for loader in ours]
        batches: list[list[Any]] = [[] for _ in ours]
        threads = [
            threading.Thread(target=seen.extend, args=(iterator,))
            for iterator, seen in zip(iterators, batches, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert batches == [list(loader) for loader in truth]
        assert slow.opens_by_file() == ONCE


RANK = warm.given_as_text("""
import json, os, sys, time, uuid, logging
from pathlib import Path
import prefeed
from e2e.hashed import Hashed, kept
rank = int(sys.argv[3])
dataset = Hashed(Path(sys.argv[1]), int(sys.argv[2]))
dataset.rank, dataset.started, dataset.run = rank, time.time(), f"/scratch/runs/{uuid.uuid4()}"
dataset.log, dataset.settings = logging.getLogger(f"rank{rank}"), {"rank": rank, "out": f"/scratch/{rank}"}
loader = prefeed.DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=kept, num_workers=1)
for _ in range(2):
    input()
    seen = dict(sample for batch in loader for sample in batch)
    assert seen == {index: [(Path(sys.argv[4]) / dataset.names_of(index)[0]).read_bytes()] for index in range(len(dataset))}
    print("read", flush=True)
""")


def test_ranks_learn_together(source: Path, slow: SlowDirectory) -> None:
    """Each rank has a number, a time and a folder of its own, and reads all files: in the second epoch nothing is opened."""
    arguments = [str(slow.path), str(NUM_FILES)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *arguments, str(rank), str(source)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for _ in range(2):
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.write("\n")
                rank.stdin.flush()
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "read\n"
            assert slow.opens_by_file() == ONCE
    finally:
        for rank in ranks:
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0]
    learned = [path for path in Path(os.environ["PREFEED_HOME"]).rglob("learned") if path.is_file()]
    assert len(learned) == 1
