"""Datasets of prefeed are torch's where torch is imported, and only there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Dataset, random_split

import prefeed
from prefeed.datasets.origin import OriginDataset
from prefeed.map_style import MapStyle


class Squares(MapStyle[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index**2


def test_they_are_datasets_of_torchs() -> None:
    dataset = Squares()
    both: Any = dataset + prefeed.mapped(dataset, str)

    assert isinstance(dataset, Dataset)
    assert all(issubclass(cls, Dataset) for cls in (OriginDataset, prefeed.CachedDataset))
    assert isinstance(both, ConcatDataset)
    assert (both[9], both[19]) == (81, "81")
    assert [len(part) for part in random_split(dataset, [0.3, 0.7])] == [3, 7]


@pytest.mark.usefixtures("sandbox")
def test_torch_is_not_imported_for_that_and_may_come_later() -> None:
    code = (
        "import sys, prefeed.datasets, prefeed.stage_cache.dataset as made\n"
        "mapped = made.mapped([1, 2, 3], str)\n"
        "assert 'torch' not in sys.modules\n"
        "import torch.utils.data\n"
        "assert isinstance(mapped, torch.utils.data.Dataset)\n"
        "assert issubclass(prefeed.datasets.ImageFolder, torch.utils.data.Dataset)\n"
        "assert list(mapped) == ['1', '2', '3']\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
