"""``CachedDataset``: computes a deterministic step of a pipeline once, for every process and every epoch.

sample(i) ─→ store ─found, and still true→ decoded
               │ absent, or its files have changed
               ↓
             claim ─→ compute it, and watch files and generators ─→ stored with a note of its files
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import util
from typing import Any, Final

from prefeed.config import Config
from prefeed.errors import CannotFingerprintError, PrefeedError
from prefeed.interception import kept_in_place
from prefeed.map_style import MapStyle
from prefeed.shown import describe, shown
from prefeed.stage_cache.auditing import MOST_FAILED, Audit, Auditor, Run, waiting
from prefeed.stage_cache.cache import CacheStatistics, DatasetCache
from prefeed.stage_cache.cache_store import CacheStore
from prefeed.stage_cache.finding import ABSENT, Finder
from prefeed.stage_cache.making import Maker, is_checking
from prefeed.stage_cache.stage import Stage, sample_of, stage_of

_log = logging.getLogger("prefeed")

_WAIT_SECONDS: Final = 0.001
_LEAST_PATIENCE_SECONDS: Final = 1.0
_MOST_TIMES: Final = 4.0
"""An entry that another process is making is waited for this long, or at most this multiple of what making one took here; then it
is made here too: the other may be stopped."""

Making = Callable[[int], AbstractContextManager[None]]
"""Opens the scope in which the sample at this position of a batch is made."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Samples of one request. Each list has one item per sample, except ``made``: positions of computed samples."""

    store: CacheStore
    indices: Sequence[Any]
    keys: list[bytes]
    found: list[Any]
    making: Making
    made: list[int] = field(default_factory=list)

    def at(self, position: int) -> Audit:
        """Return one of them as a sample that may be audited."""
        scope = partial(self.making, position)
        return Audit(self.store, self.indices[position], self.keys[position], scope)


