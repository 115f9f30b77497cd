"""Parameters of several kinds, crossed: a few combinations that have every pair of values, and marked, all others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

Axis = Sequence[Any] | Mapping[str, Any]
"""Values of one parameter, or values by their names."""


def crossed(*axes: Axis) -> list[Any]:
    """Return every combination of the values, as parameters of a test.

    Those that are not needed for every pair of values to occur are marked ``whole``: ``make test`` leaves them out,
    ``make test-all`` runs them, and ``pytest -m whole --collect-only`` lists them. Where several would do, the first
    in the order of the axes is taken: put what is quick first.
    """
    named = [_named(axis) for axis in axes]
    combinations = list(itertools.product(*(range(len(axis)) for axis in named)))
    needed = pairwise([len(axis) for axis in named])
    return [
        pytest.param(
            *(axis[index][1] for axis, index in zip(named, combination, strict=True)),
            id="-".join(axis[index][0] for axis, index in zip(named, combination, strict=True)),
            marks=() if combination in needed else pytest.mark.whole,
        )
        for combination in combinations
    ]


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
    return [(getattr(value, "__name__", str(value)), value) for value in axis]
