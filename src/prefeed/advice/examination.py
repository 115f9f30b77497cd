"""The examination of a training loop: its own steps, fed with batches that are made in one way after another.

Differential, as DS-Analyzer does it (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021): the
job as it is; the same batch again and again; the loader with nobody working; and the job with its data nearer. What
differs between two of these is what the difference between them costs.

The loop is never called: it asks for the next batch, and gets one from whatever is being tried.
"""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.advice.measurement import Costs, Measurement, Timing
from prefeed.advice.sample_costs import TimedFiles, costs_of
from prefeed.advice.twins import Batch, Batches, facts_of, is_stream, samples_in, twin_of
from prefeed.advice.verdict import WORTH_WHILE
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import CannotExamineError, PrefeedError
from prefeed.stage import CachedDataset
from prefeed.torch.stages import has_cached_stage

MakeIterator = Callable[[TorchDataLoader[Any]], Iterator[Any]]
"""How a loader is iterated as it is, past whatever is in the way for the sake of the examination."""

Feed = Generator[Any, None, Timing]

_COSTED_BATCHES: Final = 2
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
    ) -> None:
        self.measurement: Measurement | None = None
        self._loader = loader
        self._steps = _in_groups(steps, loader.num_workers)
        self._iterate = make_iterator
        self._device = device
        self._is_served = is_served
        self._say = say
        self._reasons: dict[str, str] = {}
        self._batches = Batches(loader)
        self._kept: list[Batch] = []

    @property
    def _warm_steps(self) -> int:
        """Steps until the loader's queues are what they are all the time: batches made ahead are used up, or there."""
        return (self._loader.prefetch_factor or 0) * self._loader.num_workers + 2

    def feed(self) -> Generator[Any, None, None]:
        """Yield batches to the loop until everything has been tried."""
        found: dict[str, Any] = {}
        last = yield from (self._as_kept(found) if self._is_kept else self._as_it_is(found))
        gc.collect()  # workers end, and leave the processor to what is measured next
        self._say("the computing alone")
        found["compute"], _ = yield from self._timed(_again_and_again(last))
        batch_size = _size_of(last)
        if not is_stream(self._loader):
            self._say("one batch, part by part")
            batches = self._batches.take(1 + _COSTED_BATCHES)
            batch_size = len(samples_in(batches)) / max(1, len(batches))
            costs, files = costs_of(self._loader, batches, self._device)
            found["costs"] = costs
            if found["as_is"].step_seconds >= WORTH_WHILE * found["compute"].step_seconds:
                yield from self._try_cures(found, costs, files)
        facts = facts_of(self._loader, batch_size, is_served=self._is_served)
        self.measurement = Measurement(loader=facts, reasons=self._reasons, **found)

    @property
    def _is_kept(self) -> bool:
        """True when a second epoch is quicker than the first, because prefeed keeps what it takes."""
        return not is_stream(self._loader) and (self._is_served or has_cached_stage(self._loader.dataset))

    def _as_it_is(self, found: dict[str, Any]) -> Generator[Any, None, Any]:
        """Measure the loader as it is, and what it gives when nobody works; return a batch."""
        self._say("as it is")
        stream = self._own_batches()
        found["as_is"], last = yield from self._timed(stream)
        self._say("the loader alone")
        found["data"] = self._alone(stream)
        stream.close()
        return last

    def _as_kept(self, found: dict[str, Any]) -> Generator[Any, None, Any]:
        """Do the same where prefeed keeps something: what counts is the epoch that finds it."""
        self._kept = self._batches.take(self._steps + self._warm_steps)
        twin = twin_of(self._loader, self._kept)
        last = None
        for name, text in (("first", "as it is, a first epoch"), ("as_is", "as it is, a later epoch")):
            self._say(text)
            iterator = self._iterate(twin)
            found[name], last = yield from self._timed(iterator)
            next(iterator, None)  # the epoch ends
        self._say("the loader alone")
        found["data"] = self._alone(self._iterate(twin))
        return last

    def _own_batches(self) -> Generator[Any, None, None]:
        """Yield the batches of the loader as it is, epoch after epoch."""
        while True:
            is_empty = True
            for batch in self._iterate(self._loader):
                is_empty = False
                yield batch
            if is_empty:
                raise CannotExamineError("the loader has no batches: there is nothing to examine")

    # ------------------------------------------------------------ timing

    def _timed(self, batches: Iterable[Any], *, steps: int | None = None) -> Generator[Any, None, tuple[Timing, Any]]:
        """Feed batches to the loop; return the timing of those that count, and the last batch."""
        asked, steps = iter(batches), steps or self._steps
        for _ in range(self._warm_steps):
            yield next(asked)
        batch, each, waited = None, [], 0.0
        _synchronize(self._device)
        began = last = time.perf_counter()
        for _ in range(steps):
            batch = next(asked)
            waited += time.perf_counter() - last
            yield batch
            now = time.perf_counter()
            each.append(now - last)
            last = now
        _synchronize(self._device)
        seconds = time.perf_counter() - began
        return Timing(steps=steps, seconds=seconds, waited_seconds=waited, each=each), batch

    def _alone(self, batches: Iterator[Any]) -> Timing:
        """Take batches with nobody working on them, after those that were made ahead."""
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

    def _try_cures(self, found: dict[str, Any], costs: Costs, files: TimedFiles) -> Generator[Any, None, None]:
        num_batches = self._steps + self._warm_steps
        yield from self._try_workers(found)
        with private_cache(_roots_of(files)) as config:
            if self._is_kept:
                self._reasons["cache"] = "prefeed is in use already"
            elif not files.paths:
                self._reasons["cache"] = "its samples open no files by path"
            elif _fetched_share(costs) < _WORTH_FETCHING:
                self._reasons["cache"] = "its files come from memory or a fast disk already"
            else:
                yield from self._try_cache(found, config, self._batches.take(num_batches))
            yield from self._try_stage_cache(found, config, self._batches.take(num_batches))

    def _try_cache(self, found: dict[str, Any], config: Config, batches: Sequence[Batch]) -> Generator[Any, None, None]:
        """Run the loop through prefeed: samples that it has not seen, and then the same again."""
        twin = twin_of(self._loader, batches, served_by=config)
        for name, text in (("first", "through prefeed, a first epoch"), ("cached", "through prefeed, a later epoch")):
            self._say(text)
            iterator = self._iterate(twin)
            found[name], _ = yield from self._timed(iterator)
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
        found["staged"], _ = yield from self._timed(self._iterate(twin))
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
            with _without_advice():
                twin = twin_of(self._loader, self._batches_for(self._warm_steps + steps + ahead), num_workers=number)
                iterator = self._iterate(twin)
            for _ in range(ahead):  # what many workers have made ahead must not count
                yield next(iterator)
            timing, _ = yield from self._timed(iterator, steps=steps)
            found.setdefault("workers", {})[number] = timing
            del iterator, twin
            gc.collect()


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence torch's advice against many workers: they are what is being tried."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield


