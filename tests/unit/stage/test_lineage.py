"""Which entry belongs to a sample."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import ConcatDataset, StackDataset, Subset

from prefeed.stage.dataset import MappedDataset
from prefeed.stage.lineage import derived, lineage_of


class Rows:
    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return self.values[index]


class Folder:
    """Knows origin and version of each sample."""

    def __init__(self, versions: dict[str, bytes], *, scale: int = 1) -> None:
        self.versions, self.scale = versions, scale

    def prefeed_stage(self) -> Any:
        return self.scale

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        return list(self.versions.items())[index]


def identities(dataset: Any, length: int) -> list[bytes]:
    lineage = lineage_of(dataset)
    return [lineage.identity(index) for index in range(length)]


def test_a_dataset_s_state_tells_its_samples_apart_from_others() -> None:
    rows = Rows([1, 2, 3])
    assert identities(rows, 3) == identities(Rows([1, 2, 3]), 3)
    assert not set(identities(rows, 3)) & set(identities(Rows([1, 2, 4]), 3))
    assert len(set(identities(rows, 3))) == 3
    assert lineage_of(rows).identity(-1) == lineage_of(rows).identity(2)
    assert all(len(identity) == 16 for identity in identities(rows, 3))


def test_a_word_stands_for_the_state() -> None:
    assert lineage_of(Rows([1]), "a").identity(0) == lineage_of(Rows([2]), "a").identity(0)
    assert lineage_of(Rows([1]), "a").identity(0) != lineage_of(Rows([1]), "b").identity(0)


def test_what_only_chooses_passes_on() -> None:
    rows = Rows(list(range(6)))
    all_of = identities(rows, 6)
    chosen = Subset(Subset(rows, [5, 3, 1]), [2, 0])
    assert identities(chosen, 2) == [all_of[1], all_of[5]]
    assert lineage_of(chosen).fingerprint == lineage_of(rows).fingerprint
    assert identities(ConcatDataset([rows, Rows([9])]), 7) == [*all_of, *identities(Rows([9]), 1)]
    joined = lineage_of(ConcatDataset([rows, Rows([9])]))
    assert joined.identity(-1) == joined.identity(6)
    with pytest.raises(IndexError):
        joined.identity(7)


def test_a_stage_above_is_another() -> None:
    rows = Rows([1, 2])
    mapped = lineage_of(MappedDataset(rows, abs))
    assert mapped.identity(0) not in identities(rows, 2)
    assert mapped.identity(0) == lineage_of(MappedDataset(Rows([1, 2]), abs)).identity(0)
    assert mapped.identity(0) != lineage_of(MappedDataset(rows, float)).identity(0)
    assert derived(lineage_of(rows), b"1").fingerprint != derived(lineage_of(rows), b"2").fingerprint


def test_stacked_datasets_are_all_of_their_parts() -> None:
    first, second = Rows([1, 2]), Rows([3, 4])
    assert identities(StackDataset(first, second), 2) == identities(StackDataset(first, Rows([3, 4])), 2)
    assert identities(StackDataset(first, second), 2) != identities(StackDataset(second, first), 2)
    assert identities(StackDataset(a=first), 2) != identities(StackDataset(b=first), 2)


def test_datasets_that_know_versions() -> None:
    old, new = Folder({"a": b"1", "b": b"1"}), Folder({"b": b"2", "c": b"1"})
    before, after = lineage_of(old), lineage_of(new)
    assert before.identity(1) == after.identity(0)  # the same object, wherever it stands in the listing
    assert (before.version(1), after.version(0)) == (b"1", b"2")
    assert lineage_of(Folder({"a": b"1"}, scale=2)).identity(0) != before.identity(0)
