"""``prefeed tune`` on real loaders whose answer is obvious."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import prefeed

TRAIN = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Waits(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((8,), float(index))

def waits():
    return DataLoader(Waits(0.02), batch_size=4, shuffle=True), lambda batch: time.sleep(0.04)

def hangs():
    return DataLoader(Waits(3600), batch_size=4, num_workers=2)

def keeps_up():
    return DataLoader(Waits(0), batch_size=4), lambda batch: time.sleep(0.05)
"""

Tune = Callable[..., dict[str, Any]]


@pytest.fixture
def tune(tmp_path: Path) -> Tune:
    """Run ``prefeed tune --json`` beside ``train.py`` and return what it prints."""
    (tmp_path / "train.py").write_text(TRAIN)

    def tune(*arguments: str) -> dict[str, Any]:
        line = [sys.executable, "-m", "prefeed", "tune", "--json", *arguments]
        done = subprocess.run(line, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    return tune


def test_more_workers_for_samples_that_wait(tune: Tune) -> None:
    tuning = tune("--budget", "60", "train.py:waits")
    assert tuning["best"], tuning["text"]
    assert tuning["settings"]["num_workers"] >= 2
    (finding,) = tuning["findings"]
    assert finding["low"] >= 1.05
    assert finding["how"].startswith(f"DataLoader(..., num_workers={tuning['settings']['num_workers']}")
    assert tuning["text"].endswith(finding["how"])
    assert {0, 2} <= {trial["settings"]["num_workers"] for trial in tuning["trials"]}


def test_loader_that_keeps_up_is_left(tune: Tune) -> None:
    tuning = tune("--budget", "10", "train:keeps_up")
    assert tuning["best"] is None, tuning["text"]
    assert tuning["settings"] == tuning["loader"]["settings"]
    assert tuning["text"].startswith("Leave it")


class Slow(Dataset[int]):
    """Takes a tenth of a second for each sample, and counts them in a file."""

    def __init__(self, counts: Path) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.1)
        with open(self.counts, "ab") as file:
            file.write(b".")
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_budget_holds_where_samples_are_slow(tmp_path: Path, num_workers: int) -> None:
    """A process makes ten samples per second at most, so their number shows how long the trials went on."""
    loader = DataLoader(Slow(tmp_path / "counts"), batch_size=8, num_workers=num_workers)
    report = prefeed.tune(loader, budget=2)
    num_processes, one_batch = max(1, num_workers), 8
    assert (tmp_path / "counts").stat().st_size <= num_processes * (20 + one_batch)
    assert (report.best, report.ran_out) == (None, True)
    assert report.trials[0].samples_s
    assert "Leave it" in str(report)


def test_nothing_measured_within_the_budget(tune: Tune) -> None:
    tuning = tune("--budget", "1", "train.py:hangs")
    assert tuning["text"].startswith("Nothing was measured in 1 s: the budget ended before the first batch.")
    assert (tuning["best"], tuning["ran_out"]) == (None, True)
    (trial,) = tuning["trials"]
    assert (trial["steps"], trial["reason"]) == (0, "the budget ended before the first batch")
