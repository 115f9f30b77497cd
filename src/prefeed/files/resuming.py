"""WebDataset pipelines that resume in the middle of an epoch: the state says how many samples of each shard were read.

urls ─split, shuffle─→ shards ─read─→ samples ─shuffle─→ taken ─decode, map, batched─→ the loop
     drawn again               counted         run again       counted
                               per shard       over places

To resume, the order of the shards is drawn again from its seeds, and the shuffle of samples runs again over the places of
samples: nothing is read or decoded for it. Then the shards are opened whose samples the shuffle still holds, and the one that
was being read. Shards whose samples were all taken are not opened.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from webdataset import cache, compat, filters, shardlists, tariterators
from webdataset.pytorch import IterableDataset
from webdataset.utils import pytorch_worker_info

from prefeed.errors import ResumeError
from prefeed.files.webdataset import KnownOrder, inner_url, url_of

State = dict[str, Any]
"""Plain values: numbers, texts, lists and dicts."""

_VERSION: Final = 1
_EMPTY: Final = object()


def _present(module: Any, *names: str) -> tuple[Any, ...]:
    """Return what a version of WebDataset has of these names."""
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


_SHUFFLE: Final = filters._shuffle
_SPLITS: Final = _present(shardlists, "split_by_node", "split_by_worker", "single_node_only")
_AT_ONCE: Final = tariterators.tarfile_samples
_OPENERS: Final = (cache.StreamingOpen, cache.FileCache)
_READING: Final = (tariterators.url_opener, tariterators.tar_file_expander, tariterators.group_by_keys)
_CHECKS: Final = _present(compat, "check_empty") + _present(shardlists, "non_empty")
_BATCHED: Final = filters._batched
_ONE_BY_ONE: Final = _present(
    filters, "_info", "_select", "_log_keys", "_decode", "_map", "_rename", "_associate", "_map_dict", "_to_tuple", "_map_tuple",
    "_extract_keys", "_rename_keys", "_xdecode",
)  # fmt: skip
"""These take a sample, and give it on before they take the next one."""


def resumable(pipeline: Any) -> Resumable:
    """Return a data set with the samples of a WebDataset pipeline, which resumes in the middle of an epoch.

    It has ``state_dict`` and ``load_state_dict``, which torchdata's ``StatefulDataLoader`` calls in each worker. See
    docs/guide/resume.md.

    Args:
        pipeline: A ``WebDataset`` or ``DataPipeline`` of WebDataset's own stages.

    Raises:
        ResumeError: A stage of the pipeline cannot be resumed exactly; the message names it.
    """
    return Resumable(pipeline)


class Resumable(IterableDataset):  # type: ignore[misc]
    """The samples of a pipeline, and where its newest iterator is.

    **Threads and processes**: one thread at a time; each worker has its own, with a state of its own.
    """

    resumes_exactly = True

    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._stages = Stages(pipeline)
        self._epoch: Epoch | None = None
        self._loaded: State | None = None

    def __iter__(self) -> Epoch:
        loaded, self._loaded = self._loaded, None
        self._epoch = Epoch(self._stages, loaded)
        return self._epoch

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_epoch": None}  # of this process; a worker begins its own

    def state_dict(self) -> State:
        """Return where the newest iterator is, as plain values."""
        if self._loaded is not None:
            return self._loaded
        if self._epoch is None or self._epoch.is_finished:
            return {"version": _VERSION, "stages": self._stages.names, "next": self._stages.states()}
        return self._epoch.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iterator resume there.

        Raises:
            ResumeError: It is another kind of state, or that of another pipeline.
        """
        state = dict(state_dict)
        if state.get("version") != _VERSION or "stages" not in state:
            raise ResumeError(
                f"this is not a state of prefeed.resumable (its keys: {', '.join(map(str, state))}); "
                "load what its own state_dict() returned"
            )
        for saved, own in itertools.zip_longest(state["stages"], self._stages.names, fillvalue="missing"):
            if saved != own:
                raise ResumeError(
                    f"the state was saved with the stage {saved}, and this pipeline's is {own}; "
                    "make the pipeline that it was saved with"
                )
        if "next" in state:
            self._stages.restore(state["next"])
        self._epoch, self._loaded = None, state


# ---------------------------------------------------------------- the stages


