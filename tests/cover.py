"""Combinations of parameters of several kinds: few for ``make test``, all for ``make test-all``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

Axis = Sequence[Any] | Mapping[str, Any]
"""Values of one parameter, ``pytest.param`` with an id among them, or values by their names."""


def crossed(*axes: Axis) -> list[Any]:
    """Return every combination of the values, as parameters of a test.

    Combinations that ``covering`` does not choose are marked ``whole``: ``make test`` leaves them out, ``make test-all``
    runs them, and ``pytest -m whole --collect-only`` lists them.
    """
    named = [_named(axis) for axis in axes]
    combinations = list(itertools.product(*(range(len(axis)) for axis in named)))
    needed = covering([len(axis) for axis in named])
    return [
        pytest.param(
            *(axis[index][1] for axis, index in zip(named, combination, strict=True)),
            id="-".join(axis[index][0] for axis, index in zip(named, combination, strict=True)),
            marks=() if combination in needed else pytest.mark.whole,
        )
        for combination in combinations
    ]


def covering(sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Return combinations in which each value of the longest axis occurs, and each pair of values of the other axes.

    The longest axis lists what is tested, and the others how: for each value, another pair of the others comes next.
    """
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    others = sorted(pairwise([*sizes[:longest], *sizes[longest + 1 :]]))
    number = max(sizes[longest], len(others))
    rests = [others[index % len(others)] for index in range(number)]
    return {(*rest[:longest], index % sizes[longest], *rest[longest:]) for index, rest in enumerate(rests)}


def pairwise(sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Return combinations of indices below ``sizes`` in which each two indices of two axes occur; greedy, always the same."""
    combinations = list(itertools.product(*map(range, sizes)))
    missing = set().union(*map(_pairs, combinations))
    chosen: set[tuple[int, ...]] = set()
    while missing:
        best = max(combinations, key=lambda combination: len(_pairs(combination) & missing))
        chosen.add(best)
        missing -= _pairs(best)
    return chosen


def _pairs(combination: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    """Return each two (axis, index) of a combination; the one there is, for a single axis."""
    return set(itertools.combinations(enumerate(combination), min(2, len(combination))))


def _named(axis: Axis) -> list[tuple[str, Any]]:
    if isinstance(axis, Mapping):
        return list(axis.items())
    return [
        (value.id, value.values[0])
        if isinstance(value, ParameterSet)
        else (getattr(value, "__name__", str(value)), value)
        for value in axis
    ]
