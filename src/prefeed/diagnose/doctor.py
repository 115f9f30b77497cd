"""Examines a training loop by timing its own steps with batches from different sources.

The method is that of DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021):
time the unchanged job, the same batch repeatedly, and the job with its data in a cache. The difference of two trials is
the cost of the changed part. The loop is never called: it requests the next batch, and receives one of the trial.

``prefeed doctor`` starts an unchanged program with ``PREFEED_DOCTOR`` set. In it, ``autostart/sitecustomize.py``
calls ``begin`` once torch is imported, and ``DataLoader.__iter__`` yields the batches of the trials.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, SequentialSampler, get_worker_info

from prefeed.config import Config, current
from prefeed.diagnose.costs import TimedFiles, costs_of
from prefeed.diagnose.loader_clone import BatchSource, IndexBatch, LoaderFailed, facts_of, private_home, reason_of
from prefeed.diagnose.report import AS_IS, CACHE, COMPUTE, FIRST, STAGE_CACHE, Costs, LoaderReport, doctor_report
from prefeed.diagnose.search import WORTHWHILE, Settings, Trial
from prefeed.diagnose.trials import Trials, drive, repeat_batch, require_loader, whole_waves
from prefeed.errors import CannotExamineError, PrefeedError
from prefeed.loaders.stages import has_cached_stage
from prefeed.stage_cache import CachedDataset
from prefeed.torch.items import is_stream
from prefeed.torch.loader import DataLoader
from prefeed.torch.order import indices_of

T = TypeVar("T")
Say = Callable[[str], None]

DEFAULT_STEPS: Final = 20
_COSTED_BATCHES: Final = 2
_MAX_WORKERS: Final = 32
_WORTH_FETCHING: Final = 0.05
"""Share of a batch's time below which files are not worth a trial of the cache."""