class Stages:
    """The stages of a pipeline by what they do; those that draw are given their seeds here.

    Attributes:
        names: What a state is compared by.
        repetitions: How often the shards are read in an epoch.
        most: Samples of an epoch; None: all.
    """

    def __init__(self, pipeline: Any) -> None:
        stages = list(getattr(pipeline, "pipeline", ()))
        if not stages:
            raise ResumeError(f"a {type(pipeline).__name__} is not a pipeline of WebDataset's")
        self._pipeline = pipeline
        begin = next((number for number, stage in enumerate(stages) if _is_opener(stage)), None)
        if begin is None:
            raise _refusal(stages[0], "no stage of the pipeline opens tar files")
        self._orders = stages[:begin]
        self._reads_at_once = _function_of(stages[begin]) is _AT_ONCE
        rest = deque(stages[begin:])
        self._opener = rest.popleft()
        self._readers = _taken(rest, lambda stage: _function_of(stage) in _READING)
        self._checks = _taken(rest, lambda stage: stage in _CHECKS)
        self._shuffles = _taken(rest, _is_shuffle)
        self._last = list(rest)
        for stage in self._orders:
            _require_order(stage)
        for stage in self._shuffles:
            _require_own_generator(stage)
        _require_one_by_one(self._last)
        self._held = _num_held() if any(_function_of(stage) is _BATCHED for stage in self._last) else 0
        self._drawing = [stage for stage in (*self._orders, *self._shuffles) if _draws(stage)]
        self._given: dict[int, Any] = {}
        self.names = [_name_of(stage) for stage in stages]

    @property
    def repetitions(self) -> int:
        """How often the shards are read in an epoch."""
        return int(self._pipeline.repetitions)

    @property
    def most(self) -> int | None:
        """Number of samples after which an epoch ends."""
        limit = int(self._pipeline.nsamples)
        return limit if self.repetitions != 1 and limit > 0 else None

    @property
    def num_held(self) -> int:
        """Samples that ``batched`` has taken for the next batch when it gives one."""
        return self._held

    def states(self) -> list[Any]:
        """Return what each drawing stage draws from when it begins now; a stage without a seed gets one for its next pass."""
        return [self._state_of(number, stage) for number, stage in enumerate(self._drawing)]

    def restore(self, states: Iterable[Any]) -> None:
        """Let the drawing stages begin with what ``states`` gave."""
        for number, (stage, state) in enumerate(zip(self._drawing, states, strict=True)):
            if isinstance(stage, filters.detshuffle):
                stage.seed, stage.epoch = state
            elif isinstance(stage, shardlists.SimpleShardList):
                stage.seed = state[0]
            elif isinstance(stage, shardlists.ResampledShards) and stage.deterministic:
                (stage.epoch,) = state
            elif (own := _own_generator(stage)) is not None:
                version, words, gauss = state
                own.setstate((version, tuple(words), gauss))
            else:
                self._given[number] = state[0]

    def urls(self) -> Iterator[Any]:
        """Return the shards in the order in which they are read, in this process."""
        source: Any = None
        for number, stage in enumerate(self._orders):
            source = self._invoked(stage, () if number == 0 else (source,))
        return iter(source)

    def samples(
        self, items: KnownOrder, opened: Callable[[Iterator[Any]], Iterator[Any]], *, is_whole: bool
    ) -> Iterator[Any]:
        """Return the samples of shards.

        Args:
            items: The shards.
            opened: Is put behind the stage that opens them.
            is_whole: These are all shards, so that it is checked that they have samples.
        """
        source = self._pipeline.invoke(self._opener, items)
        if not self._reads_at_once:
            source = opened(source)
        for stage in (*self._readers, *(self._checks if is_whole else ())):
            source = self._pipeline.invoke(stage, source)
        return iter(source)

    def shuffled(self, source: Iterator[Any]) -> Iterator[Any]:
        """Return samples, or what stands for them, as the shuffles of samples give them."""
        for stage in self._shuffles:
            source = self._invoked(stage, (source,))
        return source

    def made(self, source: Iterator[Any]) -> Iterator[Any]:
        """Return what the loop gets of samples."""
        for stage in self._last:
            source = self._pipeline.invoke(stage, source)
        return iter(source)

    @property
    def reads_at_once(self) -> bool:
        """A shard is opened when its samples are read."""
        return self._reads_at_once

    def _state_of(self, number: int, stage: Any) -> Any:
        if isinstance(stage, filters.detshuffle):
            return [stage.seed, stage.epoch]
        if isinstance(stage, shardlists.SimpleShardList):
            return [stage.seed]
        if isinstance(stage, shardlists.ResampledShards) and stage.deterministic:
            return [stage.epoch]
        own = _own_generator(stage)
        if own is not None:
            version, words, gauss = own.getstate()
            return [version, list(words), gauss]
        seed = None if isinstance(stage, shardlists.ResampledShards) else _arguments(stage).get("seed")
        if number in self._given:
            return [self._given[number]]
        if seed is None:
            seed = self._given[number] = random.SystemRandom().getrandbits(63)
        return [seed]

    def _invoked(self, stage: Any, source: tuple[Any, ...]) -> Any:
        number = next((number for number, other in enumerate(self._drawing) if other is stage), None)
        if number is None or isinstance(stage, filters.detshuffle | shardlists.SimpleShardList):
            return self._pipeline.invoke(stage, *source)
        is_resampled = isinstance(stage, shardlists.ResampledShards)
        if (is_resampled and stage.deterministic) or _own_generator(stage) is not None:
            return self._pipeline.invoke(stage, *source)
        generator = random.Random(self._state_of(number, stage)[0])
        if is_resampled:
            self._given.pop(number)  # each pass has another order
            return _resampled(stage, generator)
        given = _arguments(stage)
        if given.get("seed") is None:
            self._given.pop(number)
        return _SHUFFLE(*source, **{**given, "seed": None, "rng": generator})


