"""The datasets that this process has open: one control connection, one manifest a root."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from prefeed.client.dataset import NodeDataset, open_listed_dataset, open_node_dataset
from prefeed.client.node import NodeClient
from prefeed.client.reader import ObjectReader
from prefeed.config import Config
from prefeed.types import ListingProgress

Opener = Callable[[NodeClient], NodeDataset]


def open_url(url: str, config: Config, *, listing: ListingProgress | None = None) -> Opener:
    """Return what opens the dataset of a URL on a node."""
    return lambda node: open_node_dataset(node, url, config, listing=listing)


def open_paths(paths: Sequence[str], config: Config, *, listing: ListingProgress | None = None) -> Opener:
    """Return what opens the dataset of a list of files on a node."""
    return lambda node: open_listed_dataset(node, paths, config, listing=listing)


class Readers:
    """One reader a dataset, for reads that belong to no loader.

    **Threads and processes**: any thread, one read at a time a dataset; a forked child begins with none.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._readers: dict[str, ObjectReader] = {}

    def read(self, dataset: NodeDataset, object_id: int) -> bytes:
        """Return an object's bytes.

        Raises:
            SourceError: The origin's own error.
        """
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._readers = os.getpid(), {}
            key = str(dataset.manifest.directory)
            reader = self._readers.get(key)
            if reader is None:
                reader = self._readers[key] = ObjectReader(dataset)
            data = reader.read(object_id)
            reader.report()
        return data if isinstance(data, bytes) else bytes(data)

    def close(self) -> None:
        """Close every reader of this process."""
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            reader.close()
