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
from asking import list_sessions
from cover import crossed
from e2e.images import make_image_folder
from e2e.parity import stop_server
from e2e.stages import Files, Log, values, write_file, write_files
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.errors import (
    CacheInUseError,
    CacheNotInUseError,
    CannotEncodeError,
    CannotFingerprintError,
    RandomStageError,
    SessionNotFoundError,
)
from prefeed.stage_cache import CacheStatistics
from prefeed.stage_cache.making import is_checking
from stage_samples import Bag

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
    pytest.param({"num_workers": 1, "multiprocessing_context": "spawn"}, id="1-spawned"),
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
        return node.new_session()


def made(log: Log) -> list[str]:
    return sorted(log.take(), key=int)


def batches(loader: Any) -> list[tuple[int, int]]:
    return [pair for arrays, numbers in loader for pair in values(zip(arrays, numbers, strict=True))]


shift = 0


def shifted(sample: tuple[Any, int]) -> int:
    return sample[1] + shift


def double(sample: tuple[Any, int]) -> tuple[Any, int]:
    return sample[0] * np.uint8(2), sample[1]


def tripled(sample: tuple[Any, int]) -> tuple[Any, int]:
    return sample[0] * np.uint8(3), sample[1]


def times(factor: int) -> Any:
    return lambda sample: (sample[0] * np.uint8(factor), sample[1])


# ---------------------------------------------------------------- made once


@pytest.mark.parametrize(("make_loader", "workers"), crossed(LOADERS, WORKERS))
def test_each_sample_is_made_once(files: Files, log: Log, make_loader: Any, workers: dict[str, Any]) -> None:
    cached = prefeed.CachedDataset(files)
    loader = make_loader(cached, **workers)
    epochs = 2 if "multiprocessing_context" in workers else 3  # these import torch each time
    assert [batches(loader) for _ in range(epochs)] == [ALL] * epochs
    assert made(log) == NAMES
    found = cached.get_stat()
    assert (found.num_mem_cached, found.hits, found.misses) == (NUM_SAMPLES, (epochs - 1) * NUM_SAMPLES, NUM_SAMPLES)
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


@pytest.mark.parametrize(("make_loader", "workers"), crossed(LOADERS, WORKERS[:3]))
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
        values(prefeed.mapped(files, fn, prefeed.DatasetCache(session)))[9]
        for fn in (double, times(2), times(3), times(3), double)
    ]
    assert seen == [(18, 9), (18, 9), (27, 9), (27, 9), (18, 9)]
    assert log.take().count("9") == 3
    with NodeClient.connect(current()) as node:
        (found,) = [one for one in list_sessions(node.connection) if one.session == session]
    assert sorted(cache.memory_entries for cache in found.caches) == [NUM_SAMPLES] * 3


def test_a_version_is_all_that_counts(files: Files, log: Log, session: int, caplog: pytest.LogCaptureFixture) -> None:
    def mapped(factor: int, version: str) -> Any:
        return prefeed.mapped(files, times(factor), prefeed.DatasetCache(session), version=version)

    assert [mapped(2, "1")[9][0][0], mapped(2, "2")[9][0][0]] == [18, 18]
    assert log.take() == ["9"] * 2
    found = [mapped(3, "1")[9][0][0] for _ in range(2)]
    assert found == [27, 27]  # an audit finds it
    assert caplog.text.count("stage-audit-failed: sample 9 of ") == 1
    assert [prefeed.CachedDataset(Locked(2), version="1")[1] for _ in range(2)] == [2, 2]
    with pytest.raises(CannotFingerprintError, match=r"Locked\.lock is a _thread\.lock.*version="):
        prefeed.CachedDataset(Locked(2))


class Locked:
    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index * self.factor


def test_stages_above_see_changes_below(files: Files, log: Log) -> None:
    inner = prefeed.CachedDataset(files)
    outer = prefeed.mapped(inner, double, prefeed.DatasetCache.default())
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
    assert read() == [99, before[1]]
    prefeed.datasets._readers.close()


