"""``prefeed.tune``: timed trials of a loader's settings, and the line to paste."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.diagnose.loader_clone import BatchSource, LoaderFailed, facts_of
from prefeed.diagnose.report import COMPUTE, LoaderReport, tune_report
from prefeed.diagnose.search import MAX_SHORT_SECONDS, Search, Settings, Trial
from prefeed.diagnose.trials import Step, Trials, drive, repeat_batch, require_loader
from prefeed.errors import CannotExamineError
from prefeed.stage_cache.randomness import left_alone
from prefeed.torch.device import default_device, moved
from prefeed.torch.items import is_stream
from prefeed.torch.nesting import map_tensors
from prefeed.torch.resuming import own_states, set_own_states

DEFAULT_BUDGET_SECONDS: Final = 60.0
_WARM_UP: Final = 0.12
_STEP_ALONE: Final = 0.02
"""Shares of the budget."""

_BATCHES: Final = 2_000  # limit of a trial, which ends earlier if its seconds have passed

Say = Callable[[str], None]

_WARM: Final = "All samples had been read once before the trials, so that these were later epochs."
_FRESH: Final = "Each trial read samples that no trial had read before, as a first epoch does."
_STREAM: Final = "Every trial read the stream from its beginning, which had been read once before."


def tune(
    loader: TorchDataLoader[Any],
    step: Step | None = None,
    *,
    budget: float = DEFAULT_BUDGET_SECONDS,
    device: torch.device | str | None = None,
    say: Say = lambda text: None,
) -> LoaderReport:
    """Find the fastest settings of a loader, the gain over the present ones, and the line to paste.

    Runs the loop ``for batch in loader: step(batch)`` many times with other settings, and alternates the best with the
    present ones. Settings that need more memory than is free are skipped, and failures do not end the search. The model
    is trained a little: pass a copy. Random generators keep their states, and the loader is not changed.

    Args:
        loader: Any ``torch.utils.data.DataLoader``.
        step: Training step, called with each batch. None times only the loader.
        budget: Maximum seconds of the search, at least 1. The result is based on the trials until then. A batch that
            this process is computing is finished.
        device: Device to copy batches to, or None for the accelerator of this machine, if it has one.
        say: Receives the settings of each trial.

    Returns:
        The report; ``report.suggestion.how`` is the line to paste.

    Raises:
        TypeError: ``loader`` is no DataLoader, or ``step`` cannot be called.
        ValueError: ``budget`` is too small or no number.
        CannotExamineError: The loader has no batches, or fails with every setting.
    """
    require_loader(loader, "tune", step=step, needs_step=False)
    is_number = isinstance(budget, int | float) and not isinstance(budget, bool)  # type: ignore[redundant-expr]
    if not is_number or not math.isfinite(budget):
        raise ValueError(f"budget must be a number of seconds, such as 120, not {budget!r}")
    if budget < 1:
        raise ValueError(f"trials need at least 1 second of budget, not {budget:g}")
    target = default_device() if device is None else torch.device(device)
    states = own_states(loader)
    with left_alone():
        try:
            return _Tuner(
                loader=loader, step=step or _copy_to(target), has_step=step is not None, device=target, budget=budget, say=say
            ).tune()  # fmt: skip
        finally:
            set_own_states(loader, states)


@dataclass(kw_only=True)
class _Tuner:
    """Runner of the trials that a search requests."""

    loader: TorchDataLoader[Any]
    step: Step
    has_step: bool
    device: torch.device
    budget: float
    say: Say
    num_read: int = 0

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.source = None if is_stream(self.loader) else BatchSource(self.loader, whole_only=True)
        batch_size = self.loader.batch_size if self.source is None else self.source.mean_size()
        deadline = self.began + self.budget
        self.trials = Trials(loader=self.loader, batch_size=batch_size, device=self.device, deadline=deadline)

    def tune(self) -> LoaderReport:
        present, compute = Settings.of(self.loader), None
        first, data = self._warm_up(present)
        if self.has_step and self.trials.last_batch is not None and not self.trials.is_over():
            self.say(COMPUTE)
            seconds = min(_STEP_ALONE * self.budget, MAX_SHORT_SECONDS)
            alone = self.trials.run(COMPUTE, repeat_batch(self.trials.last_batch), present, seconds=seconds)
            compute = drive(alone, self.step).step_seconds
        search = Search(
            present=present, cores=len(os.sched_getaffinity(0)), budget=self.budget, spent=time.perf_counter() - self.began,
            has_device=self.device.type != "cpu", threads=torch.get_num_threads() if self.has_step else None,
            compute_seconds=compute,
        )  # fmt: skip
        with closing(search.steps()) as steps, suppress(StopIteration):
            settings, seconds = next(steps)
            while not self.trials.is_over():
                self.say(str(settings))
                trial = self._run(settings, seconds)
                if trial.reason is not None and self.trials.is_over():
                    break
                settings, seconds = steps.send(trial)
            search.ran_out = True  # the budget ended within the search
        search.trials = search.trials or [first]
        facts = facts_of(self.loader, self.trials.batch_size or 1)
        return tune_report(facts, search, compute_seconds=compute, budget=self.budget, data=data)

    def _warm_up(self, present: Settings) -> tuple[Trial, str]:
        """Read samples, at most an epoch, so that files are in memory and the step is compiled.

        Return the trial, and a sentence about the data of the next ones.
        """
        self.say("warming up")
        try:
            num_batches = float(len(self.loader))
        except TypeError:  # a stream, or a sampler without a length
            num_batches = math.inf
        seconds = min(_WARM_UP * self.budget, 10.0)
        first = trial = self._run(present, seconds, max_batches=num_batches)
        if trial.reason is not None and present.num_workers and not self.trials.is_over():
            trial = self._run(present.with_workers(0), seconds, max_batches=num_batches)
        if trial.reason is not None and not self.trials.is_over():
            raise CannotExamineError(f"the loader yields no batches to time: {first.reason}")
        if self.source is None:
            return first, _STREAM
        return first, _FRESH if self.num_read < num_batches else _WARM

    def _run(self, settings: Settings, seconds: float, *, max_batches: float = math.inf) -> Trial:
        """Run one trial. If the loader fails, the trial has a reason."""
        name, began = str(settings), time.perf_counter()
        if (reason := self.trials.refusal(settings)) is None:
            number = int(min(_BATCHES + settings.batches_ahead, max_batches))
            batches = None if self.source is None else self.source.take(number)
            try:
                with self.trials.clone(settings, batches) as clone:
                    trial: Trial = drive(self.trials.run(name, clone, settings, seconds=seconds), self.step)
                    self.num_read = clone.number + settings.batches_ahead
                if self.source is not None and batches is not None:
                    self.source.give_back(batches[self.num_read :])
                return msgspec.structs.replace(trial, cost_seconds=time.perf_counter() - began)
            except LoaderFailed as err:
                reason = str(err)
        return Trial(name=name, settings=settings, reason=reason, cost_seconds=time.perf_counter() - began)


def _copy_to(device: torch.device) -> Step:
    """Return a step that only copies the batch to the device, as every training does."""
    if device.type == "cpu":
        return lambda batch: None
    return lambda batch: map_tensors(batch, lambda tensor: moved(tensor, device), lambda value: moved(value, device))
