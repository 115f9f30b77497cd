"""MindSpore's tests of its cache over streams (TFRecord, CSV, text, ...), under the same names.

Here such files are read by index, so nothing has to be in the cache before the first row comes, and a full cache is no
error. docs/mindspore-parity.md lists all cases, those of them that have no meaning here too.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, DistributedSampler, StackDataset, Subset

import prefeed
from e2e import parity_readers as readers
from e2e.parity import (
    Endless,
    assert_cached,
    assert_counts,
    assert_same_rows,
    caches_of,
    drop_session,
    keep,
    loaded,
    make_session,
    rows,
    run_jobs,
    same,
    stop_server,
)
from e2e.parity_job import digest
from e2e.parity_readers import RandomData, decode, decode_and_resize, folder, write_folder
from limits import set_limits
from prefeed.errors import CacheInUseError, CacheNotInUseError, RandomStageError

NUM_ROWS = 12


@pytest.fixture
def session() -> int:
    return make_session()


@pytest.fixture
def records(tmp_path: Path) -> Any:
    """A TFRecord file, read by index."""
    return readers.tfrecord(tmp_path / "data", NUM_ROWS)


def as_pixels(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8).reshape(8, 8, 3)


def as_floats(image: Any) -> Any:
    return torch.from_numpy(image / np.float32(255))


def over_leaf(dataset: Any, session: int) -> tuple[Any, Any]:
    """Return a pipeline of a cached reader and a step above it, and its cached stage."""
    cached = prefeed.CachedDataset(dataset, prefeed.DatasetCache(session))
    return prefeed.mapped(cached, as_pixels), cached


def over_map(dataset: Any, session: int) -> tuple[Any, Any]:
    cached = prefeed.mapped(dataset, as_pixels, prefeed.DatasetCache(session))
    return cached, cached


IN_BOTH = pytest.mark.parametrize("over", [over_leaf, over_map], ids=["leaf", "map"])


def in_order(records: Any) -> list[Any]:
    return [as_pixels(row) for row in rows(records)]


# ---------------------------------------------------------------- what a cache is


def noise(count: int, shape: tuple[int, ...] = (40, 50, 3)) -> Any:
    return prefeed.not_random(RandomData(count, shape))


def test_basic1(session: int) -> None:
    """Random data, marked as the same each time."""
    assert_cached(prefeed.CachedDataset(noise(10), prefeed.DatasetCache(session)), rows(noise(10)), epochs=4)


def test_basic2(session: int) -> None:
    """The same with a map under the cache."""
    cached = prefeed.mapped(noise(10), doubled, prefeed.DatasetCache(session))
    assert_cached(cached, [doubled(row) for row in rows(noise(10))], epochs=4)


def doubled(row: Any) -> Any:
    return row[0] * 2, row[1]


def test_basic3(records: Any, session: int) -> None:
    """TFRecord, cache, map."""
    pipeline, cached = over_leaf(records, session)
    for _ in range(2):
        assert_same_rows(loaded(pipeline), in_order(records))
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


def test_basic4(records: Any, session: int) -> None:
    """TFRecord, map, cache, shuffled by its loader: the order is the same with the cache and without."""
    plain = prefeed.mapped(records, as_pixels)
    cached = over_map(records, session)[1]
    for _ in range(2):
        orders = []
        for dataset in (plain, cached):
            torch.manual_seed(5)
            orders.append(loaded(dataset, shuffle=True))
        assert_same_rows(orders[1], orders[0])
    assert not same(orders[0], in_order(records))


def test_basic5(records: Any, session: int) -> None:
    """Nobody asked for a shuffle: rows come in the order of the file, from the first epoch on."""
    pipeline, cached = over_leaf(records, session)
    assert_same_rows(loaded(pipeline, num_workers=2), in_order(records))
    assert_counts(cached, rows=NUM_ROWS, hits=0)


def shard_of(dataset: Any, number: int, count: int = 3) -> Any:
    """Return the loader's rows of one rank of several."""
    return loaded(dataset, sampler=DistributedSampler(dataset, count, number, shuffle=False))


def test_basic6(records: Any, session: int) -> None:
    """A shard above the cache: only its 4 rows are made and held."""
    pipeline, cached = over_leaf(records, session)
    for _ in range(2):
        assert_same_rows(shard_of(pipeline, 2), in_order(records)[2::3])
    assert_counts(cached, rows=4, hits=4)


