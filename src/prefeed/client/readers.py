"""Which reader serves a read: the loader's, while one of its samples is being made, else one of the process's own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefeed.client.dataset import NodeDataset
from prefeed.client.reader import ObjectReader, Shared


class Readers:
    """One reader a dataset, for reads that belong to no loader.

    **Threads and processes**: any thread, one read at a time a dataset; a forked child begins with none.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._readers: dict[str, ObjectReader] = {}
        self._shared = Shared()

    def read(self, dataset: NodeDataset, object_id: int) -> bytes:
        """Return an object's bytes.

        Raises:
            SourceError: The origin's own error.
        """
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._readers, self._shared = os.getpid(), {}, Shared()
            key = str(dataset.manifest.directory)
            reader = self._readers.get(key)
            if reader is None:
                reader = self._readers[key] = ObjectReader(dataset, shared=self._shared)
            data = reader.read(object_id)
            reader.report()
        return data if isinstance(data, bytes) else bytes(data)

    def close(self) -> None:
        """Close every reader of this process."""
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
            shared, self._shared = self._shared, Shared()
        for reader in readers:
            reader.close()
        if self._pid == os.getpid():
            shared.close()


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
