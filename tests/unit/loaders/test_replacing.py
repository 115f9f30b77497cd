"""A function that is replaced remains the object that it is: it is pickled by its name, whenever a reference to it was bound."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

from prefeed.loaders.replacing import Replaced, ReplacedFunction


class Base:
    def __init__(self, first: int, second: int = 2) -> None:
        self.sum = first + second


class Derived(Base):
    def __init__(self, first: int, *, third: int = 3) -> None:
        super().__init__(first)  # has a cell
        self.sum += third


def plain(first: int, second: int = 2, *rest: int, third: int = 3) -> int:
    """Add."""
    if first < 0:
        raise ValueError(first)
    return first + second + sum(rest) + third


def ten_more(own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return own(*args, **kwargs) + 10


early = plain
"""Bound before."""


def test_all_references_to_a_function_are_served_and_pickled_and_none_afterwards() -> None:
    module = sys.modules[__name__]
    replaced = ReplacedFunction(module, "plain", ten_more)
    late = plain
    for reference in (early, late):
        assert reference(1) == 16
        assert reference(1, 1, 1, third=1) == 14
        assert pickle.loads(pickle.dumps(reference)) is reference
        assert (reference.__name__, reference.__doc__, reference.__module__) == ("plain", "Add.", __name__)
        assert (
            str(inspect.signature(reference))
            == "(first: 'int', second: 'int' = 2, *rest: 'int', third: 'int' = 3) -> 'int'"
        )
        with pytest.raises(ValueError, match="-1"):
            reference(-1)
    replaced.undo()
    replaced.undo()
    for reference in (early, late):
        assert reference(1) == 6
        assert pickle.loads(pickle.dumps(reference)) is reference
    assert not hasattr(plain, "__wrapped__")


def test_methods_and_their_cells() -> None:
    made: list[Any] = []

    def note(own: Callable[..., Any], first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        made.append(first)
        own(first, *args, **kwargs)

    methods = Base.__init__, Derived.__init__
    replaced = [Replaced(Base, "__init__", note), Replaced(Derived, "__init__", note)]
    assert (Base.__init__, Derived.__init__) == methods
    assert [Derived(1).sum, Derived(1, third=1).sum, Base(1, second=1).sum] == [6, 4, 2]
    assert [type(one) for one in made] == [Derived, Derived, Derived, Derived, Base]
    assert pickle.loads(pickle.dumps(methods[1])) is Derived.__init__
    for one in replaced:
        one.undo()
    assert Derived(1).sum == 6
    assert len(made) == 5


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_function_that_is_replaced_twice_is_put_back_in_any_order(order: tuple[int, int]) -> None:
    module = sys.modules[__name__]
    replaced = [ReplacedFunction(module, "plain", ten_more) for _ in range(2)]
    assert plain(1) == 26
    replaced[order[0]].undo()
    assert plain(1) == 16
    replaced[order[1]].undo()
    assert plain(1) == 6
    assert early is plain


def test_a_function_of_another_language_has_its_name_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "length", len, raising=False)
    replaced = ReplacedFunction(module, "length", ten_more)
    assert vars(module)["length"]("abc") == 13
    replaced.undo()
    assert vars(module)["length"] is len
