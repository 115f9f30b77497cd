"""Which objects the samples of a dataset are made of, and which datasets are left alone, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import FilesUnknownError
from prefeed.loaders.access import access_of
from prefeed.sources.learned import LearnedMap

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_FILES = 6


@pytest.fixture(autouse=True)
def _no_network_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has mounted."""
    monkeypatch.setattr("prefeed.sources.mounts.MOUNTINFO", os.devnull)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{index}.bin" for index in range(NUM_FILES)]
    for path in paths:
        path.write_bytes(b"content")
    return [str(path) for path in paths]


@pytest.fixture
def rooted(tmp_path: Path) -> Config:
    """Settings under which the files are for the cache."""
    return resolve({"roots": [str(tmp_path)]})


@pytest.fixture
def node() -> Iterator[NodeClient]:
    with NodeClient.connect(resolve({})) as node:
        yield node


class Listed(Dataset[Any]):
    """Says which files its samples open."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def train_data_list(self) -> list[str]:
        return self.paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return Path(self.paths[index]).read_bytes()


class Silent(Dataset[Any]):
    """Says nothing."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Own(Listed):
    """Knows its objects, as prefeed's own datasets do; and would say which files."""

    def prefeed_access(self, node: Any, config: Config) -> AccessMap:
        manifest: Any = SimpleNamespace(num_declared=10, num_objects=10, grows=False)
        dataset: Any = SimpleNamespace(manifest=manifest, config=config)
        return AccessMap(dataset=dataset, ids=np.array([7, 5, 3, 1], dtype=np.int64))


NO_NODE: Any = None


def objects(access: AccessMap) -> list[tuple[int, ...]]:
    return [access.objects_of(sample) for sample in range(len(access))]


# ------------------------------------------------------------ the order of finding


def test_a_dataset_that_knows_its_objects_is_asked_first(files: list[str]) -> None:
    assert objects(access_of(Own(files), resolve({}), explicit=False)(NO_NODE)) == [(7,), (5,), (3,), (1,)]


def test_what_a_dataset_declares_comes_before_what_is_learned(
    node: NodeClient, files: list[str], rooted: Config
) -> None:
    access = access_of(Listed(files), rooted, explicit=False)(node)
    assert access.learned is None
    assert objects(access) == [(index,) for index in range(NUM_FILES)]
    assert [access.dataset.manifest.path(index) for index in range(NUM_FILES)] == files


def test_any_other_dataset_is_watched(node: NodeClient, rooted: Config) -> None:
    open_access = access_of(Silent(), rooted, explicit=False)
    access = open_access(node)
    assert isinstance(access.learned, LearnedMap)
    assert len(access) == 4
    assert objects(access) == [()] * 4
    assert open_access(node).dataset.manifest.directory == access.dataset.manifest.directory


# ------------------------------------------------------------ subsets


@pytest.mark.parametrize("indices", [[2, 0], [-2, 0], np.array([2, 0]), torch.tensor([2, 0]), (2, 0)])
def test_a_subset_of_a_dataset_that_knows_its_objects(files: list[str], indices: Any) -> None:
    access = access_of(Subset(Own(files), indices), resolve({}), explicit=False)(NO_NODE)
    assert objects(access) == [(3,), (7,)]


def test_a_subset_of_a_subset(files: list[str]) -> None:
    nested = Subset(Subset(Own(files), [3, 2, 0]), [-1, 0, 0])
    assert objects(access_of(nested, resolve({}), explicit=False)(NO_NODE)) == [(7,), (1,), (1,)]


def test_a_subset_of_nothing(files: list[str]) -> None:
    assert len(access_of(Subset(Own(files), []), resolve({}), explicit=False)(NO_NODE)) == 0


def test_a_subset_of_samples_that_are_not_there_is_refused(files: list[str]) -> None:
    open_access = access_of(Subset(Own(files), [0, 4]), resolve({}), explicit=True)
    with pytest.raises(FilesUnknownError, match="names samples that its dataset of 4 does not have"):
        open_access(NO_NODE)


def test_a_subset_of_a_dataset_that_declares(node: NodeClient, files: list[str], rooted: Config) -> None:
    access = access_of(Subset(Listed(files), [5, 1]), rooted, explicit=False)(node)
    assert objects(access) == [(5,), (1,)]


def test_subsets_of_a_learned_dataset_share_what_is_known(node: NodeClient, files: list[str], rooted: Config) -> None:
    base = Silent()
    whole = access_of(base, rooted, explicit=False)(node)
    part = access_of(Subset(Subset(base, [3, 2, -3]), [0, -1]), rooted, explicit=False)(node)
    assert part.dataset.manifest.directory == whole.dataset.manifest.directory
    assert (part.dataset.number, part.dataset.num_samples) == (whole.dataset.number, 4)
    assert [part.base_sample(sample) for sample in (0, 1, -1, 2)] == [3, 1, 1, None]


