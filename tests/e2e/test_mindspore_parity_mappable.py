"""MindSpore's tests of its cache over data that is read by index, under the same names.

docs/mindspore-parity.md lists them all, those of them that have no meaning here too.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    StackDataset,
    Subset,
    random_split,
)
from torchvision import datasets
from torchvision.transforms import v2

import prefeed
from cover import crossed
from e2e import parity_readers as readers
from e2e.parity import (
    Endless,
    assert_cached,
    assert_counts,
    assert_same_rows,
    caches_of,
    jobs,
    keep,
    loaded,
    make_session,
    rows,
    run_jobs,
    same,
)
from e2e.parity_job import digest
from e2e.parity_readers import RandomData, decode, decode_and_resize, folder, rescale, write_folder
from limits import set_limits
from prefeed.errors import EmptyListingError, RandomStageError, SpillingDisabledError

NUM_ROWS = 8
IN_BOTH = pytest.mark.parametrize("cached_step", ["leaf", "map"])
"""Most cases come twice: with the cache over the reader, and over a map."""


@pytest.fixture
def session() -> int:
    return make_session()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "pictures", NUM_ROWS)


def over_leaf(dataset: Any, session: int, step: Any = decode) -> tuple[Any, Any]:
    """Return a pipeline of a cached reader and a step above it, and its cached stage."""
    cached = prefeed.CachedDataset(dataset, prefeed.DatasetCache(session))
    return prefeed.mapped(cached, step), cached


def over_map(dataset: Any, session: int, step: Any = decode) -> tuple[Any, Any]:
    cached = prefeed.mapped(dataset, step, prefeed.DatasetCache(session))
    return cached, cached


OVER = {"leaf": over_leaf, "map": over_map}


def decoded(root: Path) -> list[Any]:
    """Return the rows of a folder, decoded, as they are without any cache."""
    return [decode(row) for row in rows(folder(root))]


# ---------------------------------------------------------------- what a cache is


def test_basic1(root: Path, session: int) -> None:
    """Cache over the reader; decoded above it, four times over."""
    pipeline, cached = over_leaf(folder(root), session)
    assert_same_rows(loaded(ConcatDataset([pipeline] * 4)), decoded(root) * 4)
    assert_counts(cached, rows=NUM_ROWS, hits=3 * NUM_ROWS)


def test_basic2(root: Path, session: int) -> None:
    """Cache over decode: the same rows."""
    pipeline, cached = over_map(folder(root), session)
    assert_same_rows(loaded(ConcatDataset([pipeline] * 4)), decoded(root) * 4)
    assert_counts(cached, rows=NUM_ROWS, hits=3 * NUM_ROWS)


def test_basic3(root: Path, session: int) -> None:
    """Rows of different shapes."""
    expected = decoded(root)
    assert len({image.shape for image, _ in expected}) > 2
    assert_cached(over_map(folder(root), session)[0], expected)


def test_basic4(root: Path, session: int) -> None:
    """A random step above the cache stays random, and what is cached is left alone."""
    cached = over_map(folder(root), session)[1]
    pipeline = prefeed.mapped(cached, shifted)
    first, second = rows(pipeline), rows(pipeline)
    assert [row[1] for row in first] == [row[1] for row in decoded(root)]
    assert not same(first, second)
    assert_same_rows(rows(cached), decoded(root))
    assert_counts(cached, rows=NUM_ROWS, hits=2 * NUM_ROWS)


def shifted(row: Any) -> Any:
    return row[0] + np.uint8(random.randrange(1, 200)), row[1]


def test_basic5(root: Path, session: int) -> None:
    """The cache is the root of the pipeline, and read by nothing but its index."""
    cached = prefeed.CachedDataset(Subset(folder(root), [0, 1]), prefeed.DatasetCache(session))
    assert_cached(cached, rows(folder(root))[:2])


# ---------------------------------------------------------------- what theirs refuses


def test_failure1(root: Path, session: int) -> None:
    """A cache above a cache works: each is asked for what the one above it has not."""
    inner = prefeed.CachedDataset(folder(root), prefeed.DatasetCache(session))
    outer = prefeed.mapped(inner, decode, prefeed.DatasetCache(session))
    assert_cached(outer, decoded(root))
    assert_counts(inner, rows=NUM_ROWS, hits=0)
    assert len(caches_of(session)) == 2


def test_failure2(root: Path, tmp_path: Path, session: int) -> None:
    """Zipped datasets under a cache."""
    other = write_folder(tmp_path / "other", NUM_ROWS)
    cached = prefeed.CachedDataset(StackDataset(folder(root), folder(other)), prefeed.DatasetCache(session))
    assert_cached(cached, list(zip(rows(folder(root)), rows(folder(other)), strict=True)))


class Batched:
    """Sample i is a batch."""

    def __init__(self, dataset: Any, batch_size: int) -> None:
        self.dataset = dataset
        self.batches = list(BatchSampler(range(len(dataset)), batch_size, drop_last=False))

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return [self.dataset[at] for at in self.batches[index]]


def test_failure3(root: Path, session: int) -> None:
    """Batches under a cache: whatever a dataset returns for an index is a row. A loader is asked for none."""
    with pytest.raises(TypeError, match="asked for by index"):
        prefeed.CachedDataset(DataLoader(folder(root)), prefeed.DatasetCache(session))
    cached = prefeed.CachedDataset(Batched(folder(root), 3), prefeed.DatasetCache(session))
    expected = rows(folder(root))
    assert_cached(cached, [expected[:3], expected[3:6], expected[6:]])


def test_failure4(root: Path, session: int) -> None:
    """A filter is a choice of indices: its rows are those of the whole."""
    whole = folder(root)
    chosen = [index for index in range(NUM_ROWS) if whole.targets[index] == 1]
    cached = prefeed.CachedDataset(Subset(whole, chosen), prefeed.DatasetCache(session))
    assert_cached(cached, [row for row in rows(whole) if row[1] == 1])


def cropped(row: Any) -> Any:
    return v2.RandomCrop(8)(torch.as_tensor(row[0]).permute(2, 0, 1)), row[1]


@pytest.mark.parametrize("step", [shifted, cropped], ids=["function", "transform"])
def test_failure5(root: Path, session: int, step: Any) -> None:
    """A random step under a cache is refused; the message says what to do."""
    with pytest.raises(RandomStageError, match=r"map the random step on top.*prefeed\.not_random"):
        prefeed.mapped(prefeed.mapped(folder(root), decode), step, prefeed.DatasetCache(session))[0]


class Squares(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return (index * index for index in itertools.count())


def test_failure7(session: int) -> None:
    """A generator written in Python is cached when it can be asked by index; one that cannot is refused."""
    with pytest.raises(TypeError, match="Squares has no"):
        prefeed.CachedDataset(Squares(), prefeed.DatasetCache(session))
    cached = prefeed.mapped(range(5), square, prefeed.DatasetCache(session))
    assert_cached(cached, [0, 1, 4, 9, 16])


def square(number: int) -> int:
    return number * number


def test_failure8(root: Path, session: int) -> None:
    """Repeated under a cache: each row is made once and held once."""
    cached = prefeed.CachedDataset(ConcatDataset([folder(root)] * 2), prefeed.DatasetCache(session))
    assert_same_rows(rows(cached), rows(folder(root)) * 2)
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


def take_or_skip(root: Path, session: int, chosen: range) -> None:
    cached = prefeed.CachedDataset(Subset(folder(root), chosen), prefeed.DatasetCache(session))
    assert_cached(cached, [rows(folder(root))[index] for index in chosen])
    whole = prefeed.CachedDataset(folder(root), prefeed.DatasetCache(session))
    assert_same_rows(rows(whole), rows(folder(root)))
    assert_counts(whole, rows=NUM_ROWS, hits=2 * len(chosen))  # the rows of a part are those of the whole


def test_failure9(root: Path, session: int) -> None:
    """Take under a cache."""
    take_or_skip(root, session, range(3))


def test_failure10(root: Path, session: int) -> None:
    """Skip under a cache."""
    take_or_skip(root, session, range(3, NUM_ROWS))


def test_failure11(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spilling asked of a server without a disk tier."""
    monkeypatch.setenv("PREFEED_DISK", "0")
    cache = prefeed.DatasetCache(make_session(), spilling=True)
    with pytest.raises(SpillingDisabledError, match="PREFEED_DISK"):
        prefeed.CachedDataset(folder(root), cache)


