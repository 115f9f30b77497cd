"""Files that samples open by path, read through the cache, and noted so that they are fetched ahead next time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from prefeed.client.access import AccessMap
from prefeed.client.large_files import LargeFiles
from prefeed.client.reader import ObjectReader
from prefeed.errors import PassedThroughError, PrefeedError, SourceError
from prefeed.interception.asking import Answer, InheritedReader, carry, outside
from prefeed.sources.mounts import Roots
from prefeed.sources.written import WrittenFiles

_MOST_KNOWN: Final = 4096
"""Files that no sample is known to open, and that are found without a question when they are opened again."""


class _Sample:
    """State of the samples that are being made, one as a rule: the files that they are expected to open, and those that they have opened."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples
        self.expected: dict[str, int] | None = None
        self.opened: dict[str, tuple[int, Answer | None]] = {}
        self.served_keys: dict[str, bytes] = {}
        self.is_whole = True
        self.reading: set[int] = set()  # threads of the sample that have asked for a file, and have no answer yet


class SampleFiles:
    """Answers who opens files by path, while samples are being made: an ``interception.FileReader``.

    The files that a sample is known to open have object ids; any other file below the roots is asked of the server
    by its path, and has an id from then on. Where it is not declared what a sample opens, what it did open is reported.

    Args:
        reader: Of a catalogue.
        access: What is known about the samples.
        roots: Directories whose files are cached.
        written: Files that are not to be answered: what some process of the node has written is read from the file.

    **Threads and processes**: as the reader's. Threads that a sample starts are answered until it is made; each has a reader of
    its own while it asks.

    Attributes:
        part_reads: Large files that were opened, their bytes, and the bytes read of them, shape (3,); the caller resets it.
    """

    def __init__(
        self, reader: ObjectReader, access: AccessMap, roots: Roots, written: WrittenFiles | None = None
    ) -> None:
        self._reader = reader
        self._written = written
        self._access = access
        self._roots = roots
        self._own_threads = _OwnThreads(roots)
        self.part_reads: npt.NDArray[np.int64] = np.zeros(3, np.int64)
        self._large: LargeFiles | None = None  # made when there is one
        self._sample = _Sample()
        self._known: dict[str, int] = {}  # files that the server was asked for by path in this epoch, and compared then
        self._in_parts: dict[int, dict[int, None] | None] | None = None

    def epoch_begins(self) -> None:
        """Files that no sample is known to open are asked for by path again: the server compares them once per epoch."""
        self._known.clear()

    @contextmanager
    def sample(self, *samples: Any) -> Iterator[None]:
        """Inside it, these samples are being made, one as a rule; several by a dataset that makes batches."""
        sample = self._sample = _Sample(*samples)
        in_threads = InheritedReader(_InThreads(self, sample))
        before = carry(in_threads)
        outside.counting = self._own_threads
        try:
            yield
            in_threads.reader = None
            sample.is_whole &= not sample.reading
            if self._access.learned is not None and (sample.opened or self._access.cached is None):
                opened = dict.fromkeys(object_id for object_id, _ in tuple(sample.opened.values()))
                if len(samples) == 1:
                    self._note(sample, opened)
                elif self._in_parts is None:
                    self._note_batch(sample, opened)
        finally:
            in_threads.reader = outside.counting = None
            carry(before)
            if self._own_threads.num_opened:
                self._reader.passed_in_own_threads(self._own_threads.take())
            self._sample = _Sample()
            for file in self._reader.sample_made():
                self.part_reads += (1, len(file), file.num_read)

    @contextmanager
    def parts(self) -> Iterator[None]:
        """Inside it, each sample is made in several goes, and reported at the end with all that it opened."""
        self._in_parts = {}
        try:
            yield
            for base, ids in self._in_parts.items():
                if ids is not None:
                    self._learn(base, tuple(ids))
        finally:
            self._in_parts = None

    def may_have(self, path: str) -> bool:
        """Return False for a file that is neither expected nor below the roots."""
        return self._may_have(self._sample, path)

    def read_file(self, path: str) -> Answer | None:
        """Return the bytes of a file from the cache, or lend them; None when the caller should open it."""
        return self._read_file(self._sample, path, self._reader)

    def _may_have(self, sample: _Sample, path: str) -> bool:
        expected = sample.expected
        if expected is None:
            expected = sample.expected = self._expected_of(sample)
        return path in expected or self._roots.covers(path)

    def _read_file(self, sample: _Sample, path: str, reader: ObjectReader) -> Answer | None:
        if not self._may_have(sample, path):
            return None
        opened = sample.opened.get(path)
        expected = sample.expected or {}
        object_id = expected.get(path, self._known.get(path)) if opened is None else opened[0]
        if self._written is not None and self._written.any() and self._is_written(path, object_id):
            self._pass_by(sample, path, object_id, reader)
            return None
        if opened is not None:
            return opened[1]
        try:
            return self._read(sample, path, object_id, reader)
        except PassedThroughError:
            lent = self._lend_large(sample, path)
        except SourceError:
            lent = None  # the sample opens the file itself, and gets the error that its user knows
        if lent is None:
            reader.pass_by(None)
        return lent

    def served_key(self, path: str) -> bytes | None:
        """Return the entry key of the bytes that ``read_file`` gave for this sample; None when it is not known."""
        return self._sample.served_keys.get(path)

    def _expected_of(self, sample: _Sample) -> dict[str, int]:
        """Return the files that the samples being made are known to open."""
        manifest = self._access.dataset.manifest
        num_objects = manifest.num_objects  # after a power failure more may have been learned
        known = (object_id for one in sample.samples for object_id in self._access.objects_of(one))
        return {manifest.path(object_id): object_id for object_id in known if object_id < num_objects}

    def _read(self, sample: _Sample, path: str, object_id: int | None, reader: ObjectReader) -> Answer | None:
        data: Answer | None
        if object_id is None:
            data, object_id = reader.try_read_file(path)
            if object_id is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[path] = object_id
            sample.is_whole &= object_id is not None  # else there was no answer: not all that it opens will be known
            if self._written is not None and self._written.any() and self._is_written(path, object_id):
                data = None  # another name of a file that was written
        else:
            sample.opened[path] = (object_id, None)  # it was opened, also if that fails
            data = reader.try_read(object_id)
        if object_id is not None:
            sample.opened[path] = (object_id, data)
            if data is not None and reader.last_key:
                sample.served_keys[path] = reader.last_key
        return data

    def _lend_large(self, sample: _Sample, path: str) -> Answer | None:
        """Lend a file that the server does not cache whole, if it is a large one; see ``LargeFiles``."""
        if self._large is None:
            self._large = LargeFiles(self._access.dataset.config)
        lent = self._large.lend(path)
        if lent is not None:
            sample.served_keys[path] = lent.key
        return lent

    def _is_written(self, path: str, object_id: int | None) -> bool:
        """Return whether the file is one that was written, under this name or another."""
        inode = 0 if object_id is None else self._access.dataset.manifest.inode(object_id)
        return self._written is not None and self._written.covers(path, inode)

    def _pass_by(self, sample: _Sample, path: str, object_id: int | None, reader: ObjectReader) -> None:
        """Note that the sample opens a file which the cache does not answer for."""
        if object_id is None:
            sample.is_whole = False
            reader.pass_by(None)
            return
        if path not in sample.opened:
            reader.pass_by(object_id)
        sample.opened[path] = (object_id, None)

    def _note(self, sample: _Sample, ids: dict[int, None]) -> None:
        """Report what the sample opened, now or when all its parts are made; nothing when not all of it is known."""
        base = self._access.base_sample(sample.samples[0])
        if base is None:
            return
        if self._in_parts is not None:
            before = self._in_parts.get(base, {})
            self._in_parts[base] = before | ids if sample.is_whole and before is not None else None
        elif sample.is_whole:
            self._learn(base, tuple(ids))

    def _note_batch(self, sample: _Sample, ids: dict[int, None]) -> None:
        """Report which of the files that were guessed of its samples a batch opened.

        It is not known whose the others are. Where there are some, a sample whose files were not all opened may have opened those instead,
        and nothing is reported of it.
        """
        guesses = {
            base: self._access.objects_of(one)
            for one in sample.samples
            if (base := self._access.base_sample(one)) is not None
        }
        others = ids.keys() - {object_id for guess in guesses.values() for object_id in guess}
        for base, guess in guesses.items():
            opened = tuple(object_id for object_id in guess if object_id in ids)
            if guess and (opened == guess or (sample.is_whole and not others)):
                self._learn(base, opened)

    def _learn(self, base: int, ids: tuple[int, ...]) -> None:
        """Report what the sample opened, when that is not what was known of it; threads open its files in any order."""
        learned = self._access.learned
        assert learned is not None
        seen = learned.seen(base)
        if seen is None or set(seen) != set(ids):
            self._reader.learn(base, ids)