def _taken(stages: deque[Any], is_kind: Callable[[Any], bool]) -> list[Any]:
    return [stages.popleft() for _ in range(sum(1 for _ in itertools.takewhile(is_kind, stages)))]


def _resampled(stage: Any, generator: random.Random) -> Iterator[dict[str, str]]:
    for _ in range(stage.nshards):
        yield {"url": stage.urls[generator.randint(0, len(stage.urls) - 1)]}


def _function_of(stage: Any) -> Any:
    return stage.f if isinstance(stage, filters.FilterFunction) else stage


def _is_opener(stage: Any) -> bool:
    return isinstance(stage, _OPENERS) or _function_of(stage) in (_AT_ONCE, tariterators.url_opener)


def _is_shuffle(stage: Any) -> bool:
    return isinstance(stage, filters.detshuffle) or _function_of(stage) is _SHUFFLE


def _draws(stage: Any) -> bool:
    return _is_shuffle(stage) or isinstance(stage, shardlists.SimpleShardList | shardlists.ResampledShards)


def _arguments(stage: Any) -> dict[str, Any]:
    """Return what a shuffle is called with, by name."""
    if not isinstance(stage, filters.FilterFunction):
        return {}
    bound = inspect.signature(_SHUFFLE).bind(None, *stage.args, **stage.kw).arguments
    return {name: value for name, value in bound.items() if name != "data"}


def _own_generator(stage: Any) -> random.Random | None:
    """Return the generator that was given to a shuffle, if one was."""
    found = _arguments(stage).get("rng") if _is_shuffle(stage) else None
    return found if isinstance(found, random.Random) else None


def _require_order(stage: Any) -> None:
    """Raise ResumeError for a stage before the shards are opened that may draw another order when it runs again."""
    function = _function_of(stage)
    if _is_shuffle(stage):
        _require_own_generator(stage)
    elif not (
        isinstance(stage, list | shardlists.SimpleShardList | shardlists.ResampledShards)
        or function in _SPLITS
        or function is itertools.islice
    ):
        raise _refusal(stage, "it is unknown whether it gives the same shards when the order is drawn again")


def _require_own_generator(stage: Any) -> None:
    given = _arguments(stage).get("rng")
    if given is not None and (type(given) is not random.Random or given is getattr(random.random, "__self__", None)):
        raise _refusal(stage, "others draw from its generator as well; give it a seed instead of rng")


