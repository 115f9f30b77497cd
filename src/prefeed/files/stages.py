"""Classifies the stages of a WebDataset pipeline for exact resuming: order, opener, readers, shuffles, transforms.

A stage is recognized by its function. A pipeline with an unknown stage, or one that cannot be repeated, is rejected with a
``ResumeError``.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from webdataset import cache, compat, filters, shardlists, tariterators

from prefeed.errors import ResumeError
from prefeed.files.webdataset import KnownOrder


def _existing(module: Any, *names: str) -> tuple[Any, ...]:
    """Return the attributes that exist in the installed version of WebDataset."""
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


_SHUFFLE: Final = filters._shuffle
_SPLITS: Final = _existing(shardlists, "split_by_node", "split_by_worker", "single_node_only")
_AT_ONCE: Final = tariterators.tarfile_samples
_OPENERS: Final = (cache.StreamingOpen, cache.FileCache)
_READING: Final = (tariterators.url_opener, tariterators.tar_file_expander, tariterators.group_by_keys)
_CHECKS: Final = _existing(compat, "check_empty") + _existing(shardlists, "non_empty")
_BATCHED: Final = filters._batched
_ONE_BY_ONE: Final = _existing(
    filters, "_info", "_select", "_log_keys", "_decode", "_map", "_rename", "_associate", "_map_dict", "_to_tuple", "_map_tuple",
    "_extract_keys", "_rename_keys", "_xdecode",
)  # fmt: skip
"""Filters that yield each sample before they consume the next one."""


class PipelineStages:
    """Stages of a pipeline, by kind. Runs them with explicit seeds.

    Attributes:
        names: Descriptions of the stages, which must be equal in a saved state.
        num_held: Number of samples that ``batched`` has consumed for the next batch when it yields one.
        reads_at_once: True if one stage opens a shard and reads its samples.
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
        self.reads_at_once = _function_of(stages[begin]) is _AT_ONCE
        rest = deque(stages[begin:])
        self._opener = rest.popleft()
        self._readers = _take_while(rest, lambda stage: _function_of(stage) in _READING)
        self._checks = _take_while(rest, lambda stage: stage in _CHECKS)
        self._shuffles = _take_while(rest, _is_shuffle)
        self._last = list(rest)
        for stage in self._orders:
            _require_order(stage)
        for stage in self._shuffles:
            _require_own_generator(stage)
        _require_one_by_one(self._last)
        self.num_held = _num_held() if any(_function_of(stage) is _BATCHED for stage in self._last) else 0
        self._drawing = [stage for stage in (*self._orders, *self._shuffles) if _draws(stage)]
        self._given: dict[int, Any] = {}
        self.names = [_name_of(stage) for stage in stages]

    @property
    def repetitions(self) -> int:
        """Number of passes over the shards in an epoch."""
        return int(self._pipeline.repetitions)

    @property
    def most(self) -> int | None:
        """Maximum number of samples in an epoch; None for no limit."""
        limit = int(self._pipeline.nsamples)
        return limit if self.repetitions != 1 and limit > 0 else None

    def states(self) -> list[Any]:
        """Return the random state of each drawing stage. A stage without a seed gets one for its next pass."""
        return [self._state_of(number, stage) for number, stage in enumerate(self._drawing)]

    def restore(self, states: Iterable[Any]) -> None:
        """Set the random states that ``states`` returned."""
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
        """Return the shards in the order of reading in this process."""
        source: Any = None
        for number, stage in enumerate(self._orders):
            source = self._invoke(stage, () if number == 0 else (source,))
        return iter(source)

    def read_samples(
        self, items: KnownOrder, track: Callable[[Iterator[Any]], Iterator[Any]], *, is_whole: bool
    ) -> Iterator[Any]:
        """Return the samples of shards.

        Args:
            items: The shards.
            track: Stage to insert after the one that opens shards.
            is_whole: True if ``items`` are all shards, so that the checks for empty shards run.
        """
        source = self._pipeline.invoke(self._opener, items)
        if not self.reads_at_once:
            source = track(source)
        for stage in (*self._readers, *(self._checks if is_whole else ())):
            source = self._pipeline.invoke(stage, source)
        return iter(source)

    def shuffle(self, source: Iterator[Any]) -> Iterator[Any]:
        """Shuffle samples, or placeholders of samples."""
        for stage in self._shuffles:
            source = self._invoke(stage, (source,))
        return source

    def transform(self, source: Iterator[Any]) -> Iterator[Any]:
        """Apply the stages after the shuffles."""
        for stage in self._last:
            source = self._pipeline.invoke(stage, source)
        return iter(source)

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

    def _invoke(self, stage: Any, source: tuple[Any, ...]) -> Any:
        number = next((number for number, other in enumerate(self._drawing) if other is stage), None)
        if number is None or isinstance(stage, filters.detshuffle | shardlists.SimpleShardList):
            return self._pipeline.invoke(stage, *source)
        is_resampled = isinstance(stage, shardlists.ResampledShards)
        if (is_resampled and stage.deterministic) or _own_generator(stage) is not None:
            return self._pipeline.invoke(stage, *source)
        generator = random.Random(self._state_of(number, stage)[0])
        if is_resampled:
            self._given.pop(number)  # Each pass has another order.
            return _resample(stage, generator)
        given = _arguments(stage)
        if given.get("seed") is None:
            self._given.pop(number)
        return _SHUFFLE(*source, **{**given, "seed": None, "rng": generator})


def _take_while(stages: deque[Any], is_kind: Callable[[Any], bool]) -> list[Any]:
    return [stages.popleft() for _ in range(sum(1 for _ in itertools.takewhile(is_kind, stages)))]


def _resample(stage: Any, generator: random.Random) -> Iterator[dict[str, str]]:
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
    """Return the arguments of a shuffle, by name."""
    if not isinstance(stage, filters.FilterFunction):
        return {}
    bound = inspect.signature(_SHUFFLE).bind(None, *stage.args, **stage.kw).arguments
    return {name: value for name, value in bound.items() if name != "data"}


def _own_generator(stage: Any) -> random.Random | None:
    """Return the generator that the user passed to a shuffle, or None."""
    found = _arguments(stage).get("rng") if _is_shuffle(stage) else None
    return found if isinstance(found, random.Random) else None


def _require_order(stage: Any) -> None:
    """Raise ResumeError for a stage before the opener whose order may differ when it runs again."""
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
        raise _refusal(stage, "other code draws from its generator too; give it a seed instead of rng")


def _require_one_by_one(stages: list[Any]) -> None:
    """Raise ResumeError for a stage after the shuffles that holds samples back or draws random numbers."""
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
    """Return the name of a stage with its numbers and texts as arguments. Seeds are part of ``states`` instead."""
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
    """Measure how many samples ``batched`` holds when it yields a batch, because versions of WebDataset differ."""
    taken: list[int] = []

    def samples() -> Iterator[int]:
        for number in range(3):
            taken.append(number)
            yield number

    next(_BATCHED(samples(), batchsize=1, collation_fn=None))
    return len(taken) - 1
