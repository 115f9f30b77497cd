"""Settings of a loader, trials of them, and the search of ``prefeed.tune`` for the fastest. Pure.

A search is a generator: it yields the settings and the duration of each run, and receives the ``Trial``. All times come
from the trials, so a test needs only a table. One setting is changed at a time: threads, workers, pinned memory,
batches ahead. The best alternates with the present settings until the difference is clear or the budget ends.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

WORTHWHILE: Final = 1.05
"""A factor below this one is neither worth a change nor above the noise."""

_MAX_WORKERS: Final = 64
_SHORT: Final = 0.02
_LONG: Final = 0.03
"""Shares of the budget: a short trial, and a longer one of the proof."""

MAX_SHORT_SECONDS: Final = 2.0
"""Maximum time of a short trial. A larger budget tries more instead."""

_MIN_PAIRS: Final = 2
_ENOUGH_PAIRS: Final = 3

_USUAL_NOISE: Final = 0.1
_NOISE_WEIGHT: Final = 3
"""Usual deviation on a busy machine, and its weight in pairs, because the spread of two or three pairs is unreliable
(a moderated t-statistic: Smyth, 2004)."""

_STUDENT: Final = (2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18)
"""Student's t, two-sided 95 %, from 4 degrees of freedom. More than 12 count as 12."""

DEFAULT_PREFETCH: Final = 2
"""Batches that torch lets each worker compute ahead by default."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a loader and of the process that iterates it.

    Attributes:
        num_workers: Worker processes.
        prefetch_factor: Batches that each worker makes ahead; 0 without workers.
        pin_memory: Copy batches to memory that a device reads directly.
        threads: ``torch.set_num_threads`` of the training process; None: unchanged.
    """

    num_workers: int
    prefetch_factor: int = 0
    pin_memory: bool = False
    threads: int | None = None

    @classmethod
    def of(cls, loader: Any) -> Settings:
        """Return the present settings of a loader."""
        settings = cls(num_workers=0, prefetch_factor=loader.prefetch_factor or 0, pin_memory=bool(loader.pin_memory))
        return settings.with_workers(loader.num_workers)

    @property
    def size(self) -> tuple[int, ...]:
        """Sort key. The smaller one of two equally fast settings is suggested."""
        return (self.num_workers, self.prefetch_factor, self.pin_memory, self.threads or 0)

    @property
    def batches_ahead(self) -> int:
        """Maximum number of batches in shared memory at a time."""
        return self.num_workers * self.prefetch_factor

    def with_workers(self, number: int) -> Settings:
        """Return these settings with another number of workers."""
        prefetch = (self.prefetch_factor or DEFAULT_PREFETCH) if number else 0
        return msgspec.structs.replace(self, num_workers=number, prefetch_factor=prefetch)

    def code(self, present: Settings) -> str:
        """Return the lines that change ``present`` to these settings in a program."""
        arguments = [f"num_workers={self.num_workers}"]
        if self.num_workers:
            arguments.append(f"prefetch_factor={self.prefetch_factor}")
        if self.pin_memory or present.pin_memory:
            arguments.append(f"pin_memory={self.pin_memory}")
        line = f"DataLoader(..., {', '.join(arguments)})"
        return line if self.threads is None else f"{line}\ntorch.set_num_threads({self.threads})"

    def __str__(self) -> str:
        text = f"{self.num_workers} worker{'' if self.num_workers == 1 else 's'}"
        text += f" x {self.prefetch_factor}" if self.num_workers else ""
        text += ", pinned" if self.pin_memory else ""
        return text if self.threads is None else f"{text}, {self.threads} thread{'' if self.threads == 1 else 's'}"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Timing of some steps of the loop with one loader.

    Attributes:
        name: Name in the report: ``as it is``, or the settings.
        settings: Settings of the loader.
        steps: Steps that were timed; 0 if the trial failed. Steps that fill the queues of the loader are not timed.
        step_seconds: Mean seconds of a step.
        samples_s: Samples per second.
        spread: Standard error of ``step_seconds`` as a share of it, or half the range of several trials; None if unknown.
        waited: Share of the time that the loop waited for batches, 0 to 1.
        memory_bytes: Private memory of the workers and the batches that they make ahead.
        cost_seconds: Seconds of the whole trial, with the start and the end of the workers.
        reason: Reason why the trial failed or was not started; None if it succeeded.
    """

    name: str
    settings: Settings
    steps: int = 0
    step_seconds: float = 0.0
    samples_s: float = 0.0
    spread: float | None = None
    waited: float = 0.0
    memory_bytes: int = 0
    cost_seconds: float = 0.0
    reason: str | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all timed steps."""
        return self.steps * self.step_seconds


