"""Loaders that go round torch's ``DataLoader``, of the same make as those of libraries."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import random
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.context import SpawnContext
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data.dataloader import (
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

_loaders = (_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter)


def _begin(worker_id: int) -> None:
    info: Any = get_worker_info()
    source = info.dataset.d
    source.num_workers, source.offs = info.num_workers, info.id


class _FakeLoader:
    """What fastai makes torch's iterators from: loader and dataset in one."""

    _IterableDataset_len_called, _auto_collation, drop_last, in_order = None, False, False, True
    _index_sampler, generator, prefetch_factor = itertools.count(), None, 2
    _dataset_kind = _DatasetKind.Iterable
    pin_memory, pin_memory_device, timeout, persistent_workers = False, "", 0, False
    worker_init_fn = staticmethod(_begin)

    def __init__(self, d: Any, num_workers: int) -> None:
        self.dataset, self.d, self.num_workers = self, d, num_workers

    def collate_fn(self, batch: Any) -> Any:
        return batch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.d.create_batches(self.d.sample()))

    @property
    def multiprocessing_context(self) -> Any:
        return multiprocessing if self.num_workers else None


class DataLoader:
    """As fastai's, which is no loader of torch's."""

    def __init__(
        self, dataset: Any, bs: int | None = None, *, num_workers: int = 0, shuffle: bool = False, drop_last: bool = False,
        indexed: bool = True,
    ) -> None:  # fmt: skip
        self.dataset, self.bs, self.shuffle, self.drop_last, self.indexed = dataset, bs, shuffle, drop_last, indexed
        self.rng, self.num_workers, self.offs = random.Random(torch.initial_seed()), 1, 0
        self.fake_l = _FakeLoader(self, num_workers)

    def __len__(self) -> int:
        return (len(self.dataset) + (self.bs or 1) - 1) // (self.bs or 1)

    def get_idxs(self) -> Any:
        if not self.indexed:
            return itertools.repeat(None)
        indices = list(range(len(self.dataset)))
        return self.rng.sample(indices, len(indices)) if self.shuffle else indices

    def sample(self) -> Iterator[Any]:
        drawn = enumerate(self.__idxs)
        return (index for i, index in drawn if i // (self.bs or 1) % self.num_workers == self.offs)

    def __iter__(self) -> Iterator[Any]:
        self.__idxs = self.get_idxs()
        yield from _loaders[self.fake_l.num_workers == 0](self.fake_l)

    def create_batches(self, drawn: Iterable[Any]) -> Iterator[Any]:
        self.it = iter(self.dataset)
        made = filter(lambda item: item is not None, map(self.do_item, drawn))
        if self.bs is None:
            yield from made
            return
        while items := list(itertools.islice(made, self.bs)):
            if len(items) == self.bs or not self.drop_last:
                yield default_collate(items)

    def do_item(self, index: Any) -> Any:
        return self.dataset[index] if self.indexed else next(self.it)

    def one_batch(self) -> Any:
        """Return a batch that this process makes, whatever the number of workers."""
        num_workers, self.fake_l.num_workers = self.fake_l.num_workers, 0
        try:
            return next(iter(self))
        finally:
            self.fake_l.num_workers = num_workers


class Doubled(_SingleProcessDataLoaderIter):
    """An iterator of somebody's own, over torch's."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.num_given = 0

    def _next_data(self) -> Any:
        batch = super()._next_data()  # type: ignore[no-untyped-call]
        self.num_given += 1
        return batch


class OwnFactory(TorchDataLoader[Any]):
    """Makes its iterators itself."""

    def _get_iterator(self) -> Any:
        return (Doubled if self.num_workers == 0 else _MultiProcessingDataLoaderIter)(self)


class DeepSpeedDataLoader:
    """As DeepSpeed's: makes a loader anew for each epoch."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs

    def __iter__(self) -> Any:
        self.dataloader: Any = TorchDataLoader(**self.kwargs)
        self.data = (batch for batch in self.dataloader)
        return self

    def __next__(self) -> Any:
        return next(self.data)


def faked(loader: Any) -> Any:
    """Return what torch's iterators read of a loader, and nothing more."""
    names = (
        "dataset", "_dataset_kind", "_IterableDataset_len_called", "_auto_collation", "drop_last", "_index_sampler",
        "num_workers", "pin_memory", "pin_memory_device", "timeout", "collate_fn", "generator", "persistent_workers",
        "prefetch_factor", "in_order", "multiprocessing_context", "worker_init_fn",
    )  # fmt: skip
    return SimpleNamespace(**{name: getattr(loader, name) for name in names})


class _ProcessThread(threading.Thread):
    """As MONAI's: looks like a process."""

    @property
    def pid(self) -> int:
        return id(self)


class _ProcessQueue(queue.Queue[Any]):
    def close(self) -> None:
        pass

    def cancel_join_thread(self) -> None:
        pass


def thread_context() -> SpawnContext:
    """Return a context whose processes are threads."""
    context: Any = SpawnContext()
    context.Process, context.Queue = _ProcessThread, _ProcessQueue
    return context  # type: ignore[no-any-return]