def _fetched_share(costs: Costs) -> float:
    """Return the share of a batch's cost that is opening and reading files."""
    fetching = (costs.opening or 0.0) + (costs.reading or 0.0)
    return fetching / (fetching + costs.decoding + costs.collating)


def _in_groups(steps: int, num_workers: int) -> int:
    """Return at least so many steps, in whole groups: workers deliver a batch each, all of them at once."""
    groups = max(2, -(-steps // max(1, num_workers)))
    return groups * num_workers if num_workers else steps


def _again_and_again(batch: Any) -> Iterator[Any]:
    while True:
        yield batch


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


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)


def _roots_of(files: TimedFiles) -> tuple[str, ...]:
    """Return the directories that the files of samples lie in, each once."""
    return tuple(sorted({path.rpartition("/")[0] or "/" for path in files.paths}))


@contextmanager
def private_cache(roots: Sequence[str]) -> Iterator[Config]:
    """Give the settings of an empty node cache, which is gone at the end of the block.

    Args:
        roots: Directories whose files it keeps.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-doctor-") as home:
        tops = _tops(roots)
        config = resolve({"home": str(Path(home) / "home"), "progress": False, "disk": 0, "roots": tops or None})
        try:
            yield config
        finally:
            with suppress(PrefeedError, OSError), NodeClient.connect(config, autostart=False) as node:
                node.stop()


def _tops(roots: Sequence[str]) -> tuple[str, ...]:
    """Return the parents of the directories where there are many: a data set has a folder a class."""
    many: Final = 8
    tops = set(roots)
    while len(tops) > many:
        tops = {top.rpartition("/")[0] or "/" for top in tops}
    return tuple(sorted(tops))
