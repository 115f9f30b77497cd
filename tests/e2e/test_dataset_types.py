"""Every type of dataset, however its workers are started: torch's own batches, and from the cache."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import prefeed
from e2e import datasets
from e2e.datasets import LEARNED, TYPES, Build, Given
from e2e.steps import EPOCHS, Setup, assert_same, digest, generator_states, observe, seed_all
from e2e.test_auto import auto
from leaks import wait_until
from prefeed.types import Statistics

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
]

BATCH_SIZE = 3


@pytest.fixture
def _roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files lie on storage that is worth caching."""
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))


class Served:
    """Fails when an epoch was not read through the cache.

    Args:
        num_files: Files that an epoch opens, all loaders together.
    """

    def __init__(self, num_files: int) -> None:
        self._num_files = num_files
        self._epochs: list[Statistics] = []

    def before_epoch(self, epoch: int) -> None:
        """Wait until the reads of the epochs before have been counted."""
        reads = epoch * self._num_files
        wait_until(lambda: prefeed.statistics().reads >= reads, timeout_seconds=10)
        self._epochs.append(prefeed.statistics())
        assert self._epochs[-1].reads == reads

    def finish(self) -> None:
        """Every read of the last epoch found its file in memory, and the origin was not asked for one."""
        self.before_epoch(EPOCHS)
        last, end = self._epochs[-2:]
        assert end.origin_requests == last.origin_requests
        assert end.hits - last.hits == self._num_files
        assert end.direct_reads == 0
        assert end.errors == {}


def compare(given: Given, *, loader_class: Any = prefeed.DataLoader, method: str = "fork", **kwargs: Any) -> None:
    """Fail unless three epochs are plain torch's, served.

    Workers of the plain loader are forked: batches do not depend on how workers start, and this is the quickest.
    """
    kwargs |= {"batch_size": BATCH_SIZE, "shuffle": True}
    seed_all()
    expected = observe(DataLoader(given.plain, **kwargs), Setup({}))
    assert len({batch for _, batch, *_ in expected}) > len(expected) - 2 * EPOCHS  # augmented anew each time
    served = Served(given.num_files)
    context = method if kwargs["num_workers"] else None
    loader = loader_class(given.dataset, multiprocessing_context=context, **kwargs)
    seed_all()
    assert_same(expected, observe(loader, Setup({}, before_epoch=served.before_epoch)))
    served.finish()


@pytest.mark.parametrize("build", TYPES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_type(build: Build, num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared is cached wherever it lies; what is learned, below the roots."""
    if build in LEARNED:
        monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    compare(build(tmp_path / "data"), num_workers=num_workers)