def test_basic7(records: Any, session: int) -> None:
    """Shuffled, with a step above the cache."""
    pipeline, cached = over_leaf(records, session)
    torch.manual_seed(1)
    found = loaded(pipeline, shuffle=True)
    assert sorted(map(digest, found)) == sorted(map(digest, in_order(records)))
    assert_counts(cached, rows=NUM_ROWS, hits=0)


def test_basic8(records: Any, session: int) -> None:
    """The cache is the root."""
    assert_cached(prefeed.CachedDataset(records, prefeed.DatasetCache(session)), rows(records))


def test_basic9(session: int) -> None:
    """A cache that no pipeline uses has no statistics."""
    with pytest.raises(CacheNotInUseError, match="not in use yet"):
        prefeed.DatasetCache(session).get_stat()


# ---------------------------------------------------------------- who shares


def test_allowed_share1(records: Any, session: int) -> None:
    """Different steps above the cache."""
    first, cached = over_leaf(records, session)
    again = prefeed.CachedDataset(records, prefeed.DatasetCache(session))
    second = prefeed.mapped(prefeed.mapped(again, as_pixels), as_floats)
    assert_same_rows(rows(first), in_order(records))
    assert_same_rows(rows(second), [as_floats(image) for image in in_order(records)])
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)
    assert len(caches_of(session)) == 1


def test_allowed_share2(records: Any, session: int) -> None:
    """The same with a step below."""
    first = over_map(records, session)[1]
    second = prefeed.mapped(over_map(records, session)[1], as_floats)
    assert_same_rows(rows(first), in_order(records))
    assert_same_rows(rows(second), [as_floats(image) for image in in_order(records)])
    assert_counts(first, rows=NUM_ROWS, hits=NUM_ROWS)
    assert len(caches_of(session)) == 1


