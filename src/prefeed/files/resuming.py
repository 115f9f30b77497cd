"""WebDataset pipelines that resume in the middle of an epoch. The state contains the number of samples read per shard.

urls ─split, shuffle─→ shards ─read─→ samples ─shuffle─→ taken ─decode, map, batched─→ the loop
     drawn again               counted         run again       counted
                               per shard       over places

To resume, the order of the shards is drawn again from its seeds, and the shuffle of samples runs again over empty slots, so that
nothing is read or decoded. Then only two kinds of shards are opened: those with samples in the shuffle's buffer, and the one that was
being read. They must have the same version as before. Start with ``resumable``.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from webdataset.pytorch import IterableDataset
from webdataset.utils import pytorch_worker_info

from prefeed.errors import ResumeError
from prefeed.files.stages import PipelineStages
from prefeed.files.webdataset import KnownOrder, block_file_of, inner_url, url_of
from prefeed.sources.file_versions import changed_ns_of

State = dict[str, Any]
"""State of plain values: numbers, texts, lists and dicts."""

_VERSION: Final = 1
_EMPTY: Final = object()


def resumable(pipeline: Any, *, same_versions: bool = True) -> Resumable:
    """Return a dataset with the samples of a WebDataset pipeline that resumes in the middle of an epoch.

    The dataset has ``state_dict`` and ``load_state_dict``, which torchdata's ``StatefulDataLoader`` calls in each worker. See
    docs/guide/resume.md.

    Args:
        pipeline: A ``WebDataset`` or ``DataPipeline`` of WebDataset's own stages.
        same_versions: True to require that shards read again after a resume have the same size and ETag, or time of change. Use False
            if shards are copied again before each run.

    Raises:
        ResumeError: A stage of the pipeline cannot be resumed exactly. The message names the stage.
    """
    return Resumable(pipeline, same_versions=same_versions)


class Resumable(IterableDataset):  # type: ignore[misc]
    """Dataset of a pipeline's samples, with the state of its newest iterator.

    **Threads and processes**: one thread at a time. Each worker has its own copy and its own state.
    """

    resumes_exactly = True

    def __init__(self, pipeline: Any, *, same_versions: bool = True) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._same_versions = same_versions
        self._stages = PipelineStages(pipeline)
        self._epoch: EpochIterator | None = None
        self._loaded: State | None = None

    def __iter__(self) -> EpochIterator:
        loaded, self._loaded = self._loaded, None
        self._epoch = EpochIterator(self._stages, loaded, same_versions=self._same_versions)
        return self._epoch

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_epoch": None}  # A worker starts its own epoch.

    def state_dict(self) -> State:
        """Return the position of the newest iterator, as plain values."""
        if self._loaded is not None:
            return self._loaded
        if self._epoch is None or self._epoch.is_finished:
            return {"version": _VERSION, "stages": self._stages.names, "next": self._stages.states()}
        return self._epoch.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state in the next iterator.

        Raises:
            ResumeError: The state is of another kind or of another pipeline.
        """
        state = dict(state_dict)
        if state.get("version") != _VERSION or "stages" not in state:
            raise ResumeError(
                f"this is not a state of prefeed.resumable (its keys: {', '.join(map(str, state))}); "
                "load the return value of its state_dict()"
            )
        for saved, own in itertools.zip_longest(state["stages"], self._stages.names, fillvalue="missing"):
            if saved != own:
                raise ResumeError(
                    f"the state was saved with the stage {saved}, and this pipeline's is {own}; "
                    "create the same pipeline"
                )
        if "next" in state:
            self._stages.restore(state["next"])
        self._epoch, self._loaded = None, state


# ---------------------------------------------------------------- an epoch


class EpochIterator:
    """Iterator over one epoch, or over the rest of one.

    Attributes:
        is_finished: True after the StopIteration that follows the last sample.
    """

    def __init__(self, stages: PipelineStages, loaded: State | None, *, same_versions: bool) -> None:
        self._stages = stages
        self._process = [int(number) for number in pytorch_worker_info()]
        self._num_yielded = self._repetition = 0
        self.is_finished = self._has_failed = False
        state = None if loaded is None or "next" in loaded else loaded
        if state is not None:
            self._require_process(state["process"])
            self._num_yielded, self._repetition = state["num_yielded"], state["repetition"]
            stages.restore(state["began"])
        if state is not None and not same_versions:
            state = state | {"versions": []}
        self._pass = ShardPass(stages, state)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        """Return the next sample or batch."""
        while not self.is_finished and not self._has_failed and self._num_yielded != self._stages.most:
            self._has_failed = True
            made = next(self._pass, _EMPTY)  # An error ends the iterator, like that of a generator.
            self._has_failed = False
            if made is not _EMPTY:
                self._num_yielded += 1
                return made
            self._repetition += 1
            if not self._pass.num_yielded or self._repetition >= self._stages.repetitions:
                break
            self._pass = ShardPass(self._stages, None)
        self.is_finished = not self._has_failed
        raise StopIteration

    def state(self) -> State:
        """Return the position in the epoch, as plain values."""
        return {
            "version": _VERSION,
            "stages": self._stages.names,
            "process": self._process,
            "num_yielded": self._num_yielded,
            "repetition": self._repetition,
            **self._pass.state(),
        }

    def _require_process(self, saved: list[int]) -> None:
        if list(saved) != self._process:
            raise ResumeError(
                "the state is that of rank {} of {}, worker {} of {}, and this is rank {} of {}, worker {} of {}; "
                "resume with as many ranks and workers, each with its own state".format(*saved, *self._process)
            )


