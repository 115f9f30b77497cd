"""Loaders over cached stages on slow storage: what a cache holds is not fetched, what it lacks is fetched ahead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchLoader
from torchvision import datasets, transforms

import prefeed
from e2e.images import NUM_IMAGES, make_image_folder
from prefeed.client.node import NodeClient
from prefeed.config import MIB, current
from prefeed.map_style import MapStyle
from prefeed.stage_cache.auditing import ON_CREDIT
from slow_files import SlowDirectory, slow_files

STEPS = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
WORKERS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


@pytest.fixture
def slow(source: Path) -> Iterator[SlowDirectory]:
    with slow_files(source) as slow:
        yield slow


class Numbered:
    """Computes its paths inside the sample: nobody knows beforehand what it opens."""

    def __init__(self, root: Path) -> None:
        self.folder = datasets.ImageFolder(str(root), STEPS)

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        return self.folder[index]


def epochs(loader: Any, num_epochs: int) -> list[list[float]]:
    return [[float(images.sum()) for images, _ in loader] for _ in range(num_epochs)]


@pytest.mark.parametrize(
    "make", [lambda root: datasets.ImageFolder(str(root), STEPS), Numbered], ids=["listed", "learned"]
)
@pytest.mark.parametrize("workers", WORKERS, ids=["0", "2", "2-kept"])
def test_files_of_cached_samples_are_opened_once(slow: SlowDirectory, make: Any, workers: dict[str, Any]) -> None:
    cached = prefeed.CachedDataset(make(slow.path))
    before = slow.opens()
    loader = prefeed.DataLoader(cached, batch_size=4, shuffle=False, **workers)
    first, *later = epochs(loader, 3)
    assert later == [first, first]
    del loader  # workers that are kept tell of their audits when they end
    assert cached.get_stat().misses == NUM_IMAGES  # and this process does now
    statistics = prefeed.statistics()
    audits = statistics.sessions.audits  # these read files again, and so does one that the end of its worker cuts off
    most = NUM_IMAGES + audits + workers["num_workers"]
    assert slow.opens() - before <= most
    assert audits <= ON_CREDIT + 3
    assert statistics.origin_requests <= most
    assert statistics.resident_objects == 0  # what is made of them is kept, they are not
    assert statistics.direct_reads == 0


@pytest.mark.parametrize("chosen", [False, True], ids=["joined", "subset of joined"])
def test_stages_that_are_joined_keep_samples_and_no_files(slow: SlowDirectory, chosen: bool) -> None:
    """A ``ConcatDataset`` of cached stages, each of a part of the folder."""
    folder = datasets.ImageFolder(str(slow.path), STEPS)
    parts = [prefeed.CachedDataset(Subset(folder, range(*ends))) for ends in ((0, 10), (10, NUM_IMAGES))]
    joined: Any = ConcatDataset(parts)
    order = list(range(5, NUM_IMAGES)) if chosen else list(range(NUM_IMAGES))
    loader = prefeed.DataLoader(Subset(joined, order) if chosen else joined, batch_size=1)
    truth = [[float(folder[index][0].sum()) for index in order]]
    before = slow.opens()
    assert epochs(loader, 3) == truth * 3
    assert {part.get_stat().misses for part in parts} == {len(order)}  # of one folder, so that both have one cache
    statistics = prefeed.statistics()
    assert slow.opens() - before <= len(order) + statistics.sessions.audits
    assert statistics.origin_requests <= len(order) + statistics.sessions.audits
    assert (statistics.resident_objects, statistics.direct_reads) == (0, 0)


def small_cache(num_samples: int) -> prefeed.DatasetCache:
    """Return a cache that holds fewer samples than that, of a megabyte."""
    with NodeClient.connect(current()) as node:
        cache = prefeed.DatasetCache(node.new_session(), size=1)
    assert num_samples * 3 * 32 * 32 * 4 > MIB
    return cache


@pytest.mark.parametrize("folder", [datasets.ImageFolder, prefeed.datasets.ImageFolder], ids=["files", "objects"])
def test_files_whose_samples_find_no_room_stay_and_are_opened_once(tmp_path: Path, folder: Any) -> None:
    """A stage that is full after a part of the epoch: the node keeps the files of the other part, not those of the first."""
    number = 120
    with slow_files(make_image_folder(tmp_path / "data", num_images=number)) as slow:
        cached = prefeed.CachedDataset(folder(str(slow.path), STEPS), small_cache(number))
        loader = prefeed.DataLoader(cached, batch_size=4, shuffle=False)
        first, second = epochs(loader, 2)
        assert first == second
        entries, statistics = cached.get_stat().num_mem_cached, prefeed.statistics()
        assert 0 < entries < number
        assert number - entries - 4 <= statistics.resident_objects <= number - entries + 8
        assert statistics.origin_requests <= number + 4 + statistics.sessions.audits
        del loader
        prefeed.datasets._readers.close()


def test_files_of_a_stage_that_was_dropped_stay(slow: SlowDirectory) -> None:
    """Its samples are made in each epoch, of files that the node keeps as without a stage."""
    with NodeClient.connect(current()) as node:
        session = node.new_session()
        cached = prefeed.CachedDataset(
            datasets.ImageFolder(str(slow.path), STEPS), prefeed.DatasetCache(session, size=1)
        )
        loader = prefeed.DataLoader(cached, batch_size=4, shuffle=False)
        (first,) = epochs(loader, 1)
        node.drop_sessions([session])
        assert epochs(loader, 2) == [first, first]
        before = slow.opens()
        assert epochs(loader, 2) == [first, first]
        assert slow.opens() == before
    assert prefeed.statistics().resident_objects == NUM_IMAGES


def test_another_loader_of_the_same_files_keeps_them(slow: SlowDirectory) -> None:
    folder = datasets.ImageFolder(str(slow.path), STEPS)
    staged = prefeed.DataLoader(prefeed.CachedDataset(folder), batch_size=2)
    plain = prefeed.DataLoader(folder, batch_size=2)
    before = slow.opens()
    iterators = iter(plain), iter(staged)
    first = [(float(one[0].sum()), float(other[0].sum())) for one, other in zip(*iterators, strict=True)]
    second = [float(images.sum()) for images, _ in plain]
    assert [one for one, _ in first] == [other for _, other in first] == second
    statistics = prefeed.statistics()
    assert statistics.resident_objects == NUM_IMAGES
    assert slow.opens() - before <= NUM_IMAGES + statistics.sessions.audits


def test_objects_of_a_stage_without_a_loader_are_read_once(slow: SlowDirectory) -> None:
    cached = prefeed.CachedDataset(prefeed.datasets.ImageFolder(str(slow.path), STEPS))
    before = slow.opens()
    sums = [[float(cached[index][0].sum()) for index in range(NUM_IMAGES)] for _ in range(2)]
    assert sums[0] == sums[1]
    prefeed.datasets._readers.close()
    cached.close()
    statistics = prefeed.statistics()
    assert statistics.resident_objects == 0
    assert slow.opens() - before <= NUM_IMAGES + statistics.sessions.audits


class Unidentified(MapStyle[Any]):
    """Each sample opens a file that cannot be identified, and is not kept."""

    def __init__(self, root: Path) -> None:
        self.folder = prefeed.datasets.ImageFolder(str(root), STEPS)

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        directory = os.open("/", os.O_RDONLY)
        try:
            os.close(os.open("dev/null", os.O_RDONLY, dir_fd=directory))
        finally:
            os.close(directory)
        return self.folder[index]


def test_objects_of_samples_that_are_not_kept_stay(slow: SlowDirectory) -> None:
    cached = prefeed.CachedDataset(Unidentified(slow.path), version="1")
    before = slow.opens()
    sums = [[float(cached[index][0].sum()) for index in range(NUM_IMAGES)] for _ in range(4)]
    assert sums[1:] == 3 * sums[:1]
    prefeed.datasets._readers.close()
    cached.close()
    assert prefeed.statistics().resident_objects >= NUM_IMAGES - 1  # it is known after the first one
    assert slow.opens() - before <= NUM_IMAGES + 1


@pytest.fixture
def forgetful(source: Path) -> Iterator[SlowDirectory]:
    """The same, of a kernel that keeps no attributes of its files."""
    with slow_files(source, remember_seconds=0) as slow:
        yield slow


def test_a_changed_file_is_fetched_and_made_again(source: Path, forgetful: SlowDirectory) -> None:
    slow, folder = forgetful, datasets.ImageFolder(str(forgetful.path), STEPS)
    cached = prefeed.CachedDataset(folder)
    loader = prefeed.DataLoader(cached, batch_size=4, num_workers=2)
    first, second = epochs(loader, 2)
    assert first == second
    changed = source / Path(folder.samples[0][0]).relative_to(slow.path)
    other = source / Path(folder.samples[-1][0]).relative_to(slow.path)
    changed.write_bytes(other.read_bytes())
    third, fourth = epochs(loader, 2)
    assert third == fourth
    assert [a == b for a, b in zip(first, third, strict=True)] == [False] + [True] * (len(first) - 1)
    assert cached.get_stat().misses == NUM_IMAGES + 1


def test_a_changed_file_is_made_again_of_its_new_bytes_where_the_old_ones_are_in_memory(tmp_path: Path) -> None:
    """Another loader keeps the files; the plan of the staged one omits the changed file, and has others."""
    number = 120
    source = make_image_folder(tmp_path / "data", num_images=number)
    with slow_files(source, remember_seconds=0) as slow:
        folder = datasets.ImageFolder(str(slow.path), STEPS)
        cached = prefeed.CachedDataset(folder, small_cache(number))
        plain, staged = (prefeed.DataLoader(dataset, batch_size=4) for dataset in (folder, cached))
        first, _, _ = epochs(plain, 1)[0], epochs(staged, 1), epochs(plain, 1)
        changed, other = (source / Path(folder.samples[at][0]).relative_to(slow.path) for at in (0, -1))
        changed.write_bytes(other.read_bytes())
        (second,) = epochs(staged, 1)
    truth = [float(images.sum()) for images, _ in TorchLoader(datasets.ImageFolder(str(source), STEPS), batch_size=4)]
    assert first[0] != truth[0]
    assert second == truth
