"""The examination of a training loop: its own steps, fed with batches that are made in one way after another.

Differential, as DS-Analyzer does it (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021): the
job as it is; the same batch again and again; the loader without work on its batches; and the job with its data nearer. What
differs between two of these is what the difference between them costs.

The loop is never called: it asks for the next batch, and gets one from whatever is being tried.
"""

from __future__ import annotations

import copy
import gc
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.config import Config, current
from prefeed.diagnose.doctor.counting import Asking, counted
from prefeed.diagnose.doctor.sample_costs import TimedFiles, costs_of, stream_costs_of
from prefeed.diagnose.doctor.verdict import WORTH_WHILE, Verdict, judge
from prefeed.diagnose.loader_clones import (
    NOT_SPLIT,
    Batch,
    Batches,
    are_alike,
    facts_of,
    num_samples_in,
    private_home,
    reason_of,
    require_loader,
    samples_in,
    stream_twin_of,
    synchronize,
    twin_of,
    without_advice,
)
from prefeed.diagnose.measurement import Costs, Measurement, Timing
from prefeed.errors import CannotExamineError, PrefeedError
from prefeed.loaders.stages import has_cached_stage
from prefeed.stage_cache import CachedDataset
from prefeed.torch.items import is_stream
from prefeed.torch.loader import DataLoader
from prefeed.torch.nesting import map_tensors, tensors_in

_FIRST_COPIES: Final = 4
"""More than a thread between the loader and the loop holds: by then it shows whether the steps change batches."""


def again_and_again(batch: Any) -> Iterator[Any]:
    """Yield the same batch; some steps take the labels out of it, or scale it in place: then, copies of it."""
    shared, first = _copy_of(batch), [_copy_of(batch) for _ in range(_FIRST_COPIES)]
    tensors = list(tensors_in([shared, *first]))
    versions = [tensor._version for tensor in tensors]
    yield from first
    while [tensor._version for tensor in tensors] == versions:
        yield map_tensors(shared, lambda tensor: tensor, copy.copy)
    while True:
        yield _copy_of(batch)


def _copy_of(batch: Any) -> Any:
    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone().pin_memory() if tensor.is_pinned() else tensor.clone()

    return map_tensors(batch, copied, copy.deepcopy)


MakeIterator = Callable[[TorchDataLoader[Any]], Iterator[Any]]
"""How a loader is iterated as it is, past whatever is in the way for the sake of the examination."""

Feed = Generator[Any, None, Timing]

T = TypeVar("T")

_COSTED_BATCHES: Final = 2
_COSTED_OF_STREAM: Final = 8
"""More than of other loaders: a stream reads in large pieces, now and then."""

_MOST_WORKERS: Final = 32
_WORTH_FETCHING: Final = 0.05
"""Files that take less of a batch's time than this are not worth a trial of the cache."""


