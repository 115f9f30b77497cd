"""``Feed``: a loader of any framework is planned, and its samples are read through the cache, in any thread and process."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prefeed
from leaks import wait_until
from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.reader import ObjectReader
from prefeed.config import configure
from prefeed.loaders import feed as module
from prefeed.loaders import sources
from prefeed.loaders.feed import Feed, Feeds
from prefeed.loaders.sources import ServedSource
from process.children import child_running

pytestmark = [pytest.mark.usefixtures("sandbox"), pytest.mark.timeout(300)]

NUM = 30


def content(index: int) -> bytes:
    return np.random.default_rng(index).bytes(3000)


class Files:
    """Opens its files by path; where ``names`` is given, nothing of it holds their paths."""

    def __init__(self, root: Path, *, is_hidden: bool = False) -> None:
        self.paths = None if is_hidden else [str(root / f"{index:02}.bin") for index in range(NUM)]
        self.root = str(root)
        self.word = "files"

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> bytes:
        with open(f"{self.root}/{index:02}.bin", "rb") as file:
            return file.read()

    def __repr__(self) -> str:
        return "<Files>"


class Batches(Files):
    """Makes several samples at once."""

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        return [self[index] for index in indices]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    for index in range(NUM):
        path = directory / f"{index:02}.bin"
        path.write_bytes(content(index))
        os.utime(path, (1_600_000_000, 1_600_000_000))
    monkeypatch.setenv("PREFEED_ROOTS", str(directory))
    configure()
    return directory


@pytest.fixture
def feeds(root: Path) -> Iterator[Feeds]:
    feeds = Feeds("a.Loader")
    yield feeds
    del feeds
    gc.collect()
    configure()


def order(seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).permutation(NUM).tolist()
    return found


def resident() -> int:
    return prefeed.statistics().resident_objects


def wait_until_heard(feed: Feed, num_reads: int) -> None:
    """Wait until the server knows of so many reads of the loader: each reader has a connection of its own."""

    def is_heard() -> bool:
        counts = feed.read_counts()
        return counts is not None and counts.reads >= num_reads

    assert wait_until(is_heard, timeout_seconds=60)


def served(feed: Feed) -> ServedSource:
    source = feed.serve()
    assert source is not None
    return source


@pytest.mark.parametrize("is_hidden", [False, True])
def test_the_node_reads_ahead(root: Path, feeds: Feeds, is_hidden: bool) -> None:
    """From the first epoch on where its paths are found in the dataset, else from the second one on."""
    dataset = Files(root, is_hidden=is_hidden)
    feed = feeds.of(dataset, dataset)
    for epoch in range(2):
        source = served(feed)
        feed.begin(order(epoch))
        if epoch or not is_hidden:
            assert wait_until(lambda: resident() == NUM, timeout_seconds=60)
        before = prefeed.statistics()
        for index in order(epoch):
            assert source[index] == content(index)
            feed.step()
        feed.epoch_ended()
        wait_until_heard(feed, (epoch + 1) * NUM)
        after = prefeed.statistics()
        if epoch or not is_hidden:
            assert after.hits - before.hits == NUM
    assert prefeed.statistics().origin_requests == NUM
    assert prefeed.statistics().direct_reads == 0


def test_an_order_without_end_is_drawn_as_it_is_read(root: Path, feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is planned than is kept ahead of the reads; what was drawn is what is read next."""
    for name, value in (("_FIRST", 8), ("_CHUNK", 4), ("_AHEAD", 40), ("_OUT_OF_ORDER", 8)):
        monkeypatch.setattr(module, name, value)
    drawn: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            for index in order():
                drawn.append(index)
                yield index

    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    feed.begin(endless())
    assert len(drawn) == 8
    for number, index in enumerate((order() * 4)[:100], start=1):
        assert source[index] == content(index)
        source.report()
        wait_until_heard(feed, number)
        feed.step()
    assert 100 < len(drawn) <= 100 + 40 + 8


def test_it_has_what_the_dataset_has(root: Path, feeds: Feeds) -> None:
    plain, batches = Files(root), Batches(root)
    source = served(feeds.of(plain, plain))
    assert (len(source), repr(source), source.word) == (NUM, "<Files>", "files")
    assert not hasattr(source, "__getitems__")
    assert not hasattr(source, "absent")
    of_batches = served(feeds.of(batches, batches))
    assert of_batches.__getitems__([3, 4]) == [content(3), content(4)]


def read_all(source: Any, pipe: Any) -> None:
    for index in iter(pipe.recv, None):
        pipe.send(source[index])


def test_the_reads_of_a_worker_that_is_killed_are_known(root: Path, feeds: Feeds) -> None:
    """Grain ends its workers so, each of which reads in many threads."""
    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    feed.begin(order())
    with child_running(read_all, source) as (_, pipe):
        for index in order()[:5]:
            pipe.send(index)
            assert pipe.recv() == content(index)
    wait_until_heard(feed, 5)