class _SampleSlot:
    """Slot for a sample in the shuffle's buffer. While the shuffle is replayed, slots are empty."""

    __slots__ = ("place", "sample")

    def __init__(self, place: tuple[int, int], sample: Any = _EMPTY) -> None:
        self.place, self.sample = place, sample


class ShardPass:
    """Iterator over one pass over all shards that counts shards and samples.

    A place is the number of a shard in the order, and the number of a sample in the shard.
    """

    def __init__(self, stages: PipelineStages, state: State | None) -> None:
        self._stages = stages
        self._began = stages.states()
        self._urls = stages.urls()
        self._names: list[str] = []
        self._drawn: list[Any] = []  # shards before the saved position
        self._known: list[int] = []
        self._known_versions: list[str] = []
        self._versions: list[str] = []  # versions of shards with samples; empty if unknown
        self._item: Any = None  # input of the opener for the current shard
        self._counts: list[int] = []
        self._hash, self._num_hashed = sha256(), 0
        self._num_taken = self._num_taken_here = self.num_yielded = 0
        self._is_over = self._is_replaying = False
        self._numbers: deque[int] = deque()  # numbers of the next shards
        self._number = 0
        self._place = 0, 0  # first place that was not read
        self._open: dict[tuple[int, int], _SampleSlot] = {}
        self._reader: Iterator[tuple[tuple[int, int], Any]] | None = None
        self._shuffled = stages.shuffle(self._slots())
        if state is not None:
            self._replay(state)
        self._made = stages.transform(self._take_samples())

    def __iter__(self) -> ShardPass:
        return self

    def __next__(self) -> Any:
        made = next(self._made)
        self.num_yielded += 1
        return made

    def state(self) -> State:
        """Return the state for the constructor, as plain values."""
        while self._num_hashed < len(self._counts):
            self._hash.update(_hash_line(self._names[self._num_hashed]))
            self._num_hashed += 1
        held = self._stages.num_held if self._num_taken_here and not self._is_over else 0
        return {
            "began": self._began,
            "counts": list(self._counts),
            "versions": self._versions[: len(self._counts)],
            "shards": self._hash.hexdigest(),
            "num_taken": self._num_taken - held,
            "num_made": self.num_yielded,
        }

    # ------------------------------------------------------------ replaying

    def _replay(self, state: State) -> None:
        """Draw the shards again, and run the shuffles up to the saved position over empty slots."""
        self._known = list(state["counts"])
        self._known_versions = list(state.get("versions", ()))
        self._versions = list(self._known_versions)
        self._drawn = list(itertools.islice(self._urls, len(self._known)))
        self._names = [url_of(item) for item in self._drawn]
        found = sha256(b"".join(map(_hash_line, self._names))).hexdigest()
        if found != state["shards"]:
            raise ResumeError(
                f"the first {len(self._known)} shards differ from those of the state: the list of shards or their order has changed; "
                "create the pipeline with the same shards"
            )
        self._is_replaying = True
        for _ in range(state["num_taken"]):
            slot = next(self._shuffled, None)
            if slot is None:
                raise ResumeError(
                    f"the state is damaged: {state['num_taken']} samples were taken, and {sum(self._known)} read"
                )
            self._open.pop(slot.place, None)
        self._is_replaying = False
        self._num_taken, self.num_yielded = state["num_taken"], state["num_made"]

    def _slots(self) -> Iterator[_SampleSlot]:
        """Yield a slot for each sample: empty ones up to the saved position, then those with samples."""
        place = 0, 0
        for place in _places(self._known):
            if not self._is_replaying:
                break
            slot = self._open[place] = _SampleSlot(place)
            self._count(place)
            yield slot
        else:
            if self._known:
                place = len(self._known) - 1, self._known[-1]
        if self._is_replaying:
            return  # The saved pass had ended here.
        self._place = place
        self._fill(place[0])
        assert self._reader is not None
        for found, sample in self._reader:
            if found >= place:
                self._count(found)
                yield _SampleSlot(found, sample)

    def _count(self, place: tuple[int, int]) -> None:
        number, index = place
        while len(self._counts) <= number:
            self._counts.append(0)
        self._counts[number] = index + 1

    def _fill(self, begin: int | None) -> None:
        """Read the samples of open slots, and then the shards from ``begin`` on; None for those after the known ones."""
        if self._reader is None:
            self._reader = self._read(len(self._known) if begin is None else begin)
        missing = deque(sorted(self._open))
        while missing:
            found = next(self._reader, None)
            if found is None or found[0] > missing[0]:
                raise self._changed(missing[0][0])
            if found[0] == missing[0]:
                self._open.pop(missing.popleft()).sample = found[1]

    # ------------------------------------------------------------ reading

    def _read(self, begin: int) -> Iterator[tuple[tuple[int, int], Any]]:
        """Yield places and samples of the shards with open slots, and of those from ``begin`` on."""
        held = sorted({number for number, _ in self._open if number < begin})
        again = [*held, *range(begin, len(self._drawn))]
        items = KnownOrder(self._items(again))
        last, index = -1, 0
        shard, num_missing = self._place
        for sample in self._stages.read_samples(items, self._track_opened, is_whole=not self._known):
            index = index + 1 if self._number == last else 0
            if index == 0 and self._stages.reads_at_once:
                item, self._item = self._item, None
                self._check_version(item.get("stream") if isinstance(item, dict) else None)
            last = self._number
            num_missing -= last == shard
            if last > shard and num_missing > 0:
                break
            yield (last, index), sample
        if num_missing > 0:
            raise self._changed(shard)

    def _changed(self, number: int) -> ResumeError:
        return ResumeError(
            f"{self._names[number]} has fewer samples than before: it has changed, and the epoch cannot resume exactly"
        )

    def _check_version(self, stream: Any) -> None:
        """Record the version of an opened shard; raise ResumeError if it has changed since the state was saved."""
        version, number = _version_of(stream), self._number
        known = self._known_versions[number] if number < len(self._known_versions) else ""
        if known and version and known != version:
            raise ResumeError(
                f"{self._names[number]} has changed since the state was saved, and the epoch cannot resume exactly: its size and version "
                f"were {known} and are {version}; if it is only another copy, write prefeed.resumable(..., same_versions=False)"
            )
        while len(self._versions) <= number:
            self._versions.append("")
        self._versions[number] = version

    def _items(self, again: list[int]) -> Iterator[Any]:
        """Yield the shards to read: known ones that are read again, then new ones."""
        fresh = ((None, item) for item in self._urls)
        for number, item in itertools.chain(((number, self._drawn[number]) for number in again), fresh):
            if number is None:
                number = len(self._names)
                self._names.append(url_of(item))
            if self._stages.reads_at_once:
                self._number, self._item = number, item
            else:
                self._numbers.append(number)
            yield item

    def _track_opened(self, sources: Iterator[Any]) -> Iterator[Any]:
        """Yield opened shards, and track the number of the current one. Shards that failed to open are skipped."""
        for source in sources:
            while self._names[self._numbers[0]] != source["url"]:
                self._numbers.popleft()
            self._number = self._numbers.popleft()
            # The version of a copy in WebDataset's cache differs from that of the shard.
            is_copy = not str(source["url"]).endswith(source.get("local_path", ""))
            self._check_version(None if is_copy else source.get("stream"))
            yield source

    def _take_samples(self) -> Iterator[Any]:
        for slot in self._shuffled:
            if slot.sample is _EMPTY:
                self._fill(None)
            self._num_taken += 1
            self._num_taken_here += 1
            yield slot.sample
        self._is_over = True


def _version_of(stream: Any) -> str:
    """Return the size and version of an open shard, equal with and without prefeed; empty if unknown."""
    if (file := block_file_of(stream)) is not None:
        changed_ns = changed_ns_of(file.version)
        return f"{file.size} {file.version if changed_ns is None else changed_ns}"
    try:
        status = os.fstat(stream.fileno())
    except Exception:  # noqa: BLE001 - streams of any kind, most of which have no descriptor
        return ""
    return f"{status.st_size} {status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else ""


def _hash_line(name: str) -> bytes:
    """Return the contribution of a shard to the hash of the order, equal with and without the ``prefeed:`` scheme."""
    return inner_url(name).encode(errors="surrogateescape") + b"\n"


def _places(counts: Iterable[int]) -> Iterator[tuple[int, int]]:
    return ((number, index) for number, count in enumerate(counts) for index in range(count))
