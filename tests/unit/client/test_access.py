"""Which object a sample needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prefeed.client.access import AccessMap

TEN: Any = SimpleNamespace(manifest=SimpleNamespace(num_objects=10))


def asked(access: AccessMap, *samples: int) -> list[int]:
    return access.object_ids(np.array(samples, dtype=np.int64)).tolist()


def test_without_a_map_a_sample_is_the_object_of_its_number() -> None:
    access = AccessMap(dataset=TEN, ids=None)
    assert asked(access, 3, 0, 9) == [3, 0, 9]
    assert asked(access) == []


def test_a_map_says_which_object() -> None:
    access = AccessMap(dataset=TEN, ids=np.array([7, 5, 5], dtype=np.int64))
    assert asked(access, 2, 0) == [5, 7]
    assert access.object_id(0) == 7


@pytest.mark.parametrize("ids", [None, np.arange(10, dtype=np.int64)])
def test_indices_count_from_the_end_and_those_that_are_not_there_are_left_out(ids: Any) -> None:
    access = AccessMap(dataset=TEN, ids=ids)
    assert asked(access, -1, 3, 10, -10, -11) == [9, 3, 0]
    assert [access.object_id(sample) for sample in (-1, 3, 10, -10, -11)] == [9, 3, None, 0, None]


@pytest.mark.parametrize("sample", ["3", 3.0, None, (3,)])
def test_what_is_no_index_needs_no_object_that_is_known(sample: object) -> None:
    assert AccessMap(dataset=TEN, ids=None).object_id(sample) is None


@pytest.mark.parametrize("sample", [np.int32(3), True])
def test_whatever_counts_as_an_index_is_one(sample: Any) -> None:
    assert AccessMap(dataset=TEN, ids=None).object_id(sample) == int(sample)
