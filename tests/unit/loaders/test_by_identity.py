"""Records of objects go with the objects; classes are told by their names; methods are replaced and put back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from prefeed.loaders.by_identity import ByIdentity
from prefeed.loaders.kinds import class_of, is_a, is_just_a
from prefeed.loaders.replacing import Replaced


class Equal:
    """Equal to anything, and without a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def test_a_record_for_each_object() -> None:
    records: ByIdentity[list[int]] = ByIdentity()
    one, other = Equal(), Equal()
    assert records.get(one) is None
    assert records.get_or_make(one, lambda: [1]) == [1]
    assert records.get_or_make(one, lambda: [2]) == [1]
    assert records.get_or_make(other, lambda: [3]) == [3]
    del one
    assert len(records._entries) == 1


def test_a_record_of_what_nothing_refers_to_weakly_is_not_kept() -> None:
    records: ByIdentity[list[int]] = ByIdentity()
    assert records.get_or_make(7, lambda: [1]) == [1]
    assert records.get(7) is None


class Own(Subset[Any]):
    """Somebody's subclass."""


class TensorLike:
    """Of no framework."""


TensorLike.__name__ = "Tensor"


@pytest.mark.parametrize(
    ("value", "name", "a", "just"),
    [
        (torch.zeros(1), "Tensor", True, True),
        (torch.nn.Parameter(torch.zeros(1)), "Tensor", True, False),
        (TensorLike(), "Tensor", False, False),
        (np.zeros(1), "Tensor", False, False),
        (Subset([1], [0]), "Subset", True, True),
        (Own([1], [0]), "Subset", True, False),
        (ConcatDataset([[1]]), "Dataset", True, False),
        (TensorDataset(torch.zeros(1)), "TensorDataset", True, True),
    ],
)
def test_kinds(value: Any, name: str, a: bool, just: bool) -> None:
    assert (is_a(value, name), is_just_a(value, "Other", name)) == (a, just)


def test_the_class_itself() -> None:
    assert class_of(Own([1], [0]), "Subset") is Subset
    assert class_of(Own([1], [0]), "Dataset") is Dataset


class Counter:
    """Has a method."""

    def add(self, number: int) -> int:
        return number + 1


def test_methods_are_replaced_and_put_back() -> None:
    own = Counter.add
    replaced = Replaced(Counter, "add", lambda own, self, args, kwargs: 10 * own(self, *args, **kwargs))
    held = Counter.add
    assert Counter().add(1) == 20
    replaced.undo()
    assert Counter.add is own
    assert held(Counter(), 1) == 2


def test_a_method_that_somebody_replaced_again_stays() -> None:
    own = Counter.add
    replaced = Replaced(Counter, "add", lambda own, self, args, kwargs: 10 * own(self, *args, **kwargs))
    held = Counter.add
    Counter.add = lambda self, number: -held(self, number)  # type: ignore[method-assign]
    replaced.undo()
    assert Counter().add(1) == -2
    Counter.add = own  # type: ignore[method-assign]
