"""Samples made and put into a cache, with a note of the files that they are made of, unless they are drawn at random."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

from prefeed.client.once import reading_once
from prefeed.errors import CannotEncodeError, RandomStageError
from prefeed.interception import current_reader, reads_from, watch_opens
from prefeed.interception.asking import Answer
from prefeed.shown import describe
from prefeed.stage_cache.cache_store import CacheName, CacheStore
from prefeed.stage_cache.comparing import difference
from prefeed.stage_cache.files_seen import FilesSeen, Note, encode_note, standing, way_here
from prefeed.stage_cache.randomness import Watch, computing_with, left_alone
from prefeed.stage_cache.rows import encode, require_loadable
from prefeed.types import Buffer

_log = logging.getLogger("prefeed")

_FIRST_SAMPLES: Final = 16
"""What is wrong with a stage is an error while one of its first samples is made; later its samples are no longer kept."""

_WATCHED_EVERY: Final = 32
"""Global generators are compared around the first samples, and around each of this number of later ones: it takes 90 µs."""

_TWICE: Final = 4
"""This number of the first samples that a process makes of a stage are made twice and compared..."""

_LEAST_TWICE: Final = 2
_LONG_SECONDS: Final = 0.5
"""... unless making them again takes longer than this: then ``_LEAST_TWICE`` are."""

Scope = AbstractContextManager[None]


class Attempt(NamedTuple):
    """A sample that was made.

    Attributes:
        sample: What the dataset returned.
        files: What was opened.
        drew: The global generator that moved meanwhile; None: none.
        seconds: How long it took.
    """

    sample: Any
    files: FilesSeen
    drew: str | None
    seconds: float


class Maker:
    """Makes samples of one stage.

    **Threads and processes.** Any thread, if the dataset allows it; works on after a fork.
    """

    def __init__(self, dataset: Any, *, is_watched: bool) -> None:
        """Note how to make them.

        Args:
            dataset: What makes them.
            is_watched: The global generators are watched while a sample is made, and a stage whose samples differ when they
                are made again is refused. False: the user has said that chance does not matter.
        """
        self._dataset = dataset
        self._is_watched = is_watched
        self._num_made = 0
        self._num_unsure = 0
        self._longest_seconds = 0.0
        self._draws = False
        self._is_same_again = True
        self._was_kept = True  # the last sample, or there was none
        self._warned: set[str] = set()

    @property
    def can_compare(self) -> bool:
        """Whether a sample that differs from the one kept says anything: not where it does so each time."""
        return self._is_same_again and not self._draws

    @property
    def is_refused(self) -> bool:
        """Whether the stage was found to be random: none of its samples are kept."""
        return self._draws

    @property
    def longest_seconds(self) -> float:
        """The longest that making a sample took here."""
        return self._longest_seconds

    def made(self, index: Any, scope: Callable[[], Scope]) -> Any:
        """Return a sample, which is not kept."""
        watch_opens()
        attempt = self._attempt(index, scope())
        standing.taken(attempt.files)
        return attempt.sample

    def made_and_kept(
        self, store: CacheStore, index: Any, key: bytes, scope: Callable[[], Scope]
    ) -> Any:  # fmt: skip
        """Return a sample, which is kept if that is possible.

        Args:
            store: Where it is kept.
            index: Which it is.
            key: Its identity.
            scope: Opens what it is made in, and made once more if that is needed.

        Raises:
            RandomStageError: One of the first samples was drawn at random.
            CannotEncodeError: One of the first samples holds what cannot be kept.
            Exception: Whatever ``dataset[index]`` raises.
        """
        watch_opens()
        with reading_once() if self._was_kept else nullcontext():
            attempt = self._attempt(index, scope())
            if attempt.drew is not None and not self._draws:  # was that the stage, or another thread?
                attempt = self._attempt(index, scope())
                if attempt.drew is not None:
                    self._drew(store, attempt.drew)
            if self.computes_twice(store) or (not self._draws and standing.is_new(attempt.files)):
                self._make_again(store, index, attempt)
            else:
                standing.taken(attempt.files)
        standing.tie(attempt.files)
        may_keep = attempt.drew is None and attempt.files.is_complete and not self._draws and store.takes_more
        self._was_kept = may_keep and self._try_keep(
            store, key, attempt.sample, encode_note(attempt.files.note(attempt.seconds))
        )
        self._num_made += 1
        return attempt.sample

    def made_to_compare(self, index: Any, scope: Callable[[], Scope], kept: Note) -> bytes | None:
        """Return the entry of a sample as it is made now, without a note; None when it cannot be told.

        No generator that the user's code can see moves. Which files it opens is in the note: only where one of them is not seen
        to be opened is Python asked to tell of all (``watch_opens``).

        Args:
            index: Which it is.
            scope: Opens what it is made in.
            kept: The note of the entry that it is compared with; where torch cannot compute with as many threads as then,
                nothing is made.
        """
        try:
            with left_alone(), checking(), reading_once(), computing_with(kept.threads) as is_comparable:
                if not is_comparable:
                    return None
                made = self._attempt(index, scope())
                if standing.wants_trial(made.files):
                    standing.tried(made.files, self._attempt(index, scope()).files)
                elif standing.audited(made.files, kept):
                    watch_opens()
                return self._encoded(made.sample)
        except Exception:  # noqa: BLE001 - whatever the dataset raises: no loop ends by what it did not ask for
            _log.debug("prefeed: a sample that was found could not be made", exc_info=True)
            return None

    def differs(self, one: Buffer, other: Buffer) -> str | None:
        """Return in what two entries differ; None when they do not."""
        return difference(one, other)

    def refuse(self, store: CacheStore, where: str, *, may_raise: bool = True) -> None:
        """Samples of the stage differ each time: keep none of them, nor those that were kept.

        Raises:
            RandomStageError: It is found with one of the first samples, unless that is not wanted.
        """
        if not self._is_watched:
            self._is_same_again = False  # the user's own will
            return
        store.empty()
        self._draws = True
        if may_raise and self._num_made < _FIRST_SAMPLES:
            raise RandomStageError(refusal(where))
        self._warn_once("draws", f"{where}: its samples are not kept from now on")

    def _attempt(self, index: Any, scope: Scope, again: Mapping[str, Answer] | None = None) -> Attempt:
        files = FilesSeen(current_reader(), _way, again)
        began = time.perf_counter()
        watch = Watch()
        is_watched = self._is_watched and (self._num_made < _FIRST_SAMPLES or self._num_made % _WATCHED_EVERY == 0)
        with scope, reads_from(files), watch if is_watched else nullcontext():
            sample = self._dataset[index]
        seconds = time.perf_counter() - began
        self._longest_seconds = max(self._longest_seconds, seconds)
        return Attempt(sample, files, watch.drew, seconds)

    def computes_twice(self, store: CacheStore) -> bool:
        """Return whether the next sample is one of the first here, which are made twice and compared."""
        num, seconds = _made_twice.get(store.name, (0, 0.0))
        return not self._draws and num < (_TWICE if seconds < _LONG_SECONDS else _LEAST_TWICE)

    def _make_again(self, store: CacheStore, index: Any, first: Attempt) -> None:
        """Make a sample once more, of the bytes that the reader in charge gave.

        It must be the same, and shows which of its files it opens each time.
        """
        entry = self._encoded(first.sample)  # before it is made again: it may be one object each time
        began = time.perf_counter()
        try:
            with left_alone(), checking():
                second = self._attempt(index, nullcontext(), first.files.served)
        except Exception as err:  # noqa: BLE001 - it differs in that
            standing.taken(first.files)
            found: str | None = f"it was made, and making it again raised {type(err).__name__}: {err}"
        else:
            standing.tried(first.files, second.files)
            again = None if entry is None else self._encoded(second.sample)
            found = None if entry is None or again is None else self.differs(entry, again)
            if found is not None and first.files.have_changed(second.files):
                found, first.files.is_complete = (
                    None,
                    False,
                )  # it was made of other bytes: it is not known which these were
        num, seconds = _made_twice.get(store.name, (0, 0.0))
        _made_twice[store.name] = (num + 1, seconds + time.perf_counter() - began)
        if found is not None:
            self.refuse(store, f"{describe(self._dataset)} made sample {index!r} twice, and they differ: {found}")

    def _encoded(self, sample: Any) -> bytes | None:
        try:
            return b"".join(encode(sample))
        except CannotEncodeError:
            return None  # who keeps it says so

    def _try_keep(self, store: CacheStore, key: bytes, sample: Any, note: bytes) -> bool:
        try:
            entry = encode(sample, note=note)
            if self._num_made == 0:
                require_loadable(entry)
        except CannotEncodeError as err:
            if self._num_made < _FIRST_SAMPLES:
                raise
            self._warn_once("encode", f"a sample is not kept: {err}")
            return False
        return store.put(key, entry)

    def _drew(self, store: CacheStore, generator: str) -> None:
        """Refuse the stage if a generator has moved twice from the start; later, empty the cache and keep no more samples."""
        name = describe(self._dataset)
        if threading.active_count() > 1:
            self._num_unsure += 1
            self._draws = self._num_unsure >= _FIRST_SAMPLES
            if self._draws:
                store.empty()
            self._warn_once(
                "unsure",
                f"{generator} was drawn from while {name} made a sample, by it or by another thread: such samples are not "
                "kept; if it was not the stage, mark it with prefeed.not_random",
            )
            return
        where = f"{name} draws from {generator} while it makes a sample"
        if self._num_made < _FIRST_SAMPLES:
            raise RandomStageError(refusal(where))
        store.empty()
        self._draws = True
        self._warn_once("draws", f"{where}: its samples are not kept from now on")

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("prefeed: %s", text)


def _way() -> int | None:
    return way_here(Maker._attempt.__code__)


_made_twice: dict[CacheName, tuple[int, float]] = {}
"""How many samples of a stage this process has made twice, and the seconds that the second ones took."""

os.register_at_fork(after_in_child=_made_twice.clear)


class _Checking(threading.local):
    is_checking = False


_checking = _Checking()


def is_checking() -> bool:
    """Return whether this thread makes a sample only to compare it with another."""
    return _checking.is_checking


@contextmanager
def checking() -> Iterator[None]:
    """Inside it, samples are made only to be compared."""
    before, _checking.is_checking = _checking.is_checking, True
    try:
        yield
    finally:
        _checking.is_checking = before


def refusal(where: str) -> str:
    """Return the text of a ``RandomStageError``."""
    return (
        f"a stage that draws random numbers cannot be cached, because each epoch would see the same numbers: {where}. Cache what comes "
        "before it, and map the random step on top; if its result does not depend on chance, mark it with prefeed.not_random"
    )