def test_allowed_share3(records: Any, session: int) -> None:
    """Different shards of one cache, whether they are chosen above it or below it."""
    for number in (0, 1):
        assert_same_rows(shard_of(over_map(records, session)[1], number, 2), in_order(records)[number::2])
    below = prefeed.mapped(Subset(records, range(1, NUM_ROWS, 2)), as_pixels, prefeed.DatasetCache(session))
    assert_same_rows(rows(below), in_order(records)[1::2])
    assert_counts(below, rows=NUM_ROWS, hits=NUM_ROWS // 2)
    assert len(caches_of(session)) == 1


def test_allowed_share4(records: Any, session: int) -> None:
    """Different numbers of workers."""
    for num_workers in (1, 2):
        pipeline, cached = over_map(records, session)
        assert_same_rows(loaded(pipeline, num_workers=num_workers), in_order(records))
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


def as_reversed(data: bytes) -> Any:
    return as_pixels(data)[::-1].copy()


def test_disallowed_share1(records: Any, session: int) -> None:
    """Different steps below: one cache object is refused, two objects are two caches."""
    cache = prefeed.DatasetCache(session)
    first = prefeed.mapped(records, as_pixels, cache)
    with pytest.raises(CacheInUseError, match="another pipeline"):
        prefeed.mapped(records, as_reversed, cache)
    second = prefeed.mapped(records, as_reversed, prefeed.DatasetCache(session))
    assert_cached(first, in_order(records))
    assert_cached(second, [as_reversed(row) for row in rows(records)])
    assert len(caches_of(session)) == 2


def test_running_twice1(records: Any, session: int) -> None:
    """The same pipeline, built twice in one script."""
    for run in range(2):
        pipeline, cached = over_map(records, session)
        assert_same_rows(loaded(pipeline), in_order(records))
        assert_counts(cached, rows=NUM_ROWS, hits=run * NUM_ROWS)


def record_job(records: Any, session: int, **what: Any) -> dict[str, Any]:
    """Return what reads the frames of a TFRecord file in a process of its own."""
    head, size = records.stretches[0]
    frame_bytes = head + size + 4
    return {
        "kind": "records", "root": records.path, "count": len(records), "record_bytes": frame_bytes,
        "session": session, **what,
    }  # fmt: skip


def frames(records: Any) -> list[str]:
    """Return digests of all frames of the file."""
    data = Path(records.path).read_bytes()
    size = len(data) // len(records)
    return [digest(data[at : at + size]) for at in range(0, len(data), size)]


def test_running_twice2(records: Any, session: int) -> None:
    """The same script run twice in one session, then in another."""
    runs = [run_jobs(record_job(records, one))[0] for one in (session, session, make_session())]
    assert [(run["held"], run["hits"]) for run in runs] == [(NUM_ROWS, 0), (NUM_ROWS, NUM_ROWS), (NUM_ROWS, 0)]
    assert all(run["rows"] == [frames(records)] for run in runs)


# ---------------------------------------------------------------- small caches


def test_extra_small_size1(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MB and spilling: all rows are kept."""
    monkeypatch.setenv("PREFEED_DISK", "256MiB")
    cache = prefeed.DatasetCache(make_session(), size=1, spilling=True)
    cached = prefeed.CachedDataset(noise(NUM_ROWS, (300, 300, 3)), cache)
    for _ in range(2):
        assert_same_rows(rows(cached), rows(cached.dataset))
    found = cached.get_stat()
    assert (found.hits, found.misses) == (NUM_ROWS, NUM_ROWS)
    assert 0 < found.num_mem_cached < NUM_ROWS
    assert found.num_mem_cached + found.num_disk_cached >= NUM_ROWS


def test_extra_small_size2(session: int) -> None:
    """1 MB without spilling, an error there: here the rest is made each time."""
    cached = prefeed.CachedDataset(noise(NUM_ROWS, (300, 300, 3)), prefeed.DatasetCache(session, size=1))
    for _ in range(2):
        assert_same_rows(rows(cached), rows(cached.dataset))
    found = cached.get_stat()
    assert 0 < found.num_mem_cached < NUM_ROWS
    assert (found.hits, found.misses) == (found.num_mem_cached, 2 * NUM_ROWS - found.num_mem_cached)


def test_long_file_list(tmp_path: Path, session: int) -> None:
    """A thousand files and 1 MB, out of memory there."""
    for index in range(1000):
        readers.write_text(tmp_path / "files" / f"{index:04}.txt", f"{index}\n" * 2000)
    texts = readers.folder_of_texts(tmp_path / "files")
    cached = prefeed.CachedDataset(texts, prefeed.DatasetCache(session, size=1))
    for _ in range(2):
        assert [text[:5].split()[0] for text in loaded(cached, batch_size=50)] == [str(i) for i in range(1000)]
    found = cached.get_stat()
    assert 0 < found.num_mem_cached < 200
    assert found.num_mem_cached * found.avg_cache_sz < 1024**2


def test_all_rows_cached(session: int) -> None:
    """271 rows are all held after an epoch; here rows are given out while it fills."""
    cached = prefeed.CachedDataset(noise(271, (16, 16, 3)), prefeed.DatasetCache(session))
    assert len(loaded(cached, num_workers=2, batch_size=10)) == 271
    assert_counts(cached, rows=271, hits=0)


# ---------------------------------------------------------------- at once


def parallel_pipeline(root: Path, session: int, **what: Any) -> None:
    """Three processes at once, 4 rows each."""
    write_folder(root, NUM_ROWS)
    shards = [{"root": str(root), "session": session, "shard": [number, 3], **what} for number in range(3)]
    runs = run_jobs(*shards)
    expected = [digest(decode_and_resize(row)) for row in rows(folder(root))]
    assert [run["rows"] for run in runs] == [[expected[number::3]] for number in range(3)]
    (found,) = caches_of(session)
    assert (found.memory_entries, found.hits, found.misses) == (NUM_ROWS, 0, NUM_ROWS)


def test_parallel_pipeline1(tmp_path: Path, session: int) -> None:
    parallel_pipeline(tmp_path / "data", session, above=["resize"])


def test_parallel_pipeline2(tmp_path: Path, session: int) -> None:
    parallel_pipeline(tmp_path / "data", session, below=["resize"])


@IN_BOTH
def test_parallel_workers(records: Any, session: int, over: Any) -> None:
    pipeline, cached = over(records, session)
    for _ in range(2):
        assert_same_rows(loaded(pipeline, num_workers=4, batch_size=1), in_order(records))
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


def server_workers(records: Any, monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    set_limits(monkeypatch, max_in_flight=int(count))  # cache_admin --start -w
    assert_cached(over_map(records, make_session())[1], in_order(records))


def test_server_workers_1(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server_workers(records, monkeypatch, "1")


def test_server_workers_100(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server_workers(records, monkeypatch, "100")


def with_argument(records: Any, session: int, **arguments: int) -> None:
    assert_cached(prefeed.mapped(records, as_pixels, prefeed.DatasetCache(session, **arguments)), in_order(records))


def test_num_connections_1(records: Any, session: int) -> None:
    with_argument(records, session, num_connections=1)


def test_num_connections_100(records: Any, session: int) -> None:
    with_argument(records, session, num_connections=100)


def test_prefetch_size_1(records: Any, session: int) -> None:
    with_argument(records, session, prefetch_size=1)


def test_prefetch_size_100(records: Any, session: int) -> None:
    with_argument(records, session, prefetch_size=100)


def test_to_device(records: Any, session: int) -> None:
    """Their device queue is pinned memory and a copy here; without a device, the copy is none."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cached = over_map(records, session)[1]
    loader = prefeed.DataLoader(cached, batch_size=NUM_ROWS, pin_memory=device == "cuda")
    for _ in range(2):
        (images,) = [batch.to(device) for batch in loader]
    assert np.array_equal(images.cpu().numpy(), np.stack(in_order(records)))
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


# ---------------------------------------------------------------- interrupted


def with_a_change(records: Any, session: int, change: Any) -> Any:
    """Change something after the first batches of an epoch; the run goes on to its end, and another one works."""
    cached = over_map(records, session)[1]
    loader = prefeed.DataLoader(cached, batch_size=2, collate_fn=keep)
    assert_same_rows([row for batch in loader for row in batch], in_order(records))
    batches = iter(loader)
    found = next(batches) + next(batches)
    change()
    for batch in batches:
        found += batch
    assert_same_rows(found, in_order(records))
    assert_same_rows([row for batch in loader for row in batch], in_order(records))
    return cached


def test_session_destroy(records: Any, session: int) -> None:
    """The session is destroyed during a run, which fails there."""
    with_a_change(records, session, lambda: drop_session(session))
    with pytest.raises(ValueError):
        caches_of(session)


def test_server_stop(records: Any, session: int) -> None:
    """The server is stopped during a run, which fails there."""
    with_a_change(records, session, stop_server)


def test_interrupt_and_rerun(session: int) -> None:
    """Left at the tenth row, then run to the end."""
    cached = prefeed.CachedDataset(noise(2000, (4,)), prefeed.DatasetCache(session))
    for _, _ in zip(range(10), DataLoader(cached, batch_size=None), strict=False):
        pass
    for _ in range(2):
        assert [row[1] for row in loaded(cached, batch_size=1000)] == list(range(2000))
    found = cached.get_stat()
    assert found.num_mem_cached == found.misses == 2000


# ---------------------------------------------------------------- epochs


@IN_BOTH
def test_epoch_ctrl1(records: Any, session: int, over: Any) -> None:
    pipeline, cached = over(records, session)
    for _ in range(5):
        assert_same_rows(loaded(pipeline), in_order(records))
    assert_counts(cached, rows=NUM_ROWS, hits=4 * NUM_ROWS)


def endless(pipeline: Any, cached: Any, expected: list[Any]) -> None:
    """Read epoch after epoch out of an iteration that never ends, and leave it."""
    loader = DataLoader(pipeline, batch_size=4, sampler=Endless(len(expected)), collate_fn=keep)
    read = itertools.chain.from_iterable(loader)
    for _ in range(3):
        assert_same_rows(list(itertools.islice(read, len(expected))), expected)
    assert (cached.get_stat().num_mem_cached, cached.get_stat().misses) == (NUM_ROWS, NUM_ROWS)


def test_epoch_ctrl2(records: Any, session: int) -> None:
    endless(*over_map(records, session), in_order(records))


def test_epoch_ctrl3(records: Any, session: int) -> None:
    pipeline, cached = over_leaf(records, session)
    endless(ConcatDataset([pipeline] * 2), cached, in_order(records) * 2)


def test_epoch_ctrl4(records: Any, session: int) -> None:
    """Repeated under the cache."""
    cached = prefeed.mapped(ConcatDataset([records] * 2), as_pixels, prefeed.DatasetCache(session))
    endless(cached, cached, in_order(records) * 2)


def test_nested_repeat(records: Any, session: int) -> None:
    """Repeated, cached, and the whole repeated again: 48 rows of 12."""
    cached = prefeed.mapped(ConcatDataset([records] * 2), as_pixels, prefeed.DatasetCache(session))
    assert_same_rows(loaded(ConcatDataset([cached] * 2)), in_order(records) * 4)
    assert_counts(cached, rows=NUM_ROWS, hits=3 * NUM_ROWS)


# ---------------------------------------------------------------- several caches


def test_multiple_cache1(tmp_path: Path, session: int) -> None:
    """One script, a cache for training and one for evaluation."""
    train = over_map(readers.tfrecord(tmp_path / "train", 12), session)[1]
    evaluation = over_map(readers.tfrecord(tmp_path / "eval", 3), session)[1]
    for _ in range(2):
        assert (len(loaded(train)), len(loaded(evaluation))) == (12, 3)
    assert_counts(train, rows=12, hits=12)
    assert_counts(evaluation, rows=3, hits=3)


def test_multiple_cache2(tmp_path: Path, session: int) -> None:
    """Pictures and texts, each with a cache, zipped above them."""
    pictures = folder(write_folder(tmp_path / "pictures", 3))
    texts = readers.textfile(tmp_path / "texts", 3)
    image_cache, text_cache = (prefeed.CachedDataset(one, prefeed.DatasetCache(session)) for one in (pictures, texts))
    for _ in range(2):
        assert_same_rows(
            rows(StackDataset(image_cache, text_cache)), list(zip(rows(pictures), rows(texts), strict=True))
        )
    assert_counts(image_cache, rows=3, hits=3)
    assert_counts(text_cache, rows=3, hits=3)


def test_multiple_cache3(records: Any, tmp_path: Path, session: int) -> None:
    """Records and a folder."""
    pictures = folder(write_folder(tmp_path / "pictures", 8))
    of_folder = prefeed.CachedDataset(pictures, prefeed.DatasetCache(session))
    of_records = over_leaf(records, session)[1]
    assert_cached(of_folder, rows(pictures))
    assert_cached(of_records, rows(records))
    assert len(caches_of(session)) == 2


def train_and_evaluate(tmp_path: Path, session: int) -> list[Any]:
    """Run training and evaluation in two processes of one session, side by side."""
    train = {"root": str(write_folder(tmp_path / "train", 12)), "session": session, "below": ["resize"], "epochs": 3}
    evaluation = {"root": str(write_folder(tmp_path / "eval", 5)), "session": session, "below": ["decode"], "epochs": 3}
    return run_jobs(train, evaluation)


def assert_made_once(run: Any, root: Path, step: Any, count: int) -> None:
    expected = [digest(step(row)) for row in rows(folder(root))]
    assert run["rows"] == [expected] * 3
    assert (run["held"], run["hits"], run["misses"]) == (count, 2 * count, count)


def test_multiple_cache_train(tmp_path: Path, session: int) -> None:
    assert_made_once(train_and_evaluate(tmp_path, session)[0], tmp_path / "train", decode_and_resize, 12)


def test_multiple_cache_eval(tmp_path: Path, session: int) -> None:
    assert_made_once(train_and_evaluate(tmp_path, session)[1], tmp_path / "eval", decode, 5)


# ---------------------------------------------------------------- readers


READERS = [("clue", readers.clue), ("csv", readers.csv_file), ("textfile", readers.textfile)]
SHARDS = [pytest.param(write, id=f"{name}1") for name, write in READERS]
PARTS = [pytest.param(write, id=f"{name}2") for name, write in READERS]


@pytest.mark.parametrize("write", SHARDS)
def test_reader_in_shards(tmp_path: Path, session: int, write: Any) -> None:
    """Two shards above the cache."""
    plain = write(tmp_path / "data", 4)
    cached = prefeed.CachedDataset(plain, prefeed.DatasetCache(session))
    for _ in range(2):
        assert [shard_of(cached, number, 2) for number in (0, 1)] == [rows(plain)[::2], rows(plain)[1::2]]
    assert_counts(cached, rows=4, hits=4)


@pytest.mark.parametrize("write", PARTS)
def test_reader_in_part(tmp_path: Path, session: int, write: Any) -> None:
    """``num_samples``, and a map under the cache."""
    plain = write(tmp_path / "data", 4)
    cached = prefeed.mapped(Subset(plain, range(2)), with_length, prefeed.DatasetCache(session))
    assert_cached(cached, [with_length(row) for row in rows(plain)[:2]])


def with_length(row: Any) -> Any:
    return row, len(row)


# ---------------------------------------------------------------- what theirs refuses


def test_failure1(records: Any, session: int) -> None:
    """A cache above a cache works."""
    inner = prefeed.CachedDataset(records, prefeed.DatasetCache(session))
    assert_cached(prefeed.mapped(inner, as_pixels, prefeed.DatasetCache(session)), in_order(records))


def test_failure2(records: Any, session: int) -> None:
    """Zipped under a cache."""
    cached = prefeed.CachedDataset(StackDataset(records, records), prefeed.DatasetCache(session))
    assert_cached(cached, [(row, row) for row in rows(records)])


class InBatches:
    """Sample i is a batch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.batches = list(BatchSampler(range(len(dataset)), 5, drop_last=False))

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return [self.dataset[at] for at in self.batches[index]]


def test_failure3(records: Any, session: int) -> None:
    """Batches under a cache."""
    whole = rows(records)
    assert_cached(prefeed.CachedDataset(InBatches(records), prefeed.DatasetCache(session)),
                  [whole[:5], whole[5:10], whole[10:]])  # fmt: skip


def test_failure4(records: Any, session: int) -> None:
    """A filter is a choice of indices."""
    chosen = [index for index, image in enumerate(in_order(records)) if image[0, 0, 0] > 100]
    assert 0 < len(chosen) < NUM_ROWS
    cached = prefeed.mapped(Subset(records, chosen), as_pixels, prefeed.DatasetCache(session))
    assert_cached(cached, [in_order(records)[index] for index in chosen])


def shaken(data: bytes) -> Any:
    return as_pixels(data) + random.randrange(9)


def test_failure5(records: Any, session: int) -> None:
    """A random step under a cache is refused."""
    with pytest.raises(RandomStageError, match=r"prefeed\.not_random"):
        prefeed.mapped(records, shaken, prefeed.DatasetCache(session))[0]


# ---------------------------------------------------------------- functions of Python


STEADY = random.Random(3)


def numbered(data: bytes) -> Any:
    STEADY.seed(len(data))
    return len(data), STEADY.randrange(10)


def test_pyfunc_lambda(records: Any, session: int) -> None:
    """A lambda needs no mark when it draws nothing; one that may draw needs it."""
    assert_cached(prefeed.mapped(records, lambda data: data[::2], prefeed.DatasetCache(session)),
                  [row[::2] for row in rows(records)])  # fmt: skip
    with pytest.raises(RandomStageError):
        prefeed.mapped(records, lambda data: (data, random.random()), prefeed.DatasetCache(session))[0]


def test_pyfunc_builtin(records: Any, session: int) -> None:
    """A builtin function."""
    assert_cached(prefeed.mapped(records, len, prefeed.DatasetCache(session)), [len(row) for row in rows(records)])


def test_pyfunc_function(records: Any, session: int) -> None:
    """A function that seeds its generator for each sample is cached, and so is one that is marked."""
    seeded = prefeed.mapped(records, numbered, prefeed.DatasetCache(session))
    assert_cached(seeded, [numbered(row) for row in rows(records)])
    marked = prefeed.mapped(records, marked_numbered, prefeed.DatasetCache(session))
    assert_cached(marked, [marked_numbered(row) for row in rows(records)])


@prefeed.not_random
def marked_numbered(data: bytes) -> Any:
    return numbered(data)


# ---------------------------------------------------------------- lengths


def test_dataset_size1(records: Any, session: int) -> None:
    cached = over_leaf(records, session)[1]
    assert (len(cached), len(loaded(cached)), len(cached)) == (NUM_ROWS, NUM_ROWS, NUM_ROWS)


def test_dataset_size2(records: Any, session: int) -> None:
    """With shards, and the cache over a map."""
    cached = over_map(records, session)[1]
    assert [len(shard_of(cached, number, 5)) for number in range(5)] == [3] * 5  # the sampler pads
    assert len(prefeed.DataLoader(cached, batch_size=5)) == 3


def test_get_repeat_count(records: Any, session: int) -> None:
    """Repeats are copies in a list here: their number is the list's."""
    repeated = ConcatDataset([over_map(records, session)[1]] * 3)
    assert (len(repeated.datasets), len(repeated)) == (3, 3 * NUM_ROWS)
