"""Which entry belongs to a sample."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, StackDataset, Subset
from torchvision.datasets import ImageFolder

from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.dataset import MappedDataset
from prefeed.stage_cache.lineage import derived, lineage_of


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


class Rows2(Rows):
    """Other code of the same name."""

    def __getitem__(self, index: int) -> int:
        return -self.values[index]


Rows2.__qualname__ = "Rows"


def first_identity(dataset: Any, version: str | None = None) -> bytes:
    return lineage_of(dataset, version).identity(0)


def test_a_word_stands_for_the_code_and_for_what_cannot_be_told() -> None:
    assert first_identity(Rows([1]), "a") == first_identity(Rows2([1]), "a")
    assert first_identity(Rows([1]), "a") != first_identity(Rows([1]), "b")
    assert first_identity(Rows([1]), "a") != first_identity(Rows([2]), "a")
    locked, other = Rows([1]), Rows([2])
    locked.lock = other.lock = threading.Lock()
    assert first_identity(locked, "a") == first_identity(Rows([1]), "a") != first_identity(other, "a")
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    assert first_identity(Rows(deep), "a")


def negative(value: int) -> int:
    return -value


def times(factor: Any) -> Any:
    return lambda value: value * factor


def test_functions_of_one_word_are_told_apart_by_name_and_by_what_they_were_made_with() -> None:
    def identity(fn: Any) -> bytes:
        return first_identity(MappedDataset(Rows([1]), fn, version="1"))

    def renamed(fn: Any) -> Any:
        fn.__module__, fn.__qualname__ = negative.__module__, negative.__qualname__
        return fn

    fns = [abs, float, negative, times(2), times(3), partial(pow, 2), partial(pow, 3), Rows([1]).__getitem__]
    assert len({identity(fn) for fn in fns}) == len(fns)
    assert identity(renamed(lambda value: value)) == identity(negative)
    assert identity(times(threading.Lock())) == identity(times(threading.Lock()))
    assert first_identity(MappedDataset(Rows([1]), abs, version="1")) == identity(abs)
    assert first_identity(MappedDataset(Rows([1]), abs, version="2")) != identity(abs)


@pytest.mark.parametrize("version", [None, "1"])
def test_a_dataset_around_mapped_ones_is_told_by_which_they_are(version: str | None) -> None:
    class Around:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]

    def around(rows: Any, fn: Any) -> bytes:
        return first_identity(Around(MappedDataset(rows, fn, version=version)))

    rows = Rows([1, 2, 3])
    assert around(Subset(rows, [0]), abs) == around(Subset(Rows([1, 2, 3]), [0]), abs)
    found = [around(Subset(rows, [0]), abs), around(Subset(rows, [1]), abs), around(Subset(rows, [0]), float)]
    assert len(set(found)) == 3


def test_relative_paths_are_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lineage_of(Rows([1]))
    versioned = lineage_of(Rows([1]), "a")
    folder = lineage_of(Folder({"a": b"1"}))
    monkeypatch.chdir(tmp_path)
    assert lineage_of(Rows([1])).identity(0) != before.identity(0)
    assert lineage_of(Rows([1]), "a").identity(0) != versioned.identity(0)
    assert lineage_of(Folder({"a": b"1"})).identity(0) == folder.identity(0)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert lineage_of(Rows([1])).identity(0)


class Forwarding:
    """Passes on what it has not."""

    def __init__(self, inner: Any, by: int) -> None:
        self.inner, self.by = inner, by

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.by * self.inner[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


@pytest.mark.parametrize("inner", [Folder({"a": b"1"}), MappedDataset(Rows([1]), abs)], ids=["keyed", "mapped"])
def test_a_dataset_that_passes_on_what_it_is_asked_is_not_the_one_below(inner: Any) -> None:
    assert len({first_identity(one) for one in (inner, Forwarding(inner, 2), Forwarding(inner, 3))}) == 3


class Squared(MappedDataset):
    def __init__(self, dataset: Any, fn: Any, power: int) -> None:
        super().__init__(dataset, fn)
        self.power = power

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) ** self.power


class Marked(MappedDataset):
    pass


class Scaled(Folder):
    by = 2

    def __init__(self, versions: dict[str, bytes], offset: int) -> None:
        super().__init__(versions)
        self.offset = offset

    def __getitem__(self, index: int) -> int:
        return index * self.by + self.offset


def test_a_class_derived_from_a_known_one_is_another() -> None:
    rows = Rows([1, 2])
    assert Marked(rows, abs).prefeed_lineage.identity(0) == first_identity(MappedDataset(rows, abs))
    datasets = [
        MappedDataset(rows, abs),
        Marked(rows, abs),
        *(Squared(rows, abs, 2), Squared(rows, abs, 3), Squared(rows, float, 3), Squared(Rows([1, 3]), abs, 3)),
        *(Folder({"a": b"1"}), Scaled({"a": b"1"}, 1), Scaled({"a": b"1"}, 2)),
    ]
    found = [first_identity(dataset) for dataset in datasets]
    assert len(set(found)) == len(found)
    assert [first_identity(dataset) for dataset in datasets] == found
    one_more = Scaled({"a": b"1", "b": b"1"}, 1)
    # What it does with the listing is its own.
    assert first_identity(one_more) != first_identity(Scaled({"a": b"1"}, 1))


def test_a_folder_class_of_the_users_own_counts_with_what_it_holds(tmp_path: Path) -> None:
    class Mine(ImageFolder):
        size = 1

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.jpg").touch()
    one, other = Mine(str(tmp_path)), Mine(str(tmp_path))
    other.size = 2
    assert first_identity(one) != first_identity(other)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "a.jpg").touch()
    assert lineage_of(Mine(str(tmp_path))).identity(1) == first_identity(one)


def test_an_index_that_is_no_number_counts_as_a_whole() -> None:
    lineage = lineage_of(Rows([1]))
    first, second = np.zeros(5000), np.zeros(5000)
    second[2500] = 1
    assert repr(first) == repr(second)
    indices = [
        "a",
        "b",
        b"a",
        ("a", 1),
        ("a", 2),
        slice(1),
        slice(2),
        slice(None, first),
        slice(None, second),
        first,
        second,
    ]
    assert len({lineage.identity(index) for index in indices}) == len(indices)
    with pytest.raises(CannotFingerprintError):
        lineage.identity(threading.Lock())


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
