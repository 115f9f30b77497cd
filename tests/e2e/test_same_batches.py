"""With prefeed and without: the same batches, and every generator in the same state after every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import datasets as torchvision_datasets

import prefeed
from cover import crossed
from e2e import samplers
from e2e.images import Augment, make_image_folder
from e2e.steps import Setup, assert_same, observe, seed_all

Build = Callable[[Any], Setup]


def compare(dataset: Any, reference: Any, build: Build, **kwargs: Any) -> None:
    """Fail unless three epochs of ``dataset`` with prefeed are those of ``reference`` without."""
    seed_all()
    setup = build(reference)
    expected = observe(torch.utils.data.DataLoader(reference, **setup.kwargs, **kwargs), setup)
    seed_all()
    setup = build(dataset)
    assert_same(expected, observe(prefeed.DataLoader(dataset, **setup.kwargs, **kwargs), setup))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


def torchvision_folder(root: Path) -> Any:
    return torchvision_datasets.ImageFolder(str(root), Augment())


def own_folder(root: Path) -> Any:
    return prefeed.datasets.ImageFolder(root, Augment())


@pytest.mark.parametrize(
    ("build", "num_workers", "folder"),
    crossed(samplers.ALL, [0, 2], {"torchvision": torchvision_folder, "prefeed": own_folder}),
)
def test_sampler(root: Path, build: Build, num_workers: int, folder: Callable[[Path], Any]) -> None:
    before = prefeed.statistics().reads
    compare(folder(root), torchvision_folder(root), build, num_workers=num_workers)
    statistics = prefeed.statistics()
    assert statistics.reads > before  # served, and not read around the cache
    assert statistics.direct_reads == 0