class _InThreads:
    """Reads files for the threads that a sample has started: an ``interception.FileReader``."""

    def __init__(self, files: SampleFiles, sample: _Sample) -> None:
        self._files = files
        self._sample = sample

    def may_have(self, path: str) -> bool:
        """Return what ``SampleFiles.may_have`` returns for the sample."""
        return self._files._may_have(self._sample, path)

    def read_file(self, path: str) -> Answer | None:
        """Return the bytes of a file, read with a reader that no other thread uses meanwhile."""
        reading, thread = self._sample.reading, get_ident()
        reading.add(thread)
        try:
            with self._files._reader.for_thread() as reader:
                return self._files._read_file(self._sample, path, reader)
        except PrefeedError:
            self._sample.is_whole = False
            return None  # the catalogue was made again
        finally:
            reading.discard(thread)


class _OwnThreads:
    """Counts files that threads open while a sample is made, if the sample has not started them; has no file: a ``FileReader``.

    A dataset that keeps threads of its own and gives them work by a queue opens its files there. Which sample they belong to is unknown.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self.num_opened = 0

    def may_have(self, path: str) -> bool:
        """Return True below the roots, so that ``read_file`` is called for files that are opened for reading."""
        return self._roots.covers(path)

    def read_file(self, path: str) -> None:
        """Count the file; the caller opens it."""
        if self._roots.covers(path):
            self.num_opened += 1

    def take(self) -> int:
        """Return how many were counted since the last time."""
        taken, self.num_opened = self.num_opened, 0
        return taken