@dataclass(kw_only=True)
class Examination:
    """Examination of one loader, during which a loop iterates ``feed``.

    Attributes:
        loader: Loader of the user.
        steps: Steps to time in each trial.
        device: Device that the loop copies batches to, or None.
        say: Receives the name of each trial.
        iterate: Function that iterates a loader.
        directory: Parent of the homes of private caches, or None for the default for temporary directories.
        report: Result, or None until the end.
        trials: Timed runs.
    """

    loader: TorchDataLoader[Any]
    steps: int
    device: torch.device | None
    say: Say
    iterate: Callable[[TorchDataLoader[Any]], Iterator[Any]] = iter
    directory: Path | None = None
    report: LoaderReport | None = None

    def __post_init__(self) -> None:
        self._present = Settings.of(self.loader)
        self._source = None if is_stream(self.loader) else BatchSource(self.loader)
        batch_size = self._source.mean_size() if self._source is not None else self.loader.batch_size
        self.trials = Trials(loader=self.loader, batch_size=batch_size, device=self.device, iterate=self.iterate)
        self._found: list[Trial] = []
        self._unused: Any = None
        self._files = TimedFiles()
        # The first epoch of a served loader fills the cache, so the second one is faster and is timed separately.
        is_served = isinstance(self.loader, DataLoader) or has_cached_stage(self.loader.dataset)
        self._is_kept = self._source is not None and is_served

    def feed(self) -> Generator[Any, None, LoaderReport]:
        """Yield batches to the loop until all trials have ended."""
        costs: Costs | None = None
        staged_bytes = 0
        if self._is_kept and self._source is not None:
            self._source.repeat(self._take(self._present) or [])
            yield from self._try((f"{AS_IS}, first epoch", AS_IS), self._present)
        else:
            yield from self._try((AS_IS,), self._present, is_own=True)
        as_is = self._found[-1]
        self.say(COMPUTE)
        repeated = repeat_batch(self._unused)
        compute = yield from self.trials.run(COMPUTE, repeated, self._present, steps=as_is.steps)
        self._found = [as_is, compute, *self._found[:-1]]
        self.say("one batch, part by part")
        with self._noting("one batch"):
            batches = None if self._source is None else self._source.take(1 + _COSTED_BATCHES)
            costs = costs_of(self.loader, batches, device=self.device, files=self._files)
        if of_rank_0(as_is.step_seconds >= WORTHWHILE * compute.step_seconds):
            for settings in self._more_workers():
                with self._noting(str(settings)):
                    yield from self._try((str(settings),), settings)
            if self._source is not None:
                roots = _common_roots(self._files.paths)
                with private_home(current(), directory=self.directory, roots=roots or None) as config:
                    with self._noting(CACHE):
                        self._require_files(costs)
                        yield from self._try((FIRST, CACHE), self._present, config=config)
                    with self._noting(STAGE_CACHE):
                        staged_bytes = yield from self._try_stage_cache(config)
        facts = facts_of(self.loader, self.trials.batch_size or 1)
        self.report = doctor_report(facts, self._found, costs, staged_bytes=staged_bytes)
        return self.report

    def _take(self, settings: Settings) -> list[IndexBatch] | None:
        """Return the batches of a trial and one more, which no step receives. Return None for a stream."""
        number = whole_waves(self.steps, settings.num_workers) + settings.batches_ahead + 3
        return None if self._source is None else self._source.take(number)

    def _try(
        self, names: Sequence[str], settings: Settings, *, is_own: bool = False, **changes: Any
    ) -> Generator[Any, None, None]:
        """Run the loop for an epoch per name, with a clone of the loader or with the user's own."""
        batches = None if is_own else changes.pop("batches", None) or self._take(settings)
        with self.trials.clone(None if is_own else settings, batches, **changes) as clone:
            for name in names:
                self.say(name)
                steps = whole_waves(self.steps, settings.num_workers)
                trial = yield from self.trials.run(name, clone, settings, steps=steps)
                self._found.append(trial)
                self._unused = next(clone)
                if batches is not None:
                    next(clone, None)  # ends the epoch

    def _more_workers(self) -> list[Settings]:
        """Return settings with a worker per processor, and with four times as many for samples that only wait."""
        if self._source is None and _has_ranks():  # shards may suffice for more workers on one rank and not on another
            return []
        cores, present = len(os.sched_getaffinity(0)), self._present.num_workers
        numbers = {min(_MAX_WORKERS, number) for number in (cores, 4 * max(cores, present))}
        return [self._present.with_workers(number) for number in sorted(numbers) if number > present]

    def _require_files(self, costs: Costs | None) -> None:
        """Raise if the cache of files is not worth a trial."""
        parts = [costs.opening or 0.0, costs.reading or 0.0, costs.decoding, costs.collating] if costs else [0.0]
        reason = (
            "the files come from memory or a fast disk already" if sum(parts[:2]) < _WORTH_FETCHING * sum(parts) else ""
        )
        reason = reason if self._files.paths else "the samples open no files by path"
        reason = of_rank_0("prefeed is in use already" if self._is_kept else reason)
        if reason:
            raise CannotExamineError(f"not tried: {reason}")

    def _try_stage_cache(self, config: Config) -> Generator[Any, None, int]:
        """Run the loop with samples from a stage cache. Return the bytes of one."""
        if has_cached_stage(self.loader.dataset):
            raise CannotExamineError("not tried: the samples come from one already")
        self.say("filling a stage cache")
        batches = self._take(self._present) or []
        with closing(CachedDataset(self.loader.dataset, config=config)) as cached:
            for batch in batches:
                cached.samples(indices_of(batch))
            statistics = cached.get_stat()
            if not statistics.num_mem_cached:
                raise CannotExamineError("a stage cache took none of the samples")
            yield from self._try((STAGE_CACHE,), self._present, batches=batches, dataset=cached, config=config)
        return statistics.avg_cache_sz

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Record an error of the block as a failed trial. The program itself never uses the loader in this way."""
        try:
            yield
        except Exception as err:  # noqa: BLE001 - the dataset is the user's
            reason = str(err) if isinstance(err, LoaderFailed | PrefeedError) else reason_of(err)
            self._found.append(Trial(name=name, settings=self._present, reason=reason))


def of_rank_0(decision: T) -> T:
    """Return the decision of the first rank, because ranks with different steps would wait for each other forever."""
    if not _has_ranks():
        return decision
    decisions = [decision]
    torch.distributed.broadcast_object_list(decisions, src=0)
    return decisions[0]


def _has_ranks() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _common_roots(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the directories of files, or common parents of many directories, as a data set has a folder per class."""
    roots = {path.rpartition("/")[0] or "/" for path in paths}
    while len(roots) > 8:
        roots = {root.rpartition("/")[0] or "/" for root in roots}
    return tuple(sorted(roots))


def doctor(
    loader: TorchDataLoader[Any],
    step: Callable[[Any], Any],
    *,
    steps: int = DEFAULT_STEPS,
    device: torch.device | str | None = None,
    say: Say = lambda text: None,
) -> LoaderReport:
    """Report whether a training loop waits for data, the causes, and the remedies.

    Runs the loop ``for batch in loader: step(batch)`` several times over a few batches: as it is, with the same batch again and
    again, with its files in memory, with its samples in a stage cache, with more workers. The model is trained a little: pass
    a copy. The loader is not changed.

    Args:
        loader: Any ``torch.utils.data.DataLoader``.
        step: Training step: it receives a batch.
        steps: Steps to time in each trial, at least 2.
        device: Device that ``step`` copies the batch to, so that the copy is timed too, or None.
        say: Receives the name of each trial.

    Raises:
        TypeError: ``loader`` is no DataLoader, or ``step`` cannot be called.
        ValueError: ``steps`` is less than 2.
        CannotExamineError: The loader has no batches.
    """
    require_loader(loader, "doctor", step=step, needs_step=True)
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or steps < 2:
        raise ValueError(f"a trial needs at least 2 steps to be timed, a whole number, not {steps!r}")
    target = None if device is None else torch.device(device)
    report: LoaderReport = drive(Examination(loader=loader, steps=steps, device=target, say=say).feed(), step)
    return report


