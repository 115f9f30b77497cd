"""What to try next, and what to make of it: the search for a loader's settings. Pure.

A search is a generator: it yields what to run, and is sent how that went. Time is what the runs say that they took, so a
table of timings is all that a test needs.

    threads     as it is, and with other numbers of intra-op threads, in turns
    screen      a short run each: 0, 1, 2, 4, ... workers, until more of them gain nothing
    compare     the best few for longer, in turns with what is there now
    refine      threads again, pinned memory, batches made ahead: one at a time, in turns
    prove       the best against what is there now, in turns, until the difference is clear or the time is over
    look ahead  prefeed's lookahead, in the same way
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Iterator, Sequence
from typing import Final

import msgspec

from prefeed.config import GIB, KIB, MIB
from prefeed.diagnose.doctor.verdict import WORTH_WHILE

MOST_WORKERS: Final = 64
_DEFAULT_PREFETCH: Final = 2
_MOST_PREFETCH: Final = 16
_LEAST_CACHE: Final = 256 * MIB
_MOST_LOOKAHEAD: Final = 16 * GIB


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a loader and of what is around it.

    Attributes:
        num_workers: Worker processes.
        prefetch_factor: Batches that each makes ahead; 0 without workers.
        pin_memory: Batches are copied to memory that a device reads directly.
        threads: ``torch.set_num_threads`` of the training process; None: left alone.
        lookahead: Bytes that prefeed fetches ahead; None: left alone.
    """

    num_workers: int
    prefetch_factor: int = 0
    pin_memory: bool = False
    threads: int | None = None
    lookahead: int | None = None

    @property
    def size(self) -> tuple[int, ...]:
        """What settings are ordered by: of two that are as quick as each other the smaller is taken."""
        return (self.num_workers, self.prefetch_factor, self.pin_memory, self.lookahead or 0, self.threads or 0)

    @property
    def batches_ahead(self) -> int:
        """Batches that lie in shared memory at a time, at most."""
        return self.num_workers * self.prefetch_factor

    @property
    def cache_bytes(self) -> int:
        """Memory of a cache with an epoch that was never read before: twice the lookahead, and not too little."""
        return 0 if self.lookahead is None else max(_LEAST_CACHE, 2 * self.lookahead)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._arguments())

    def _arguments(self) -> Iterator[tuple[str, object]]:
        yield "num_workers", self.num_workers
        if self.num_workers:
            yield "prefetch_factor", self.prefetch_factor
        if self.pin_memory:
            yield "pin_memory", True
        if self.threads is not None:
            yield "threads", self.threads
        if self.lookahead is not None:
            yield "lookahead", size_text(self.lookahead)


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to choose from.

    Attributes:
        cores: Processors of this process.
        has_device: Batches are copied to a device, which computes on its own.
        threads: Intra-op threads that the training has now; None: there is no training step, so they do not matter.
        lookahead: Bytes that prefeed fetches ahead now; None: prefeed has no plan here.
        compute_seconds: The training step alone, with a batch that is there already; None: there is no step.
    """

    cores: int
    has_device: bool = False
    threads: int | None = None
    lookahead: int | None = None
    compute_seconds: float | None = None

    @property
    def most_cpus(self) -> float:
        """Processors that workers may keep busy while it is not known what the training needs: all but one of many."""
        return float(self.cores - 1 if self.cores > 2 else self.cores)


def with_workers(settings: Settings, number: int) -> Settings:
    """Return the same with another number of workers."""
    prefetch = (settings.prefetch_factor or _DEFAULT_PREFETCH) if number else 0
    return msgspec.structs.replace(settings, num_workers=number, prefetch_factor=prefetch)


def worker_numbers(cores: int) -> list[int]:
    """Return numbers of workers in the order in which they are tried: powers of two, and the processors themselves.

    Those beyond the processors are for samples that only wait: the search stops when there is no gain.
    """
    powers = [1 << exponent for exponent in range(MOST_WORKERS.bit_length()) if 1 << exponent <= MOST_WORKERS]
    return sorted({0, *powers, min(cores, MOST_WORKERS)})


def numbers_between(tried: set[int], best: int) -> list[int]:
    """Return the numbers of workers half-way from the best to those beside it that were tried."""
    lower = max((number for number in tried if number < best), default=best)
    upper = min((number for number in tried if number > best), default=best)
    return [half for half in ((lower + best) // 2, (best + upper) // 2) if half not in tried and half > 0]


def thread_numbers(space: Space, num_workers: int) -> list[int]:
    """Return numbers of intra-op threads that are worth a trial: what the workers leave, half, and one."""
    if space.threads is None:
        return []
    wanted = {max(1, space.cores - num_workers), max(1, space.cores // 2), space.cores, 1}
    return sorted(wanted - {space.threads}, reverse=True)


def more_prefetch(settings: Settings) -> Settings | None:
    """Return the same with twice as many batches made ahead; None: enough is enough, or none are made ahead."""
    if not settings.num_workers or settings.prefetch_factor >= _MOST_PREFETCH:
        return None
    return msgspec.structs.replace(settings, prefetch_factor=2 * settings.prefetch_factor)


def more_lookahead(settings: Settings) -> Settings | None:
    """Return the same with four times as much fetched ahead; None: enough is enough."""
    if not settings.lookahead or settings.lookahead >= _MOST_LOOKAHEAD:
        return None
    return msgspec.structs.replace(settings, lookahead=4 * settings.lookahead)


def lines_to_paste(settings: Settings, present: Settings) -> str:
    """Return what to write in the program: the loader's arguments, and a line for each thing that is none of them."""
    arguments = [f"num_workers={settings.num_workers}"]
    if settings.num_workers:
        arguments.append(f"prefetch_factor={settings.prefetch_factor}")
    if settings.pin_memory or present.pin_memory:
        arguments.append(f"pin_memory={settings.pin_memory}")
    lines = [f"DataLoader(..., {', '.join(arguments)})"]
    if settings.threads is not None:
        lines.append(f"torch.set_num_threads({settings.threads})")
    if settings.lookahead is not None:
        lines.append(f"PREFEED_LOOKAHEAD={size_text(settings.lookahead)} in the environment, before the server starts")
    return "\n".join(lines)