class Examination:
    """Examines one loader while somebody's loop iterates ``feed``.

    Args:
        loader: The user's.
        steps: Steps of each trial that count; some before them fill queues.
        make_iterator: See there.
        device: Where the loop copies batches to; None: it does not.
        is_served: The loader is prefeed's already, or all are.
        say: Shows what is tried.
        directory: Where caches for trials have their homes; None: where temporary directories are made.

    Attributes:
        measurement: What was found; None until the end.
    """

    def __init__(
        self,
        loader: TorchDataLoader[Any],
        *,
        steps: int,
        make_iterator: MakeIterator = iter,
        device: torch.device | None = None,
        is_served: bool = False,
        say: Callable[[str], None] = lambda text: None,
        directory: Path | None = None,
    ) -> None:
        self.measurement: Measurement | None = None
        self._loader = loader
        self._steps = _in_groups(steps, loader.num_workers)
        self._iterate = make_iterator
        self._device = device
        self._is_served = is_served
        self._say = say
        self._directory = directory
        self._was_elsewhere = False
        self._reasons: dict[str, str] = {}
        self._batches = Batches(loader)
        self._kept: list[Batch] = []

    @property
    def _warm_steps(self) -> int:
        """Steps until the loader's queues are what they are all the time: batches made ahead are used up, or there."""
        return (self._loader.prefetch_factor or 0) * self._loader.num_workers + 2

    def goes_on(self) -> None:
        """The loop had broken off and was elsewhere, between two epochs: that time is not a step's."""
        self._was_elsewhere = True

    def feed(self) -> Generator[Any, None, None]:
        """Yield batches to the loop until everything has been tried."""
        found: dict[str, Any] = {}
        last = yield from (self._as_kept(found) if self._is_kept else self._as_it_is(found))
        gc.collect()  # workers end, and leave the processor to what is measured next
        self._say("the computing alone")
        found["compute"] = yield from self._timed(again_and_again(last))
        batch_size = _size_of(last)
        if not is_stream(self._loader):
            self._say("one batch, part by part")
            batches = self._batches.take(1 + _COSTED_BATCHES)
            batch_size = num_samples_in(batches) / max(1, len(batches))
            files = TimedFiles()
            with self._trial("parts"):
                found["costs"] = costs_of(self._loader, batches, self._device, files)
            if self._is_worth_trying(found):
                yield from self._try_cures(found, files)
        else:
            self._say("some batches, in this process")
            with self._trial("parts"):
                found["costs"] = stream_costs_of(self._loader, _COSTED_OF_STREAM, self._device)
            if _has_ranks():
                self._reasons["workers"] = "shards may suffice for more workers on one rank and not on another"
            elif self._is_worth_trying(found):
                with self._trial("workers"):
                    yield from self._try_workers(found)
        facts = facts_of(self._loader, batch_size, is_served=self._is_served)
        self.measurement = Measurement(loader=facts, reasons=self._reasons, **found)

    def _is_worth_trying(self, found: dict[str, Any]) -> bool:
        return of_rank_0(bool(found["as_is"].step_seconds >= WORTH_WHILE * found["compute"].step_seconds))

    @property
    def _is_kept(self) -> bool:
        """True when a second epoch is quicker than the first, because prefeed keeps what it takes."""
        return not is_stream(self._loader) and (self._is_served or has_cached_stage(self._loader.dataset))

    def _as_it_is(self, found: dict[str, Any]) -> Generator[Any, None, Any]:
        """Measure the loader as it is, and what it gives without work on its batches; return a batch."""
        self._say("as it is")
        stream = self._own_batches()
        found["as_is"] = yield from self._timed(stream)
        unused = next(stream)  # no step did anything to it yet
        self._say("the loader alone")
        found["data"] = self._alone(stream)
        stream.close()
        return unused

    def _as_kept(self, found: dict[str, Any]) -> Generator[Any, None, Any]:
        """Do the same where prefeed keeps something: what counts is the epoch that finds it."""
        self._kept = self._batches.take(self._steps + self._warm_steps + 1)
        twin = twin_of(self._loader, self._kept)
        unused = None
        for name, text in (("first", "as it is, a first epoch"), ("as_is", "as it is, a later epoch")):
            self._say(text)
            iterator = self._iterate(twin)
            found[name] = yield from self._timed(iterator)
            unused = next(iterator)
            next(iterator, None)  # the epoch ends
        self._say("the loader alone")
        found["data"] = self._alone(self._iterate(twin))
        return unused

    def _own_batches(self, loader: TorchDataLoader[Any] | None = None) -> Generator[Any, None, None]:
        """Yield the batches of the loader as it is, or of another one, epoch after epoch."""
        while True:
            is_empty = True
            for batch in self._iterate(self._loader if loader is None else loader):
                is_empty = False
                yield batch
            if is_empty:
                raise CannotExamineError("the loader has no batches: there is nothing to examine")

    @contextmanager
    def _trial(self, name: str) -> Iterator[None]:
        """Inside, something is done with the loader that the program never did: when it fails, that is all there is to say."""
        try:
            yield
        except Exception as err:  # noqa: BLE001 - the dataset is the user's
            self._reasons[name] = reason_of(err)

    # ------------------------------------------------------------ timing

    def _timed(self, batches: Iterable[Any], *, steps: int | None = None) -> Feed:
        """Feed batches to the loop; return the timing of those that count."""
        asked, steps = iter(batches), steps or self._steps
        for _ in range(self._warm_steps):
            yield next(asked)
        waits, computed = [], []
        self._was_elsewhere = False
        synchronize(self._device)
        began = last = time.perf_counter()
        elsewhere = 0.0
        for _ in range(steps):
            batch = next(asked)
            got = time.perf_counter()
            waits.append(got - last)
            yield batch
            last = time.perf_counter()
            if self._was_elsewhere:
                self._was_elsewhere = False
                elsewhere += last - got
            else:
                computed.append(last - got)
        synchronize(self._device)
        if not computed:  # each step was an epoch's last: what lies between epochs belongs to it
            computed, elsewhere = [elsewhere / steps] * steps, 0.0
        return _timing(time.perf_counter() - began - elsewhere, waits, computed)

    def _alone(self, batches: Iterator[Any]) -> Timing:
        """Take batches without work on them, after those that were made ahead."""
        for _ in range(self._warm_steps):
            next(batches)
        each = []
        began = last = time.perf_counter()
        for _ in range(self._steps):
            next(batches)
            now = time.perf_counter()
            each.append(now - last)
            last = now
        return Timing(steps=self._steps, seconds=last - began, waited_seconds=last - began, each=each)

    # ------------------------------------------------------------ cures

    def _try_cures(self, found: dict[str, Any], files: TimedFiles) -> Generator[Any, None, None]:
        num_batches = self._steps + self._warm_steps
        with self._trial("workers"):
            yield from self._try_workers(found)
        with private_home(current(), directory=self._directory, roots=_tops(_roots_of(files)) or None) as config:
            reason = of_rank_0(self._against_cache(found.get("costs"), files))
            if reason:
                self._reasons["cache"] = reason
            else:
                with self._trial("cache"):
                    yield from self._try_cache(found, config, self._batches.take(num_batches))
            with self._trial("stage cache"):
                yield from self._try_stage_cache(found, config, self._batches.take(num_batches))

    def _against_cache(self, costs: Costs | None, files: TimedFiles) -> str:
        """Return why the cache of files is not tried; nothing when it is."""
        if self._is_kept:
            return "prefeed is in use already"
        if costs is None or not files.paths:
            return "its samples open no files by path"
        if _fetched_share(costs) < _WORTH_FETCHING:
            return "its files come from memory or a fast disk already"
        return ""

    def _try_cache(self, found: dict[str, Any], config: Config, batches: Sequence[Batch]) -> Generator[Any, None, None]:
        """Run the loop through prefeed: samples that it has not seen, and then the same again."""
        twin = twin_of(self._loader, batches, served_by=config)
        with Asking(config) as ask:
            for name, text in (
                ("first", "through prefeed, a first epoch"),
                ("cached", "through prefeed, a later epoch"),
            ):
                self._say(text)
                counts = found.setdefault("counts", {}).setdefault(name, [])
                iterator = counted(partial(self._iterate, twin), ask, counts)
                found[name] = yield from self._timed(iterator)
                next(iterator, None)  # the epoch ends
                del iterator
        gc.collect()

    def _try_stage_cache(
        self, found: dict[str, Any], config: Config, batches: Sequence[Batch]
    ) -> Generator[Any, None, None]:
        if has_cached_stage(self._loader.dataset):
            self._reasons["stage cache"] = "the samples come from one already"
            return
        self._say("samples from a stage cache")
        try:
            cached = CachedDataset(self._loader.dataset, config=config)
            for batch in batches:
                cached.samples(samples_in([batch]))
        except (PrefeedError, TypeError, ValueError) as err:
            self._reasons["stage cache"] = str(err)
            return
        statistics = cached.get_stat()
        found["staged_bytes"] = statistics.avg_cache_sz
        if not statistics.num_mem_cached:
            self._reasons["stage cache"] = "a stage cache took none of its samples"
            return
        twin = twin_of(self._loader, batches, dataset=cached, served_by=config)
        found["staged"] = yield from self._timed(self._iterate(twin))
        del twin
        cached.close()
        gc.collect()

    def _batches_for(self, number: int) -> list[Batch]:
        """Return batches of the kind that the job as it is was measured with: new ones, or those that are kept."""
        if not self._kept:
            return self._batches.take(number)
        return list(itertools.islice(itertools.cycle(self._kept), number))

    def _try_workers(self, found: dict[str, Any]) -> Generator[Any, None, None]:
        """Run the loop with more workers: as many as there are processors, and many more, for those that only wait."""
        facts = facts_of(self._loader, 1, is_served=False)
        numbers = {min(_MOST_WORKERS, number) for number in (facts.cores, 4 * max(facts.cores, facts.num_workers))}
        for number in sorted(number for number in numbers if number > facts.num_workers):
            self._say(f"with {number} workers")
            ahead, steps = number * (self._loader.prefetch_factor or 2), _in_groups(self._steps, number)
            with without_advice():
                if is_stream(self._loader):
                    twin = stream_twin_of(self._loader, num_workers=number)
                    self._require_split(twin)
                    iterator: Iterator[Any] = self._own_batches(twin)
                else:
                    twin = twin_of(
                        self._loader, self._batches_for(self._warm_steps + steps + ahead), num_workers=number
                    )
                    iterator = self._iterate(twin)
            for _ in range(ahead):  # what many workers have made ahead must not count
                yield next(iterator)
            timing = yield from self._timed(iterator, steps=steps)
            found.setdefault("workers", {})[number] = timing
            del iterator, twin
            gc.collect()

    def _require_split(self, twin: TorchDataLoader[Any]) -> None:
        """Refuse workers that give the same samples, each all of the stream.

        Raises:
            CannotExamineError: They do.
        """
        alone, together = (
            list(itertools.islice(self._iterate(loader), 2))
            for loader in (stream_twin_of(self._loader, num_workers=0), twin)
        )
        if are_alike(*together) and not are_alike(*alone):
            raise CannotExamineError(NOT_SPLIT)


