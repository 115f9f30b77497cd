"""With prefeed and without: the same batches, and every generator in the same state after every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import datasets as torchvision_datasets

import prefeed
from e2e import samplers
from e2e.images import Augment, make_image_folder
from e2e.steps import Setup, assert_same, observe, seed_all

pytestmark = pytest.mark.timeout(120)

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


@pytest.mark.parametrize("build", samplers.ALL, ids=lambda build: build.__name__)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_sampler(root: Path, build: Build, num_workers: int) -> None:
    reference = torchvision_folder(root)
    own = prefeed.datasets.ImageFolder(root, Augment())
    for dataset in (reference, own):
        before = prefeed.statistics().reads
        compare(dataset, reference, build, num_workers=num_workers)
        statistics = prefeed.statistics()
        assert statistics.reads > before  # served, and not read around the cache
        assert statistics.direct_reads == 0