def size_text(size_bytes: int) -> str:
    """Return a size as settings are written: ``512MiB``."""
    for unit, text in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{text}"
    return str(size_bytes)


ENOUGH_PAIRS: Final = 3
_NARROW: Final = 1.3
"""An interval whose ends are not further apart than this factor is clear enough."""

_USUAL_NOISE: Final = 0.1
_ITS_WEIGHT: Final = 3
"""Two or three pairs say little of their own spread: with it goes what the ratio of two runs on a machine that is not idle
usually deviates by, as that number of further pairs would (a moderated t-statistic: Smyth, 2004)."""

_STUDENT: Final = (2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18)
"""Student's t, two-sided 95 %, from 4 degrees of freedom on; more than 12 are taken as 12."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast, with its spread.

    Attributes:
        gain: Geometric mean.
        low: Lower end of the interval that holds the true value in 95 of 100 cases.
        high: Upper end.
        pairs: How many pairs of timings it was computed from.
    """

    gain: float
    low: float
    high: float
    pairs: int

    @property
    def is_gain(self) -> bool:
        """True when it is above the noise."""
        return self.low >= WORTH_WHILE

    @property
    def is_clear(self) -> bool:
        """True when more pairs would change nothing."""
        if self.pairs < ENOUGH_PAIRS:
            return False
        return self.high < WORTH_WHILE or (self.is_gain and self.high <= _NARROW * self.low)

    def __str__(self) -> str:
        return f"{self.gain:.2f}x, {self.low:.2f}-{self.high:.2f}"


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return by how many times the second of each pair of durations is shorter than the first.

    The two of a pair were timed one right after the other, so that what slows the machine down for a while slows both.

    Args:
        pairs: At least two; one says nothing of its spread.
    """
    logarithms = [math.log(before / after) for before, after in pairs]
    mean = statistics.mean(logarithms)
    own = len(pairs) - 1
    variance = (_ITS_WEIGHT * _USUAL_NOISE**2 + own * statistics.variance(logarithms)) / (_ITS_WEIGHT + own)
    margin = (variance / len(pairs)) ** 0.5 * _STUDENT[min(own, len(_STUDENT)) - 1]
    return Ratio(gain=math.exp(mean), low=math.exp(mean - margin), high=math.exp(mean + margin), pairs=len(pairs))


_SHORT: Final = 0.02
_LONG: Final = 0.03
_FOR_PROOF: Final = 0.3
_FOR_LOOKAHEAD: Final = 0.25
"""Shares of the budget: one short run, one longer one, all that is kept for the end."""

_CLOSE: Final = 1.25
"""A setting that takes this many times as long as the best is not looked at again."""

_HARDLY_WAITS: Final = 0.05
"""Share of its time."""

_FEW_BATCHES: Final = 3
_MOST_FOR_FEW_WORKERS: Final = 0.1
"""Fewer workers are not tried where that many batches of one would take this share of the budget."""

_MOST_COMPARED: Final = 4
_LEAST_PAIRS: Final = 2
LONGEST: Final = 4.0
"""A run is ended after this many times the seconds that it was to take, whatever it has come to."""

_BUSY_TOLERANCE: Final = 0.25
"""Processors that workers seem to have kept busy beyond what they had: clocks tick."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is wanted: these settings, for about that many seconds once the queues are full."""

    settings: Settings
    seconds: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How one run went.

    Attributes:
        settings: What was run.
        cost_seconds: All that it took, with starting and ending workers.
        batches: Batches that were timed.
        seconds: What they took together.
        waited_seconds: Part of it in which the loop waited for them.
        memory_bytes: What the workers had for themselves, and the batches that they make ahead.
        cpus: Processors that the workers kept busy, on average.
        reason: Why there is no timing; None: there is one.
    """

    settings: Settings
    cost_seconds: float
    batches: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    memory_bytes: int = 0
    cpus: float = 0.0
    reason: str | None = None

    @property
    def batch_seconds(self) -> float:
        """Seconds a batch; infinite when it failed."""
        return self.seconds / self.batches if self.reason is None and self.batches else float("inf")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        best: The setting that won, the present one included.
        ratio: How many times as fast as the present one it is; None: it is that one, or that one cannot be run.
        is_bound: The training step takes all the time there is: no loader gains anything.
        lookahead: Of prefeed, when another is better.
        lookahead_ratio: How many times as fast an epoch is with it that finds nothing in the cache.
        ran_out: Something was not tried for want of time.
    """

    best: Settings
    ratio: Ratio | None = None
    is_bound: bool = False
    lookahead: int | None = None
    lookahead_ratio: Ratio | None = None
    ran_out: bool = False