def of_rank_0(decision: T) -> T:
    """Return what the first rank decides: all of them have to do the same steps, or they wait for each other for ever."""
    if not _has_ranks():
        return decision
    decisions = [decision]
    torch.distributed.broadcast_object_list(decisions, src=0)
    return decisions[0]


def _has_ranks() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _fetched_share(costs: Costs) -> float:
    """Return the share of a batch's cost that is opening and reading files."""
    fetching = (costs.opening or 0.0) + (costs.reading or 0.0)
    return fetching / (fetching + costs.decoding + costs.collating)


def _in_groups(steps: int, num_workers: int) -> int:
    """Return at least that many steps, in whole groups: workers deliver a batch each, all of them at once."""
    groups = max(2, -(-steps // max(1, num_workers)))
    return groups * num_workers if num_workers else steps


def _timing(seconds: float, waits: list[float], computed: list[float]) -> Timing:
    """Return the timing of steps; those after which the loop was elsewhere are taken to compute as long as the others.

    Args:
        seconds: All of them, but for the time elsewhere, in which the last computing of these is.
        waits: Of each step, for its batch.
        computed: Of each step after which the loop was not elsewhere, all else.
    """
    usual = sum(computed) / len(computed) if computed else 0.0
    num_left_out = len(waits) - len(computed)
    each = [wait + own for wait, own in itertools.zip_longest(waits, computed, fillvalue=usual)]
    return Timing(steps=len(waits), seconds=seconds + num_left_out * usual, waited_seconds=sum(waits), each=each)


def _size_of(batch: Any) -> float:
    """Return how many samples are in a batch: the length of the first tensor in it, or of the batch itself."""
    if isinstance(batch, torch.Tensor):
        return float(len(batch)) if batch.ndim else 1.0
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], torch.Tensor | list | tuple | dict):
        return _size_of(batch[0])
    try:
        return float(len(batch))
    except TypeError:
        return 1.0


