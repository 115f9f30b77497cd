"""Files that samples open by path, read through the cache, and noted so that they are fetched ahead next time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefeed.client.access import AccessMap
from prefeed.client.reader import ObjectReader
from prefeed.errors import SourceError
from prefeed.sources.mounts import Roots
from prefeed.types import Buffer


class SampleFiles:
    """Answers who opens files by path, while samples are being made: an ``interception.FileReader``.

    The files that a sample is known to open have object ids; any other file below the roots is asked of the server
    by its path, and has an id from then on. Where nobody declares what a sample opens, what it did open is reported.

    Args:
        reader: Of a catalogue.
        access: What is known about the samples.
        roots: Directories whose files are cached.

    **Threads and processes**: as the reader's.
    """

    def __init__(self, reader: ObjectReader, access: AccessMap, roots: Roots) -> None:
        self._reader = reader
        self._access = access
        self._roots = roots
        self._expected: tuple[int, ...] = ()
        self._opened: dict[str, tuple[int, Buffer | None]] = {}

    @contextmanager
    def sample(self, *samples: Any) -> Iterator[None]:
        """Inside it, these samples are being made, one as a rule; several by a dataset that makes batches."""
        num_objects = self._access.dataset.manifest.num_objects  # after a power failure more may have been learned
        known = (object_id for sample in samples for object_id in self._access.objects_of(sample))
        self._expected = tuple(object_id for object_id in known if object_id < num_objects)
        self._opened.clear()
        try:
            yield
            if self._access.learned is not None and len(samples) == 1:
                self._learn(samples[0])
        finally:
            self._expected = ()
            self._opened.clear()

    def read_file(self, path: str) -> Buffer | None:
        """Return the bytes of a file from the cache; None when whoever asks should open it."""
        opened = self._opened.get(path)
        if opened is not None:
            return opened[1]
        try:
            return self._read(path)
        except SourceError:
            return None  # opened as it is, it says so in the words that the user knows

    def _read(self, path: str) -> Buffer | None:
        path_of = self._access.dataset.manifest.path
        for object_id in self._expected:
            if path_of(object_id) == path:
                self._opened[path] = (object_id, None)
                data = self._reader.try_read(object_id)
                self._opened[path] = (object_id, data)
                return data
        if not self._roots.covers(path):
            return None
        data, new_id = self._reader.try_read_file(path)
        if new_id is not None:
            self._opened[path] = (new_id, data)
        return data

    def _learn(self, sample: Any) -> None:
        """Report what the sample opened, when that is not what was known of it."""
        learned, base = self._access.learned, self._access.base_sample(sample)
        assert learned is not None
        if base is None:
            return
        ids = [object_id for object_id, _ in self._opened.values()]
        if not learned.is_known(base) or learned.objects_of(base) != tuple(ids):
            self._reader.learn(base, ids)