def _require_one_by_one(stages: list[Any]) -> None:
    """Raise ResumeError for a stage behind the samples that holds some of them back, or draws."""
    num_batched = 0
    for stage in stages:
        function = _function_of(stage)
        num_batched += function is _BATCHED
        if _is_shuffle(stage):
            raise _refusal(
                stage, "it holds samples that a stage before it has changed; put it right behind the tar files"
            )
        if function not in (*_ONE_BY_ONE, _BATCHED) or num_batched > 1:
            raise _refusal(stage, "it may hold samples back, or draw; leave it out, or move it behind the loader")


def _refusal(stage: Any, reason: str) -> ResumeError:
    return ResumeError(f"the pipeline cannot be resumed exactly, because of its stage {_name_of(stage)}: {reason}")


def _name_of(stage: Any) -> str:
    """Return what a stage is and what it is given, as far as that is numbers and texts; seeds are saved elsewhere."""
    if isinstance(stage, list):
        return "list of shards"
    function = _function_of(stage)
    name = getattr(function, "__name__", type(function).__name__).lstrip("_")
    if isinstance(stage, filters.detshuffle):
        return f"{name}({stage.bufsize}, {stage.initial})"
    if not isinstance(stage, filters.FilterFunction):
        return name
    given = [*stage.args, *(value for key, value in sorted(stage.kw.items()) if key not in ("seed", "rng"))]
    return f"{name}({', '.join(repr(value) for value in given if isinstance(value, int | float | str))})"


def _num_held() -> int:
    """Return how many samples WebDataset's ``batched`` holds when it gives a batch: versions differ."""
    taken: list[int] = []

    def samples() -> Iterator[int]:
        for number in range(3):
            taken.append(number)
            yield number

    next(_BATCHED(samples(), batchsize=1, collation_fn=None))
    return len(taken) - 1


# ---------------------------------------------------------------- an epoch


class Epoch:
    """Iterator over one epoch, or over the rest of one.

    Attributes:
        is_finished: It has given its last sample, and said so.
    """

    def __init__(self, stages: Stages, loaded: State | None) -> None:
        self._stages = stages
        self._process = [int(number) for number in pytorch_worker_info()]
        self._num_yielded = self._repetition = 0
        self.is_finished = self._has_failed = False
        state = None if loaded is None or "next" in loaded else loaded
        if state is not None:
            self._require_process(state["process"])
            self._num_yielded, self._repetition = state["num_yielded"], state["repetition"]
            stages.restore(state["began"])
        self._pass = Pass(stages, state)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        """Return the next sample, or batch."""
        while not self.is_finished and not self._has_failed and self._num_yielded != self._stages.most:
            self._has_failed = True
            made = next(self._pass, _EMPTY)  # its errors end the iterator, as those of a generator
            self._has_failed = False
            if made is not _EMPTY:
                self._num_yielded += 1
                return made
            self._repetition += 1
            if not self._pass.num_yielded or self._repetition >= self._stages.repetitions:
                break
            self._pass = Pass(self._stages, None)
        self.is_finished = not self._has_failed
        raise StopIteration

    def state(self) -> State:
        """Return where it is, as plain values."""
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


class _Slot:
    """Stands for a sample; it is empty while only places are known."""

    __slots__ = ("place", "sample")

    def __init__(self, place: tuple[int, int], sample: Any = _EMPTY) -> None:
        self.place, self.sample = place, sample