Steps = Generator[Ask, Run, Run]


class Search:
    """The search for settings that are faster than the present ones.

    Args:
        present: As they are.
        space: What there is to choose from.
        budget_seconds: For everything.
        spent_seconds: Of it, already.

    Attributes:
        runs: All that was run, in order.
    """

    def __init__(self, present: Settings, space: Space, *, budget_seconds: float, spent_seconds: float = 0.0) -> None:
        self.runs: list[Run] = []
        self._present = present
        self._space = space
        self._budget = budget_seconds
        self._spent = spent_seconds
        self._ran_out = False
        self._kept = budget_seconds * (_FOR_PROOF + (_FOR_LOOKAHEAD if space.lookahead else 0.0))

    def steps(self) -> Generator[Ask, Run, Found]:
        """Yield what to run; return what was found."""
        best = self._present
        as_it_is = yield from self._run(best, _SHORT)
        if as_it_is.reason is None:
            best = yield from self._try_threads(best)
        is_bound = self._is_bound(self._last_of(best))
        if not is_bound:
            yield from self._screen(self._last_of(best))
            best = yield from self._compare()
            best = yield from self._refine(best)
        ratio = yield from self._prove(best)
        while ratio is None and best != self._present and not self._works(best):
            best = self._best_of(self.runs)
            ratio = yield from self._prove(best)
        found = Found(best=best, ratio=ratio, is_bound=is_bound)
        if self._space.lookahead and not is_bound:
            found = yield from self._look_ahead(found, self._space.lookahead)
        return msgspec.structs.replace(found, ran_out=self._ran_out)

    def found_so_far(self) -> Found:
        """Return what is known when the time is over: what no pairs of runs have proven is no reason for a change."""
        return Found(best=self._present, ran_out=True)

    # ------------------------------------------------------------ parts

    def _screen(self, start: Run) -> Generator[Ask, Run, None]:
        """Run numbers of workers, few first, until more gain nothing or cannot be had."""
        best_seconds, without_gain = start.batch_seconds, 0
        for number in worker_numbers(self._space.cores):
            settings = with_workers(start.settings, number)
            if settings == start.settings or (number < start.settings.num_workers and self._is_slow(start)):
                continue
            if start.reason is not None and number > start.settings.num_workers:
                return
            proof = [self._present, settings] * _LEAST_PAIRS
            if self._means(self.runs) and not self._affords([settings, *proof], _SHORT):
                return  # what cannot be proven need not be tried; but something that works must be found
            run = yield from self._run(settings, _SHORT)
            if number and (run.reason is not None or self._is_bound(run)):
                return  # what few workers cannot do, more cannot either
            gains = run.batch_seconds * WORTH_WHILE <= best_seconds
            without_gain = 0 if gains or number < 2 else without_gain + 1
            if not gains and (number >= self._space.cores or without_gain == 2):
                return
            best_seconds = min(best_seconds, run.batch_seconds)

    def _compare(self) -> Generator[Ask, Run, Settings]:
        """Run the best few for longer, in turns with the present one; return the smallest of those that win."""
        few = self._shortlist()
        compared: list[Run] = []
        for order in (few, few[::-1]):  # there and back: a machine that slows down slows none of them more
            if not self._affords(few, _LONG, keep=self._keep(self._best_of(self.runs))):
                break
            for settings in order:
                run = yield from self._run(settings, _LONG)
                compared.append(run)
        return self._best_of(compared or self.runs)

    def _shortlist(self) -> list[Settings]:
        tried = self._means(self.runs)
        if not tried:
            return [self._present]
        best = min(tried, key=lambda settings: tried[settings])
        numbers = {run.settings.num_workers for run in self.runs}
        close = [settings for settings in tried if tried[settings] <= _CLOSE * tried[best]]
        few = sorted(close, key=lambda settings: tried[settings])[:2]
        few += [with_workers(best, number) for number in numbers_between(numbers, best.num_workers)]
        chosen = [settings for settings in few if settings != self._present][: _MOST_COMPARED - 1]
        return [self._present, *chosen] if chosen else []

    def _try_threads(self, best: Settings) -> Generator[Ask, Run, Settings]:
        for threads in thread_numbers(self._space, best.num_workers):
            other = msgspec.structs.replace(best, threads=threads)
            if other not in self._means(self.runs):
                best = yield from self._if_better(best, other)
        return best

    def _refine(self, best: Settings) -> Generator[Ask, Run, Settings]:
        """Change one thing at a time, as long as it gains."""
        best = yield from self._try_threads(best)
        if self._space.has_device:
            best = yield from self._if_better(best, msgspec.structs.replace(best, pin_memory=not best.pin_memory))
        while (more := more_prefetch(best)) is not None:
            before, best = best, (yield from self._if_better(best, more))
            if best is before:
                break
        return best

    def _if_better(self, now: Settings, other: Settings) -> Generator[Ask, Run, Settings]:
        """Return the other when it wins twice, once as the first and once as the last of the two."""
        pairs = []
        for order in ((now, other), (other, now)):
            if not self._affords(order, _SHORT, keep=self._keep(other)):
                return now
            pair = yield from self._pair(order, _SHORT)
            if pair is None or pair[now] < WORTH_WHILE * pair[other]:
                return now
            pairs.append(pair)
        return other

    def _prove(self, best: Settings) -> Generator[Ask, Run, Ratio | None]:
        """Run the best in turns with the present one; return how many times as fast it is."""
        if best == self._present or not self._works(self._present):
            return None
        keep = self._kept * _FOR_LOOKAHEAD / (_FOR_PROOF + _FOR_LOOKAHEAD) if self._space.lookahead else 0.0
        return (yield from self._alternate(self._present, best, keep=keep))

    def _look_ahead(self, found: Found, lookahead: int) -> Generator[Ask, Run, Found]:
        """Run prefeed with more lookahead, as long as it gains, in epochs that find nothing in the cache."""
        now = msgspec.structs.replace(found.best, lookahead=lookahead)
        while (more := more_lookahead(now)) is not None and self._affords([now, more] * _LEAST_PAIRS, _LONG):
            ratio = yield from self._alternate(now, more)
            if ratio is None or not ratio.is_gain:
                break
            found = msgspec.structs.replace(found, lookahead=more.lookahead, lookahead_ratio=ratio)
            now = more
        return found

    def _alternate(self, before: Settings, after: Settings, *, keep: float = 0.0) -> Generator[Ask, Run, Ratio | None]:
        """Run two in turns until the difference is clear or the time is over; None: one of them fails."""
        pairs: list[tuple[float, float]] = []
        while len(pairs) < _LEAST_PAIRS or self._has_time_for((before, after), _LONG, keep=keep):
            order = (before, after) if len(pairs) % 2 == 0 else (after, before)
            pair = yield from self._pair(order, _LONG)
            if pair is None:
                return None
            pairs.append((pair[before], pair[after]))
            if len(pairs) >= _LEAST_PAIRS and ratio_of(pairs).is_clear:
                break
        return ratio_of(pairs)

    # ------------------------------------------------------------ runs

    def _run(self, settings: Settings, share: float) -> Steps:
        run = yield Ask(settings=settings, seconds=share * self._budget)
        self.runs.append(run)
        self._spent += run.cost_seconds
        return run

    def _pair(
        self, order: tuple[Settings, Settings], share: float
    ) -> Generator[Ask, Run, dict[Settings, float] | None]:  # fmt: skip
        """Run two, one right after the other; return seconds a batch of each, None when one fails."""
        seconds = {}
        for settings in order:
            run = yield from self._run(settings, share)
            if run.reason is not None:
                return None
            seconds[settings] = run.batch_seconds
        return seconds

    def _affords(self, settings: Sequence[Settings], share: float, *, keep: float = 0.0) -> bool:
        """Return whether there is time for a run of each, and for what is kept beside; note when there is none."""
        has_time = self._has_time_for(settings, share, keep=keep)
        self._ran_out |= not has_time
        return has_time

    def _keep(self, best: Settings) -> float:
        """Return what must be left for the proof."""
        pair = self._cost(self._present, _LONG) + self._cost(best, _LONG)
        return max(self._kept, ENOUGH_PAIRS * pair)

    def _has_time_for(self, settings: Sequence[Settings], share: float, *, keep: float) -> bool:
        return self._spent + sum(self._cost(each, share) for each in settings) + keep <= self._budget

    def _cost(self, settings: Settings, share: float) -> float:
        """Return what a run will take, as far as is known: the starting of workers takes longest."""
        seconds = share * self._budget
        timed = [run for run in self.runs if run.reason is None]
        own = [run for run in timed if run.settings == settings]
        if own:
            least = min(own[-1].seconds, LONGEST * seconds)  # slow batches take what they take
            return max(seconds, least) + own[-1].cost_seconds - own[-1].seconds
        workers = 1 + settings.num_workers
        each = [(run.cost_seconds - run.seconds) / (1 + run.settings.num_workers) for run in timed]
        return seconds + workers * statistics.mean(each or [0.0])

    # ------------------------------------------------------------ judgement

    def _best_of(self, runs: list[Run]) -> Settings:
        """Return the smallest of the settings that are as quick as the quickest; the present one when none ran."""
        means = self._means(runs)
        if not means:
            return self._present
        limit = WORTH_WHILE * min(means.values())
        return min((settings for settings in means if means[settings] <= limit), key=lambda settings: settings.size)

    def _means(self, runs: list[Run]) -> dict[Settings, float]:
        """Return the mean seconds a batch of every setting that may be recommended."""
        allowed: dict[Settings, list[float]] = {}
        for run in self._allowed(runs):
            allowed.setdefault(run.settings, []).append(run.batch_seconds)
        return {settings: statistics.mean(seconds) for settings, seconds in allowed.items()}

    def _allowed(self, runs: list[Run]) -> Iterator[Run]:
        """Yield the runs that worked, and whose workers leave the training what it has now."""
        failed = {run.settings for run in self.runs if run.reason is not None}
        now = max((run.cpus for run in self.runs if run.settings == self._present), default=0.0)
        most = max(self._space.most_cpus, now) + _BUSY_TOLERANCE
        for run in runs:
            takes_too_much = self._space.compute_seconds is None and run.cpus > most
            if run.settings not in failed and not takes_too_much:
                yield run

    def _is_slow(self, start: Run) -> bool:
        """Return whether a few batches of one worker alone would take a good part of the budget."""
        one_batch = start.batch_seconds * max(1, start.settings.num_workers)
        return _FEW_BATCHES * one_batch > _MOST_FOR_FEW_WORKERS * self._budget and start.reason is None

    def _last_of(self, settings: Settings) -> Run:
        return next(run for run in reversed(self.runs) if run.settings == settings)

    def _works(self, settings: Settings) -> bool:
        return all(run.reason is None for run in self.runs if run.settings == settings)

    def _is_bound(self, run: Run) -> bool:
        """Return whether the training step takes all the time there is.

        Where it computes on this processor it must not have waited either: the step alone may have had a bad moment, or
        it now has fewer threads, which get in each other's way less.
        """
        compute = self._space.compute_seconds
        if compute is None or run.batch_seconds >= WORTH_WHILE * compute:
            return False
        return self._space.has_device or run.waited_seconds <= _HARDLY_WAITS * run.seconds