class OddSubset(Subset[Any]):
    """Does something of its own with its indices."""

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[-1 - index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize(
    "make",
    [
        lambda base: OddSubset(base, [0, 1]),
        lambda base: Subset(base, ["a", "b"]),
        lambda base: Subset(base, [True, False]),
        lambda base: Subset(base, [[0], [1, 2]]),  # type: ignore[list-item]
        lambda base: Subset(Subset(base, [3, 2]), [0, 7]),
        lambda base: ConcatDataset([base, base]),
    ],
    ids=["subclass", "names", "flags", "lists", "beyond the inner one", "concatenated"],
)
def test_a_wrapper_that_is_not_seen_through_is_watched_itself(node: NodeClient, rooted: Config, make: Any) -> None:
    dataset = make(Silent())
    access = access_of(dataset, rooted, explicit=False)(node)
    assert access.indices is None
    assert len(access) == len(dataset)


# ------------------------------------------------------------ local disks


def test_declared_files_on_a_local_disk_are_left_alone_under_auto(files: list[str]) -> None:
    with pytest.raises(FilesUnknownError) as caught:
        access_of(Listed(files), resolve({}), explicit=False)
    assert str(caught.value) == (
        f"the files of its dataset, Listed, such as {files[0]}, do not lie on a network file system; "
        f"set PREFEED_ROOTS to their directory to cache them anyway"
    )


def test_declared_files_on_a_local_disk_are_cached_when_asked_for(node: NodeClient, files: list[str]) -> None:
    assert len(access_of(Listed(files), resolve({}), explicit=True)(node)) == NUM_FILES


def test_declared_files_below_a_named_root_are_cached(
    node: NodeClient, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    assert len(access_of(Listed(files), resolve({}), explicit=False)(node)) == NUM_FILES


def test_declared_files_below_another_root_are_left_alone(files: list[str]) -> None:
    with pytest.raises(FilesUnknownError, match="do not lie below PREFEED_ROOTS, /usr; set PREFEED_ROOTS"):
        access_of(Listed(files), resolve({"roots": ["/usr"]}), explicit=False)


def test_declared_files_with_some_on_network_storage_are_cached(tmp_path: Path, files: list[str]) -> None:
    many = [f"/local/{index}" for index in range(1000)] + files * 100
    assert callable(access_of(Listed(many), resolve({"roots": [str(tmp_path)]}), explicit=False))


@pytest.mark.parametrize("explicit", [True, False])
def test_without_any_root_nothing_is_watched(explicit: bool) -> None:
    with pytest.raises(FilesUnknownError) as caught:
        access_of(Silent(), resolve({}), explicit=explicit)
    assert str(caught.value) == (
        "nothing is known about the files of its dataset, Silent: no network file system is mounted, and PREFEED_ROOTS does "
        "not name the directory that holds them"
    )


def test_roots_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FilesUnknownError, match="PREFEED_ROOTS names paths that are not directories here: /no/such, /nor/this"
    ):
        access_of(Silent(), resolve({"roots": ["/no/such", "/nor/this"]}), explicit=True)
    assert callable(access_of(Silent(), resolve({"roots": ["/no/such", str(tmp_path)]}), explicit=True))
    with pytest.raises(
        FilesUnknownError, match=r"do not lie below PREFEED_ROOTS, /no/such; .* not directories here: /no/such"
    ):
        access_of(Listed([str(tmp_path / "x")]), resolve({"roots": ["/no/such"]}), explicit=False)


# ------------------------------------------------------------ nothing to serve


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: TensorDataset(torch.zeros(3)), "TensorDataset"),
        (lambda: Subset(TensorDataset(torch.zeros(3)), [0]), "Subset"),
        (lambda: range(3), "range"),
    ],
)
def test_samples_in_memory_are_left_alone(rooted: Config, make: Any, name: str) -> None:
    with pytest.raises(FilesUnknownError, match=f"^its dataset, {name}, holds the samples in memory$"):
        access_of(make(), rooted, explicit=True)


def test_a_dataset_without_a_length_is_left_alone(rooted: Config) -> None:
    class Endless(Dataset[Any]):
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(FilesUnknownError, match=r"^its dataset, Endless, has no length$"):
        access_of(Endless(), rooted, explicit=True)


def test_what_is_declared_wrongly_is_said(rooted: Config) -> None:
    class Wrong(Silent):
        def train_data_list(self) -> int:
            return 3

    with pytest.raises(ValueError, match="train_data_list"):
        access_of(Wrong(), rooted, explicit=False)