class CachedDataset(MapStyle[Any]):
    """Dataset whose samples are computed once and kept, for every process of this node.

    An entry is found by the fingerprint of the dataset and by its sample. It is returned if the files that were opened for it have not
    changed. The fingerprint is a hash of the pickled dataset, with the user's functions and classes by value; it is taken in each
    process and with each epoch. The first samples of a process are computed twice, and a few of those that are found are
    computed again; a difference empties the cache. See SEMANTICS.

    Args:
        dataset: Map-style; its samples must not be drawn at random.
        cache: Where entries are kept; None: in the node's default session.
        version: Identifies the dataset instead of its fingerprint. Change it with the code and the data, and let it name both:
            ``"cifar10-train v2"``. None: the fingerprint.
        config: Settings; defaults to those in force in the process. Not with a cache, which has its own.

    Raises:
        CannotFingerprintError: The dataset contains what cannot be pickled; pass ``version``.
        SessionNotFoundError: The cache names a session that is not there.

    **Threads and processes.** Any thread, if the dataset below allows it; may be forked and pickled.
    """

    def __init__(
        self,
        dataset: Any,
        cache: DatasetCache | None = None,
        *,
        version: str | None = None,
        config: Config | None = None,
    ) -> None:
        require_map_style(dataset)
        if cache is not None and not isinstance(cache, DatasetCache):
            raise TypeError(f"argument cache with value {cache!r} is not of type DatasetCache")
        self.dataset = dataset
        self._version = version
        self._run = Run()
        self._num_passes = 0
        self._unconfirmed: list[bytes] = []  # keys of samples computed since the last fingerprint
        self._said = ""
        self._stage = Stage(dataset, version)
        self._cache = DatasetCache.default(config) if cache is None else cache
        self._store: CacheStore | None = self._opened(self._cache)
        self._start()

    @property
    def cache(self) -> DatasetCache:
        """Where entries are kept; another one once the dataset has changed."""
        return self._cache

    @property
    def fingerprint(self) -> bytes:
        """Hash of everything that samples are computed with, 16 bytes; see SEMANTICS."""
        return self._stage.fingerprint

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.samples((index,))[0]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples of a batch."""
        return self.samples(indices)

    def __repr__(self) -> str:
        state = "not cached: see the log" if self._store is None else f"in {self.cache!r}"
        return f"<{type(self).__name__} of {shown(self.dataset)}, {state}>"

    def get_stat(self) -> CacheStatistics:
        """Return what its cache holds; see ``DatasetCache.get_stat``."""
        return self.cache.get_stat()

    def samples(
        self, indices: Iterable[Any], *, making: Making | None = None, borrow: ExitStack | None = None
    ) -> list[Any]:
        """Return samples, found or made.

        Args:
            indices: As for ``dataset[i]``.
            making: Opens the scope in which a sample is made.
            borrow: Samples that are all found are views, which must not be written to, and are valid until this is
                closed. None: samples own what they hold.

        Raises:
            RandomStageError: One of the first samples was drawn at random.
            Exception: Whatever ``dataset[i]`` raises.
        """
        if not isinstance(indices, Sequence):  # a set, a generator: whatever torch takes for a batch
            indices = list(indices)
        making = making or _no_scope
        self._look_if_due(indices)
        store = self._store
        if store is None:
            return self._computed(indices, making)
        try:
            keys = [self._stage.key(index) for index in indices]
        except CannotFingerprintError:
            if len(indices) == 1:
                return self._computed(indices, making)
            return [self.samples((index,), making=_at(making, at))[0] for at, index in enumerate(indices)]
        batch = _Batch(store, indices, keys, [], making)
        at = self._auditor.choose(len(indices))
        may_wait = self._auditor.may_wait
        if at is not None and not may_wait:
            if not self._is_right(batch.at(at)):
                return self._computed(indices, making)
            if self._store is not store:  # the fingerprint before the audit found a change
                return self.samples(indices, making=making, borrow=borrow)
        batch.found.extend(self._finder.found(store, keys, borrow))
        if at is not None and may_wait and batch.found[at] is not ABSENT:
            waiting.add(partial(self._audit_now, batch.at(at)))
        absent = [at for at, sample in enumerate(batch.found) if sample is ABSENT]
        if absent and not self._is_still_of(store):
            return self.samples(indices, making=making, borrow=borrow)
        try:
            self._make(batch, absent)
        finally:  # one that another process made meanwhile was found; one that raises was neither
            if not is_checking():
                num_missing = sum(batch.found[at] is ABSENT for at in absent)
                store.count(len(indices) - num_missing - len(batch.made), len(batch.made))
        store.report()
        return batch.found

    def begin_pass(self) -> None:
        """Take the fingerprint again, because an epoch begins in this process or in workers."""
        self._num_passes += 1
        if self._num_passes > 1:
            self._run.end()
        self._look()

    def absent(self, indices: Sequence[int]) -> list[bool]:
        """Return for each sample whether the cache has no entry of it; files are not asked whether they changed."""
        if self._store is None:
            return [True] * len(indices)
        with self._store.reading() as views:
            return [view is None for view in views.get_views([self._stage.key(index) for index in indices])]

    def has_room(self) -> bool:
        """Return True while the cache takes more entries."""
        return self._store is not None and self._store.has_room()

    def prefeed_stage(self) -> Any:
        """Return the value to identify the stage by; see ``stage_of``."""
        return stage_of(self.dataset) if self._version is None else (self._version, describe(self.dataset))

    def prefeed_sample(self, index: Any) -> Any:
        """Return the identity of a sample; see ``sample_of``."""
        return sample_of(self.dataset, index)

    def prefeed_state(self) -> Any:
        """Return the state that identifies this dataset inside another one."""
        return {"dataset": self.dataset} if self._version is None else {"version": self._version}

    def close(self) -> None:
        """Let go of what this process has open; entries stay, and a later use opens everything again."""
        self._confirm()
        self.cache.close()

    def __getstate__(self) -> dict[str, Any]:
        self._look_if_due(())
        return {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS} | {"_unconfirmed": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # ------------------------------------------------------------ the stage as it is now

    def _start(self) -> None:
        self._finder = Finder(revalidates=self.cache.revalidates)
        self._maker = Maker(self.dataset, is_watched=not self._stage.is_marked)
        self._auditor = Auditor(self._run)

    def _look_if_due(self, indices: Sequence[Any]) -> None:
        if self._stage.is_due(indices):
            self._look()

    def _look(self) -> None:
        """Take the fingerprint again. If it is another one, switch to the cache of that stage."""
        before, store = self._stage.fingerprint, self._store
        is_certain = self._stage.has_changed()  # and had not before any of the samples that were computed
        try:
            self._stage.look()
            if self._stage.fingerprint != before:
                self._cache = self._cache.again()
                self._store = self._opened(self._cache)
            elif store is None and self._cache.may_be_tried_again:
                self._store = self._opened(self._cache)
        except PrefeedError as err:
            self._store, self._stage.fingerprint = None, b""  # so that the next look tries again
            if str(err) != self._said:
                self._said = str(err)
                _log.warning("prefeed: the dataset has changed, its samples are not cached any more: %s", str(err))
        if self._stage.fingerprint != before:
            if store is not None and not is_certain:
                store.discard(self._unconfirmed)
            self._start()
        self._unconfirmed.clear()

    def _confirm(self) -> None:
        """Take the fingerprint again, so that samples computed since the last one are discarded if it has changed."""
        if self._unconfirmed:
            self._look()

    def _opened(self, cache: DatasetCache) -> CacheStore | None:
        number = int.from_bytes(self._stage.fingerprint[:4], "little")
        return cache.use_for(number, describe(self.dataset))

    def _computed(self, indices: Sequence[Any], making: Making) -> list[Any]:
        """Return samples that are not kept."""
        with self._stage.computing(leaves_out=False):
            return [self._maker.made(index, partial(making, at)) for at, index in enumerate(indices)]

    # ------------------------------------------------------------ audits

    def _audit_now(self, asked: Audit) -> None:
        """Audit a sample that has waited for a moment in which this process has nothing to do."""
        if self._store is asked.store and self._auditor.take_credit():
            self._is_right(asked)

    @contextmanager
    def _looking_around(self, asked: Audit) -> Iterator[bool]:
        """Audit a sample inside; gives False if the stage has changed, and it must not be audited."""
        self._look()
        if self._store is not asked.store:
            yield False
            return
        with self._stage.computing():
            yield True

    def _is_right(self, asked: Audit) -> bool:
        """Make a sample again, if it is time; False: the cache is not used any more, since samples differ each time."""
        failed = self._auditor.audit(
            asked, self._finder, self._maker,
            looking=self._looking_around(asked), looking_seconds=2 * self._stage.cost_seconds,
        )  # fmt: skip
        if failed is None:
            return True
        is_used = asked.store.empty() and self._auditor.num_failed < MOST_FAILED and not self._maker.is_refused
        _log.warning(
            "prefeed: stage-audit-failed: sample %r of %s differs from the cached one (%s): the cache is emptied, and %s",
            asked.index, describe(self.dataset), failed,
            "its samples are recomputed" if is_used else "this process stops using it",
        )  # fmt: skip
        if not is_used:
            self._store = None
        return is_used

    # ------------------------------------------------------------ making

    def _is_still_of(self, store: CacheStore) -> bool:
        """Take the fingerprint before samples are computed, if that is due, and return whether they are stored there."""
        if self._maker.computes_twice(store) or self._stage.is_doubtful():
            self._look()
        return self._store is store

    def _make(self, batch: _Batch, absent: list[int]) -> None:
        """Make samples of a batch, those first that no other process is making."""
        if not absent:
            return
        is_first = self._maker.computes_twice(batch.store)
        with self._stage.computing(leaves_out=is_first), kept_in_place():
            for at in [at for at in absent if not self._try_make(batch, at)]:
                self._wait_and_make(batch, at)

    def _try_make(self, batch: _Batch, at: int) -> bool:
        """Make a sample, unless another process is at it; then return False."""
        store, key = batch.store, batch.keys[at]
        if not store.claims.try_claim(key):
            return False
        try:
            if store.holds(key):  # another process has made it meanwhile
                batch.found[at] = self._finder.found(store, (key,))[0]
            if batch.found[at] is ABSENT:
                self._make_one(batch, at)
        finally:
            store.claims.release(key)
        return True

    def _wait_and_make(self, batch: _Batch, at: int) -> None:
        """Make a sample that another process was making, unless it has done so by now."""
        deadline = time.monotonic() + max(_LEAST_PATIENCE_SECONDS, _MOST_TIMES * self._maker.longest_seconds)
        while not self._try_make(batch, at):
            if time.monotonic() >= deadline:  # it was stopped, say
                self._make_one(batch, at)
                return
            time.sleep(_WAIT_SECONDS)

    def _make_one(self, batch: _Batch, at: int) -> None:
        batch.found[at] = self._maker.made_and_kept(
            batch.store, batch.indices[at], batch.keys[at], partial(batch.making, at)
        )
        batch.made.append(at)
        self._unconfirmed.append(batch.keys[at])
        _confirm_at_exit(self)


_computing: Final[weakref.WeakSet[CachedDataset]] = weakref.WeakSet()
_exit: util.Finalize | None = None


def _confirm_at_exit(dataset: CachedDataset) -> None:
    """Let this process take the fingerprint once more when it ends; a worker of ``multiprocessing`` calls nothing else then."""
    global _exit
    _computing.add(dataset)
    if _exit is None or not _exit.still_active():  # a forked worker forgets what its parent has registered
        _exit = util.Finalize(None, _confirm_all, exitpriority=1)


def _confirm_all() -> None:
    for dataset in list(_computing):
        dataset._confirm()


_OF_PROCESS: Final = frozenset({"_finder", "_maker", "_auditor"})


def _at(making: Making, position: int) -> Making:
    return lambda _at: making(position)


def _no_scope(_at: int) -> AbstractContextManager[None]:
    return nullcontext()


def require_map_style(dataset: Any) -> None:
    """Raise a ``TypeError`` unless samples can be asked for by index."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"{type(dataset).__name__} has no __getitem__ and __len__: only samples that can be asked for by index can be "
            "mapped and cached"
        )


