"""How long loops waited is in the statistics, of loaders with a plan and of those without."""

from __future__ import annotations

from pathlib import Path

import torch

import prefeed
from e2e.images import make_image_folder
from prefeed.client.untold import untold_epochs


def test_epochs_of_a_planned_loader_are_the_servers(tmp_path: Path) -> None:
    dataset = prefeed.datasets.Objects(make_image_folder(tmp_path / "data"))
    loader = prefeed.DataLoader(dataset, batch_size=4, collate_fn=list)
    known = untold_epochs()
    for _ in range(2):
        assert len(list(loader)) == len(loader)

    epochs = prefeed.statistics().epochs[:2]
    assert [(e.loader, e.rank, e.epoch, e.batches) for e in epochs] == [
        ("Objects-1", None, n, len(loader)) for n in (1, 2)
    ]
    assert all(0 < e.waited_seconds <= e.seconds for e in epochs)
    assert untold_epochs() == known  # told once


def test_epochs_without_a_plan_are_known_here(tmp_path: Path) -> None:
    numbers = torch.utils.data.TensorDataset(torch.arange(10))
    loader = prefeed.DataLoader(numbers, batch_size=4)
    for batch in loader:
        assert batch
    epoch = prefeed.statistics().epochs[-1]
    assert (epoch.loader, epoch.epoch, epoch.batches) == ("TensorDataset-1", 1, 3)


def test_an_epoch_that_was_broken_off_is_not_reported() -> None:
    loader = prefeed.DataLoader(torch.utils.data.TensorDataset(torch.arange(10)), batch_size=4)
    before = untold_epochs()
    next(iter(loader))
    assert untold_epochs() == before
    list(loader)
    epoch = untold_epochs()[-1]
    assert (epoch.epoch, epoch.batches) == (1, 3)
