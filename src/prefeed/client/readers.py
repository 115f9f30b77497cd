"""Which reader serves a read: the loader's, while one of its samples is being made, else one of the process's own."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prefeed.client.connection import Connection
from prefeed.client.dataset import NodeDataset
from prefeed.client.node import NodeClient
from prefeed.client.object_index import ObjectIndex
from prefeed.client.once import gave, given_before
from prefeed.client.reader import ObjectReader
from prefeed.client.sharing import IdleReaders as IdleReaders
from prefeed.client.sharing import Shared
from prefeed.config import Config

_MOST_DATASETS = 256
"""Datasets of which one thread keeps readers, for reads that belong to no loader."""


class Seat:
    """What one thread needs to read of any dataset: a connection, and a reader of each of the last few. Taken by one thread at a time."""

    def __init__(self, most_readers: int) -> None:
        self._most_readers = most_readers
        self._shared = Shared()
        self._readers: OrderedDict[Path, tuple[NodeDataset, ObjectReader]] = OrderedDict()

    def reader(self, dataset: NodeDataset) -> ObjectReader:
        """Return a reader of a dataset."""
        place = dataset.manifest.directory
        known = self._readers.pop(place, None)
        if known is not None and (known[0].number, known[0].instance) != (dataset.number, dataset.instance):
            known[1].close()
            known = None
        # A reader replaces its own dataset when it reconnects to another server, so the one that it was created for is kept.
        self._readers[place] = known = known or (dataset, ObjectReader(dataset, shared=self._shared))
        if len(self._readers) > self._most_readers:
            self._readers.popitem(last=False)[1][1].close()
        return known[1]

    def connection(self, config: Config) -> Connection:
        """Return the connection to the server of a home; start the server if necessary."""
        return self._shared.connection(config.home, lambda: Connection.open(config))

    def report(self) -> None:
        """Report all reads that have ended."""
        for _, reader in self._readers.values():
            reader.report()

    def close(self) -> None:
        """Report, and close the readers and the connection."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._shared.close()


class Readers:
    """Readers for reads that belong to no loader: each thread that reads has a seat, so that a miss waits for its own object only.

    **Threads and processes**: any thread; a forked child begins with none.

    Attributes:
        objects: Index of the datasets that the servers have open, for reads by URL.
    """

    def __init__(self) -> None:
        self._seats: IdleReaders[Seat] = IdleReaders()
        self.objects = ObjectIndex(self._node)

    def read(self, dataset: NodeDataset, object_id: int) -> bytes:
        """Return an object's bytes.

        Raises:
            SourceError: The origin's own error.
        """
        key = str(dataset.manifest.directory)
        if (before := given_before(key, object_id)) is not None:
            return before
        with self._seats.one(lambda: Seat(_MOST_DATASETS)) as seat:
            reader = seat.reader(dataset)
            data = reader.read(object_id)
            reader.report_misses()
        data = data if isinstance(data, bytes) else bytes(data)
        gave(key, object_id, data)
        return data

    @contextmanager
    def _node(self, config: Config) -> Iterator[NodeClient]:
        """Yield a client of a home's server on a connection that no other thread uses.

        The connection stays open for later reads. After an error it is closed, because a late reply would answer the next request.

        Raises:
            ServerUnavailableError: No server runs, and none was started.
        """
        with self._seats.one(lambda: Seat(_MOST_DATASETS)) as seat:
            connection = seat.connection(config)
            try:
                yield NodeClient(connection)
            except BaseException:
                connection.close()
                raise

    def report(self) -> None:
        """Report all reads that have ended."""
        self._seats.report()

    def close(self) -> None:
        """Close every reader of this process that is not in use, and forget the index."""
        self.objects.clear()
        self._seats.close_idle()


process_readers: Final = Readers()
"""Readers of this process, for datasets outside of loaders and for ``prefeed.read``."""


class _Active(threading.local):
    reader: ObjectReader | None = None


_active = _Active()


@contextmanager
def serving(reader: ObjectReader) -> Iterator[None]:
    """Inside it, datasets of this thread read with the loader's reader, which knows whose plan they follow."""
    previous, _active.reader = _active.reader, reader
    try:
        yield
    finally:
        _active.reader = previous


def active_reader(manifest_dir: Path) -> ObjectReader | None:
    """Return the reader in charge, if it reads this manifest."""
    reader = _active.reader
    return reader if reader is not None and reader.dataset.manifest.directory == manifest_dir else None
