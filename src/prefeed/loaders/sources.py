"""``ServedSource``: what stands in for a dataset in the pipeline of a framework; its samples are read through the cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from prefeed.client.access import AccessMap
from prefeed.client.files import SampleFiles
from prefeed.client.reader import ObjectReader
from prefeed.client.readers import IdleReaders, serving
from prefeed.client.writes import Writes, written_files
from prefeed.interception import install, reads_from
from prefeed.sources.catalogue import Catalogue
from prefeed.sources.learned import LearnedMap
from prefeed.sources.mounts import Roots

_OF_BATCHES: Final = ("__getitems__", "_getitems")
"""Methods of datasets that make several samples at once."""

_REFRESH_SECONDS: Final = 0.05
"""What is known of samples is looked at again after this time, and for each sample of which nothing is known."""


class SampleReads:
    """Reads of one thread at a time, while it makes samples of a dataset.

    Args:
        access: Of the dataset; nothing of it that changes is shared with other threads.
        consumer: Whose plan the reads belong to.
        reports_each: The server hears of each sample at once; see ``ServedSource``.
    """

    def __init__(self, access: AccessMap, consumer: int, *, reports_each: bool) -> None:
        catalogue = access.dataset.manifest
        if catalogue.grows:  # with mappings of its own: they are mapped again as they grow
            own = Catalogue.open(catalogue.directory, catalogue.uid)
            learned = access.learned
            if learned is not None:
                learned = LearnedMap.open(learned.directory, learned.num_samples)
            access = replace(access, dataset=replace(access.dataset, manifest=own), learned=learned)
        self._access = access
        self._reports_each = reports_each
        self._refresh_at = 0.0
        self._reader = ObjectReader(access.dataset, consumer=consumer)
        self._files: SampleFiles | None = None
        if catalogue.grows:
            written = written_files(access.dataset)
            self._files = SampleFiles(self._reader, access, Roots.of(access.dataset.config), written)

    @contextmanager
    def sample(self, *indices: Any) -> Iterator[None]:
        """Inside it, this thread makes these samples: files that it opens by path, and objects, come from the cache."""
        try:
            with ExitStack() as stack:
                if self._files is None:
                    stack.enter_context(serving(self._reader))
                else:
                    self._refresh(indices)
                    stack.enter_context(reads_from(self._files))
                    stack.enter_context(self._files.sample(*indices))
                yield
        finally:
            if self._reports_each:
                self._reader.report()
            else:
                self._reader.sample_made()

    def _refresh(self, indices: tuple[Any, ...]) -> None:
        now = time.monotonic()
        if now < self._refresh_at and all(self._access.objects_of(index) for index in indices):
            return
        self._access.refresh()
        self._refresh_at = now + _REFRESH_SECONDS

    def report(self) -> None:
        """The server knows of all reads that have ended."""
        self._reader.report()

    def close(self) -> None:
        """Report, and let go of what is open."""
        self._reader.close()


class ServedSource:
    """A map-style dataset whose samples are read through the cache.

    It has the length, the text and the attributes of the dataset.

    Args:
        inner: The user's dataset.
        access: Its access map.
        consumer: Whose plan the reads belong to.
        reports_each: The server hears of each sample at once, for frameworks that kill their workers: those report nothing then.
            Otherwise it hears of some reads at a time, and of the rest when the process ends.

    **Threads and processes**: any number of threads; forked and spawned workers.
    """

    def __init__(self, inner: Any, access: AccessMap, consumer: int, *, reports_each: bool = True) -> None:
        self.inner = inner
        self._access = access
        self._consumer = consumer
        self.reports_each = reports_each
        self._reads: IdleReaders[SampleReads] = IdleReaders()
        written = written_files(access.dataset)
        self._writes = None if written is None else Writes(access.dataset, written)
        self._begun_in = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(ServedSource, reports_each=self.reports_each), (self.inner, self._access, self._consumer))

    def __len__(self) -> int:
        return len(self.inner)

    def __repr__(self) -> str:
        return repr(self.inner)

    def __getitem__(self, index: Any) -> Any:
        with self.making(index):
            return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or (name.startswith("__") and name not in _OF_BATCHES):
            raise AttributeError(name)  # it is being unpickled, or asked what it is
        value = getattr(self.inner, name)
        return self._batch_of(value) if name in _OF_BATCHES else value

    def close(self) -> None:
        """Report what was read in this process, and close what is open; nothing is served any more."""
        self._reads.close()
        if self._writes is not None:
            self._writes.end()

    def report(self) -> None:
        """The server knows of all reads of this process that have ended."""
        self._reads.report()

    def _batch_of(self, method: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        def batch(indices: Sequence[Any]) -> Any:
            with self.making(*indices):
                return method(indices)

        return batch

    @contextmanager
    def making(self, *indices: Any) -> Iterator[None]:
        """Inside it, this thread makes these samples of the dataset; their reads come from the cache."""
        if self._begun_in != os.getpid():
            self._begin()
        with self._reads.one(self._new_reads) as reads, reads.sample(*indices):
            yield

    def _new_reads(self) -> SampleReads:
        return SampleReads(self._access, self._consumer, reports_each=self.reports_each)

    def _begin(self) -> None:
        """The first sample of this process is made: what samples open and write is noticed from now on."""
        self._begun_in = os.getpid()
        if self._writes is not None:
            self._writes.begin()
        if self._access.dataset.manifest.grows:
            install()