def merge_trials(trials: Sequence[Trial]) -> Trial:
    """Return several trials of the same settings as one; a failed one keeps its reason."""
    reason = next((trial.reason for trial in trials if trial.reason is not None), None)
    timed = [trial for trial in trials if trial.steps]
    if len(timed) < 2:
        return msgspec.structs.replace((timed or trials)[0], reason=reason)
    each = [trial.step_seconds for trial in timed]
    mean = statistics.mean(each)
    return msgspec.structs.replace(
        timed[0],
        steps=sum(trial.steps for trial in timed),
        step_seconds=mean,
        samples_s=timed[0].samples_s * timed[0].step_seconds / mean,
        spread=(max(each) - min(each)) / 2 / mean,
        waited=statistics.mean(trial.waited for trial in timed),
        memory_bytes=max(trial.memory_bytes for trial in timed),
        reason=reason,
    )


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Factor between two settings, with the interval that holds the true value in 95 of 100 cases."""

    gain: float
    low: float
    high: float
    pairs: int

    @property
    def is_gain(self) -> bool:
        """Return True above the noise."""
        return self.low >= WORTHWHILE

    @property
    def is_clear(self) -> bool:
        """Return True if more pairs would change nothing."""
        return self.pairs >= _ENOUGH_PAIRS and (self.high < WORTHWHILE or self.is_gain)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return how many times as fast the second of each of two or more pairs of durations is.

    The two of a pair were timed one right after the other, so that a slow minute of the machine slows both.
    """
    logarithms = [math.log(before / after) for before, after in pairs]
    mean = statistics.mean(logarithms)
    own = len(pairs) - 1
    variance = (_NOISE_WEIGHT * _USUAL_NOISE**2 + own * statistics.variance(logarithms)) / (_NOISE_WEIGHT + own)
    margin = (variance / len(pairs)) ** 0.5 * _STUDENT[min(own, len(_STUDENT)) - 1]
    return Ratio(gain=math.exp(mean), low=math.exp(mean - margin), high=math.exp(mean + margin), pairs=len(pairs))