class Pass:
    """Iterator over all shards once; shards and samples are counted.

    A place is the number of a shard in the order, and that of a sample in it.
    """

    def __init__(self, stages: Stages, state: State | None) -> None:
        self._stages = stages
        self._began = stages.states()
        self._urls = stages.urls()
        self._names: list[str] = []
        self._drawn: list[Any] = []  # the shards of before
        self._known: list[int] = []
        self._counts: list[int] = []
        self._hash, self._num_hashed = sha256(), 0
        self._num_taken = self._num_taken_here = self.num_yielded = 0
        self._is_over = self._is_replaying = False
        self._numbers: deque[int] = deque()  # of shards that are going to be read
        self._number = 0
        self._open: dict[tuple[int, int], _Slot] = {}
        self._reader: Iterator[tuple[tuple[int, int], Any]] | None = None
        self._shuffled = stages.shuffled(self._slots())
        if state is not None:
            self._replay(state)
        self._made = stages.made(self._taken())

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        made = next(self._made)
        self.num_yielded += 1
        return made

    def state(self) -> State:
        """Return what ``Pass`` takes, as plain values."""
        while self._num_hashed < len(self._counts):
            self._hash.update(_line_of(self._names[self._num_hashed]))
            self._num_hashed += 1
        held = self._stages.num_held if self._num_taken_here and not self._is_over else 0
        return {
            "began": self._began,
            "counts": list(self._counts),
            "shards": self._hash.hexdigest(),
            "num_taken": self._num_taken - held,
            "num_made": self.num_yielded,
        }

    # ------------------------------------------------------------ back to a place

    def _replay(self, state: State) -> None:
        """Draw the shards again, and let the shuffles run up to the place, over empty slots."""
        self._known = list(state["counts"])
        self._drawn = list(itertools.islice(self._urls, len(self._known)))
        self._names = [url_of(item) for item in self._drawn]
        found = sha256(b"".join(map(_line_of, self._names))).hexdigest()
        if found != state["shards"]:
            raise ResumeError(
                f"the first {len(self._known)} shards are others than before: the list of shards, or the order that is drawn, has "
                "changed; make the pipeline with the same shards"
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

    def _slots(self) -> Iterator[_Slot]:
        """Yield a slot for each sample: empty ones up to the place, then with their samples."""
        place = 0, 0
        for place in _places(self._known):
            if not self._is_replaying:
                break
            slot = self._open[place] = _Slot(place)
            self._count(place)
            yield slot
        else:
            if self._known:
                place = len(self._known) - 1, self._known[-1]
        if self._is_replaying:
            return  # it ended here before
        self._fill(place[0])
        assert self._reader is not None
        for found, sample in self._reader:
            if found >= place:
                self._count(found)
                yield _Slot(found, sample)

    def _count(self, place: tuple[int, int]) -> None:
        number, index = place
        while len(self._counts) <= number:
            self._counts.append(0)
        self._counts[number] = index + 1

    def _fill(self, begin: int | None) -> None:
        """Read the samples that are held, and open the shards from ``begin`` on behind them; None: none are."""
        if self._reader is None:
            self._reader = self._read(len(self._known) if begin is None else begin)
        missing = deque(sorted(self._open))
        while missing:
            found = next(self._reader, None)
            if found is None or found[0] > missing[0]:
                raise ResumeError(
                    f"{self._names[missing[0][0]]} has fewer samples than before: it has changed, and the epoch cannot resume exactly"
                )
            if found[0] == missing[0]:
                self._open.pop(missing.popleft()).sample = found[1]

    # ------------------------------------------------------------ reading

    def _read(self, begin: int) -> Iterator[tuple[tuple[int, int], Any]]:
        """Yield samples and their places: of the shards of which some are held, and of those from ``begin`` on."""
        held = sorted({number for number, _ in self._open if number < begin})
        again = [*held, *range(begin, len(self._drawn))]
        items = KnownOrder(self._items(again))
        last, index = -1, 0
        for sample in self._stages.samples(items, self._opened, is_whole=not self._known):
            index = index + 1 if self._number == last else 0
            last = self._number
            yield (last, index), sample

    def _items(self, again: list[int]) -> Iterator[Any]:
        """Yield shards, first those of before that are read again."""
        fresh = ((None, item) for item in self._urls)
        for number, item in itertools.chain(((number, self._drawn[number]) for number in again), fresh):
            if number is None:
                number = len(self._names)
                self._names.append(url_of(item))
            if self._stages.reads_at_once:
                self._number = number
            else:
                self._numbers.append(number)
            yield item

    def _opened(self, sources: Iterator[Any]) -> Iterator[Any]:
        """Yield opened shards; one that could not be opened was left out."""
        for source in sources:
            while self._names[self._numbers[0]] != source["url"]:
                self._numbers.popleft()
            self._number = self._numbers.popleft()
            yield source

    def _taken(self) -> Iterator[Any]:
        for slot in self._shuffled:
            if slot.sample is _EMPTY:
                self._fill(None)
            self._num_taken += 1
            self._num_taken_here += 1
            yield slot.sample
        self._is_over = True


def _line_of(name: str) -> bytes:
    """Return what a shard adds to the sum by which orders are compared: it may be read with prefeed, or without."""
    return inner_url(name).encode(errors="surrogateescape") + b"\n"


def _places(counts: Iterable[int]) -> Iterator[tuple[int, int]]:
    return ((number, index) for number, count in enumerate(counts) for index in range(count))