def halves(dataset: Any) -> Any:
    return random_split(dataset, [NUM_ROWS // 2] * 2, torch.Generator().manual_seed(7))


def test_split1(root: Path, session: int) -> None:
    """Split above a cached map, and below a cache: both work, and both keep the same rows."""
    above = halves(prefeed.mapped(folder(root), decode, prefeed.DatasetCache(session)))
    below = [
        prefeed.CachedDataset(half, prefeed.DatasetCache(session))
        for half in halves(prefeed.mapped(folder(root), decode))
    ]
    for one, other in zip(above, below, strict=True):
        assert_same_rows(rows(other), rows(one))
    (found,) = caches_of(session)
    assert (found.memory_entries, found.hits, found.misses) == (NUM_ROWS, NUM_ROWS, NUM_ROWS)


def test_split2(root: Path, session: int) -> None:
    """Split after the reader: 12 rows of training repeated twice."""
    write_folder(root, 24)
    train, rest = random_split(folder(root), [12, 12], torch.Generator().manual_seed(7))
    cached = prefeed.CachedDataset(train, prefeed.DatasetCache(session))
    assert len(loaded(ConcatDataset([cached] * 2))) == 24
    assert_counts(cached, rows=12, hits=12)
    others = prefeed.CachedDataset(rest, prefeed.DatasetCache(session))
    assert_same_rows(rows(others), [folder(root)[index] for index in rest.indices])
    assert_counts(others, rows=24, hits=12, misses=24)


# ---------------------------------------------------------------- arguments

BAD_ARGUMENTS = [
    ({"session_id": -1}, ValueError, "required interval"),
    ({"session_id": 0}, ValueError, "required interval"),
    ({"session_id": 2**32}, ValueError, "required interval"),
    ({"session_id": "illegal"}, TypeError, "not of type"),
    ({"session_id": 1.5}, TypeError, "not of type"),
    ({"size": -1}, ValueError, "required interval"),
    ({"size": "illegal"}, TypeError, "not of type"),
    ({"spilling": "illegal"}, TypeError, "spilling"),
    ({"hostname": 50052}, TypeError, "not of type"),
    ({"hostname": "illegal"}, ValueError, "127.0.0.1"),
    ({"port": "illegal"}, TypeError, "not of type"),
    ({"port": 0}, ValueError, "1025"),
    ({"port": 65536}, ValueError, "65535"),
    ({"num_connections": 0}, ValueError, "num_connections"),
    ({"num_connections": "illegal"}, TypeError, "num_connections"),
    ({"prefetch_size": 0}, ValueError, "prefetch_size"),
    ({"prefetch_size": "illegal"}, TypeError, "prefetch_size"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), BAD_ARGUMENTS, ids=lambda value: str(value)[:40])
def test_parameter_check(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        prefeed.DatasetCache(**{"session_id": 1, **arguments})


def test_parameter_check_of_cache(root: Path) -> None:
    with pytest.raises(TypeError, match="argument cache with value True is not of type"):
        prefeed.CachedDataset(folder(root), True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="argument cache with value True is not of type"):
        prefeed.mapped(folder(root), decode, True)  # type: ignore[arg-type]


# ---------------------------------------------------------------- again, elsewhere, at once


def test_running_twice1(root: Path, session: int) -> None:
    """The same pipeline, built twice in one script."""
    for run in range(2):
        pipeline, cached = over_map(folder(root), session)
        assert_same_rows(loaded(pipeline), decoded(root))
        assert_counts(cached, rows=NUM_ROWS, hits=run * NUM_ROWS)


def test_running_twice2(root: Path, session: int) -> None:
    """The same script run twice in one session, then in another."""
    what = {"root": str(root), "below": ["decode"]}
    runs = [run_jobs({**what, "session": one})[0] for one in (session, session, make_session())]
    assert [(run["held"], run["hits"], run["misses"]) for run in runs] == [
        (NUM_ROWS, 0, NUM_ROWS),
        (NUM_ROWS, NUM_ROWS, NUM_ROWS),
        (NUM_ROWS, 0, NUM_ROWS),
    ]
    assert all(run["rows"] == [[digest(row) for row in decoded(root)]] for run in runs)


def larger_than_a_megabyte() -> Any:
    return prefeed.not_random(RandomData(NUM_ROWS, (512, 512, 3)))


def test_extra_small_size1(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MB and spilling: what has no room in memory goes to disk."""
    monkeypatch.setenv("PREFEED_DISK", "256MiB")
    cache = prefeed.DatasetCache(make_session(), size=1, spilling=True)
    cached = prefeed.CachedDataset(larger_than_a_megabyte(), cache)
    for _ in range(2):
        assert_same_rows(rows(cached), rows(larger_than_a_megabyte()))
    found = cached.get_stat()
    assert (found.hits, found.misses) == (NUM_ROWS, NUM_ROWS)
    assert found.num_disk_cached >= NUM_ROWS - 1
    assert found.num_mem_cached <= 1


def test_extra_small_size2(session: int) -> None:
    """1 MB without spilling: what has no room is made each time."""
    cached = prefeed.CachedDataset(larger_than_a_megabyte(), prefeed.DatasetCache(session, size=1))
    for _ in range(2):
        assert_same_rows(rows(cached), rows(larger_than_a_megabyte()))
    found = cached.get_stat()
    assert found.num_mem_cached <= 1
    assert found.num_disk_cached == 0
    assert found.misses >= 2 * NUM_ROWS - 1


def test_no_image(tmp_path: Path) -> None:
    """A directory without pictures is an error of the reader, with and without a cache."""
    (tmp_path / "none" / "class").mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        datasets.ImageFolder(str(tmp_path / "none"))
    with pytest.raises(EmptyListingError):
        prefeed.CachedDataset(prefeed.datasets.ImageFolder(tmp_path / "none"))


def parallel_pipeline(root: Path, session: int, **what: Any) -> None:
    """Two processes at once, a half of the rows each."""
    shards = [{"root": str(root), "session": session, "shard": [number, 2], **what} for number in range(2)]
    first, second = run_jobs(*shards)
    expected = [digest(row) for row in decoded(root)]
    assert [first["rows"], second["rows"]] == [[expected[::2]], [expected[1::2]]]
    (found,) = caches_of(session)
    assert (found.memory_entries, found.hits, found.misses) == (NUM_ROWS, 0, NUM_ROWS)


def test_parallel_pipeline1(root: Path, session: int) -> None:
    parallel_pipeline(root, session, above=["decode"])


def test_parallel_pipeline2(root: Path, session: int) -> None:
    parallel_pipeline(root, session, below=["decode"])


@pytest.mark.parametrize(("cached_step", "num_workers"), crossed(["leaf", "map"], [2, 4]))
def test_parallel_workers(root: Path, session: int, cached_step: str, num_workers: int) -> None:
    pipeline, cached = OVER[cached_step](folder(root), session)
    for _ in range(2):
        assert_same_rows(loaded(pipeline, num_workers=num_workers, batch_size=1), decoded(root))
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


def server_workers(root: Path, monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    set_limits(monkeypatch, max_in_flight=int(count))  # cache_admin --start -w
    pipeline, _ = over_map(folder(root), make_session())
    assert_cached(pipeline, decoded(root))


def test_server_workers_1(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_workers(root, monkeypatch, "1")


def test_server_workers_100(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_workers(root, monkeypatch, "100")


def with_argument(root: Path, session: int, **arguments: int) -> None:
    assert_cached(prefeed.mapped(folder(root), decode, prefeed.DatasetCache(session, **arguments)), decoded(root))


def test_num_connections_1(root: Path, session: int) -> None:
    with_argument(root, session, num_connections=1)


def test_num_connections_100(root: Path, session: int) -> None:
    with_argument(root, session, num_connections=100)


def test_prefetch_size_1(root: Path, session: int) -> None:
    with_argument(root, session, prefetch_size=1)


def test_prefetch_size_100(root: Path, session: int) -> None:
    with_argument(root, session, prefetch_size=100)


def test_to_device(root: Path, session: int) -> None:
    """Their device queue is pinned memory and a copy here; without a device, the copy is none."""
    has_device = torch.cuda.is_available()
    cached = prefeed.mapped(folder(root), decode_and_resize, prefeed.DatasetCache(session))
    loader = prefeed.DataLoader(cached, batch_size=NUM_ROWS, pin_memory=has_device)
    for _ in range(2):
        ((images, labels),) = [[part.to("cuda" if has_device else "cpu") for part in batch] for batch in loader]
    expected = [decode_and_resize(row) for row in rows(folder(root))]
    assert torch.equal(images.cpu(), torch.stack([image for image, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


# ---------------------------------------------------------------- epochs


@IN_BOTH
def test_epoch_ctrl1(root: Path, session: int, cached_step: str) -> None:
    """Five epochs of one loader."""
    pipeline, cached = OVER[cached_step](folder(root), session)
    loader = prefeed.DataLoader(pipeline, batch_size=4, collate_fn=keep, num_workers=1, persistent_workers=True)
    for _ in range(5):
        assert_same_rows([row for batch in loader for row in batch], decoded(root))
    assert_counts(cached, rows=NUM_ROWS, hits=4 * NUM_ROWS)


def endless(pipeline: Any, cached: Any, length: int, expected: list[Any]) -> None:
    """Read epoch after epoch out of an iteration that never ends, and leave it."""
    loader = DataLoader(pipeline, batch_size=4, sampler=Endless(length), collate_fn=keep)
    read = itertools.chain.from_iterable(loader)
    for _ in range(3):
        assert_same_rows(list(itertools.islice(read, length)), expected)
    assert cached.get_stat().num_mem_cached == NUM_ROWS
    assert cached.get_stat().misses == NUM_ROWS


@IN_BOTH
def test_epoch_ctrl2(root: Path, session: int, cached_step: str) -> None:
    pipeline, cached = OVER[cached_step](folder(root), session)
    endless(pipeline, cached, NUM_ROWS, decoded(root))


@IN_BOTH
def test_epoch_ctrl3(root: Path, session: int, cached_step: str) -> None:
    """The same over a repeated dataset."""
    pipeline, cached = OVER[cached_step](folder(root), session)
    endless(ConcatDataset([pipeline] * 2), cached, 2 * NUM_ROWS, decoded(root) * 2)


def test_nested_repeat(root: Path, session: int) -> None:
    """Repeated, and the whole repeated again."""
    pipeline, cached = over_leaf(Subset(folder(root), range(4)), session)
    twice = ConcatDataset([pipeline] * 2)
    assert_same_rows(loaded(ConcatDataset([twice] * 2)), decoded(root)[:4] * 4)
    assert_counts(cached, rows=4, hits=12)


# ---------------------------------------------------------------- readers


def as_is(row: Any) -> Any:
    return row


def named(row: Any) -> Any:
    """A step for readers whose samples are pictures of Pillow or bytes."""
    return {"name": type(row[0]).__name__, "row": row}


READERS = [
    *((f"coco{n}", readers.coco, step) for n, step in ((1, "leaf"), (2, "map"))),
    *((f"mnist{n}", readers.mnist, step) for n, step in ((1, "leaf"), (2, "map"))),
    *((f"celeba{n}", readers.celeba, step) for n, step in ((1, "leaf"), (2, "map"))),
    *((f"manifest{n}", readers.manifest, step) for n, step in ((1, "leaf"), (2, "map"))),
    *((f"voc{n}", readers.voc, step) for n, step in ((1, "leaf"), (2, "map"))),
    *((f"mindrecord{n}", readers.mindrecord, step) for n, step in ((1, "leaf"), (2, "map"))),
    ("cifar1", readers.cifar10, "leaf"),
    ("cifar2", readers.cifar100, "map"),
]


@pytest.mark.parametrize(("write", "step"), [case[1:] for case in READERS], ids=[case[0] for case in READERS])
def test_reader(tmp_path: Path, session: int, write: Any, step: str) -> None:
    plain = write(tmp_path / "data")
    pipeline, cached = OVER[step](plain, session, named)
    for _ in range(2):
        assert_same_rows(rows(pipeline), [named(row) for row in rows(plain)])
    assert_counts(cached, rows=len(plain), hits=len(plain))


def test_cifar3(tmp_path: Path, session: int) -> None:
    """2,500 rows of 3 KB with 1 MB for them: two epochs, every row right; a part comes from the cache."""
    plain = readers.cifar10(tmp_path / "data", 2_500)
    cached = prefeed.mapped(plain, pixels_of, prefeed.DatasetCache(session, size=1))
    kept = []
    for _ in range(2):
        found = loaded(cached, batch_size=500)
        assert all(np.array_equal(row[0], data) for row, data in zip(found, plain.data, strict=True))
        kept.append(cached.get_stat().num_mem_cached)
    held = cached.get_stat()
    assert 100 < kept[0] <= kept[1] < 1000
    assert held.hits == kept[0]  # a full store is tried again: a row that the second epoch has missed may fit
    assert held.num_mem_cached * held.avg_cache_sz < 1024**2


def pixels_of(row: Any) -> Any:
    return np.array(row[0]), row[1]


def test_cifar4(tmp_path: Path, session: int) -> None:
    """Shuffled above the cache: the order is the sampler's, with a cache and without."""
    plain = readers.cifar10(tmp_path / "data", 40)
    _, cached = over_leaf(plain, session, as_is)
    for _ in range(2):
        orders = []
        for dataset in (plain, cached):
            torch.manual_seed(3)
            orders.append(loaded(dataset, shuffle=True))
        assert_same_rows(orders[1], orders[0])
    assert not same(orders[0], rows(plain))
    assert_counts(cached, rows=40, hits=40)


def test_mindrecord3(tmp_path: Path, session: int) -> None:
    """Two pipelines that differ in their number of workers share."""
    plain = readers.mindrecord(tmp_path / "data")
    for run, num_workers in enumerate((1, 2)):
        pipeline, cached = over_map(plain, session, as_is)
        assert_same_rows(loaded(pipeline, num_workers=num_workers, batch_size=1), rows(plain))
        assert_counts(cached, rows=5, hits=5 * run)


# ---------------------------------------------------------------- orders


class Reversed(torch.utils.data.Sampler[int]):
    """A user's own sampler."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length - 1, -1, -1))

    def __len__(self) -> int:
        return self.length


def python_sampler(root: Path, session: int, step: str) -> None:
    pipeline, cached = OVER[step](folder(root), session)
    for num_workers in (0, 2):
        found = loaded(pipeline, sampler=Reversed(NUM_ROWS), num_workers=num_workers)
        assert_same_rows(found, decoded(root)[::-1])
    assert_counts(cached, rows=NUM_ROWS, hits=NUM_ROWS)


def test_python_sampler1(root: Path, session: int) -> None:
    python_sampler(root, session, "leaf")


def test_python_sampler2(root: Path, session: int) -> None:
    python_sampler(root, session, "map")


def test_interrupt_and_rerun(tmp_path: Path, session: int) -> None:
    """Stopped at its tenth row, then run to the end: 2000 rows, each made once."""
    data = np.random.default_rng(0).integers(0, 255, 2000 * 64, dtype=np.uint8).tobytes()
    (tmp_path / "rows").write_bytes(data)
    what = {"kind": "records", "root": str(tmp_path / "rows"), "count": 2000, "record_bytes": 64, "session": session}
    with jobs([{**what, "steps": True}]) as (job,):
        for _ in range(10):
            job.line()
            job.go_on()
        job.line()
        os.kill(job.process.pid, 9)
    (run,) = run_jobs(what)
    assert run["rows"] == [[digest(data[at : at + 64]) for at in range(0, len(data), 64)]]
    assert run["held"] == 2000
    assert 1989 <= run["misses"] <= 2000 + 11  # the killed one may not have told what it read


def test_dataset_size1(root: Path, session: int) -> None:
    """The length is the reader's."""
    cached = over_leaf(folder(root), session)[1]
    assert (len(cached), len(loaded(cached))) == (NUM_ROWS, NUM_ROWS)
    assert len(cached) == NUM_ROWS  # and the same after the cache has filled


def test_dataset_size2(root: Path, session: int) -> None:
    """The same with shards, and the cache over a map."""
    shard = Subset(over_map(folder(root), session, rescale_decoded)[0], range(0, NUM_ROWS, 2))
    assert (len(shard), len(loaded(shard))) == (NUM_ROWS // 2, NUM_ROWS // 2)
    assert len(prefeed.DataLoader(shard, batch_size=3)) == 2


def rescale_decoded(row: Any) -> Any:
    return rescale(decode(row))
