"""Timings."""

from __future__ import annotations

import math

from prefeed.diagnose.measurement import Timing, together
from unit.diagnose.measured import timing


def test_means_and_shares() -> None:
    one = timing(0.5, waited=0.2, steps=4)
    assert (one.step_seconds, one.waited_share) == (0.5, 0.4)
    assert together([one, timing(1.0, steps=4)]).step_seconds == 0.75


def test_spread_of_equal_steps_is_none() -> None:
    assert timing(0.5).relative_error() == 0.0


def test_bursts_are_no_noise() -> None:
    """Two workers deliver two batches at once, and then none for a while."""
    bursts = Timing(steps=8, seconds=8.0, waited_seconds=8.0, each=[2.0, 0.0] * 4)
    assert bursts.relative_error(1) > 0.3
    assert bursts.relative_error(2) == 0.0


def test_standard_error() -> None:
    noisy = Timing(steps=4, seconds=8.0, waited_seconds=0.0, each=[1.0, 3.0, 1.0, 3.0])
    assert math.isclose(noisy.relative_error(), (4 / 3) ** 0.5 / 2 / 2)


def test_one_step_has_no_spread() -> None:
    assert timing(1.0, steps=1).relative_error() == 0.0
