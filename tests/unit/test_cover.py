from __future__ import annotations

import itertools

import pytest

from cover import covering, crossed, pairwise


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 3), (2, 2, 2), (14, 3, 2, 2), (4, 4, 4, 4)])
def test_every_pair_of_values_occurs(sizes: tuple[int, ...]) -> None:
    chosen = pairwise(sizes)
    for one, other in itertools.combinations(range(len(sizes)), 2):
        wanted = set(itertools.product(range(sizes[one]), range(sizes[other])))
        assert {(combination[one], combination[other]) for combination in chosen} == wanted
    assert {combination[0] for combination in chosen} == set(range(sizes[0]))


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 3), (2, 2, 2), (14, 3, 2, 2), (2, 14, 3)])
def test_every_value_of_the_longest_axis_and_every_pair_of_the_others_occurs(sizes: tuple[int, ...]) -> None:
    chosen = covering(sizes)
    longest = sizes.index(max(sizes))
    assert {combination[longest] for combination in chosen} == set(range(sizes[longest]))
    others = [axis for axis in range(len(sizes)) if axis != longest]
    for one, other in itertools.combinations(others, 2):
        wanted = set(itertools.product(range(sizes[one]), range(sizes[other])))
        assert {(combination[one], combination[other]) for combination in chosen} == wanted
    assert len(chosen) == max(sizes[longest], len(pairwise([sizes[axis] for axis in others])))


def test_few_combinations_are_needed_and_the_others_are_marked() -> None:
    parameters = crossed(list("abcdefghij"), ["fork", "spawn"], {"kept": True, "anew": False}, [1, 3])
    assert len(parameters) == 80
    needed = [parameter for parameter in parameters if not parameter.marks]
    assert len(needed) == 10
    assert all([mark.name for mark in parameter.marks] == ["whole"] for parameter in parameters if parameter.marks)
    assert parameters[0].id == "a-fork-kept-1"
    assert parameters[0].values == ("a", "fork", True, 1)
    assert [parameter.id for parameter in needed] == [
        parameter.id for parameter in crossed(list("abcdefghij"), ["fork", "spawn"], {"kept": 1, "anew": 0}, [1, 3])
        if not parameter.marks
    ]  # fmt: skip