def mapped(
    dataset: Any,
    fn: Callable[[Any], Any],
    cache: DatasetCache | None = None,
    *,
    version: str | None = None,
) -> MappedDataset | CachedDataset:
    """Return a dataset of ``fn(dataset[i])``, cached or not, so that steps compose.

    Args:
        dataset: Map-style.
        fn: Given a sample, returns a sample. With a cache it must not draw random numbers.
        cache: Keeps the results of ``fn``. None: it is called each time.
        version: Identifies ``fn`` instead of its code and parameters. Change it with them, and let it name the work:
            ``"resize-64 v2"``. None: they count.

    Raises:
        CannotFingerprintError: ``fn`` contains what cannot be pickled; pass ``version``.
    """
    without = MappedDataset(dataset, fn, version=version)
    return without if cache is None else CachedDataset(without, cache)


def cached(
    dataset: Any,
    cache: DatasetCache | None = None,
    *,
    version: str | None = None,
    config: Config | None = None,
) -> CachedDataset:
    """Return a dataset whose samples are computed once and kept, for every process of this node.

    Arguments and errors are those of ``CachedDataset``; without a cache, samples are kept in the node's default session.
    """
    return CachedDataset(dataset, cache, version=version, config=config)


class MappedDataset(MapStyle[Any]):
    """``fn(dataset[i])``, made each time.

    Attributes:
        dataset: What is mapped.
        fn: Given a sample, returns a sample.
    """

    def __init__(self, dataset: Any, fn: Callable[[Any], Any], *, version: str | None = None) -> None:
        """See ``mapped``."""
        require_map_style(dataset)
        if not callable(fn):
            raise TypeError(f"the function of prefeed.mapped must be callable, not {fn!r}")
        self.dataset = dataset
        self.fn = fn
        self._version = version

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self.fn)} of {shown(self.dataset)}>"

    def __getitem__(self, index: Any) -> Any:
        return self.fn(self.dataset[index])

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """Samples of a batch, where those below are found together; None: they are made one by one, as torch does."""
        return self._batch if _is_cached(self.dataset) else None

    def _batch(self, indices: Sequence[Any]) -> list[Any]:
        return [self.fn(sample) for sample in self.dataset.__getitems__(indices)]

    def prefeed_stage(self) -> Any:
        """Return the value to identify the stage by; see ``stage_of``."""
        return stage_of(self.dataset), self._step()

    def prefeed_sample(self, index: Any) -> Any:
        """Return the identity of a sample; see ``sample_of``."""
        return sample_of(self.dataset, index)

    def prefeed_state(self) -> Any:
        """Return the state that identifies this dataset inside another one."""
        return {"dataset": self.dataset, "fn": self._step()}

    def _step(self) -> Any:
        return self.fn if self._version is None else (self._version, describe(self.fn))


def _is_cached(dataset: Any) -> bool:
    while isinstance(dataset, MappedDataset):
        dataset = dataset.dataset
    return isinstance(dataset, CachedDataset)
