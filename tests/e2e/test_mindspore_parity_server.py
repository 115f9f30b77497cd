"""MindSpore's tests of its cache in C++, under the same names in this language's spelling.

``CacheOpTest.TestCacheServer`` is ``test_cache_server``, ``TestCacheCocoCApi`` is ``test_c_api[Coco]``.
docs/mindspore-parity.md lists them all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

import prefeed
from e2e import parity_readers as readers
from e2e.parity import (
    assert_cached,
    assert_counts,
    assert_same_rows,
    caches_of,
    drop_session,
    make_session,
    rows,
    same,
)
from e2e.parity_readers import RandomData, decode, folder, rescale, write_folder
from prefeed.errors import CacheInUseError, SessionNotFoundError


@pytest.fixture
def session() -> int:
    return make_session()


def noise(count: int, shape: tuple[int, ...]) -> Any:
    return prefeed.not_random(RandomData(count, shape))


def test_cache_server(session: int) -> None:
    """Made, written, read and compared, listed, destroyed."""
    row = {"picture": np.arange(48, dtype=np.int32).reshape(4, 4, 3), "label": 7, "name": "a cat"}
    cached = prefeed.CachedDataset([row], prefeed.DatasetCache(session))
    assert same(cached[0], row)
    again = prefeed.CachedDataset([row], prefeed.DatasetCache(session))
    assert same(again[0], row)
    (found,) = caches_of(session)
    assert (found.memory_entries, found.hits, found.misses) == (1, 1, 1)
    assert found.memory_bytes > row["picture"].nbytes  # type: ignore[attr-defined]
    drop_session(session)
    with pytest.raises(SessionNotFoundError):
        prefeed.CachedDataset([row], prefeed.DatasetCache(session))
    assert same(cached[0], row)


def test_concurrency_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten threads write 150 rows each into 1 MB that spills; each of the 1500 is read back as it was."""
    monkeypatch.setenv("PREFEED_DISK", "256MiB")
    cache = prefeed.DatasetCache(make_session(), size=1, spilling=True)
    cached = prefeed.CachedDataset(noise(1500, (40, 50)), cache)

    def write(first: int) -> None:
        for index in range(first, first + 150):
            cached[index]

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(write, range(0, 1500, 150)))
    assert_same_rows(rows(cached), rows(cached.dataset))
    found = cached.get_stat()
    assert (found.hits, found.misses) == (1500, 1500)
    assert found.num_disk_cached > 900


def test_image_folder_cache_merge(tmp_path: Path, session: int) -> None:
    """Rows that are in the cache and rows that are not, merged in the order that was asked for."""
    pictures = folder(write_folder(tmp_path / "data", 10))
    cached = prefeed.CachedDataset(pictures, prefeed.DatasetCache(session))
    for index in (1, 2, 5, 8):
        cached[index]
    expected = rows(pictures)
    order = [9, 1, 0, 5, 8, 3, 2, 4, 6, 7]
    assert_same_rows(cached.__getitems__(order), [expected[index] for index in order])
    assert_counts(cached, rows=10, hits=4)


C_API = {
    "ImageFolder": lambda root: folder(write_folder(root, 8)),
    "Coco": readers.coco,
    "Mnist": readers.mnist,
    "Celeba": readers.celeba,
    "Manifest": readers.manifest,
    "Cifar10": readers.cifar10,
    "Cifar100": readers.cifar100,
    "Voc": readers.voc,
    "Album": readers.album,
    "MindRecord": readers.mindrecord,
    "Textfile": readers.textfile,
    "Csv": readers.csv_file,
    "Clue": readers.clue,
}


@pytest.mark.parametrize("name", C_API)
def test_c_api(tmp_path: Path, session: int, name: str) -> None:
    plain = C_API[name](tmp_path / "data")
    assert_cached(prefeed.CachedDataset(plain, prefeed.DatasetCache(session)), rows(plain), epochs=3)


