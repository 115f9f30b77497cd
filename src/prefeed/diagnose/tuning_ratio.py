"""How many times as fast one thing is as another, from pairs of timings of both. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from prefeed.diagnose.verdict import WORTH_WHILE

ENOUGH_PAIRS: Final = 3
_NARROW: Final = 1.3
"""An interval whose ends are not further apart than so many times is clear enough."""

_USUAL_NOISE: Final = 0.1
_ITS_WEIGHT: Final = 3
"""Two or three pairs say little of their own spread: with it goes what the ratio of two runs on a machine that is not idle
usually deviates by, as so many pairs more would (a moderated t-statistic: Smyth, 2004)."""

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
        """True when more pairs would change nobody's mind."""
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
