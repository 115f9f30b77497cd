"""``paddle.io.DataLoader``: its iterators read dataset and batch sampler from a view of the loader.

Paddle asks the batch sampler for a batch whenever a worker takes one. When it asks for the first, the sampler is drawn
from to its end, and Paddle is given what was drawn: its own samplers draw all random numbers of an epoch then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from prefeed.loaders.feed import Feed, Feeds
from prefeed.loaders.kinds import Order, class_of, is_just_a, length_of
from prefeed.loaders.order import interleave
from prefeed.loaders.replacing import Method, Replaced
from prefeed.loaders.sources import ServedSource

_MODULE: Final = "paddle.io.dataloader.dataloader_iter"
_ITERATORS: Final = ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess")
_BATCH_SAMPLERS: Final = ("BatchSampler", "DistributedBatchSampler")
_SAMPLERS: Final = ("SequenceSampler", "RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")

_feeds = Feeds("paddle.io.DataLoader")
_replaced: list[Replaced] = []


def enable() -> None:
    """Serve every loader from its next epoch on. Idempotent.

    Raises:
        AttributeError, KeyError: Paddle has no such iterators.
    """
    if _replaced:
        return
    module: Any = sys.modules[_MODULE]
    for name in _ITERATORS:
        cls = getattr(module, name)
        _replaced.append(Replaced(cls, "__init__", _begin))
        _replaced.append(Replaced(cls, "__next__", _next))


def disable() -> None:
    """Leave Paddle's classes as they were. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _feeds.clear()


class PaddleLoaderView:
    """What an iterator reads of a loader: attributes that were set here, and for all others those of the loader."""

    def __init__(self, loader: Any) -> None:
        self.__loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__loader, name)


class PlannedBatches:
    """Yields what the batch sampler of the user yields, when Paddle asks, and plans it.

    Args:
        inner: The user's batch sampler.
        feed: Plans it.
        num_workers: Of the loader, which take batches in turns.
        is_known: It may be drawn from to its end when its first batch is asked for: no code could tell the difference.
    """

    def __init__(self, inner: Any, feed: Feed, *, num_workers: int, is_known: bool) -> None:
        self.inner = inner
        self._feed = feed
        self._num_workers = num_workers
        self._is_known = is_known

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __iter__(self) -> Iterator[Any]:
        # A generator: the sampler is drawn from when Paddle asks for the first batch, as without prefeed.
        if not self._is_known:
            self._feed.begin(())
            yield from self.inner
            return
        batches = list(self.inner)
        order: Order = np.array([index for batch in batches for index in batch], dtype=np.int64)
        size = len(batches[0]) if batches else 1
        self._feed.begin(interleave(order, batch_size=size, num_workers=self._num_workers).tolist())
        yield from batches


def _begin(own: Method, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    (loader,) = (*args, *kwargs.values())
    if isinstance(loader, PaddleLoaderView):
        own(iterator, loader)
        return
    feed = _feeds.of(loader, loader.dataset)
    iterator._prefeed_feed = feed
    feed.loop_begins(length_of(loader.batch_sampler))
    own(iterator, _create_view(loader, feed))


def _next(own: Method, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    feed: Feed | None = vars(iterator).get("_prefeed_feed")
    return own(iterator) if feed is None else feed.next_batch(lambda: own(iterator))


def _create_view(loader: Any, feed: Feed) -> Any:
    """Return what the iterator is made from: the loader, or a view of it whose dataset is served."""
    if class_of(loader.dataset, "IterableDataset") is not None:
        feed.leave("an IterableDataset has no order to know beforehand")
    elif loader.batch_sampler is None:
        feed.leave("it has no batch sampler")
    source = feed.serve()
    if source is None:
        return loader
    source.reports_each = False  # Paddle's workers end by themselves
    view: Any = PaddleLoaderView(loader)
    view.dataset = source
    view.batch_sampler = PlannedBatches(
        loader.batch_sampler, feed, num_workers=loader.num_workers, is_known=_is_known(loader.batch_sampler)
    )
    view.worker_init_fn = PaddleWorkerInit(loader.worker_init_fn)
    return view


def _is_known(batch_sampler: Any) -> bool:
    """Return True for Paddle's own samplers, which draw all random numbers of an epoch when the first batch is drawn."""
    if not is_just_a(batch_sampler, *_BATCH_SAMPLERS):
        return False
    inner = getattr(batch_sampler, "sampler", None)
    return inner is None or (is_just_a(inner, *_SAMPLERS) and getattr(inner, "generator", None) is None)


class PaddleWorkerInit:
    """The first act of a worker: show the user's dataset to ``get_worker_info``, then run the user's own function."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        module: Any = sys.modules.get("paddle.io.dataloader.worker")
        info = getattr(module, "_worker_info", None)
        if info is not None and isinstance(info.dataset, ServedSource):
            vars(info)["dataset"] = info.dataset.inner
        if self._then is not None:
            self._then(worker_id)
