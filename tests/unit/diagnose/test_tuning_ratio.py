from __future__ import annotations

import random

import pytest

from prefeed.diagnose.tune.search import Ratio, ratio_of


def test_equal_pairs_are_given_the_usual_noise() -> None:
    two, three, many = (ratio_of([(2.0, 1.0)] * number) for number in (2, 3, 30))
    assert [ratio.gain for ratio in (two, three, many)] == pytest.approx([2.0] * 3)
    assert 1.6 < two.low < three.low < many.low < 2.0 < many.high < three.high < two.high < 2.5


def test_what_slows_both_of_a_pair_is_no_spread() -> None:
    assert ratio_of([(2.0, 1.0), (6.0, 3.0), (1.0, 0.5)]) == ratio_of([(2.0, 1.0)] * 3)


def test_two_pairs_that_differ_show_a_large_gain_and_no_small_one() -> None:
    assert ratio_of([(3.0, 1.0), (5.0, 1.0)]).is_gain
    assert not ratio_of([(1.0, 1.0), (1.4, 1.0)]).is_gain


def test_gain_and_its_inverse() -> None:
    pairs = [(1.0, 0.8), (1.1, 0.7), (0.9, 0.9)]
    there, back = ratio_of(pairs), ratio_of([(after, before) for before, after in pairs])
    assert there.gain * back.gain == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


def test_interval_holds_the_true_value_in_95_of_100_cases() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(1000):
        pairs = [(1.5 * rng.lognormvariate(0, 0.1), rng.lognormvariate(0, 0.1)) for _ in range(4)]
        ratio = ratio_of(pairs)
        held += ratio.low <= 1.5 <= ratio.high
    assert 920 <= held <= 975


@pytest.mark.parametrize(
    ("low", "high", "pairs", "is_clear", "is_gain"),
    [
        (1.8, 2.0, 2, False, True),  # two pairs may agree by chance
        (1.8, 2.0, 3, True, True),
        (1.2, 2.0, 3, False, True),
        (0.9, 1.04, 3, True, False),
        (0.9, 1.2, 9, False, False),
        (1.05, 1.2, 4, True, True),
    ],
)
def test_when_it_is_clear(low: float, high: float, pairs: int, is_clear: bool, is_gain: bool) -> None:
    ratio = Ratio(gain=(low * high) ** 0.5, low=low, high=high, pairs=pairs)
    assert (ratio.is_clear, ratio.is_gain) == (is_clear, is_gain)


def test_text() -> None:
    assert str(Ratio(gain=1.8, low=1.6, high=2.0, pairs=3)) == "1.80x, 1.60-2.00"
