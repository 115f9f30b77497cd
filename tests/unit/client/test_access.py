"""Which objects a sample needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prefeed.client.access import AccessMap
from prefeed.sources.learned import LearnedMap, LearnedMapWriter

TEN: Any = SimpleNamespace(manifest=SimpleNamespace(num_declared=10), num_samples=0)
STARTS = np.array([0, 2, 2, 3, 7], dtype=np.int64)
"""Sample 0 is objects 0 and 1; sample 1 nothing; sample 2 object 2; sample 3 objects 3 to 6."""


def access_map(**columns: list[int]) -> AccessMap:
    arrays: dict[str, Any] = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    return AccessMap(dataset=TEN, **arrays)


def asked(access: AccessMap, *samples: int) -> list[int]:
    """Ask for samples that are all there, of one object each."""
    ids, counts = access.object_ids(np.array(samples, dtype=np.int64))
    assert counts is None
    return ids.tolist()


def counted(access: AccessMap, *samples: int) -> tuple[list[int], list[int]]:
    ids, counts = access.object_ids(np.array(samples, dtype=np.int64))
    assert counts is not None
    assert (len(counts), int(counts.sum())) == (len(samples), len(ids))
    return ids.tolist(), counts.tolist()


@pytest.fixture
def learned(tmp_path: Path) -> Iterator[LearnedMapWriter]:
    """Of four samples; 1 and 3 are not known yet."""
    writer = LearnedMapWriter.open_or_create(tmp_path / "catalogue", 4)
    writer.record(0, [7, 3])
    writer.record(2, [])
    yield writer
    writer.close()


def learned_access(learned: LearnedMapWriter, indices: list[int] | None = None) -> AccessMap:
    dataset: Any = SimpleNamespace(num_samples=4)
    chosen = None if indices is None else np.array(indices, dtype=np.int64)
    return AccessMap(dataset=dataset, learned=LearnedMap.open(learned.directory, 4), indices=chosen)


# ------------------------------------------------------------ one object a sample


def test_without_a_map_a_sample_is_the_object_of_its_number() -> None:
    access = access_map()
    assert asked(access, 3, 0, 9) == [3, 0, 9]
    assert asked(access) == []
    assert len(access) == 10


def test_a_map_says_which_object() -> None:
    access = access_map(ids=[7, 5, 5])
    assert asked(access, 2, 0) == [5, 7]
    assert access.objects_of(0) == (7,)
    assert len(access) == 3


@pytest.mark.parametrize("columns", [{}, {"ids": list(range(10))}, {"indices": list(range(10))}])
def test_indices_count_from_the_end_and_those_that_are_not_there_need_nothing(columns: dict[str, list[int]]) -> None:
    access = access_map(**columns)
    assert counted(access, -1, 3, 10, -10, -11) == ([9, 3, 0], [1, 1, 0, 1, 0])
    assert [access.objects_of(sample) for sample in (-1, 3, 10, -10, -11)] == [(9,), (3,), (), (0,), ()]


@pytest.mark.parametrize("sample", ["3", 3.0, None, (3,), slice(3)])
def test_what_is_no_index_needs_no_object_that_is_known(sample: object) -> None:
    assert access_map().objects_of(sample) == ()
    assert access_map().base_sample(sample) is None


@pytest.mark.parametrize("sample", [np.int32(3), True])
def test_whatever_counts_as_an_index_is_one(sample: Any) -> None:
    assert access_map().objects_of(sample) == (int(sample),)


# ------------------------------------------------------------ several objects a sample


def test_a_sample_may_be_made_of_several_objects_or_none() -> None:
    access = access_map(starts=STARTS.tolist())
    assert len(access) == 4
    assert counted(access, 3, 0, 1, 2, 0) == ([3, 4, 5, 6, 0, 1, 2, 0, 1], [4, 2, 0, 1, 2])
    assert counted(access) == ([], [])
    assert counted(access, 1) == ([], [0])
    assert [access.objects_of(sample) for sample in range(4)] == [(0, 1), (), (2,), (3, 4, 5, 6)]


def test_counts_stay_with_their_samples_when_some_are_not_there() -> None:
    access = access_map(starts=STARTS.tolist())
    assert counted(access, 4, -1, -5, 0, 99, -4) == ([3, 4, 5, 6, 0, 1, 0, 1], [0, 4, 0, 2, 0, 2])


def test_a_subset_of_samples_with_several_objects() -> None:
    access = access_map(starts=STARTS.tolist(), indices=[3, 1, 0])
    assert len(access) == 3
    assert counted(access, 2, 0, -2, 3) == ([0, 1, 3, 4, 5, 6], [2, 4, 0, 0])
    assert [access.objects_of(sample) for sample in (0, -1, 3)] == [(3, 4, 5, 6), (0, 1), ()]
    assert [access.base_sample(sample) for sample in (0, 1, -1, 3, -4)] == [3, 1, 0, None, None]


def test_a_subset_of_a_map() -> None:
    access = access_map(ids=[7, 5, 3], indices=[2, 0])
    assert asked(access, 0, 1) == [3, 7]
    assert access.objects_of(-1) == (7,)


# ------------------------------------------------------------ learned


def test_samples_that_are_not_known_yet_need_nothing(learned: LearnedMapWriter) -> None:
    access = learned_access(learned)
    assert len(access) == 4
    assert counted(access, 1, 0, 2, 0, -1, 4) == ([7, 3, 7, 3], [0, 2, 0, 2, 0, 0])
    assert [access.objects_of(sample) for sample in (0, 1, 2, 4)] == [(7, 3), (), (), ()]


def test_what_was_learned_since_is_known_after_a_refresh(learned: LearnedMapWriter) -> None:
    access = learned_access(learned)
    learned.record(3, range(10_000))  # the file grows
    access.refresh()
    assert counted(access, 3)[1] == [10_000]
    access_map().refresh()


def test_a_subset_of_learned_samples(learned: LearnedMapWriter) -> None:
    access = learned_access(learned, [3, 0])
    assert counted(access, 0, 1, -1, 2) == ([7, 3, 7, 3], [0, 2, 2, 0])
    assert (access.base_sample(-1), access.objects_of(1)) == (0, (7, 3))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_orders_of_any_integers(learned: LearnedMapWriter, dtype: Any) -> None:
    samples = np.array([2, 0], dtype=dtype)
    for access in (learned_access(learned), access_map(starts=STARTS.tolist()), access_map(ids=[7, 5, 3])):
        ids, _ = access.object_ids(samples)
        assert ids.tolist() == [object_id for sample in (2, 0) for object_id in access.objects_of(sample)]
