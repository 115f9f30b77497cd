"""What a tuning found: plain values, in words and as JSON. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from prefeed.diagnose.doctor.verdict import WORTH_WHILE
from prefeed.diagnose.tune.search import Found, Ratio, Run, Settings, lines_to_paste

Data = Literal["warm", "fresh", "stream"]

_DATA: Final = {
    "warm": "Every trial read the same samples from memory, as later epochs do: all had been read once before.",
    "fresh": "Each trial read new samples as long as there were any, because the data do not fit into memory.",
    "stream": "Every trial read the stream from its beginning, which had been read once before.",
}
"""What was measured, by which samples the trials read."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """All runs with one setting.

    Attributes:
        settings: What was tried.
        runs: How often.
        batches_s: Batches a second, over all runs; None: it failed, or was not tried.
        samples_s: Samples a second; None also where the samples of a batch are not known.
        spread: Half of the distance between the quickest and the slowest run, as a share of the mean; None of a single one.
        waited_share: Share of the time in which the loop waited for its batches, 0 to 1.
        memory_bytes: What the workers had for themselves, and the batches that they make ahead.
        cpus: Processors that the workers kept busy.
        reason: Why it failed, or was not tried.
    """

    settings: Settings
    runs: int
    batches_s: float | None = None
    samples_s: float | None = None
    spread: float | None = None
    waited_share: float = 0.0
    memory_bytes: int = 0
    cpus: float = 0.0
    reason: str | None = None


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Which settings of a loader are the fastest, and by how much.

    Attributes:
        settings: What to use: ``best``, or ``present`` when the gain is within the noise.
        present: What the loader has.
        best: What won the trials.
        gain: How many times as fast ``best`` is as ``present``; 1 when it is the present one, None when that one fails.
        low: Lower end of the interval that holds the true gain in 95 of 100 cases.
        high: Upper end.
        lookahead_gain: How many times as fast a first epoch is with ``settings.lookahead``; None: it stays as it is.
        perfect: How many times as fast the loop would be if data loading took no time; None: no step was given.
        is_bound: The step takes all the time: no loader gains anything.
        ran_out: Something was not tried for want of time.
        trials: All that was tried, in order.
        line: What to write in the program.
        data: Which samples the trials read: the same, ``warm``; always others, ``fresh``; a ``stream`` from its beginning.
        seconds: What all this took.
        notes: What else to know.
    """

    settings: Settings
    present: Settings
    best: Settings
    gain: float | None
    low: float | None
    high: float | None
    lookahead_gain: Ratio | None
    perfect: float | None
    is_bound: bool
    ran_out: bool = False
    trials: list[Trial]
    line: str
    data: Data
    seconds: float
    notes: list[str]

    @property
    def leave_it(self) -> bool:
        """True when nothing that was tried is faster beyond the noise."""
        return self.settings == self.present

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        return "\n".join(sentences(self))


def tuning_of(
    present: Settings,
    found: Found,
    runs: list[Run],
    *,
    compute_seconds: float | None,
    batch_size: float | None,
    data: Data,
    seconds: float,
) -> Tuning:
    """Return what a search comes to.

    Args:
        present: What the loader has.
        found: What the search found.
        runs: All that it ran.
        compute_seconds: The step alone; None: there is none.
        batch_size: Samples of a batch; None: unknown.
        data: Which samples were read.
        seconds: What all this took.
    """
    trials = _trials_of(runs, batch_size)
    ratio = found.ratio
    works = any(run.reason is None for run in runs if run.settings == present)
    is_better = found.best != present and (ratio is None or ratio.is_gain)
    settings = found.best if is_better else present
    if found.lookahead is not None:
        settings = msgspec.structs.replace(settings, lookahead=found.lookahead)
    same = None if not works else 1.0
    now = next((1 / trial.batches_s for trial in trials if trial.settings == present and trial.batches_s), None)
    return Tuning(
        settings=settings,
        present=present,
        best=found.best,
        gain=same if ratio is None else ratio.gain,
        low=same if ratio is None else ratio.low,
        high=same if ratio is None else ratio.high,
        lookahead_gain=found.lookahead_ratio,
        perfect=max(1.0, now / compute_seconds) if now and compute_seconds else None,
        is_bound=found.is_bound,
        ran_out=found.ran_out,
        trials=trials,
        line=lines_to_paste(settings, present),
        data=data,
        seconds=seconds,
        notes=list(_notes(present, found, trials, data, has_step=compute_seconds is not None)),
    )


