"""A loader around which somebody has put a background generator: torch's and prefeed's, with workers and without."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import prefeed
from leaks import wait_until

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_ROWS = 64
BATCH_SIZE = 4


class Rows:
    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index)


class TorchsX(TorchDataLoader[Any]):
    def __iter__(self) -> Any:
        return prefeed.BackgroundGenerator(super().__iter__())


class PrefeedsX(prefeed.DataLoader[Any]):
    def __iter__(self) -> Any:
        return prefeed.BackgroundGenerator(super().__iter__())


KINDS = pytest.mark.parametrize("kind", [TorchsX, PrefeedsX])
WORKERS = pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}],
    ids=["none", "anew", "persistent"],
)


def make(kind: Any, **kwargs: Any) -> Any:
    dataset = prefeed.CachedDataset(Rows()) if kind is PrefeedsX else Rows()
    return kind(dataset, batch_size=BATCH_SIZE, generator=torch.Generator().manual_seed(0), shuffle=True, **kwargs)


def has_ended(loader: Any) -> bool:
    """Return True when neither thread nor process of its iterators is left, except those that are to stay."""
    to_stay = loader.num_workers if loader.persistent_workers and loader._iterator is not None else 0
    return (
        "prefeed-background" not in {thread.name for thread in threading.enumerate()}
        and len(multiprocessing.active_children()) == to_stay
    )


@KINDS
@WORKERS
def test_same_batches_as_without(kind: Any, workers: dict[str, Any]) -> None:
    plain = TorchDataLoader(
        Rows(), batch_size=BATCH_SIZE, generator=torch.Generator().manual_seed(0), shuffle=True, **workers
    )
    loader = make(kind, **workers)
    for _ in range(2):
        expected = [batch.tolist() for batch in plain]
        assert [batch.tolist() for batch in loader] == expected
    assert wait_until(lambda: "prefeed-background" not in str(threading.enumerate()), timeout_seconds=60)


@KINDS
@WORKERS
def test_left_early_again_and_again(kind: Any, workers: dict[str, Any]) -> None:
    loader = make(kind, **workers)
    times = 50 if workers.get("persistent_workers") or not workers else 10  # starting workers takes its time
    for time in range(times):
        for number, batch in enumerate(loader):
            assert batch.shape == (BATCH_SIZE, 8)
            if number == time % 3:
                break
        del batch
        assert wait_until(lambda: has_ended(loader), timeout_seconds=60)
    assert sorted(index for batch in loader for index in batch[:, 0].tolist()) == list(range(NUM_ROWS))


@KINDS
def test_it_looks_like_the_loader(kind: Any) -> None:
    """As lightly and Lightning ask for: attributes of the loader, also private ones."""
    loader = make(kind)
    inner: Any = super(kind, loader)
    with prefeed.BackgroundGenerator(make(TorchDataLoader)) as items:
        assert len(items) == NUM_ROWS // BATCH_SIZE
        assert len(items.dataset) == NUM_ROWS
        assert items.batch_sampler.batch_size == BATCH_SIZE
        assert items._auto_collation
    with prefeed.BackgroundGenerator(inner.__iter__()) as items:
        assert len(items) == NUM_ROWS // BATCH_SIZE


def test_an_error_in_a_worker_comes_as_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch waits so long for workers of an iterator that the collector finds, in vain, and then ends them.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)

    class Bad(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == NUM_ROWS - 1:
                raise FileNotFoundError(2, "gone", "7.jpg")
            return super().__getitem__(index)

    loader = PrefeedsX(Bad(), batch_size=BATCH_SIZE, num_workers=1)
    found: list[int] = []
    with pytest.raises(FileNotFoundError, match=r"Caught FileNotFoundError in DataLoader worker process 0"):
        found.extend(len(batch) for batch in loader)
    assert len(found) == NUM_ROWS // BATCH_SIZE - 1
    gc.collect()  # the iterator, which the traceback's frames held
    assert wait_until(lambda: has_ended(loader), timeout_seconds=60)