class Around:
    """A dataset of somebody's own over any other."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


def test_a_wrapper_over_a_cached_dataset_is_told_by_which_samples_that_has(files: Files) -> None:
    training, validation = (
        prefeed.CachedDataset(Around(prefeed.CachedDataset(Subset(files, chosen)))) for chosen in ([0, 1], [5, 6])
    )
    assert values(training[index] for index in (0, 1)) == [(0, 0), (1, 1)]
    assert values(validation[index] for index in (0, 1)) == [(5, 5), (6, 6)]


def test_a_file_that_sorts_first_below_a_wrapper(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "images")

    def read() -> Any:
        folder = datasets.ImageFolder(str(root), transforms.Compose([transforms.Resize(32), transforms.ToTensor()]))
        return folder, prefeed.CachedDataset(Around(prefeed.CachedDataset(folder)))

    folder, cached = read()
    assert cached[0][0].equal(folder[0][0])
    Image.new("RGB", (64, 64), "red").save(Path(folder.samples[0][0]).parent / "0-first.jpg")
    folder, cached = read()
    assert cached[0][0].equal(folder[0][0])


def test_a_relative_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Relative:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> str:
            return Path("data", str(index)).read_text()

    for name in ("a", "b"):
        (tmp_path / name / "data").mkdir(parents=True)
        for index in range(2):
            (tmp_path / name / "data" / str(index)).write_text(f"{name}{index}")
    monkeypatch.chdir(tmp_path / "a")
    cached = prefeed.CachedDataset(Relative())
    assert [cached[0], cached[0]] == ["a0", "a0"]
    monkeypatch.chdir(tmp_path / "b")
    assert [cached[0], prefeed.CachedDataset(Relative())[0]] == ["b0", "b0"]


class Named:
    """Asked by other things than numbers."""

    made = 0

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        Named.made += not is_checking()
        return float(np.sum(index)) if isinstance(index, np.ndarray) else str(type(index))


def test_any_index_counts_as_a_whole_and_one_that_cannot_be_told_is_not_kept() -> None:
    cached = prefeed.CachedDataset(Named())
    first, second = np.zeros(5000), np.zeros(5000)
    second[2500] = 1
    assert [cached[first], cached[second], cached[first], cached[second]] == [0, 1, 0, 1]
    before = Named.made
    lock = threading.Lock()
    assert cached.samples([first, lock, second]) == [0, str(type(lock)), 1]
    assert Named.made == before + 1
    assert cached.get_stat().num_mem_cached == 2


# ---------------------------------------------------------------- set anew


@pytest.mark.parametrize(
    ("make_loader", "workers"),
    crossed(LOADERS, [*WORKERS[:2], WORKERS[3]]),  # kept ones have a dataset of their own
)
def test_an_attribute_that_is_set_again(files: Files, log: Log, make_loader: Any, workers: dict[str, Any]) -> None:
    cached = prefeed.CachedDataset(Subset(files, range(8)))
    loader = make_loader(cached, **workers)
    assert batches(loader) == ALL[:8]
    files.times = 3
    expected = [(3 * index, index) for index in range(8)]
    assert batches(loader) == expected
    log.take()
    files.times = 1
    assert batches(loader) == ALL[:8]
    assert log.take() == []
    assert cached.get_stat().num_mem_cached == 8


@pytest.mark.parametrize("explicit", [False, True])
def test_what_is_set_again_does_not_change_what_others_find(files: Files, session: int, explicit: bool) -> None:
    def cache() -> Any:
        return prefeed.DatasetCache(session) if explicit else None

    inner = prefeed.CachedDataset(files, cache())
    outer = prefeed.mapped(inner, double, prefeed.DatasetCache.default())
    assert values([inner[3], outer[3]]) == [(3, 3), (6, 3)]
    files.times = 10
    assert values([outer[3], inner[3], outer[4], inner[4]]) == [(60, 3), (30, 3), (80, 4), (40, 4)]
    files.times = 1
    assert values(prefeed.CachedDataset(files, cache())[index] for index in (3, 4)) == [(3, 3), (4, 4)]


def test_another_function_and_a_random_one(files: Files, log: Log, session: int) -> None:
    mapped: Any = prefeed.mapped(files, double)
    cached = prefeed.CachedDataset(mapped, prefeed.DatasetCache(session))
    assert values([cached[2]]) == [(4, 2)]
    mapped.fn = times(3)
    assert values([cached[2], cached[2]]) == [(6, 2)] * 2
    mapped.fn = lambda sample: (sample[0] * np.uint8(random.randint(5, 5)), sample[1])
    with pytest.raises(RandomStageError, match="draws from random"):
        cached[2]
    mapped.fn = double
    log.take()
    assert values([cached[2]]) == [(4, 2)]
    assert log.take() == []


class Opening(Files):
    """Opens something late, and counts."""

    handle: Any = None
    count = 0

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.handle = self.handle or threading.Lock()
        self.count += 1
        return super().__getitem__(index)


def test_what_changes_by_itself_is_no_other_dataset(files: Files, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    opening = Opening(files.root, NUM_SAMPLES, log)
    first, second = prefeed.CachedDataset(opening), prefeed.CachedDataset(Subset(opening, range(8)))
    assert values(first[index] for index in range(8)) == ALL[:8]
    assert values(second) == ALL[:8]
    assert made(log) == NAMES[:8]
    assert values(prefeed.CachedDataset(Opening(files.root, NUM_SAMPLES, log))[index] for index in range(8)) == ALL[:8]
    assert log.take() == []
    assert "cached any more" not in caplog.text


# ---------------------------------------------------------------- what cannot be kept


class Late:
    """From some sample on, what it makes cannot be encoded."""

    def __init__(self, since: int) -> None:
        self.since = since

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return index if index < self.since else threading.Lock()


def test_a_late_sample_that_cannot_be_encoded_is_returned(caplog: pytest.LogCaptureFixture) -> None:
    cached = prefeed.CachedDataset(Late(20))
    assert cached.samples(range(20)) == list(range(20))
    for index in range(20, 40):
        assert type(cached[index]) is type(threading.Lock())
    assert caplog.text.count("is not kept") == 1
    assert cached.get_stat().num_mem_cached == 20
    with pytest.raises(CannotEncodeError, match=r"type _thread\.lock cannot be cached, because it cannot be pickled"):
        prefeed.CachedDataset(Late(0))[0]


def test_a_sample_that_cannot_be_unpickled_is_refused() -> None:
    bags = prefeed.mapped([1, 2, 3], Bag, prefeed.DatasetCache.default())
    with pytest.raises(CannotEncodeError, match="cannot be unpickled"):
        bags[0]


# ---------------------------------------------------------------- chance


class Bystander:
    """Something else draws while samples are made."""

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = numbers
        self.times = dict.fromkeys(range(40), 0)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.times[index] += not is_checking()
        if index in self.numbers:
            thread = threading.Thread(target=getattr(__import__("random"), "ran" + "dom"))
            thread.start()
            thread.join()
            if index % 2:
                self.numbers.remove(index)
        return index


def test_a_number_that_somebody_else_draws_refuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Bystander({1})
    cached = prefeed.CachedDataset(dataset, version="1")
    assert [cached[1], cached[1], dataset.times[1]] == [1, 1, 2]  # once more, and then it was kept
    stop = threading.Event()
    other = threading.Thread(target=stop.wait, args=(60,))
    other.start()
    try:
        dataset.numbers |= {2, 4}
        assert [cached[2], cached[2], cached[4], cached[3], cached[3]] == [2, 2, 4, 3, 3]
    finally:
        stop.set()
        other.join()
    assert [dataset.times[index] for index in (2, 3, 4)] == [4, 1, 2]
    assert caplog.text.count("by it or by another thread") == 1
    with pytest.raises(RandomStageError):
        cached[2]


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
    cached = prefeed.CachedDataset(datasets.ImageFolder(str(make_image_folder(tmp_path / "images")), transform))
    for _ in range(2):
        with pytest.raises(RandomStageError, match=r"ImageFolder\(.* draws from .*prefeed\.not_random"):
            cached[0]
    assert cached.get_stat().num_mem_cached == 0


def test_a_stage_that_hides_its_draws_is_found_out(tmp_path: Path) -> None:
    names = {"library": "random", "function": "random"}

    def hidden(sample: Any) -> Any:
        return sample + getattr(__import__(names["library"]), names["function"])()

    cached = prefeed.mapped(range(3), hidden, prefeed.DatasetCache.default(), version="1")
    with pytest.raises(RandomStageError, match="draws"):
        cached[0]


def test_a_random_step_above_stays_random(files: Files) -> None:
    def shifted(sample: tuple[Any, int]) -> float:
        return float(sample[0][0]) + random.random()

    pipeline = prefeed.mapped(prefeed.CachedDataset(files), shifted)
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

    cached = prefeed.mapped(files, noisy, prefeed.DatasetCache.default())
    assert cached[0] == cached[0]


def test_a_global_that_is_set_again_as_in_a_notebook(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = prefeed.CachedDataset(prefeed.mapped(files, shifted))
    loader = prefeed.DataLoader(cached, batch_size=4, num_workers=2)
    for number in (0, 100, 0):
        monkeypatch.setitem(globals(), "shift", number)
        assert [cached[index] for index in (3, 4)] == [3 + number, 4 + number]
        assert torch.cat(list(loader)).tolist() == [index + number for index in range(NUM_SAMPLES)]


# ---------------------------------------------------------------- sessions


def test_statistics_need_no_server(files: Files, session: int) -> None:
    cached = prefeed.CachedDataset(files, prefeed.DatasetCache(session))
    values(cached)
    with NodeClient.connect(current(), autostart=False) as node:
        node.drop_sessions([session])
    assert cached.get_stat().num_mem_cached == 0
    stop_server()
    assert cached.get_stat() == CacheStatistics(avg_cache_sz=0, num_mem_cached=0, num_disk_cached=0, hits=0, misses=0)


def test_an_unknown_session_is_refused(files: Files) -> None:
    with pytest.raises(SessionNotFoundError, match="cache_admin -g"):
        prefeed.CachedDataset(files, prefeed.DatasetCache(4242))


def test_a_size_that_no_machine_has_is_said(files: Files, session: int, caplog: pytest.LogCaptureFixture) -> None:
    cached = prefeed.CachedDataset(files, prefeed.DatasetCache(session, size=10**6))
    assert values(cached) == values(cached) == ALL
    assert caplog.text.count("asked for with size=1000000, which is in MB: 976.56 GiB") == 1


def test_one_cache_is_of_one_pipeline(files: Files, session: int) -> None:
    cache = prefeed.DatasetCache(session)
    with pytest.raises(CacheNotInUseError):
        cache.get_stat()
    prefeed.CachedDataset(files, cache)
    prefeed.CachedDataset(files, cache)
    with pytest.raises(CacheInUseError):
        prefeed.mapped(files, double, cache)


@pytest.mark.parametrize(("make_loader", "workers"), crossed(LOADERS, WORKERS[:3]))
def test_a_dropped_session_is_not_missed(
    files: Files, log: Log, session: int, make_loader: Any, workers: dict[str, Any]
) -> None:
    cached = prefeed.CachedDataset(files, prefeed.DatasetCache(session))
    loader = make_loader(cached, **workers)
    assert batches(loader) == ALL
    with NodeClient.connect(current()) as node:
        node.drop_sessions([session])
    log.take()
    assert batches(loader) == ALL
    assert made(log) == NAMES


@pytest.mark.parametrize(("make_loader", "workers"), crossed(LOADERS, WORKERS[:3]))
def test_a_stopped_server_is_not_missed(files: Files, make_loader: Any, workers: dict[str, Any]) -> None:
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
