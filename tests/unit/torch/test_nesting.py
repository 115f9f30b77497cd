"""Tensors of batches of any nesting: all are found, and containers stay of their kind."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torchvision import tv_tensors

from prefeed.torch.nesting import map_tensors, moves_itself, tensors_in


class Pair(NamedTuple):
    first: Any
    to: Any


@dataclass(frozen=True, slots=True)
class Item:
    image: Any
    name: str = "a"


@dataclass
class Checked:
    image: Any
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.image)


class Frozen(Mapping[str, Any]):
    def __init__(self, given: Any) -> None:
        self.given = dict(given)

    def __getitem__(self, key: str) -> Any:
        return self.given[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


class Graph:
    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes
        self.itself = self

    def to(self, device: Any) -> Graph:
        return self


class Encoding(UserDict[str, Any]):
    def to(self, device: Any) -> Encoding:
        return self


def one() -> torch.Tensor:
    return torch.ones(2)


def negated(batch: Any) -> Any:
    return map_tensors(batch, torch.neg, lambda value: ("moved", value))


@pytest.mark.parametrize(
    "batch",
    [
        one(),
        [one(), one()],
        (one(), [one()], "text", b"bytes", 3, None, 2.5),
        Pair(one(), (one(),)),
        {"a": one(), "b": {"c": [one()]}},
        OrderedDict(b=one(), a=one()),
        defaultdict(list, a=[one()]),
        Frozen({"a": one()}),
        deque([one()]),
        Item([one()]),
        Checked(one()),
        torch.Size([1, 2]),
        range(3),
        np.ones(3),
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_stay_of_their_kind(batch: Any) -> None:
    found = negated(batch)
    assert type(found) is type(batch)
    before, after = list(tensors_in(batch)), list(tensors_in(found))
    assert [tensor.tolist() for tensor in after] == [[-1, -1]] * len(before)
    assert all(tensor.tolist() == [1, 1] for tensor in before)


def test_what_a_container_has_besides_is_kept() -> None:
    counts: defaultdict[str, list[Any]] = defaultdict(list, a=[one()])
    assert negated(counts)["new"] == []
    assert list(negated(OrderedDict(b=one(), a=one()))) == ["b", "a"]
    assert negated(Checked(one())).size == 2


def test_a_container_that_cannot_be_made_again_becomes_a_plain_one() -> None:
    assert type(negated(MappingProxyType({"a": one()}))) in (dict, MappingProxyType)

    class Two(list[Any]):
        def __init__(self, first: Any, second: Any) -> None:
            super().__init__([first, second])

    assert [tensor.tolist() for tensor in negated(Two(one(), one()))] == [[-1, -1]] * 2


@pytest.mark.parametrize("value", [Graph(one()), pack_sequence([one(), one()]), Encoding(a=one())])
def test_objects_that_move_themselves_are_given_as_a_whole(value: Any) -> None:
    assert moves_itself(value)
    kind, given = negated([value])[0]
    assert kind == "moved"
    assert given is value


@pytest.mark.parametrize("value", [one(), Pair(1, one()), torch.nn.Linear(1, 1), Graph, np.ones(1), "text", Item(1)])
def test_others_do_not(value: Any) -> None:
    assert not moves_itself(value)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (Graph(one()), 1),
        (pack_sequence([one(), one()]), 2),
        (Encoding(a=one(), b=[one()]), 2),
        (torch.eye(2).to_sparse(), 2),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), None),
        (tv_tensors.Image(torch.ones(3, 2, 2)), 1),
        ({"a": [one()], "b": {"c": (one(), Item(one()))}}, 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_memory_of_all_tensors_is_found(batch: Any, expected: int | None) -> None:
    found = list(tensors_in(batch))
    assert expected is None or len(found) == expected
    assert any(tensor.untyped_storage().data_ptr() for tensor in found)


@pytest.mark.filterwarnings("ignore:Sparse .* support is in beta")
@pytest.mark.parametrize("convert", ["to_sparse_csr", "to_sparse_csc"])
def test_compressed_tensors(convert: str) -> None:
    assert len(list(tensors_in(getattr(torch.eye(2), convert)()))) == 3
