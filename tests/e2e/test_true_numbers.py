"""What is reported is what is counted from outside: reads that did not open a file at the origin are the hits."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import prefeed
from e2e.automatic import auto
from leaks import wait_until
from prefeed.client.node import NodeClient
from prefeed.config import current
from slow_files import slow_files, write_files

NUM_SAMPLES = 48
LINE = re.compile(r"prefeed: epoch (\d+) of (.+): .* hit ratio ([\d.]+) of (\d+) reads")


class Samples(Dataset[int]):
    """A file a sample."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return len((self.root / f"{index}.bin").read_bytes())


class Batches(Samples):
    """Makes a batch in one go, as Hugging Face's datasets do: what a sample opens is not told apart."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in reversed(indices)]


class Elsewhere(Samples):
    """Says that it opens other files than it does."""

    def train_data_list(self) -> Any:
        return np.array([str(self.root / f"other{index}.bin") for index in range(NUM_SAMPLES)])


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], tuple[str, ...]]:
    """Return epoch, loader, hit ratio and reads of the one line that was logged since the last call."""
    caplog.set_level(logging.INFO, logger="prefeed")

    def said() -> tuple[str, ...]:
        (found,) = (match for record in caplog.records if (match := LINE.match(record.getMessage())))
        caplog.clear()
        return found.groups()

    return said


def write_samples(root: Path, size: int = 2000) -> Path:
    names = [f"{other}{index}.bin" for other in ("", "other") for index in range(NUM_SAMPLES)]
    return write_files(root, {name: bytes([number]) * size for number, name in enumerate(names)})


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Samples, Batches, Elsewhere])
def test_hits_are_reads_that_opened_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], tuple[str, ...]], kind: Any, num_workers: int
) -> None:
    with slow_files(write_samples(tmp_path / "data")) as slow, auto():
        monkeypatch.setenv("PREFEED_ROOTS", str(slow.path))
        train_loader: Any = DataLoader(kind(slow.path), batch_size=4, shuffle=True, num_workers=num_workers)
        opens = 0
        for epoch in (1, 2, 3):
            assert sum(map(len, train_loader)) == NUM_SAMPLES
            before, opens = opens, sum(slow.opens_by_file().get(f"{index}.bin", 0) for index in range(NUM_SAMPLES))
            number, name, ratio, reads = said()
            assert (number, name, reads) == (str(epoch), f"{kind.__name__}-1", str(NUM_SAMPLES))
            if epoch > 1:
                assert opens == before
                assert float(ratio) == 1.0
        counts = prefeed.statistics()
        assert (counts.reads, counts.direct_reads) == (3 * NUM_SAMPLES, 0)
        assert counts.hits >= 2 * NUM_SAMPLES


def test_hits_of_what_fits_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], tuple[str, ...]]
) -> None:
    """What has no room is read each time: of it nobody knows beforehand."""
    monkeypatch.setenv("PREFEED_MEMORY", "5MiB")
    with slow_files(write_samples(tmp_path / "data", size=200_000)) as slow, auto():
        monkeypatch.setenv("PREFEED_ROOTS", str(slow.path))
        train_loader: Any = DataLoader(Batches(slow.path), batch_size=4, shuffle=True)
        opens = 0
        for epoch in (1, 2, 3):
            list(train_loader)
            before, opens = opens, slow.opens()
            ratio = float(said()[2])
            hits = NUM_SAMPLES - (opens - before)
            assert ratio == pytest.approx(hits / NUM_SAMPLES, abs=0.01)
            assert epoch == 1 or 0 < hits < NUM_SAMPLES


def test_best_ratio_stays_when_the_job_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    root = write_samples(tmp_path / "data")
    assert prefeed.statistics().best_hit_ratio is None
    with auto():
        list(DataLoader(Samples(root), batch_size=4))
    with NodeClient.connect(current(), autostart=False) as node:
        assert wait_until(lambda: node.status().plans == 0, timeout_seconds=60)
    assert prefeed.statistics().best_hit_ratio == 1.0
