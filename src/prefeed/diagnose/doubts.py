"""What speaks against believing an examination: figures that contradict each other, and too little that was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prefeed.diagnose.cures import CACHE, STAGE_CACHE, Cure
from prefeed.diagnose.measurement import Measurement

_LEAST_SECONDS: Final = 0.1
"""A shorter loop says more of the machine's other work than of its own."""

_MOST_NOISE: Final = 0.25
_MOST_ABOVE_PERFECT: Final = 1.15
"""No cure brings more than data loading that takes no time; what it seems to bring beyond so much is no noise."""

_LEAST_SHARE: Final = 0.3
"""The part of the time that a cure takes away must have been so large to be missed."""

_LEAST_GAIN: Final = 0.25
"""What a cure brings must be this share of what taking that part away would bring."""


def doubts_of(
    measurement: Measurement, cures: Sequence[Cure], *, perfect: float, noise: float, origin: float, decode: float
) -> list[str]:
    """Return why the figures should not be believed, in sentences; nothing when they may be.

    Args:
        measurement: All of them.
        cures: What would be gained.
        perfect: The most that can be gained.
        noise: Standard error of a step, as a share of it.
        origin: Share of the time that the loop is said to wait for files.
        decode: The same for samples to be made.
    """
    by_name = {cure.name: cure for cure in cures if cure.is_measured}
    contradictions = [*_too_good(by_name, perfect), *_without_effect(by_name, origin, decode)]
    doubts = [f"These figures contradict each other: {'; '.join(contradictions)}."] if contradictions else []
    is_short = measurement.as_is.seconds < _LEAST_SECONDS or noise > _MOST_NOISE
    if doubts or is_short:
        doubts.append(_how_little(measurement, noise, is_short=is_short))
    return doubts


def _too_good(cures: Mapping[str, Cure], perfect: float) -> Iterator[str]:
    for name, cure in cures.items():
        if cure.speedup > _MOST_ABOVE_PERFECT * perfect:
            yield f"{name} made it {cure.speedup:.1f} times as fast, and no data loading at all {perfect:.1f} times"


def _without_effect(cures: Mapping[str, Cure], origin: float, decode: float) -> Iterator[str]:
    parts = (
        (CACHE, origin, "for files", "with its files in memory"),
        (STAGE_CACHE, origin + decode, "for files and samples", "with its samples in memory"),
    )
    for name, share, for_what, how in parts:
        cure = cures.get(name)
        if cure is None or not _LEAST_SHARE <= share < 1:
            continue
        expected = 1 / (1 - share)
        if cure.speedup - 1 < _LEAST_GAIN * (expected - 1):
            yield f"it waits {share * 100:.0f} % of its time {for_what}, and {how} it was {cure.speedup:.2f} times as fast"


def _how_little(measurement: Measurement, noise: float, *, is_short: bool) -> str:
    """Return what was measured, and what to do for more."""
    as_is, loader = measurement.as_is, measurement.loader
    num_batches = (
        None if not loader.samples or not loader.batch_size else max(1, round(loader.samples / loader.batch_size))
    )
    text = f"{as_is.steps} steps in {as_is.seconds:.2f} s were measured, give or take {noise * 100:.0f} %"
    if num_batches is not None and num_batches < as_is.steps:
        text += f", over and over the same {num_batches} batches"
    verdict = "that is too short to say" if is_short else "that may be too little to say"
    return f"{text}: {verdict}. Examine more steps (--steps {max(100, 10 * as_is.steps)}), and more data if this is a part of it."
