"""``CachedDataset`` and ``map``: a deterministic step of a pipeline is taken once, for every process and every epoch.

sample(i) ─→ store ─found, and still true→ decoded
               │ absent, or its files have changed
               ↓
             claim ─→ make it, watching what it opens and whether it draws ─→ stored with a note of its files
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final

from prefeed.config import Config
from prefeed.errors import EntryFormatError, RandomStageError
from prefeed.interception import current_reader, reads_from
from prefeed.stage.cache import CacheStatistics, DatasetCache
from prefeed.stage.cache_store import CacheStore
from prefeed.stage.codec import Encoder, decode, note_of
from prefeed.stage.files_seen import FilesSeen
from prefeed.stage.fingerprint import describe, fingerprint
from prefeed.stage.lineage import Lineage, derived, lineage_of
from prefeed.stage.notes import Note, decode_note, encode_note, keys_now
from prefeed.stage.randomness import Watch, find_random, holds_not_random

_log = logging.getLogger("prefeed")

_ABSENT: Final = object()
_REFUSED_SAMPLES: Final = 16
"""A stage that draws while it makes one of the first samples is refused; one that begins later is no longer kept."""

_WAIT_SECONDS: Final = 0.001
_LONGEST_WAIT_SECONDS: Final = 10.0
"""An entry that another process is making is waited for so long; then it is made here too: the other may be stopped."""

Making = Callable[[int], AbstractContextManager[None]]
"""Opens the scope in which the sample at this position of a batch is made."""


def map(
    dataset: Any,
    fn: Callable[[Any], Any],
    cache: DatasetCache | None = None,
    *,
    version: str | None = None,
    codec: str | None = None,
) -> MappedDataset | CachedDataset:
    """Return a dataset of ``fn(dataset[i])``, cached or not, so that steps compose.

    Args:
        dataset: Map-style.
        fn: Given a sample, returns a sample. With a cache it must not draw random numbers.
        cache: Keeps what ``fn`` returns; None: it is called each time.
        version: Stands for the code of ``fn``; change it whenever that changes. None: it is looked at.
        codec: ``"pickle"``: what has no encoding of its own is pickled.

    Raises:
        RandomStageError: A cached step draws random numbers.
        CannotFingerprintError: Nobody can tell whether ``fn`` is the same the next time; pass ``version``.
    """
    mapped = MappedDataset(dataset, fn, version=version)
    return mapped if cache is None else CachedDataset(mapped, cache, codec=codec)


class MappedDataset:
    """``fn(dataset[i])``, made each time.

    Attributes:
        dataset: What is mapped.
        fn: Given a sample, returns a sample.
    """

    def __init__(self, dataset: Any, fn: Callable[[Any], Any], *, version: str | None = None) -> None:
        """See ``map``."""
        _require_map_style(dataset)
        if not callable(fn):
            raise TypeError(f"the function of a map must be callable, not {fn!r}")
        self.dataset = dataset
        self.fn = fn
        self._version = version

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.fn(self.dataset[index])

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """Samples of a batch, where those below are found together; None: they are made one by one, as torch does."""
        return self._batch if _is_cached(self.dataset) else None

    def _batch(self, indices: Sequence[Any]) -> list[Any]:
        return [self.fn(sample) for sample in self.dataset.__getitems__(indices)]

    @property
    def lineage(self) -> Lineage:
        """Where its samples come from; looks at the code and the parameters of the function."""
        stage = fingerprint(self.fn) if self._version is None else self._version.encode()
        return derived(lineage_of(self.dataset), stage)


class _Encoders(threading.local):
    """One for each thread: it keeps what it wrote last."""

    def __init__(self) -> None:
        self.mine = Encoder()


class CachedDataset:
    """What ``dataset[i]`` returns, made once and kept, for every process of this node.

    An entry is found by what it was made of: the code and the parameters of every step below, and the files that were
    opened, each in the version that it has now. A change of any of these makes it anew.

    Args:
        dataset: Map-style; its samples must not be drawn at random.
        cache: Where entries are kept; None: in the node's default session.
        version: Stands for the code and the content of ``dataset``; change it whenever these change. None: they are
            looked at.
        codec: ``"pickle"``: what has no encoding of its own is pickled, and whoever may write the cache may run
            code in those who read it.
        config: Settings; defaults to those in force in the process. Not with a cache, which has its own.

    Raises:
        RandomStageError: A step draws random numbers.
        CannotFingerprintError: Nobody can tell whether it is the same the next time; pass ``version``.
        SessionNotFoundError: The cache names a session that is not there.

    **Threads and processes.** Any thread, if the dataset below allows it; may be forked and pickled.
    """

    def __init__(
        self,
        dataset: Any,
        cache: DatasetCache | None = None,
        *,
        version: str | None = None,
        codec: str | None = None,
        config: Config | None = None,
    ) -> None:
        _require_map_style(dataset)
        if cache is not None and not isinstance(cache, DatasetCache):
            raise TypeError(f"argument cache with value {cache!r} is not of type DatasetCache")
        if codec not in (None, "pickle"):
            raise ValueError(f"codec must be None or 'pickle', not {codec!r}")
        drawing = find_random(dataset)
        if drawing is not None:
            raise RandomStageError(_refusal(drawing))
        self.dataset = dataset
        self.cache = DatasetCache.default(config) if cache is None else cache
        self.lineage = lineage_of(dataset, version)
        self._allow_pickle = codec == "pickle"
        self._is_watched = not holds_not_random(dataset)
        number = int.from_bytes(self.lineage.fingerprint[:4], "little") ^ self._allow_pickle
        self._store = self.cache.use_for(number, describe(dataset))
        self._start()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.samples((index,))[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples of a batch."""
        return self.samples(indices)

    def get_stat(self) -> CacheStatistics:
        """Return what its cache holds; see ``DatasetCache.get_stat``."""
        return self.cache.get_stat()

    def samples(
        self, indices: Sequence[Any], *, making: Making | None = None, borrow: ExitStack | None = None
    ) -> list[Any]:
        """Return samples, found or made.

        Args:
            indices: As for ``dataset[i]``.
            making: Opens the scope in which a sample is made.
            borrow: Samples that are all found are views, which must not be written to, and are valid until this is
                closed. None: samples own what they hold.

        Raises:
            Exception: Whatever ``dataset[i]`` raises.
        """
        making = making or _no_scope
        store = self._store
        if store is None:
            return [self._made(index, making(at)) for at, index in enumerate(indices)]
        keys = [self.lineage.identity(index) for index in indices]
        found = self._found(store, indices, keys, borrow)
        absent = [at for at, sample in enumerate(found) if sample is _ABSENT]
        store.count(len(indices) - len(absent), len(absent))
        late = [at for at in absent if not self._try_make(store, indices, keys, at, found, making)]
        for at in late:
            self._wait_and_make(store, indices, keys, at, found, making)
        store.report()
        return found

    def absent(self, indices: Sequence[int]) -> list[bool]:
        """Return for each sample whether the cache has no entry of it; files are not asked whether they changed."""
        if self._store is None:
            return [True] * len(indices)
        with self._store.reading() as views:
            return [view is None for view in views.get_views([self.lineage.identity(index) for index in indices])]

    def has_room(self) -> bool:
        """Return True while the cache takes more entries."""
        return self._store is not None and self._store.has_room()

    def prefeed_state(self) -> Any:
        """Return what stands for the dataset in a fingerprint; that nothing below draws is known."""
        return self.lineage.fingerprint

    def close(self) -> None:
        """Let go of what this process has open; entries stay, and a later use opens everything again."""
        self.cache.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_encoders", "_trusted")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # ------------------------------------------------------------ finding

    def _start(self) -> None:
        self._encoders = _Encoders()
        self._made_here = 0
        self._draws = False
        self._trusted: dict[bytes, bytes] = {}

    def _found(
        self, store: CacheStore, indices: Sequence[Any], keys: list[bytes], borrow: ExitStack | None
    ) -> list[Any]:
        """Return samples that are in the cache and still true, ``_ABSENT`` for others."""
        with ExitStack() as stack:
            views = stack.enter_context(store.reading()).get_views(keys)
            notes = [None if view is None else _note(view) for view in views]
            true = self._true(indices, notes)
            copy = borrow is None or not all(true)
            samples = [
                self._decoded(view, copy=copy) if is_true and view is not None else _ABSENT
                for view, is_true in zip(views, true, strict=True)
            ]
            if borrow is not None and not copy:
                borrow.push(stack.pop_all())
        _tell_stage_above(note for note, is_true in zip(notes, true, strict=True) if is_true and note is not None)
        return samples

    def _true(self, indices: Sequence[Any], notes: Sequence[Note | None]) -> list[bool]:
        """Return for each note whether it fits the sample's version, and the files as they are now."""
        wanted = {path for note in notes if note is not None for path in note.paths}
        now = keys_now([path for path in wanted if path not in self._trusted])
        if not self.cache.revalidates:
            self._trusted.update(now)
        now |= self._trusted
        return [
            note is not None
            and note.version == self.lineage.version(index)
            and all(now[path] == key for path, key in note.files())
            for index, note in zip(indices, notes, strict=True)
        ]

    def _decoded(self, view: memoryview, *, copy: bool) -> Any:
        try:
            return decode(view, copy=copy, allow_pickle=self._allow_pickle)
        except EntryFormatError as err:
            _log.warning("prefeed: an entry is damaged and made anew: %s", err)
            return _ABSENT

    # ------------------------------------------------------------ making

    def _try_make(
        self, store: CacheStore, indices: Sequence[Any], keys: list[bytes], at: int, found: list[Any], making: Making
    ) -> bool:
        """Make a sample, unless another process is at it; then return False."""
        if not store.claims.try_claim(keys[at]):
            return False
        try:
            found[at] = self._found(store, indices[at : at + 1], keys[at : at + 1], None)[0]
            if found[at] is _ABSENT:
                found[at] = self._made_and_stored(store, indices[at], keys[at], making(at))
        finally:
            store.claims.release(keys[at])
        return True

    def _wait_and_make(
        self, store: CacheStore, indices: Sequence[Any], keys: list[bytes], at: int, found: list[Any], making: Making
    ) -> None:
        """Make a sample that another process was making, unless it has done so by now."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not self._try_make(store, indices, keys, at, found, making):
            if time.monotonic() >= deadline:  # it was stopped, say
                found[at] = self._made_and_stored(store, indices[at], keys[at], making(at))
                return
            time.sleep(_WAIT_SECONDS)

    def _made_and_stored(
        self, store: CacheStore, index: Any, key: bytes, scope: AbstractContextManager[None]
    ) -> Any:  # fmt: skip
        version = self.lineage.version(index)
        files = FilesSeen(current_reader())
        with scope, reads_from(files), Watch() as watch:
            sample = self.dataset[index]
        drew = watch.drew if self._is_watched else None
        if drew is not None:
            self._drew(drew)
        elif files.is_complete and not self._draws and store.takes_more:
            note = encode_note(files.note(version))
            store.put(key, self._encoders.mine.encode(sample, note=note, allow_pickle=self._allow_pickle))
        self._made_here += 1
        return sample

    def _made(self, index: Any, scope: AbstractContextManager[None]) -> Any:
        with scope:
            return self.dataset[index]

    def _drew(self, generator: str) -> None:
        """A step drew a random number: refuse it if it did so from the start, else keep nothing more of it."""
        where = f"{describe(self.dataset)} draws from {generator} while it makes a sample"
        if self._made_here < _REFUSED_SAMPLES:
            raise RandomStageError(_refusal(where))
        if not self._draws:
            _log.warning("prefeed: %s: its samples are not kept from now on", where)
        self._draws = True


def _note(view: memoryview) -> Note | None:
    try:
        return decode_note(note_of(view))
    except EntryFormatError:
        return None


def _tell_stage_above(notes: Iterable[Note]) -> None:
    """A sample of a cached stage above is being made of these entries."""
    reader = current_reader()
    if isinstance(reader, FilesSeen):
        for note in notes:
            reader.add(note)


def _is_cached(dataset: Any) -> bool:
    while isinstance(dataset, MappedDataset):
        dataset = dataset.dataset
    return isinstance(dataset, CachedDataset)


def _no_scope(_at: int) -> AbstractContextManager[None]:
    return nullcontext()


def _require_map_style(dataset: Any) -> None:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"{type(dataset).__name__} has no __getitem__ and __len__: only samples that can be asked for by index can be "
            "mapped and cached"
        )


def _refusal(where: str) -> str:
    return (
        f"a stage that draws random numbers cannot be cached, each epoch would see the same ones: {where}. Cache what comes "
        "before it, and map the random step on top; if its result does not depend on chance, mark it with prefeed.not_random"
    )
