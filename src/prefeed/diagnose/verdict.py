"""From numbers to a verdict: is the job waiting for data, for what, and which cure is worth its while. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from prefeed.diagnose.cures import Cure, cures_of
from prefeed.diagnose.doubts import doubts_of
from prefeed.diagnose.measurement import Measurement

WORTH_WHILE: Final = 1.05
"""A cure that makes a job less than so many times as fast is not worth anybody's time, nor above the noise."""

_NEARLY_BEST: Final = 0.9
"""The cheapest cure is taken that brings this share of what the best one would."""


_WORTH_SAYING: Final = 0.1
_MUCH: Final = 100
"""A loop that does nothing with its batches would be ten thousand times as fast."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a job waits for data, for what, and what to do.

    Attributes:
        waiting: Share of the time that the loop loses by waiting for batches, 0 to 1. A device that computes while the loop
            waits for its next batch loses nothing. The next four sum up to it, or are 0 where the parts are not known.
        origin: For files to be opened and read.
        decode: For samples to be made of them.
        collate: For samples to be put together.
        transfer: For batches to come from the workers, and to the device.
        step_seconds: Seconds of a step as it is.
        samples_s: Samples a second as it is.
        noise: Standard error of ``step_seconds``, as a share of it.
        perfect_speedup: How many times as fast the job would be if data loading took no time.
        cures: What could be done, the cheapest first.
        best: Name of the cheapest of those that help nearly as much as any; None: leave it.
        measurement: What all this was computed from.
        doubts: Why not to believe it: figures that contradict each other, or too few.
    """

    waiting: float
    origin: float
    decode: float
    collate: float
    transfer: float
    step_seconds: float
    samples_s: float
    noise: float
    perfect_speedup: float
    cures: list[Cure]
    best: str | None
    measurement: Measurement
    doubts: list[str] = []

    @property
    def cure(self) -> Cure | None:
        """The cure to take; None: leave it."""
        return next((cure for cure in self.cures if cure.name == self.best), None)

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        return "\n".join(sentences(self))


def judge(measurement: Measurement) -> Verdict:
    """Return the verdict on what was measured."""
    as_is = measurement.as_is
    perfect = max(1.0, as_is.step_seconds / measurement.compute.step_seconds)
    cures = cures_of(measurement, perfect)
    waiting = min(as_is.waited_share, 1 - 1 / perfect)
    origin, decode, collate, transfer = _shares(measurement, waiting)
    noise = as_is.relative_error(max(1, measurement.loader.num_workers))
    return Verdict(
        waiting=waiting,
        origin=origin,
        decode=decode,
        collate=collate,
        transfer=transfer,
        step_seconds=as_is.step_seconds,
        samples_s=measurement.loader.batch_size / as_is.step_seconds,
        noise=noise,
        perfect_speedup=perfect,
        cures=cures,
        best=_best(cures, perfect),
        measurement=measurement,
        doubts=doubts_of(measurement, cures, perfect=perfect, noise=noise, origin=origin, decode=decode),
    )


def _best(cures: list[Cure], perfect: float) -> str | None:
    if perfect < WORTH_WHILE:
        return None
    most = max((cure.speedup for cure in cures), default=0.0)
    worth = [cure for cure in cures if cure.speedup >= max(WORTH_WHILE, 1 + _NEARLY_BEST * (most - 1))]
    return worth[0].name if worth else None


def _shares(measurement: Measurement, waiting: float) -> tuple[float, float, float, float]:
    """Return the shares of the time that the loop waits for the origin, decoding, collating and transfer.

    In proportion to what each takes of one thread's time. Where files cannot be timed, the origin's share is what went
    away when they were in memory.
    """
    costs = measurement.costs
    if costs is None:  # nothing is known of what a stream does
        return 0.0, 0.0, 0.0, 0.0
    workers = max(1, measurement.loader.num_workers)
    fetching = ((costs.opening or 0.0) + (costs.reading or 0.0)) / workers
    parts = [costs.decoding / workers, costs.collating / workers, costs.transferring + (costs.to_device or 0.0)]
    origin = waiting * fetching / (fetching + sum(parts) or 1.0)
    if costs.opening is None and measurement.cached is not None:
        gone = 1 - measurement.cached.step_seconds / measurement.as_is.step_seconds
        origin = min(waiting, max(0.0, gone))
    rest = (waiting - origin) / (sum(parts) or 1.0)
    decode, collate, transfer = (part * rest for part in parts)
    return origin, decode, collate, transfer


def sentences(verdict: Verdict) -> list[str]:
    """Return the verdict in words, a sentence or two a line; what speaks against it comes last."""
    return [*_conclusions(verdict), *verdict.doubts]


def _conclusions(v: Verdict) -> list[str]:
    lines = [_waiting(v)]
    if v.perfect_speedup < WORTH_WHILE:
        lines.append(
            f"With perfect data loading it would be {_percent(v.perfect_speedup - 1)} faster: "
            "no cache can help; what takes the time is the computing."
        )
        return lines
    lines.append(f"With perfect data loading it would be {_times(v.perfect_speedup)} as fast.{_not_by_waiting(v)}")
    cure = v.cure
    if not v.cures:
        lines.append("No cure could be tried with this loader; `prefeed tune` tries workers and more of its arguments.")
        return lines
    if cure is None:
        lines.append(f"None of the cures that were tried gains more than 5 %{'' if v.doubts else ': leave it'}.")
        return lines
    how = "measured on a few batches" if cure.is_measured else "estimated"
    lines.append(f"Cheapest cure: {cure.what}. Predicted: {_times(cure.speedup)} as fast ({how}). {cure.how}")
    return lines


def _waiting(v: Verdict) -> str:
    parts = [
        (v.origin, "the origin's latency"),
        (v.decode, "making samples" if _files_are_unseen(v) else "decoding"),
        (v.collate, "collating"),
        (v.transfer, "transfer"),
    ]
    named = ", ".join(f"{_percent(share)} for {name}" for share, name in parts if share >= 0.005)
    of_which = f": {named}" if named and v.waiting >= 0.01 else ""
    return f"This job waits for data {_percent(v.waiting)} of its time{of_which}."


def _files_are_unseen(v: Verdict) -> bool:
    """Return True where what is read of files was not told apart from what is made of them: HDF5, LMDB, SQLite."""
    costs = v.measurement.costs
    return costs is not None and costs.opening is None


def _not_by_waiting(v: Verdict) -> str:
    """Return what to say where more would be gained than is waited."""
    if 1 - 1 / v.perfect_speedup - v.waiting < _WORTH_SAYING:
        return ""
    return " More than it waits: making batches takes processors, or memory, from the computing."


def _times(speedup: float) -> str:
    return f"{speedup:.1f} times" if speedup < _MUCH else f"more than {_MUCH} times"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def beside_the_prediction(before: Verdict, now: Verdict) -> str | None:
    """Return how much faster a job became since it was examined before, beside what was predicted; None: by nothing."""
    cure = before.cure
    if cure is None or not before.samples_s:
        return None
    gained = now.samples_s / before.samples_s
    return (
        f"Since the last examination: {gained:.2f} times as fast "
        f"({before.samples_s:.0f} to {now.samples_s:.0f} samples/s); predicted for {cure.name}: {cure.speedup:.2f}."
    )
