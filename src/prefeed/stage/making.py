"""Samples made and put into a cache, with a note of the files that they are made of, unless they are drawn at random."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from prefeed.errors import CannotEncodeError, RandomStageError
from prefeed.interception import current_reader, reads_from
from prefeed.stage.cache_store import CacheStore
from prefeed.stage.changes import Changes
from prefeed.stage.codec import Encoder
from prefeed.stage.files_seen import FilesSeen
from prefeed.stage.fingerprint import describe
from prefeed.stage.generators import Watch
from prefeed.stage.lineage import Lineage
from prefeed.stage.notes import encode_note

_log = logging.getLogger("prefeed")

_FIRST_SAMPLES: Final = 16
"""What is wrong with a stage is an error while one of its first samples is made; later its samples are no longer kept."""

Scope = AbstractContextManager[None]


class Maker:
    """Makes samples of one stage.

    **Threads and processes.** Any thread, if the dataset allows it; may go on after a fork.
    """

    def __init__(self, dataset: Any, changes: Changes, *, is_watched: bool, allow_pickle: bool) -> None:
        """Note how to make them.

        Args:
            dataset: What makes them.
            changes: Of the dataset.
            is_watched: The global generators are watched while a sample is made.
            allow_pickle: Pickle what has no encoding of its own.
        """
        self._dataset = dataset
        self._changes = changes
        self._is_watched = is_watched
        self._allow_pickle = allow_pickle
        self._encoders = _Encoders()
        self._num_made = 0
        self._num_unsure = 0
        self._draws = False
        self._warned: set[str] = set()

    def made(self, index: Any, scope: Scope) -> Any:
        """Return a sample, which is not kept."""
        with scope, self._changes.making():
            return self._dataset[index]

    def made_and_kept(
        self, store: CacheStore, lineage: Lineage, index: Any, key: bytes, scope: Callable[[], Scope]
    ) -> Any:  # fmt: skip
        """Return a sample, which is kept if that is possible.

        Args:
            store: Where it is kept.
            lineage: Where it comes from.
            index: Which it is.
            key: Its identity.
            scope: Opens what it is made in, and made once more if that is needed.

        Raises:
            RandomStageError: One of the first samples was drawn at random.
            CannotEncodeError: One of the first samples holds what cannot be kept.
            Exception: Whatever ``dataset[index]`` raises.
        """
        version = lineage.version(index)
        sample, files, drew = self._watched(index, scope())
        if drew is not None and not self._draws:  # was that the stage, or another thread?
            sample, files, drew = self._watched(index, scope())
            if drew is not None:
                self._drew(drew)
        if drew is None and files.is_complete and not self._draws and store.takes_more:
            self._keep(store, key, sample, encode_note(files.note(version)))
        self._num_made += 1
        return sample

    def _watched(self, index: Any, scope: Scope) -> tuple[Any, FilesSeen, str | None]:
        files = FilesSeen(current_reader())
        with scope, self._changes.making(), reads_from(files), Watch() as watch:
            sample = self._dataset[index]
        return sample, files, watch.drew if self._is_watched else None

    def _keep(self, store: CacheStore, key: bytes, sample: Any, note: bytes) -> None:
        try:
            entry = self._encoders.mine.encode(sample, note=note, allow_pickle=self._allow_pickle)
        except CannotEncodeError as err:
            if self._num_made < _FIRST_SAMPLES:
                raise
            self._warn_once("encode", f"a sample is not kept: {err}")
        else:
            store.put(key, entry)

    def _drew(self, generator: str) -> None:
        """A generator moved twice: refuse the stage if it did that from the start, else keep no more of it."""
        name = describe(self._dataset)
        if threading.active_count() > 1:
            self._num_unsure += 1
            self._draws = self._num_unsure >= _FIRST_SAMPLES
            self._warn_once(
                "unsure",
                f"{generator} was drawn from while {name} made a sample, by it or by another thread: such samples are not "
                "kept; if it was not the stage, mark it with prefeed.not_random",
            )
            return
        where = f"{name} draws from {generator} while it makes a sample"
        if self._num_made < _FIRST_SAMPLES:
            raise RandomStageError(refusal(where))
        self._draws = True
        self._warn_once("draws", f"{where}: its samples are not kept from now on")

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("prefeed: %s", text)


class _Encoders(threading.local):
    """One for each thread: it keeps what it wrote last."""

    def __init__(self) -> None:
        self.mine = Encoder()


def refusal(where: str) -> str:
    """Return the text of a ``RandomStageError``."""
    return (
        f"a stage that draws random numbers cannot be cached, each epoch would see the same ones: {where}. Cache what comes "
        "before it, and map the random step on top; if its result does not depend on chance, mark it with prefeed.not_random"
    )
