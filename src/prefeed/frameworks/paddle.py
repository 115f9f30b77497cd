"""Serves ``paddle.io.DataLoader``: its iterators get a view of the loader with a served dataset and a planned batch sampler.

Paddle requests a batch from the batch sampler whenever a worker is free. At the first request, the whole epoch is read from the sampler,
planned, and then returned batch by batch. This does not change the random numbers, because Paddle's own samplers draw those of an epoch
at the first request too. Start with ``enable``.
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
        AttributeError, KeyError: This version of Paddle has different internals.
    """
    if _replaced:
        return
    module: Any = sys.modules[_MODULE]
    for name in _ITERATORS:
        cls = getattr(module, name)
        _replaced.append(Replaced(cls, "__init__", _begin))
        _replaced.append(Replaced(cls, "__next__", _next))


def disable() -> None:
    """Restore Paddle's classes. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _feeds.clear()


class PaddleLoaderView:
    """View of a loader in which some attributes are replaced. All others are those of the loader."""

    def __init__(self, loader: Any) -> None:
        self.__loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__loader, name)


class PlannedBatches:
    """Batch sampler that plans the batches of the user's batch sampler and yields them.

    Args:
        inner: The user's batch sampler.
        feed: Feed that receives the plan.
        num_workers: Number of the loader's workers, which take batches in turns.
        is_known: True if the whole epoch can be read from ``inner`` at the first request without a visible difference.
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
        # A generator, so that nothing is read from the sampler before Paddle requests the first batch.
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
    """Return a view of the loader with a served dataset, or the loader itself if that is not supported."""
    if class_of(loader.dataset, "IterableDataset") is not None:
        feed.leave("an IterableDataset has no order to know beforehand")
    elif loader.batch_sampler is None:
        feed.leave("it has no batch sampler")
    source = feed.serve()
    if source is None:
        return loader
    source.reports_each = False  # Paddle's workers exit regularly and report their last reads.
    view: Any = PaddleLoaderView(loader)
    view.dataset = source
    view.batch_sampler = PlannedBatches(
        loader.batch_sampler, feed, num_workers=loader.num_workers, is_known=_is_known(loader.batch_sampler)
    )
    view.worker_init_fn = PaddleWorkerInit(loader.worker_init_fn)
    return view


def _is_known(batch_sampler: Any) -> bool:
    """Return True for Paddle's own samplers, which draw all random numbers of an epoch for the first batch."""
    if not is_just_a(batch_sampler, *_BATCH_SAMPLERS):
        return False
    inner = getattr(batch_sampler, "sampler", None)
    return inner is None or (is_just_a(inner, *_SAMPLERS) and getattr(inner, "generator", None) is None)


class PaddleWorkerInit:
    """Init function of workers: shows the user's dataset in ``get_worker_info``, then calls the user's function."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        module: Any = sys.modules.get("paddle.io.dataloader.worker")
        info = getattr(module, "_worker_info", None)
        if info is not None and isinstance(info.dataset, ServedSource):
            vars(info)["dataset"] = info.dataset.inner
        if self._then is not None:
            self._then(worker_id)
