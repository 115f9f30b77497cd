"""Training code with not a line of prefeed in it: the same batches, from the cache."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import datasets

import prefeed
from e2e.automatic import auto
from e2e.images import NUM_IMAGES, Augment, make_image_folder
from e2e.steps import Setup, assert_same, observe, seed_all
from prefeed.torch import loader as module


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    return make_image_folder(tmp_path / "data")


def see(loader: Any, *, epochs: int = 2, setup: Setup | None = None) -> list[Any]:
    seed_all()
    return observe(loader, setup or Setup({}), epochs=epochs)


class Derived(DataLoader[Any]):
    """A library's own class: counts what it gives, and is copied in a way of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given = 0

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.given += 1
            yield batch

    def __copy__(self) -> Any:
        raise AssertionError("nobody copies this")


KWARGS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]
IDS = ["0", "2", "2-kept"]


@pytest.mark.parametrize("kwargs", KWARGS, ids=IDS)
@pytest.mark.parametrize("loader_class", [DataLoader, Derived])
def test_same_batches_from_the_cache(root: Path, loader_class: Any, kwargs: dict[str, Any]) -> None:
    dataset = datasets.ImageFolder(str(root), Augment())
    loader = loader_class(dataset, batch_size=4, shuffle=True, **kwargs)
    expected = see(loader_class(dataset, batch_size=4, shuffle=True, **kwargs))
    assert prefeed.statistics().reads == 0
    with auto():
        assert_same(expected, see(loader))  # made before
        assert type(loader) is loader_class
        assert prefeed.statistics().reads == 2 * NUM_IMAGES
        assert prefeed.statistics().direct_reads == 0
        assert_same(expected, see(loader_class(dataset, batch_size=4, shuffle=True, **kwargs)))


@pytest.mark.parametrize("kwargs", KWARGS, ids=IDS)
def test_torchs_own_again_after_disable(root: Path, kwargs: dict[str, Any]) -> None:
    dataset = datasets.ImageFolder(str(root), Augment())
    loader = DataLoader(dataset, batch_size=4, shuffle=True, **kwargs)
    explicit = prefeed.DataLoader(dataset, batch_size=4, shuffle=True, **kwargs)
    with auto():
        see(loader, epochs=1)
        see(explicit, epochs=1)
        reads = prefeed.statistics().reads
        assert reads == 2 * NUM_IMAGES
        iterator = iter(loader)
        first = [next(iterator)]
    assert len([*first, *iterator]) == len(loader)  # goes on to its end
    del iterator
    reads = prefeed.statistics().reads
    assert module._attachments.get(loader) is None
    expected = see(DataLoader(dataset, batch_size=4, shuffle=True, **kwargs))
    assert_same(expected, see(loader))
    assert type(loader._iterator) is (
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter if kwargs.get("persistent_workers") else type(None)
    )
    assert prefeed.statistics().reads == reads
    list(explicit)
    assert prefeed.statistics().reads == reads + NUM_IMAGES


def test_dataset_on_a_local_disk_is_left_alone(tmp_path: Path) -> None:
    dataset = datasets.ImageFolder(str(make_image_folder(tmp_path / "data")), Augment())
    with auto():
        see(DataLoader(dataset, batch_size=4), epochs=1)
    assert prefeed.statistics().reads == 0


def test_environment_is_left_alone(root: Path) -> None:
    before = dict(os.environ)
    with auto():
        see(DataLoader(datasets.ImageFolder(str(root), Augment()), batch_size=4), epochs=1)
    assert dict(os.environ) == before


def test_connection_closes_with_the_loader(root: Path) -> None:
    """At once, and not when the garbage collector comes round."""
    loader: Any = prefeed.DataLoader(datasets.ImageFolder(str(root), Augment()), batch_size=4)
    list(loader)
    attachment = weakref.ref(module._attachment_of(loader, explicit=False))
    gc.disable()
    try:
        del loader
        assert attachment() is None
    finally:
        gc.enable()


class Turned(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 3

    def train_data_list(self) -> np.ndarray[Any, Any]:
        return np.array([["/a", "/b"], ["/c", "/d"], ["/e", "/f"]])


def test_wrong_train_data_list_is_the_users_to_mend() -> None:
    with auto(), pytest.raises(ValueError, match=r"Turned\.train_data_list\(\) must return .* transpose it"):
        next(iter(DataLoader(Turned())))