VARIABLE: Final = "PREFEED_DOCTOR"
"""Steps to time in each trial, a colon, and the file for the report."""


def begin() -> None:
    """Examine the first training loop of this process."""
    steps, _, out = os.environ[VARIABLE].partition(":")
    _ProgramDoctor(int(steps), Path(out)).attend()


class _Patient:
    """Loader under examination. A loop that leaves its epoch continues the examination in the next one.

    Attributes:
        fed: Number of the last iterator that was fed.
        is_fed: Whether an iterator has requested a batch and was not closed.
    """

    def __init__(self, loader: TorchDataLoader[Any], examination: Examination) -> None:
        self.loader = loader
        self.examination = examination
        self.feed = examination.feed()
        self.fed = 0
        self.is_fed = False

    def has(self, loader: TorchDataLoader[Any]) -> bool:
        """Return True for the same loader, and for one that the program creates again each epoch."""
        is_same = loader.dataset is self.loader.dataset
        is_alike = not self.is_fed and _num_batches(loader) == _num_batches(self.loader)
        return _kind_of(loader) == _kind_of(self.loader) and (is_same or is_alike)


class _ProgramDoctor:
    """Examiner of a program. Feeds loops over loaders that look like training until one examination ends."""

    def __init__(self, steps: int, out: Path) -> None:
        self._steps = steps
        self._out = out
        self._patients: list[_Patient] = []
        self._is_busy = False  # set while an examination iterates a loader, so that this loader is not examined
        self._iterate = TorchDataLoader.__iter__

    def attend(self) -> None:
        """Replace the iteration of every loader."""
        torchs = self._iterate

        @functools.wraps(torchs)
        def iterate(loader: TorchDataLoader[Any]) -> Iterator[Any]:
            if self._is_busy or get_worker_info() is not None or not _trains(loader):
                return torchs(loader)
            return self._feed(loader)  # starts at the first batch, because some programs create unused iterators

        TorchDataLoader.__iter__ = iterate  # type: ignore[method-assign, assignment]
        atexit.register(self._leave)

    def _feed(self, loader: TorchDataLoader[Any]) -> Generator[Any, None, None]:
        with suppress(CannotExamineError):
            patient = self._patient_of(loader)
            patient.fed += 1
            patient.is_fed, number = True, patient.fed
            patient.examination.trials.was_elsewhere |= number > 1
            try:
                while number == patient.fed:
                    self._is_busy = True
                    try:
                        batch = next(patient.feed)
                    except StopIteration:
                        break
                    finally:
                        self._is_busy = False
                    yield batch
            finally:
                patient.is_fed = patient.is_fed and number != patient.fed
            if patient.examination.report is not None:
                if _rank() == 0:
                    part = self._out.with_name("part")
                    part.write_text(patient.examination.report.to_json())
                    part.replace(self._out)
                raise SystemExit(0)
        yield from self._iterate(loader)  # a newer iterator is fed, or the loader cannot be examined

    def _patient_of(self, loader: TorchDataLoader[Any]) -> _Patient:
        for patient in self._patients:
            if patient.has(loader):
                return patient
        examination = Examination(
            loader=loader, steps=self._steps, iterate=self._iterate, directory=self._out.parent,
            device=torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None,
            say=lambda text: None if _rank() else print(f"prefeed doctor: {text}", file=sys.stderr),  # noqa: T201
        )  # fmt: skip
        self._patients.append(_Patient(loader, examination))
        return self._patients[-1]

    def _leave(self) -> None:
        """Close unfinished examinations, which may have started workers and servers."""
        for patient in self._patients:
            with suppress(ValueError):  # another thread is executing the feed
                patient.feed.close()


def _kind_of(loader: TorchDataLoader[Any]) -> tuple[Any, ...]:
    return type(loader.dataset), type(loader), type(loader.sampler), loader.batch_size, loader.num_workers


def _num_batches(loader: TorchDataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a stream has no length
        return None


def _trains(loader: TorchDataLoader[Any]) -> bool:
    """Return False for evaluation: samples in order, without gradients."""
    sampler = getattr(loader, "sampler", None)
    is_shuffled = (
        sampler.shuffle if isinstance(sampler, DistributedSampler) else not isinstance(sampler, SequentialSampler)
    )
    return torch.is_grad_enabled() or is_shuffled


def _rank() -> int:
    return torch.distributed.get_rank() if _has_ranks() else int(os.environ.get("RANK", "0"))
