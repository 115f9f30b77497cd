"""Stages that are cached: made once, in whatever process; made anew when anything that they are made of has changed."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset
from torchvision import datasets, transforms
from torchvision.transforms import v2

import prefeed
from e2e.images import make_image_folder
from e2e.stages import Files, Log, values, write_file, write_files
from prefeed.client.node import NodeClient
from prefeed.client.sessions import drop_sessions, list_sessions, new_session
from prefeed.config import current
from prefeed.errors import CacheInUseError, CacheNotInUseError, RandomStageError, SessionNotFoundError

pytestmark = pytest.mark.timeout(120)

NUM_SAMPLES = 40
ALL = [(index, index) for index in range(NUM_SAMPLES)]
NAMES = [str(index) for index in range(NUM_SAMPLES)]

LOADERS = [
    pytest.param(lambda dataset, **kwargs: DataLoader(dataset, batch_size=8, **kwargs), id="torch"),
    pytest.param(lambda dataset, **kwargs: prefeed.DataLoader(dataset, batch_size=8, **kwargs), id="prefeed"),
]
WORKERS = [
    pytest.param({"num_workers": 0}, id="0"),
    pytest.param({"num_workers": 2}, id="2"),
    pytest.param({"num_workers": 2, "persistent_workers": True}, id="2-kept"),
    pytest.param({"num_workers": 2, "multiprocessing_context": "spawn"}, id="2-spawned"),
]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "made")


@pytest.fixture
def files(tmp_path: Path, log: Log) -> Files:
    return Files(write_files(tmp_path / "data", NUM_SAMPLES), NUM_SAMPLES, log)


@pytest.fixture
def session() -> int:
    with NodeClient.connect(current()) as node:
        return new_session(node.connection)


def made(log: Log) -> list[str]:
    return sorted(log.take(), key=int)


def batches(loader: Any) -> list[tuple[int, int]]:
    return [pair for arrays, numbers in loader for pair in values(zip(arrays, numbers, strict=True))]


def double(sample: tuple[Any, int]) -> tuple[Any, int]:
    return sample[0] * np.uint8(2), sample[1]


def times(factor: int) -> Any:
    return lambda sample: (sample[0] * np.uint8(factor), sample[1])


# ---------------------------------------------------------------- made once


@pytest.mark.parametrize("make_loader", LOADERS)
@pytest.mark.parametrize("workers", WORKERS)
def test_each_sample_is_made_once(files: Files, log: Log, make_loader: Any, workers: dict[str, Any]) -> None:
    cached = prefeed.CachedDataset(files)
    loader = make_loader(cached, **workers)
    assert [batches(loader) for _ in range(3)] == [ALL] * 3
    assert made(log) == NAMES
    found = cached.get_stat()
    assert (found.num_mem_cached, found.hits, found.misses) == (NUM_SAMPLES, 2 * NUM_SAMPLES, NUM_SAMPLES)
    assert found.avg_cache_sz > 3000


def test_other_processes_and_pipelines_share(files: Files, log: Log, tmp_path: Path) -> None:
    assert values(prefeed.CachedDataset(files)) == ALL
    assert values(prefeed.CachedDataset(Files(files.root, NUM_SAMPLES, log))) == ALL
    every_other = prefeed.CachedDataset(Subset(files, range(0, NUM_SAMPLES, 2)))
    assert values(every_other) == ALL[::2]
    assert values([every_other[-1]]) == ALL[::2][-1:]
    assert made(log) == NAMES


def test_parts_of_joined_datasets_are_told_apart(files: Files, log: Log) -> None:
    joined = prefeed.CachedDataset(ConcatDataset([files, Files(files.root, 10, log, times=3)]))
    expected = ALL + [(3 * index % 251, index) for index in range(10)]
    assert values(joined) == values(joined) == expected
    assert len(log.take()) == NUM_SAMPLES + 10
    stacked = prefeed.CachedDataset(StackDataset(a=files, b=files))
    for sample in (stacked[3], stacked[3]):
        assert values(sample[name] for name in "ab") == [(3, 3), (3, 3)]
    assert log.take() == ["3", "3"]


def test_threads(files: Files, log: Log) -> None:
    cached = prefeed.CachedDataset(files)
    seen: list[list[tuple[int, int]]] = []
    threads = [
        threading.Thread(target=lambda: seen.append(values(cached[i] for i in range(NUM_SAMPLES)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [ALL] * 4
    log.take()
    assert values(cached) == ALL
    assert log.take() == []


def test_samples_are_the_caller_s(files: Files) -> None:
    cached = prefeed.CachedDataset(files)
    for _ in range(2):
        array, _ = cached[5]
        array += 1  # must neither fail nor be seen by others
    assert values([cached[5]]) == [(5, 5)]


def test_an_index_that_is_not_there(files: Files) -> None:
    cached = prefeed.CachedDataset(files)
    with pytest.raises(IndexError):
        cached[NUM_SAMPLES]


# ---------------------------------------------------------------- nothing stale


@pytest.mark.parametrize("make_loader", LOADERS)
@pytest.mark.parametrize("workers", WORKERS[:3])
def test_a_changed_file_is_a_new_entry(files: Files, log: Log, make_loader: Any, workers: dict[str, Any]) -> None:
    cached = prefeed.CachedDataset(files)
    loader = make_loader(cached, **workers)
    assert batches(loader) == ALL
    log.take()
    write_file(files.root, 7, 100, seconds=2)
    expected = [*ALL[:7], (100, 7), *ALL[8:]]
    assert batches(loader) == expected
    assert batches(loader) == expected
    assert log.take() == ["7"]
    assert cached.get_stat().num_mem_cached == NUM_SAMPLES  # in the place of the old one


def test_a_file_that_was_missing(tmp_path: Path) -> None:
    class WithMask:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> str:
            try:
                return (tmp_path / "mask").read_text()
            except FileNotFoundError:
                return "none"

    cached = prefeed.CachedDataset(WithMask())
    assert [cached[0], cached[0]] == ["none", "none"]
    (tmp_path / "mask").write_text("some")
    assert cached[0] == "some"
    (tmp_path / "mask").unlink()
    assert cached[0] == "none"


def test_other_parameters_and_other_code_are_other_entries(files: Files, log: Log, session: int) -> None:
    seen = [
        values(prefeed.map(files, fn, prefeed.DatasetCache(session)))[9]
        for fn in (double, times(2), times(3), times(3), double)
    ]
    assert seen == [(18, 9), (18, 9), (27, 9), (27, 9), (18, 9)]
    assert log.take().count("9") == 3
    with NodeClient.connect(current()) as node:
        (found,) = [one for one in list_sessions(node.connection) if one.session == session]
    assert sorted(cache.memory_entries for cache in found.caches) == [NUM_SAMPLES] * 3


def test_a_version_stands_for_the_code(files: Files, log: Log) -> None:
    def mapped(factor: int, version: str) -> Any:
        return prefeed.map(files, times(factor), prefeed.DatasetCache.default(), version=version)[9][0][0]

    assert [mapped(2, "1"), mapped(3, "1"), mapped(3, "2")] == [18, 18, 27]


def test_stages_above_see_changes_below(files: Files, log: Log) -> None:
    inner = prefeed.CachedDataset(files)
    outer = prefeed.map(inner, double, prefeed.DatasetCache.default())
    expected = [(2 * index, index) for index in range(NUM_SAMPLES)]
    assert values(inner) == ALL  # so that the outer one opens no file
    assert values(outer) == expected
    write_file(files.root, 3, 50, seconds=2)
    assert values(outer) == [*expected[:3], (100, 3), *expected[4:]]
    assert values([inner[3]]) == [(50, 3)]


def test_a_folder_s_sample_is_its_file_and_its_class(tmp_path: Path, session: int) -> None:
    root = make_image_folder(tmp_path / "images")

    def cached() -> Any:
        folder = datasets.ImageFolder(str(root), transforms.Compose([transforms.Resize(32), transforms.ToTensor()]))
        return prefeed.CachedDataset(folder, prefeed.DatasetCache(session))

    def read(dataset: Any) -> dict[str, tuple[torch.Tensor, int]]:
        return {path: dataset[i] for i, (path, _) in enumerate(dataset.dataset.samples)}

    first = read(cached())
    again = cached()
    assert all(
        label == read(again)[path][1] and image.equal(read(again)[path][0]) for path, (image, label) in first.items()
    )
    assert again.get_stat().misses == len(first)
    new = root / "0-a-new-class"  # every other class has another number from now on
    new.mkdir()
    Image.new("RGB", (64, 64)).save(new / "a.jpg")
    later = cached()
    seen = read(later)
    assert all(seen[path][1] == label + 1 and seen[path][0].equal(image) for path, (image, label) in first.items())


def test_the_same_from_prefeed_s_own_folder(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "images")
    transform = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
    plain = prefeed.datasets.ImageFolder(str(root), transform)
    cached = prefeed.CachedDataset(prefeed.datasets.ImageFolder(str(root), transform))
    for _ in range(2):
        for (image, label), (found, found_label) in zip(plain, cached, strict=False):
            assert image.equal(found)
            assert label == found_label
    assert cached.get_stat().num_mem_cached == len(plain)
    prefeed.datasets._readers.close()


class Wrapped:
    """A dataset of somebody's own over one of prefeed's."""

    def __init__(self, url: str) -> None:
        self.objects = prefeed.datasets.Objects(url)

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> int:
        return self.objects[index][0]


def test_a_new_listing_below_a_wrapper(files: Files) -> None:
    def read() -> list[int]:
        cached = prefeed.CachedDataset(Wrapped(str(files.root)))
        return [cached[index] for index in range(2)]

    before = read()
    assert read() == before
    write_file(files.root, 0, 99, seconds=2)
    with NodeClient.connect(current()) as node:
        node.warm(str(files.root), refresh=True)
    assert read() == [99, before[1]]
    prefeed.datasets._readers.close()


# ---------------------------------------------------------------- chance


RANDOM = [
    pytest.param(transforms.RandomHorizontalFlip(), id="v1"),
    pytest.param(transforms.Compose([transforms.Resize(4), transforms.RandomCrop(2)]), id="v1 in Compose"),
    pytest.param(v2.RandomHorizontalFlip(), id="v2"),
    pytest.param(v2.Compose([v2.Resize(4), v2.ColorJitter(0.5)]), id="v2 in Compose"),
    pytest.param(lambda image: (image, random.random() < 0.5), id="random"),
    pytest.param(lambda image: (image, np.random.rand() < 0.5), id="numpy"),
    pytest.param(lambda image: (image, torch.rand(1) < 0.5), id="torch"),
]


@pytest.mark.parametrize("transform", RANDOM)
def test_a_stage_that_draws_is_refused(tmp_path: Path, transform: Any) -> None:
    folder = datasets.ImageFolder(str(make_image_folder(tmp_path / "images")), transform)
    with pytest.raises(RandomStageError, match=r"prefeed\.not_random"):
        prefeed.CachedDataset(folder)
    with pytest.raises(RandomStageError, match="random"):
        prefeed.map(range(3), transform, prefeed.DatasetCache.default())


def test_a_stage_that_hides_its_draws_is_found_out(tmp_path: Path) -> None:
    names = {"library": "random", "function": "random"}

    def hidden(sample: Any) -> Any:
        return sample + getattr(__import__(names["library"]), names["function"])()

    cached = prefeed.map(range(3), hidden, prefeed.DatasetCache.default(), version="1")
    with pytest.raises(RandomStageError, match="draws"):
        cached[0]


def test_a_random_step_above_stays_random(files: Files) -> None:
    def shifted(sample: tuple[Any, int]) -> float:
        return float(sample[0][0]) + random.random()

    pipeline = prefeed.map(prefeed.CachedDataset(files), shifted)
    assert pipeline[4] != pipeline[4]
    for make_loader in (DataLoader, prefeed.DataLoader):
        random.seed(1)
        drawn = [4 + random.random() for _ in range(2)]
        random.seed(1)
        assert [float(x) for x in make_loader(Subset(pipeline, [4, 4]), batch_size=None)] == drawn


def test_a_mark_allows_it(files: Files) -> None:
    steady = random.Random(1)

    @prefeed.not_random
    def noisy(sample: tuple[Any, int]) -> int:
        steady.seed(1)
        return sample[1] + int(10 * steady.random())

    cached = prefeed.map(files, noisy, prefeed.DatasetCache.default())
    assert cached[0] == cached[0]


# ---------------------------------------------------------------- sessions


def test_an_unknown_session_is_refused(files: Files) -> None:
    with pytest.raises(SessionNotFoundError, match="prefeed session new"):
        prefeed.CachedDataset(files, prefeed.DatasetCache(4242))


def test_one_cache_is_of_one_pipeline(files: Files, session: int) -> None:
    cache = prefeed.DatasetCache(session)
    with pytest.raises(CacheNotInUseError):
        cache.get_stat()
    prefeed.CachedDataset(files, cache)
    prefeed.CachedDataset(files, cache)
    with pytest.raises(CacheInUseError):
        prefeed.map(files, double, cache)


@pytest.mark.parametrize("make_loader", LOADERS)
@pytest.mark.parametrize("workers", WORKERS[:3])
def test_a_dropped_session_is_missed_by_nobody(
    files: Files, log: Log, session: int, make_loader: Any, workers: dict[str, Any]
) -> None:
    cached = prefeed.CachedDataset(files, prefeed.DatasetCache(session))
    loader = make_loader(cached, **workers)
    assert batches(loader) == ALL
    with NodeClient.connect(current()) as node:
        drop_sessions(node.connection, [session])
    log.take()
    assert batches(loader) == ALL
    assert made(log) == NAMES


@pytest.mark.parametrize("make_loader", LOADERS)
@pytest.mark.parametrize("workers", WORKERS[:3])
def test_a_stopped_server_is_missed_by_nobody(files: Files, make_loader: Any, workers: dict[str, Any]) -> None:
    loader = make_loader(prefeed.CachedDataset(files), **workers)
    iterator = iter(loader)
    next(iterator)
    with NodeClient.connect(current(), autostart=False) as node:
        node.stop()
    assert [pair for arrays, numbers in iterator for pair in values(zip(arrays, numbers, strict=True))] == ALL[8:]
    assert batches(loader) == ALL


def test_without_prefeed_nothing_is_cached(files: Files, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ENABLED", "0")
    cached = prefeed.CachedDataset(files)
    assert [values(cached), values(cached)] == [ALL, ALL]
    assert len(log.take()) == 2 * NUM_SAMPLES
