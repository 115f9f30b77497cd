"""Reads of a dataset's samples, answered from the cache: in workers, and in the main process without any.

``Served`` stands in for the dataset in torch's fetcher, and nowhere else. While it makes a sample, the loader's
reader is in charge of this thread: prefeed's datasets use it, and files that the sample opens by path are asked of it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import util
from typing import Any, Final

from prefeed.client.access import AccessMap
from prefeed.client.files import SampleFiles
from prefeed.client.reader import ObjectReader
from prefeed.client.readers import process_readers, serving
from prefeed.client.writes import Writes, written_files
from prefeed.interception import install, reads_from
from prefeed.sources.learned import LearnedMap
from prefeed.sources.mounts import Roots
from prefeed.torch.order import can_be_read_again
from prefeed.torch.samples import Lent, SharedState, StandIn, is_stacked, own_batch_method, rows_of, samples_of

_END: Final = object()


class Served(StandIn):
    """A map-style dataset whose samples are read through a reader.

    Args:
        inner: The user's dataset.
        access: Its access map.
        consumer: Whose plan the reads belong to.
        shared: What the loader's processes tell each other; made when not given.

    **Threads and processes**: made in the main process, used in workers: forked, spawned or served.
    """

    def __init__(self, inner: Any, access: AccessMap, consumer: int, *, shared: SharedState | None = None) -> None:
        self.inner = inner
        self.reader: ObjectReader = ObjectReader(access.dataset, consumer=consumer)
        self.lent: Lent = Lent()
        self._access = access
        self._files: SampleFiles | None = None
        written = written_files(access.dataset)
        self.writes: Writes | None = None if written is None else Writes(access.dataset, written)
        self._epoch = 0
        self.shared: SharedState = shared or SharedState()
        if access.dataset.manifest.grows:
            self._files = SampleFiles(self.reader, access, Roots.of(access.dataset.config), written)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        try:
            with self._reading(), self._making(index):
                return self.inner[index]
        finally:
            self.shared.count_reads(*self.reader.take_counts())

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the samples of a batch, as torch makes them, and tell the server that they are read."""
        if self.shared.reads_directly:
            return _as_torch(self.inner, indices)
        self._access.refresh()
        try:
            with self._reading():
                batch = own_batch_method(self.inner, indices)
                if batch is not None:
                    with self._making(*(indices if can_be_read_again(indices) else ())):
                        return batch(indices)
                with self._parts():
                    rows, drawn = rows_of(indices)
                    return samples_of(self.inner, rows, lambda position: self._making(drawn[position]), self.lent)
        finally:
            self.batch_made()

    @contextmanager
    def sample(self, index: Any) -> Iterator[None]:
        """Inside it, one sample of a batch is made; ``batch_made`` ends the batch."""
        with self._reading(), self._making(index):
            yield

    def batch_made(self) -> None:
        """Report the reads of a batch to the server and the loader."""
        self.reader.report()
        process_readers.report()  # of datasets inside this one, which have readers of their own
        self.shared.count_reads(*self.reader.take_counts())
        if self._files is not None:
            self.shared.count_parts(self._files.part_reads)

    def begin_process(self) -> None:
        """This is a process of the loader from now on: it tells what it writes, and reports when it ends."""
        util.Finalize(self, self.reader.close, exitpriority=10)
        if self.writes is not None:
            self.writes.begin()
        if self.opens_files:
            install()  # entering a sample is quicker when everything is in place

    def again(self) -> Served:
        """Return the same, with a reader and a view of what was learned of its own: for another thread."""
        access, learned = self._access, self._access.learned
        if learned is not None:
            access = replace(access, learned=LearnedMap.open(learned.directory, learned.num_samples))
        return Served(self.inner, access, self.reader.consumer, shared=self.shared)

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """Inside it, samples are made that no batch has asked for: an audit."""
        try:
            with self._reading(), self._parts():
                yield
        finally:
            self.reader.report()

    @property
    def opens_files(self) -> bool:
        """True when the samples open their files by path."""
        return self._files is not None

    @property
    def roots(self) -> str:
        """Which files would be cached, for messages."""
        return Roots.of(self._access.dataset.config).describe()

    def opens_nothing(self) -> bool:
        """True when samples were watched, and none of them opened a file that could be cached."""
        self._access.refresh()
        learned = self._access.learned
        return learned is not None and learned.opens_nothing()

    def epoch_begins(self) -> None:
        """Workers that were kept hear of it, too."""
        self.shared.epoch_begins()

    def _reading(self) -> AbstractContextManager[None]:
        if self._files is None:
            return serving(self.reader)
        if self._epoch != self.shared.epoch:
            self._epoch = self.shared.epoch
            self._files.epoch_begins()
        return reads_from(self._files)

    def _parts(self) -> AbstractContextManager[None]:
        return self._files.parts() if self._files is not None and is_stacked(self.inner) else nullcontext()

    def _making(self, *indices: Any) -> AbstractContextManager[None]:
        return nullcontext() if self._files is None else self._files.sample(*indices)


class ServedItems(Served):
    """The samples of a loader that makes items and batches itself (``items``), read through a reader.

    Args:
        served: Its dataset.
        loader: What torch's iterator would have iterated; ``d`` makes the items, in ``create_batches``.
    """

    def __init__(self, served: Served, loader: Any) -> None:
        vars(self).update(vars(served))
        self.inner = loader
        self._made = ExitStack()

    def __iter__(self) -> Iterator[Any]:
        source = self.inner.d
        batches = iter(source.create_batches(self._noting(source.sample())))
        while True:
            self._access.refresh()
            with self._reading(), ExitStack() as self._made:
                batch = next(batches, _END)
            self.batch_made()
            if batch is _END:
                return
            yield batch

    def _noting(self, indices: Iterable[Any]) -> Iterator[Any]:
        """Yield indices; from then until the next is asked for, or the batch is made, it is that item that is made."""
        for index in indices:
            self._made.close()
            self._made.enter_context(self._making(index))
            yield index


class ServedInThreads(StandIn):
    """A served dataset where the workers are threads of this process: each has a reader of its own.

    **Ownership**: the readers are closed when this is gone, and with it the iterator and its workers.
    """

    def __init__(self, served: Served) -> None:
        self.inner: Any = served.inner
        self._served = served
        self._of_thread = threading.local()
        self._readers: list[ObjectReader] = []
        weakref.finalize(self, _close_all, self._readers)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        return self._own()[index]

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the samples of a batch."""
        return self._own().__getitems__(indices)

    def _own(self) -> Served:
        own: Served | None = getattr(self._of_thread, "served", None)
        if own is None:
            own = self._of_thread.served = self._served.again()
            self._readers.append(own.reader)
        return own


def _close_all(readers: list[ObjectReader]) -> None:
    for reader in readers:
        reader.close()


def _as_torch(dataset: Any, indices: Any) -> list[Any]:
    """Return the samples of a batch, made as torch's fetcher makes them."""
    batch = getattr(dataset, "__getitems__", None)
    samples: list[Any] = batch(indices) if batch else [dataset[index] for index in indices]
    return samples