def test_a_worker_that_ends_by_itself_reports_some_reads_at_a_time_and_then_the_rest(root: Path, feeds: Feeds) -> None:
    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    source.reports_each = False
    assert not pickle.loads(pickle.dumps(source)).reports_each
    feed.begin(order())
    assert wait_until(lambda: resident() == NUM, timeout_seconds=60)
    told: list[int] = []
    with child_running(read_all_counted, source) as (process, pipe):
        for index in order():
            pipe.send(index)
            assert pipe.recv() == content(index)
        pipe.send(None)
        told.append(pipe.recv())
        process.join()
    assert told[0] < NUM // 2
    wait_until_heard(feed, NUM)


def read_all_counted(source: Any, pipe: Any) -> None:
    """As ``read_all``; then tell how often the server was told of reads."""
    told: list[int] = []
    own = ObjectReader._report

    def count(reader: ObjectReader) -> None:
        told.append(1)
        own(reader)

    ObjectReader._report = count  # type: ignore[method-assign]
    read_all(source, pipe)
    pipe.send(len(told))


def test_a_loop_of_few_samples_asks_the_server_once(root: Path, feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question makes the loop wait, for milliseconds on a busy machine."""
    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    asked: list[int] = []
    own = Consumer.read_counts

    def count(consumer: Consumer) -> Any:
        asked.append(1)
        return own(consumer)

    monkeypatch.setattr(Consumer, "read_counts", count)
    feed.begin(order())
    asked.clear()
    for index in order():
        assert source[index] == content(index)
        feed.step()
    assert len(asked) == 1


def test_what_is_known_of_samples_is_not_looked_up_for_each(
    root: Path, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    feed.begin(order())
    assert wait_until(lambda: resident() == NUM, timeout_seconds=60)
    looked: list[int] = []
    own = AccessMap.refresh

    def count(access: AccessMap) -> None:
        looked.append(1)
        own(access)

    monkeypatch.setattr(sources, "_REFRESH_SECONDS", 1e9)
    monkeypatch.setattr(AccessMap, "refresh", count)
    for index in order():
        assert source[index] == content(index)
    assert len(looked) == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(root: Path, feeds: Feeds, method: str) -> None:
    """Their reads are the loader's, and what they opened is known when they have ended."""
    dataset = Files(root, is_hidden=True)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    feed.begin(order())
    with child_running(read_all, source, method=method) as (process, pipe):
        for index in order():
            pipe.send(index)
            assert pipe.recv() == content(index)
        pipe.send(None)
        process.join()
    wait_until_heard(feed, NUM)
    feed.epoch_ended()
    assert feed.serve() is source


def test_threads(root: Path, feeds: Feeds) -> None:
    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    feed.begin(order())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(source.__getitem__, order())) == [content(index) for index in order()]
    source.report()
    assert prefeed.statistics().origin_requests == NUM


def test_what_a_sample_reads_is_what_the_file_has_now(root: Path, feeds: Feeds) -> None:
    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    feed.begin(order())
    assert wait_until(lambda: resident() == NUM, timeout_seconds=60)
    assert source[3] == content(3)
    (root / "03.bin").write_bytes(b"new")
    assert source[3] == b"new"


# ---------------------------------------------------------------- left alone


def test_samples_that_open_no_file_are_left_alone(root: Path, feeds: Feeds) -> None:
    class Numbers(Files):
        def __getitem__(self, index: int) -> bytes:
            return bytes([index])

    dataset = Numbers(root, is_hidden=True)
    feed = feeds.of(dataset, dataset)
    source = served(feed)
    feed.begin(order())
    assert [source[index] for index in range(3)] == [b"\0", b"\1", b"\2"]
    source.report()

    def is_left() -> bool:
        feed.epoch_ended()
        return feed.serve() is None

    assert wait_until(is_left, timeout_seconds=60)
    assert source[4] == b"\4"  # an iterator that is in use goes on


def test_without_a_server_nothing_is_served(root: Path, feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    configure()
    dataset = Files(root)
    feed = feeds.of(dataset, dataset)
    assert feed.serve() is None
    feed.begin(order())
    feed.step()
    feed.epoch_ended()
    assert feed.read_counts() is None


def test_each_loader_has_one_feed_and_a_name(root: Path, feeds: Feeds) -> None:
    one, other = Files(root), Files(root)
    assert feeds.of(one, one) is feeds.of(one, one)
    assert [feeds.of(dataset, dataset).name for dataset in (one, other)] == ["a.Loader (Files)", "a.Loader (Files) #2"]


def test_the_plan_ends_with_the_loader(root: Path, feeds: Feeds) -> None:
    from prefeed.client.node import NodeClient
    from prefeed.config import current

    dataset: Any = Files(root)
    feed = feeds.of(dataset, Files(root))
    served(feed)
    feed.begin(order())
    with NodeClient.connect(current()) as node:
        assert len(node.plans()) == 1
        del feed, dataset
        gc.collect()
        assert wait_until(lambda: node.plans() == (), timeout_seconds=60)


def test_a_source_is_small_when_it_is_sent(root: Path, feeds: Feeds) -> None:
    dataset = Files(root)
    source = served(feeds.of(dataset, dataset))
    again = pickle.loads(pickle.dumps(source))
    assert again[5] == content(5)
    again.close()
