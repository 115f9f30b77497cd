"""Loaders that are none of torch's, make the items of a batch themselves, and let torch's iterators carry the batches.

fastai's is one. Its ``DataLoader`` hands torch's iterators an object that is loader and dataset in one, an iterable of
batches; behind it, in ``d``, are a dataset with an index, and the order of the epoch, drawn before the iterator is made. So
the plan is as good as that of a loader of torch's, and each item is made in the scope of its index (``ServedItems``).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from typing import Any, Final

from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _DatasetKind

from prefeed.torch.planning import PlannedSampler
from prefeed.torch.resuming import Rest
from prefeed.torch.serving import Served, ServedItems

_SOURCE: Final = ("create_batches", "sample", "dataset", "bs", "indexed")
_ORDER: Final = "_DataLoader__idxs"
"""Where fastai's loader keeps the order of the epoch."""


def shown_as_torchs(loader: Any) -> Any:
    """Return what says of a loader what one of torch's would say: itself, as a rule."""
    if isinstance(loader, TorchDataLoader) or getattr(loader, "dataset", None) is not loader:
        return loader
    source = getattr(loader, "d", None)
    return ItemLoader(loader, source) if all(hasattr(source, name) for name in _SOURCE) else loader


def behind(loader: Any) -> Any:
    """Return the loader that stays, of one that is shown as torch's for one iterator."""
    return loader.itself if isinstance(loader, ItemLoader) else loader


def shown_as(loader: Any) -> ItemLoader | BatchLoader:
    """Return how the order of a loader is known, and what its iterators are given."""
    return loader if isinstance(loader, ItemLoader) else BatchLoader(loader)


def is_stream(loader: TorchDataLoader[Any]) -> bool:
    """Return True when torch's iterators iterate the dataset; False: they ask it for samples by index."""
    return isinstance(loader.dataset, IterableDataset) or loader._dataset_kind == _DatasetKind.Iterable


class BatchLoader:
    """A loader of torch's: its iterators ask its dataset for batches of indices, unless it is a stream."""

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        self._loader = loader

    def why_unknown(self) -> str:
        """Return why the order of the epoch is not known; empty: it is."""
        return "an IterableDataset has no order to know beforehand" if is_stream(self._loader) else ""

    def begin(self, planned: PlannedSampler, rest: Rest | None) -> None:
        """An epoch begins, or the rest of one that resumes."""
        if rest is None:
            planned.resume(None)
        else:
            planned.resume(rest.batches, num_seen=rest.num_seen)

    def serve(self, view: Any, served: Served) -> None:
        """An iterator of torch's reads what is served from ``view`` as it is."""


class ItemLoader:
    """Such a loader as one of torch's: its dataset, and batches of indices.

    Args:
        loader: What torch's iterator is made from. What it reads of that, and is not here, is the loader's own.
        source: Makes the items.

    Attributes:
        itself: The loader.
    """

    def __init__(self, loader: Any, source: Any) -> None:
        self.itself = loader
        self._source = source
        self.dataset: Any = source.dataset
        self._index_sampler = _Drawn(source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.itself, name)

    @property
    def batch_size(self) -> int | None:
        """Items a batch; None: it is told items alone."""
        return self._index_sampler.batch_size

    def why_unknown(self) -> str:
        """Return why the order of the epoch is not known; empty: it is."""
        if self._source.indexed and self._index_sampler.indices is not None:
            return ""
        return (
            f"its class, {type(self._source).__name__}, draws items from an iterator, and no order is known beforehand"
        )

    def begin(self, planned: PlannedSampler, _rest: Rest | None) -> None:
        """An epoch begins; its order, as a sampler of torch's, has all items that are made, also those that it drops."""
        indices, batch_size = self._index_sampler.indices or [], self.batch_size
        planned.resume(indices if batch_size is None else BatchSampler(indices, batch_size, drop_last=False))

    def serve(self, view: Any, served: Served) -> None:
        """Let an iterator read of ``view`` what is served: its sampler is the plan's, and yields what the loader's does."""
        view.dataset = ServedItems(served, self.itself)
        view._index_sampler = _Counted(self.itself._index_sampler, view._index_sampler)


class _Drawn:
    """The order of an epoch, as far as it is known of a loader of another class: it is not known how it draws the next one."""

    def __init__(self, source: Any) -> None:
        self._source = source

    @property
    def indices(self) -> list[Any] | None:
        found = vars(self._source).get(_ORDER)
        return list(found) if isinstance(found, Collection) else None  # else it may have no end

    @property
    def batch_size(self) -> int | None:
        size = self._source.bs
        return size if isinstance(size, int) else None

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        yield from self.indices or []


class _Counted:
    """Yields what torch would draw for each batch, and draws from the plan with it."""

    def __init__(self, own: Any, planned: Any) -> None:
        self._own, self._planned = own, planned

    def __iter__(self) -> Iterator[Any]:
        planned = iter(self._planned)
        for drawn in self._own:
            next(planned, None)
            yield drawn


class LoaderView:
    """What torch's iterators read of a loader: attributes that were set here, and for all others those of the loader.

    It is of no class of the user's, and no copy: a class with ``__del__`` would see an object that its user never made.
    """

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        self.__loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__loader, name)


def works_in_threads(loader: TorchDataLoader[Any]) -> bool:
    """Return True when the loader's workers are threads of this process, as those of MONAI's ``ThreadDataLoader`` may be."""
    worker = getattr(loader.multiprocessing_context, "Process", None) if loader.num_workers else None
    return isinstance(worker, type) and issubclass(worker, threading.Thread)


def samples_as_torchs(loader: Any) -> bool:
    """Return True when the loader draws its batches from its own ``batch_sampler`` or ``sampler``.

    One of another class than torch's has what torch's iterators read of it, and no more: its sampler is all that there is.
    """
    if not isinstance(loader, TorchDataLoader):
        return True
    own = loader.batch_sampler if loader._auto_collation else loader.sampler
    return loader._index_sampler is own