def _roots_of(files: TimedFiles) -> tuple[str, ...]:
    """Return the directories that the files of samples lie in, each once."""
    return tuple(sorted({path.rpartition("/")[0] or "/" for path in files.paths}))


def _tops(roots: Sequence[str]) -> tuple[str, ...]:
    """Return the parents of the directories where there are many: a data set has a folder a class."""
    many: Final = 8
    tops = set(roots)
    while len(tops) > many:
        tops = {top.rpartition("/")[0] or "/" for top in tops}
    return tuple(sorted(tops))


DEFAULT_STEPS: Final = 20


def doctor(
    loader: TorchDataLoader[Any],
    step: Callable[[Any], Any],
    *,
    steps: int = DEFAULT_STEPS,
    device: torch.device | str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Return whether a training loop waits for data, for what, and what to do about it.

    The loop ``for batch in loader: step(batch)`` is run several times over a few batches: as it is, with the same batch
    again and again, with its files in memory, its samples in a stage cache, with more workers. So the model is trained a
    little, on some batches more than once: examine a copy, or throw it away.

    Args:
        loader: Any ``torch.utils.data.DataLoader``; it is iterated, and not changed.
        step: What is done with a batch: forward, backward, optimizer.
        steps: Steps of each trial that count.
        device: Where ``step`` copies the batch to: then the copy is timed, too. None: nowhere.
        say: Shows what is tried.

    Returns:
        The verdict; ``str(verdict)`` is what a person reads, ``verdict.to_json()`` the rest.

    Raises:
        TypeError: ``loader`` is no DataLoader, or ``step`` cannot be called.
        ValueError: ``steps`` is less than 2.
    """
    require_loader(loader, "doctor", step=step, needs_step=True)
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or steps < 2:
        raise ValueError(f"a trial needs at least 2 steps to be timed, a whole number, not {steps!r}")
    examination = Examination(
        loader,
        steps=steps,
        device=None if device is None else torch.device(device),
        is_served=isinstance(loader, DataLoader),
        say=say,
    )
    with closing(examination.feed()) as feed:
        for batch in feed:
            step(batch)
    assert examination.measurement is not None
    return judge(examination.measurement)
