"""``prefeed.tune``: measured trials of a loader's settings, and the line to paste."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.diagnose.loader_clones import Batch, Batches, facts_of, require_loader
from prefeed.diagnose.tune.report import Data, Tuning, tuning_of
from prefeed.diagnose.tune.search import Ask, Found, Run, Search, Settings, Space, with_workers
from prefeed.diagnose.tune.trials import Free, Step, Supply, Trials, free_memory
from prefeed.errors import CannotExamineError
from prefeed.stage_cache.randomness import left_alone
from prefeed.torch.device import default_device, moved
from prefeed.torch.items import is_stream
from prefeed.torch.loader import DataLoader
from prefeed.torch.nesting import map_tensors
from prefeed.torch.resuming import own_states, set_own_states

DEFAULT_BUDGET_SECONDS: Final = 60.0
_LEAST_BUDGET_SECONDS: Final = 1.0
_WARM_UP: Final = 0.12
_STEP_ALONE: Final = 0.02
"""Shares of the budget."""

_PAGE_CACHE: Final = 0.5
"""Share of the free memory that files are thought to stay in."""

Say = Callable[[str], None]


def tune(
    loader: TorchDataLoader[Any],
    step: Step | None = None,
    *,
    budget: float = DEFAULT_BUDGET_SECONDS,
    device: torch.device | str | None = None,
    say: Say = lambda text: None,
    free: Callable[[], Free] = free_memory,
) -> Tuning:
    """Return the fastest settings of a loader, by how much they are faster, and the line to paste.

    The loop ``for batch in loader: step(batch)`` is run many times over some batches, with other numbers of workers, of
    batches made ahead, of threads; the best is then run in turns with what the loader has now. A setting that would take
    more memory than is free is not started, and one that fails does not end the search. With a step the model is trained
    a little, on some batches more than once: give a copy, or throw it away.

    Random generators of Python, NumPy and torch, and the loader's own, are left as they were. The loader is not changed.

    Args:
        loader: Any ``torch.utils.data.DataLoader``.
        step: What is done with a batch: forward, backward, optimizer. None: the loader alone is timed, and of more than
            two processors its workers must leave one for the training.
        budget: Seconds for everything, at least 1. What was measured by then is the result. Only a batch that this process is making is
            made to its end.
        device: Where batches are copied to; None: the accelerator of this machine, if there is one. Without a step
            the copying is what is timed.
        say: Shows what is tried.
        free: Reads what memory is left.

    Returns:
        What was found; ``str(tuning)`` is what a person reads, ``tuning.to_json()`` the rest.

    Raises:
        TypeError: ``loader`` is no DataLoader, or ``step`` cannot be called.
        ValueError: The budget is too small, or no number.
        CannotExamineError: The loader has no batches, or gives none with any setting.
        Exception: What the step raises.
    """
    require_loader(loader, "tune", step=step)
    if not _is_number(budget):
        raise ValueError(f"budget must be a number of seconds, such as 120, not {budget!r}")
    if budget < _LEAST_BUDGET_SECONDS:
        raise ValueError(f"trials need at least {_LEAST_BUDGET_SECONDS:g} second of budget, not {budget:g}")
    with _generators_as_before(loader):
        return _Tuner(
            loader, step, default_device() if device is None else torch.device(device), budget, say, free
        ).tune()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class _Tuner:
    """One tuning: what the machine and the loader are is found out, the search is asked, its runs are run."""

    def __init__(
        self,
        loader: TorchDataLoader[Any],
        step: Step | None,
        device: torch.device,
        budget: float,
        say: Say,
        free: Callable[[], Free],
    ) -> None:
        self._began = time.perf_counter()
        self._loader = loader
        self._step = step
        self._device = device
        self._budget = budget
        self._say = say
        self._free = free
        stream = is_stream(loader)
        supply = Supply(() if stream else _whole_batches(loader))
        self._trials = Trials(loader, step or _copy_to(device), supply, device=device, free=free)
        self._trials.deadline = self._began + budget
        self._data: Data = "stream" if stream else "fresh"

    def tune(self) -> Tuning:
        present = present_settings(self._loader)
        first = self._warm_up(present)
        compute = None
        if self._step is not None and not self._trials.is_over():
            self._say("the training step alone")
            compute = self._trials.step_alone(_STEP_ALONE * self._budget)
        spent = time.perf_counter() - self._began
        search = Search(present, self._space(compute), budget_seconds=self._budget, spent_seconds=spent)
        found = self._carry_out(search)
        search.runs = search.runs or [first]
        return tuning_of(
            present, found, search.runs, compute_seconds=compute, batch_size=self._batch_size(), data=self._data,
            seconds=time.perf_counter() - self._began,
        )  # fmt: skip

    def _carry_out(self, search: Search) -> Found:
        steps = search.steps()
        ask = next(steps)
        while True:
            if self._trials.is_over():
                return search.found_so_far()
            self._say(str(ask.settings))
            run = self._trials.run(ask)
            if run.reason is not None and self._trials.is_over():
                return search.found_so_far()
            try:
                ask = steps.send(run)
            except StopIteration as over:
                found: Found = over.value
                return found

    def _warm_up(self, present: Settings) -> Run:
        """Read samples for a while: files come into memory, the step is compiled, one worker's memory is known. Return how it went.

        Raises:
            CannotExamineError: Neither the present setting nor a loader without workers gives a batch.
        """
        self._say("warming up")
        if self._data == "stream":
            self._trials.look_at_stream(present)
        run = self._read_some(present)
        if self._data != "stream" and self._stays_in_memory():
            self._data = "warm"
            self._trials.supply = Supply(itertools.cycle(self._trials.last_read))
        return run

    def _read_some(self, present: Settings) -> Run:
        run = first = self._trials.run(Ask(settings=present, seconds=_WARM_UP * self._budget))
        if first.reason is not None and present.num_workers:
            run = self._trials.run(Ask(settings=with_workers(present, 0), seconds=_WARM_UP * self._budget))
        if run.reason is not None:
            raise CannotExamineError(
                f"the loader gives no batches to time: {first.reason}; the budget was {self._budget:g} s"
            )
        return run

    def _stays_in_memory(self) -> bool:
        """Return whether what was read is read from memory the next time, and so is the whole data set in training."""
        read, loader = self._trials.last_read, self._loader
        if _is_prefeed(loader) or len(read) >= _batches_an_epoch(loader):
            return True
        all_bytes = self._trials.batch_file_bytes * _batches_an_epoch(loader)
        return all_bytes <= _PAGE_CACHE * self._free().memory_bytes

    def _space(self, compute_seconds: float | None) -> Space:
        return Space(
            cores=facts_of(self._loader, 1, is_served=False).cores,
            has_device=self._device.type != "cpu",
            threads=None if self._step is None else torch.get_num_threads(),
            compute_seconds=compute_seconds,
        )

    def _batch_size(self) -> float | None:
        if self._loader.batch_size is not None:
            return float(self._loader.batch_size)
        sizes = [len(batch) for batch in self._trials.last_read if isinstance(batch, list)]
        return sum(sizes) / len(sizes) if sizes else None


def present_settings(loader: TorchDataLoader[Any]) -> Settings:
    """Return what a loader has."""
    settings = Settings(num_workers=0, prefetch_factor=loader.prefetch_factor or 0, pin_memory=bool(loader.pin_memory))
    return with_workers(settings, loader.num_workers)


def _is_prefeed(loader: TorchDataLoader[Any]) -> bool:
    return issubclass(type(loader), DataLoader)


def _whole_batches(loader: TorchDataLoader[Any]) -> Iterator[Batch]:
    """Yield batches epoch after epoch, without short ones at the ends of epochs: they would seem quick."""
    size = 0
    drawn = Batches(loader)
    while batch := drawn.take(1):
        length = len(batch[0]) if isinstance(batch[0], list) else 0
        size = size or length
        if length >= size:
            yield batch[0]


def _batches_an_epoch(loader: TorchDataLoader[Any]) -> float:
    try:
        return len(loader)
    except TypeError:  # a sampler that does not know
        return float("inf")


def _copy_to(device: torch.device) -> Step:
    """Return a step that does no more than any training has to: it has the batch copied to where it computes."""
    if device.type == "cpu":
        return lambda batch: None

    return lambda batch: map_tensors(batch, lambda tensor: moved(tensor, device), lambda value: moved(value, device))


@contextmanager
def _generators_as_before(loader: TorchDataLoader[Any]) -> Iterator[None]:
    """Leave every random generator as it was: what comes after a tuning in the same program is what it would have been."""
    own = own_states(loader)
    with left_alone():
        try:
            yield
        finally:
            set_own_states(loader, own)