@dataclass(kw_only=True)
class Search:
    """Search for settings that are faster than the present ones.

    Attributes:
        present: Present settings.
        cores: Processors of this process.
        budget: Seconds for the whole search, of which ``spent`` have passed.
        has_device: Whether batches are copied to a device, which computes in the meantime.
        threads: Intra-op threads of the training step; None without a step.
        compute_seconds: Seconds of the training step alone; None without a step.
        trials: All trials, in order.
        best: Proven best settings, the present ones included. If the present ones fail, the fastest that work.
        ratio: Factor by which ``best`` is faster; None without a proof.
        is_bound: Whether the training step takes all the time, so that no loader gains anything.
        ran_out: Whether the budget ended before all settings were tried.
    """

    present: Settings
    cores: int
    budget: float
    spent: float = 0.0
    has_device: bool = False
    threads: int | None = None
    compute_seconds: float | None = None
    trials: list[Trial] = field(default_factory=list)
    ratio: Ratio | None = None
    is_bound: bool = False
    ran_out: bool = False

    def __post_init__(self) -> None:
        self.best = self.present

    def steps(self) -> Generator[tuple[Settings, float], Trial, None]:
        """Yield the settings of each trial to run, and the seconds to time."""
        best = self.present
        yield from self._run(best, _SHORT)
        if self._works(best):
            best = yield from self._climb(best, self._other_threads(best))
        self.is_bound = self._takes_all_time(best)
        if not self.is_bound:
            powers = [1 << exponent for exponent in range(_MAX_WORKERS.bit_length())]
            numbers = sorted(
                {0, *powers, *(min(n, _MAX_WORKERS) for n in (self.cores - 1, self.cores))} - {best.num_workers}
            )
            more = [best.with_workers(number) for number in numbers if number > best.num_workers]
            best = yield from self._climb(best, more if self._works(best) else [])
            yield from self._climb(best, [best.with_workers(n) for n in reversed(numbers) if n < best.num_workers])
            for settings in self._close():  # repeated, because a single short trial may have been lucky
                if self._has_time([settings, *[self.present, settings] * _MIN_PAIRS], _SHORT):
                    yield from self._run(settings, _SHORT)
            best = self._fastest()
            best = yield from self._climb(best, self._other_threads(best))
            if self.has_device:
                best = yield from self._climb(best, [msgspec.structs.replace(best, pin_memory=not best.pin_memory)])
            ahead = [best.prefetch_factor * factor for factor in (2, 4) if best.num_workers]
            best = yield from self._climb(best, [msgspec.structs.replace(best, prefetch_factor=each) for each in ahead])
        while best != self.present and self._works(self.present):
            self.ratio = yield from self._prove(best)
            if self.ratio is not None:
                break
            best = self._fastest()
        self.best = best

    def _climb(
        self, best: Settings, variants: Iterable[Settings]
    ) -> Generator[tuple[Settings, float], Trial, Settings]:
        """Try variants in order until one fails, a smaller one or two larger ones in a row lose. Return the best.

        Larger settings must be faster, and smaller ones nearly as fast.
        """
        losses = 0
        for other in variants:
            is_smaller = other.size < best.size
            if any(trial.settings == other for trial in self.trials):
                if not is_smaller:
                    continue
                break  # it has lost
            # Skip settings that the budget cannot prove, unless no settings work yet.
            if self._means() and not self._has_time([other, *[self.present, other] * _MIN_PAIRS], _SHORT):
                self.ran_out = True
                break
            trial = yield from self._run(other, _SHORT)
            if trial.reason is not None and self._works(best):
                break
            factor = 1 / WORTHWHILE if is_smaller else WORTHWHILE
            wins = trial.reason is None and factor * self._seconds_of(other) <= self._seconds_of(best)
            is_close = self._seconds_of(best) < 1.5 * trial.step_seconds
            if wins and is_close and not is_smaller and self._has_time([best], _SHORT):
                again = yield from self._run(best, _SHORT)  # The machine may have become faster in the meantime.
                wins = factor * trial.step_seconds <= again.step_seconds
            best, losses = (other, 0) if wins else (best, losses + 1)
            if self._works(best) and (losses == 2 or (losses and is_smaller) or self._takes_all_time(other)):
                break
        return best

    def _prove(self, best: Settings) -> Generator[tuple[Settings, float], Trial, Ratio | None]:
        """Alternate the best and the present settings. Return None if one of them fails."""
        pairs: list[tuple[float, float]] = []
        order = (self.present, best)
        while len(pairs) < _MIN_PAIRS or (not ratio_of(pairs).is_clear and self._has_time(order, _LONG)):
            seconds = {}
            for settings in order if len(pairs) % 2 == 0 else order[::-1]:
                trial = yield from self._run(settings, _LONG)
                if trial.reason is not None:
                    return None
                seconds[settings] = trial.step_seconds
            pairs.append((seconds[self.present], seconds[best]))
        return ratio_of(pairs)

    def _other_threads(self, settings: Settings) -> list[Settings]:
        """Return other numbers of intra-op threads: the cores without workers, half, all and one."""
        now, cores = self.threads, self.cores
        numbers = {max(1, cores - settings.num_workers), max(1, cores // 2), cores, 1} - {now, settings.threads}
        ordered = sorted(numbers, reverse=True) if now is not None else []
        return [msgspec.structs.replace(settings, threads=number) for number in ordered]

    def _run(self, settings: Settings, share: float) -> Generator[tuple[Settings, float], Trial, Trial]:
        trial = yield settings, self._seconds(share)
        self.trials.append(trial)
        self.spent += trial.cost_seconds
        return trial

    def _seconds(self, share: float) -> float:
        return min(share * self.budget, share / _SHORT * MAX_SHORT_SECONDS)

    def _has_time(self, settings: Sequence[Settings], share: float) -> bool:
        return self.spent + sum(self._cost(each, share) for each in settings) <= self.budget

    def _cost(self, settings: Settings, share: float) -> float:
        """Estimate the seconds of a trial, including the start of its workers, from the trials so far."""
        seconds = self._seconds(share)
        timed = [trial for trial in self.trials if trial.reason is None]
        if own := [trial for trial in timed if trial.settings == settings]:
            return max(seconds, min(own[-1].seconds, 4 * seconds)) + own[-1].cost_seconds - own[-1].seconds
        return seconds + max((trial.cost_seconds - trial.seconds for trial in timed), default=0.0)

    def merged(self) -> dict[Settings, Trial]:
        """Return one merged trial for each settings."""
        settings = dict.fromkeys(trial.settings for trial in self.trials)
        return {each: merge_trials([trial for trial in self.trials if trial.settings == each]) for each in settings}

    def _works(self, settings: Settings) -> bool:
        return all(trial.reason is None for trial in self.trials if trial.settings == settings)

    def _seconds_of(self, settings: Settings) -> float:
        return self._means().get(settings, math.inf)

    def _means(self) -> dict[Settings, float]:
        """Return seconds per step of all settings that work."""
        return {each: trial.step_seconds for each, trial in self.merged().items() if trial.reason is None}

    def _close(self, factor: float = 1.25) -> list[Settings]:
        """Return the settings that are nearly as fast as the fastest, the smallest first."""
        means = self._means()
        limit = factor * min(means.values(), default=0.0)
        return sorted((each for each in means if means[each] <= limit), key=lambda each: each.size)

    def _fastest(self) -> Settings:
        """Return the smallest settings that are as fast as the fastest, or the present ones if none work."""
        return next(iter(self._close(WORTHWHILE)), self.present)

    def _takes_all_time(self, settings: Settings) -> bool:
        """Return whether the training step takes all the time of the last trial."""
        trial = next(trial for trial in reversed(self.trials) if trial.settings == settings)
        compute = self.compute_seconds
        if compute is None or trial.reason is not None or trial.step_seconds >= WORTHWHILE * compute:
            return False
        return self.has_device or trial.waited <= 0.05  # the step alone may have had a bad moment
