"""Samples that are bytes of the cache are copied once, into the batch: the same bytes, counted as read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

import prefeed
from leaks import wait_until
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.datasets import Objects
from prefeed.torch.sending import BorrowedBytes

NUM_FILES = 30
BATCH = 8


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "origin"
    root.mkdir()
    for number in range(NUM_FILES):
        (root / f"{number:02}.bin").write_bytes(bytes([number]) * (20_000 + number))
    return root


@pytest.fixture
def num_borrowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how many batches were borrowed, in this process and its forked workers."""
    counted = tmp_path / "borrowed"
    counted.touch()
    begin = BorrowedBytes.__init__

    def count(self: BorrowedBytes, *arguments: Any) -> None:
        with counted.open("ab", buffering=0) as file:
            file.write(b".")
        begin(self, *arguments)

    monkeypatch.setattr(BorrowedBytes, "__init__", count)
    return lambda: counted.stat().st_size


def epoch(loader: Any, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_warm_epoch_is_borrowed(root: Path, num_borrowed: Callable[[], int], num_workers: int) -> None:
    wanted = TorchLoader([path.read_bytes() for path in sorted(root.iterdir())], batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]
    with NodeClient.connect(resolve({})) as node:
        node.warm(str(root))
        loader = prefeed.DataLoader(Objects(root), batch_size=BATCH, shuffle=True, num_workers=num_workers)
        for seed in range(2):
            assert epoch(loader, seed) == epoch(wanted, seed)
        assert wait_until(lambda: node.statistics().hits == 2 * NUM_FILES, timeout_seconds=60)
        assert node.statistics().misses == 0
    assert num_borrowed() == 2 * -(-NUM_FILES // BATCH)


def test_a_cold_epoch_waits_for_each_object(root: Path) -> None:
    wanted = [path.read_bytes() for path in sorted(root.iterdir())]
    loader = prefeed.DataLoader(Objects(root), batch_size=BATCH)

    assert [sample for batch in loader for sample in batch] == wanted
    assert [sample for batch in loader for sample in batch] == wanted


@pytest.mark.parametrize("how", ["decode", "subclass", "collate_fn"])
def test_what_is_made_of_bytes_is_not_borrowed(root: Path, num_borrowed: Callable[[], int], how: str) -> None:
    class Lengths(Objects):
        def __getitem__(self, index: int) -> Any:
            return len(super().__getitem__(index))

    dataset = Lengths(root) if how == "subclass" else Objects(root, decode=len if how == "decode" else None)
    collate: Any = {"collate_fn": lambda samples: [len(sample) for sample in samples]} if how == "collate_fn" else {}
    for _ in range(2):
        found = [int(size) for batch in prefeed.DataLoader(dataset, batch_size=BATCH, **collate) for size in batch]
        assert found == [20_000 + number for number in range(NUM_FILES)]
    assert num_borrowed() == 0
