"""Files that samples open by path, read through the cache, and noted so that they are fetched ahead next time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from prefeed.client.access import AccessMap
from prefeed.client.large_files import LargeFiles
from prefeed.client.lending import CostMeter, Lent
from prefeed.client.reader import ObjectReader
from prefeed.errors import PassedThroughError, SourceError
from prefeed.interception.asking import Answer
from prefeed.sources.mounts import Roots
from prefeed.sources.written import WrittenFiles

_MOST_KNOWN: Final = 4096
"""Files that no sample is known to open, and that are found without a question when they are opened again."""


class SampleFiles:
    """Answers who opens files by path, while samples are being made: an ``interception.FileReader``.

    The files that a sample is known to open have object ids; any other file below the roots is asked of the server
    by its path, and has an id from then on. Where it is not declared what a sample opens, what it did open is reported.

    Args:
        reader: Of a catalogue.
        access: What is known about the samples.
        roots: Directories whose files are cached.
        written: Files that are not to be answered: what some process of the node has written is read from the file.

    **Threads and processes**: as the reader's.

    Attributes:
        costs: What reads of parts of large files cost.
    """

    def __init__(
        self, reader: ObjectReader, access: AccessMap, roots: Roots, written: WrittenFiles | None = None
    ) -> None:
        self._reader = reader
        self._written = written
        self._access = access
        self._roots = roots
        self.costs: CostMeter = CostMeter()
        self._large: LargeFiles | None = None  # made when there is one
        self._samples: tuple[Any, ...] = ()
        self._expected: dict[str, int] | None = None
        self._opened: dict[str, tuple[int, Answer | None]] = {}
        self._known: dict[str, int] = {}  # files that the server was asked for by path in this epoch, and compared then
        self._served_keys: dict[str, bytes] = {}
        self._is_whole = True
        self._in_parts: dict[int, dict[int, None] | None] | None = None

    def epoch_begins(self) -> None:
        """Files that no sample is known to open are asked for by path again: the server compares them once per epoch."""
        self._known.clear()

    @contextmanager
    def sample(self, *samples: Any) -> Iterator[None]:
        """Inside it, these samples are being made, one as a rule; several by a dataset that makes batches."""
        self._samples, self._expected = samples, None
        self._opened.clear()
        self._is_whole = True
        try:
            yield
            if self._access.learned is not None and (self._opened or self._access.cached is None):
                opened = dict.fromkeys(object_id for object_id, _ in self._opened.values())
                if len(samples) == 1:
                    self._note(samples[0], opened)
                elif self._in_parts is None:
                    self._note_batch(samples, opened)
        finally:
            self._samples, self._expected = (), None
            self._opened.clear()
            self._served_keys.clear()
            began = time.perf_counter()
            if lent := self._reader.sample_made():
                self.costs.noted(time.perf_counter() - began)
            for one in lent:
                self.costs.was_read(one)

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
        expected = self._expected
        if expected is None:
            expected = self._expected = self._expected_now()
        return path in expected or self._roots.covers(path)

    def read_file(self, path: str) -> Answer | None:
        """Return the bytes of a file from the cache, or lend them; None when the caller should open it."""
        if not self.may_have(path):
            return None
        opened = self._opened.get(path)
        expected = self._expected or {}  # None: another thread has ended its sample; it is then asked for by path
        object_id = expected.get(path, self._known.get(path)) if opened is None else opened[0]
        if self._written is not None and self._written.any() and self._is_written(path, object_id):
            self._pass_by(path, object_id)
            return None
        if opened is not None:
            return opened[1]
        try:
            return self._read(path, object_id)
        except PassedThroughError:
            return self._lend_large(path)
        except SourceError:
            return None  # opened as it is, it says so in the words that the user knows

    def served_key(self, path: str) -> bytes | None:
        """Return the entry key of the bytes that ``read_file`` gave for this sample; None when it is not known."""
        return self._served_keys.get(path)

    def _expected_now(self) -> dict[str, int]:
        """Return the files that the samples being made are known to open."""
        manifest = self._access.dataset.manifest
        num_objects = manifest.num_objects  # after a power failure more may have been learned
        known = (object_id for sample in self._samples for object_id in self._access.objects_of(sample))
        return {manifest.path(object_id): object_id for object_id in known if object_id < num_objects}

    def _read(self, path: str, object_id: int | None) -> Answer | None:
        data: Answer | None
        began, waited = time.perf_counter(), self._reader.waited_seconds
        if object_id is None:
            data, object_id = self._reader.try_read_file(path)
            if object_id is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[path] = object_id
            self._is_whole &= object_id is not None  # else there was no answer: not all that it opens will be known
            if self._written is not None and self._written.any() and self._is_written(path, object_id):
                data = None  # another name of a file that was written
        else:
            self._opened[path] = (object_id, None)  # it was opened, also if that fails
            data = self._reader.try_read(object_id)
        if isinstance(data, Lent):
            data.opening_seconds, data.waited_seconds = (
                time.perf_counter() - began,
                self._reader.waited_seconds - waited,
            )
        elif data is not None:
            self.costs.gave_copy()
        if object_id is not None:
            self._opened[path] = (object_id, data)
            if data is not None and self._reader.last_key:
                self._served_keys[path] = self._reader.last_key
        return data

    def _lend_large(self, path: str) -> Answer | None:
        """Lend a file that the server does not cache whole, if it is a large one; see ``LargeFiles``."""
        if self._large is None:
            self._large = LargeFiles(self._access.dataset.config)
        lent = self._large.lend(path)
        if lent is not None:
            self._served_keys[path] = lent.key
        return lent

    def _is_written(self, path: str, object_id: int | None) -> bool:
        """Return whether the file is one that was written, under this name or another."""
        inode = 0 if object_id is None else self._access.dataset.manifest.inode(object_id)
        return self._written is not None and self._written.covers(path, inode)

    def _pass_by(self, path: str, object_id: int | None) -> None:
        """Note that the sample opens a file which the cache does not answer for."""
        if object_id is None:
            self._is_whole = False
            self._reader.pass_by(None)
            return
        if path not in self._opened:
            self._reader.pass_by(object_id)
        self._opened[path] = (object_id, None)

    def _note(self, sample: Any, ids: dict[int, None]) -> None:
        """Report what the sample opened, now or when all its parts are made; nothing when not all of it is known."""
        base = self._access.base_sample(sample)
        if base is None:
            return
        if self._in_parts is not None:
            before = self._in_parts.get(base, {})
            self._in_parts[base] = before | ids if self._is_whole and before is not None else None
        elif self._is_whole:
            self._learn(base, tuple(ids))

    def _note_batch(self, samples: tuple[Any, ...], ids: dict[int, None]) -> None:
        """Report which of the files that were guessed of its samples a batch opened.

        It is not known whose the others are. Where there are some, a sample whose files were not all opened may have opened those instead,
        and nothing is reported of it.
        """
        guesses = {
            base: self._access.objects_of(sample)
            for sample in samples
            if (base := self._access.base_sample(sample)) is not None
        }
        others = ids.keys() - {object_id for guess in guesses.values() for object_id in guess}
        for base, guess in guesses.items():
            opened = tuple(object_id for object_id in guess if object_id in ids)
            if guess and (opened == guess or (self._is_whole and not others)):
                self._learn(base, opened)

    def _learn(self, base: int, ids: tuple[int, ...]) -> None:
        """Report what the sample opened, when that is not what was known of it."""
        learned = self._access.learned
        assert learned is not None
        if learned.seen(base) != ids:
            self._reader.learn(base, ids)