def test_cache_nested_cache_c_api(tmp_path: Path, session: int) -> None:
    """Refused there."""
    pictures = folder(write_folder(tmp_path / "data", 4))
    inner = prefeed.CachedDataset(pictures, prefeed.DatasetCache(session))
    outer = prefeed.mapped(inner, decode, prefeed.DatasetCache(session))
    assert_cached(outer, [decode(row) for row in rows(pictures)])


def test_cache_random_data_c_api(session: int) -> None:
    assert_cached(prefeed.CachedDataset(noise(4, (3, 2)), prefeed.DatasetCache(session)), rows(noise(4, (3, 2))))


def test_random_data_cache_c_api1(session: int) -> None:
    """200 rows, four times over; pictures of 64 by 48 instead of 640 by 480."""
    plain = noise(200, (48, 64, 3))
    assert_cached(prefeed.CachedDataset(plain, prefeed.DatasetCache(session)), rows(plain), epochs=4)


def test_random_data_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MB, and 10 rows of a megabyte: all are kept."""
    monkeypatch.setenv("PREFEED_DISK", "256MiB")
    plain = noise(10, (640, 480, 3))
    cached = prefeed.CachedDataset(plain, prefeed.DatasetCache(make_session(), size=4, spilling=True))
    for _ in range(4):
        assert_same_rows(rows(cached), rows(plain))
    found = cached.get_stat()
    assert (found.hits, found.misses) == (30, 10)
    assert 2 <= found.num_mem_cached <= 4
    assert found.num_mem_cached + found.num_disk_cached >= 10


def test_cache_tf_record_c_api1(tmp_path: Path, session: int) -> None:
    """Over the reader."""
    plain = readers.tfrecord(tmp_path / "data")
    assert_cached(prefeed.CachedDataset(plain, prefeed.DatasetCache(session)), rows(plain))


def test_cache_tf_record_c_api2(tmp_path: Path, session: int) -> None:
    """Over a shard of several files."""
    first, second = (readers.tfrecord(tmp_path / name, 5) for name in ("one", "two"))
    joined = ConcatDataset([first, second])
    shard = Subset(joined, range(1, 10, 2))
    cached = prefeed.CachedDataset(shard, prefeed.DatasetCache(session))
    assert_cached(cached, [joined[index] for index in range(1, 10, 2)])


def test_cache_tf_record_c_api3(tmp_path: Path, session: int) -> None:
    """As many samples as were asked for."""
    plain = Subset(readers.tfrecord(tmp_path / "data"), range(2))
    assert_cached(prefeed.CachedDataset(plain, prefeed.DatasetCache(session)), rows(plain))


def test_cache_share1(tmp_path: Path, session: int) -> None:
    """Two pipelines with one cache object."""
    pictures = folder(write_folder(tmp_path / "data", 6))
    cache = prefeed.DatasetCache(session)
    for run in range(2):
        cached = prefeed.CachedDataset(pictures, cache)
        assert_same_rows(rows(cached), rows(pictures))
        assert_counts(cached, rows=6, hits=6 * run)


def test_cache_share2(tmp_path: Path, session: int) -> None:
    """Two pipelines with one cache object and different shards."""
    pictures = folder(write_folder(tmp_path / "data", 6))
    cache = prefeed.DatasetCache(session)
    for shard in (range(0, 6, 2), range(1, 6, 2)):
        cached = prefeed.CachedDataset(Subset(pictures, shard), cache)
        assert_same_rows(rows(cached), [pictures[index] for index in shard])
    assert_counts(cached, rows=6, hits=0)


def test_cache_share_failure1(tmp_path: Path, session: int) -> None:
    """Two different pipelines with one cache object."""
    pictures = folder(write_folder(tmp_path / "data", 6))
    cache = prefeed.DatasetCache(session)
    prefeed.mapped(pictures, decode, cache)
    with pytest.raises(CacheInUseError):
        prefeed.mapped(pictures, decode_and_rescale, cache)


def decode_and_rescale(row: Any) -> Any:
    return rescale(decode(row))