def _trials_of(runs: list[Run], batch_size: float | None) -> list[Trial]:
    by_settings: dict[Settings, list[Run]] = {}
    for run in runs:
        by_settings.setdefault(run.settings, []).append(run)
    return [_trial_of(settings, of_it, batch_size) for settings, of_it in by_settings.items()]


def _trial_of(settings: Settings, runs: list[Run], batch_size: float | None) -> Trial:
    reason = next((run.reason for run in runs if run.reason is not None), None)
    timed = [run for run in runs if run.reason is None]
    if not timed:
        return Trial(settings=settings, runs=0, reason=reason)
    each = [run.batch_seconds for run in timed]
    batches_s = 1 / statistics.mean(each)
    seconds = sum(run.seconds for run in timed)
    return Trial(
        settings=settings,
        runs=len(timed),
        batches_s=batches_s,
        samples_s=None if batch_size is None else batch_size * batches_s,
        spread=(max(each) - min(each)) / 2 * batches_s if len(each) > 1 else None,
        waited_share=sum(run.waited_seconds for run in timed) / seconds,
        memory_bytes=max(run.memory_bytes for run in timed),
        cpus=sum(run.cpus * run.seconds for run in timed) / seconds,
        reason=reason,
    )


def _notes(present: Settings, found: Found, trials: list[Trial], data: Data, *, has_step: bool) -> Iterator[str]:
    if not found.is_bound:
        yield _DATA[data]
    if not has_step:
        yield "Only the loader was timed, because no training step was given. With a step, the whole loop is timed."
    if found.ran_out:
        yield "The time ended before everything was tried: a larger budget tries more."
    ratio = found.ratio
    if ratio is not None and not ratio.is_gain and ratio.low > 1 / 1.1 and found.best.size < present.size:
        saved = _memory_of(present, trials) - _memory_of(found.best, trials)
        less = f" and takes {saved / 1e6:.0f} MB less" if saved > 0 else ""
        yield f"{found.best} is as fast{less}."


def _memory_of(settings: Settings, trials: Iterable[Trial]) -> int:
    return next((trial.memory_bytes for trial in trials if trial.settings == settings), 0)


# ---------------------------------------------------------------- in words


def sentences(tuning: Tuning) -> list[str]:
    """Return what was found in words, a sentence or two a line, with what to paste at the end."""
    lines = [_verdict(tuning)]
    if tuning.lookahead_gain is not None:
        lines.append(f"With more lookahead a first epoch is {tuning.lookahead_gain} as fast.")
    lines += tuning.notes
    if not tuning.leave_it:
        lines += ["", *tuning.line.splitlines()]
    return lines


def _quicker(t: Tuning) -> str | None:
    """Return which setting was quicker than the present one, and by how much; None: no other was."""
    speeds = {trial.settings: trial.batches_s for trial in t.trials if trial.batches_s}
    quickest = max(speeds, key=lambda settings: speeds[settings], default=t.present)
    ratio = speeds.get(quickest, 0.0) / speeds.get(t.present, math.inf)
    return f"{quickest} was {ratio:.2f}x as fast" if ratio >= WORTH_WHILE else None


def _verdict(t: Tuning) -> str:
    spread = "" if t.low is None or t.high is None else f"{t.low:.2f}-{t.high:.2f}"
    if t.is_bound and t.best == t.present:
        most = "" if t.perfect is None else f"at most {100 * (t.perfect - 1):.0f} %"
        return f"Leave it: the training step takes the time, and the loader keeps up. No setting can gain more: {most}."
    if t.best == t.present and t.gain is None:
        return f"The present setting ({t.present}) fails, and there was no time for another one that works."
    if t.best == t.present and t.ran_out and len(t.trials) < 2:
        return "There was no time to try another setting than the present one."
    if t.best == t.present and t.ran_out and (quicker := _quicker(t)) is not None:
        return f"{quicker} in a short trial, and there was no time to prove it: leave it, or give a larger budget."
    if t.best == t.present:
        leave = "" if t.lookahead_gain else "Leave it: "
        return f"{leave}no setting that was tried is faster than the present one.".capitalize()
    if t.gain is None:
        return f"The present setting ({t.present}) fails; {t.best} is the fastest that works."
    if msgspec.structs.replace(t.settings, lookahead=None) == t.present:
        return f"Leave it: the best that was tried ({t.best}) is {t.gain:.2f}x as fast, {spread}: within the noise."
    return f"{t.gain:.2f}x as fast ({spread}) with {t.best} instead of {t.present}."
