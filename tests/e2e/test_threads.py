"""Reads in threads: a miss waits for its own object only, and threads that a sample starts read for that sample."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, ClassVar

import anyio
import numpy as np
import pytest
import zarr
from torch.utils.data import DataLoader, Dataset
from zarr.core.sync import cleanup_resources

import prefeed
import prefeed.api
import warm
from e2e.hashed import Hashed, kept, read, write_hashed
from leaks import wait_until
from limits import set_limits
from prefeed.client.blocks import close_blocks
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.types import Statistics
from servers import FileServer, Handler, http_server, write_index
from slow_files import slow_files

NUM_OBJECTS = 6


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()
    close_blocks()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FileServer]:
    """Objects of 1,000 bytes, in a directory of a web server."""
    directory = tmp_path / "data"
    directory.mkdir()
    for number in range(NUM_OBJECTS):
        (directory / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    write_index(directory)
    with http_server(directory) as server:
        server.ranges = True
        yield server


def statistics(*, reads: int) -> Statistics:
    """Return the node's counts, once so many reads are in them."""
    assert wait_until(lambda: prefeed.statistics().reads >= reads, timeout_seconds=60)
    found = prefeed.statistics()
    assert found.reads == reads
    return found


def until_released(method: str) -> Callable[[Handler], None]:
    """Answer requests of this method when the server stops, others at once."""

    def answer(handler: Handler) -> None:
        if handler.command == method:
            handler.server.released.wait()
        handler.serve_file()

    return answer


def opened(web: FileServer, number: int) -> bytes:
    with prefeed.open(f"{web.url}/{number}.bin") as file:
        return bytes(file.read())


@contextmanager
def reading(way: str, web: FileServer) -> Iterator[Callable[[int], bytes]]:
    """Yield what reads an object by its number."""
    objects = prefeed.datasets.Objects(web.url)
    if way == "plan":
        with prefeed.Plan(objects, range(NUM_OBJECTS)) as plan:
            yield plan.read
    else:
        yield {
            "dataset": objects.__getitem__,
            "read": lambda number: prefeed.read(f"{web.url}/{number}.bin"),
            "open": lambda number: opened(web, number),
        }[way]


@pytest.mark.parametrize(
    ("way", "slow"), [("dataset", "GET"), ("read", "GET"), ("plan", "GET"), ("open", "GET"), ("open", "HEAD")]
)
def test_miss_waits_for_its_own_object(web: FileServer, way: str, slow: str) -> None:
    web.answers["/0.bin"] = until_released(slow)
    with reading(way, web) as read, ThreadPoolExecutor(NUM_OBJECTS) as pool:
        try:
            first = pool.submit(read, 0)
            assert wait_until(
                lambda: any(request[:2] == (slow, "/0.bin") for request in web.requests), timeout_seconds=60
            )
            others = [pool.submit(read, number) for number in range(1, NUM_OBJECTS)]
            assert not wait(others, timeout=30).not_done
            assert not first.done()
        finally:
            web.released.set()
        assert [one.result() for one in (first, *others)] == [bytes([number]) * 1000 for number in range(NUM_OBJECTS)]


# ---------------------------------------------------------------- threads of a sample


def _started(calls: list[Callable[[], bytes]]) -> list[bytes]:
    found: list[bytes] = [b""] * len(calls)

    class Reading(threading.Thread):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

        def run(self) -> None:
            found[self.place] = calls[self.place]()

    threads = [Reading(place) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _executor(calls: list[Callable[[], bytes]]) -> list[bytes]:
    with ThreadPoolExecutor(2) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


def _pool(calls: list[Callable[[], bytes]]) -> list[bytes]:
    with ThreadPool(2) as pool:
        first = pool.apply_async(func=calls[0])
        second = list(pool.imap(lambda call: call(), calls[1:2]))
        return [first.get(), *second, *pool.map(lambda call: call(), calls[2:])]


def _nested(calls: list[Callable[[], bytes]]) -> list[bytes]:
    with ThreadPoolExecutor(2) as pool:
        return [found for call in calls for found in pool.submit(_started, [call]).result()]


def _asyncio(calls: list[Callable[[], bytes]]) -> list[bytes]:
    async def main() -> list[bytes]:
        loop = asyncio.get_running_loop()
        rest = [loop.run_in_executor(None, call) for call in calls[1:]]
        return [await asyncio.to_thread(calls[0]), *await asyncio.gather(*rest)]

    return asyncio.run(main())


def _anyio(calls: list[Callable[[], bytes]]) -> list[bytes]:
    async def main() -> list[bytes]:
        return [await anyio.to_thread.run_sync(call) for call in calls]

    return anyio.run(main)


class _Kept:
    """What a program keeps for all samples: a pool, or a loop in a thread of its own, made in each process."""

    _made: ClassVar[dict[str, Any]] = {}

    @classmethod
    def pool(cls, calls: list[Callable[[], bytes]]) -> list[bytes]:
        pool = cls._made.setdefault("pool", ThreadPoolExecutor(2))
        return list(pool.map(lambda call: call(), calls))

    @classmethod
    def loop(cls, calls: list[Callable[[], bytes]]) -> list[bytes]:
        if "loop" not in cls._made:
            cls._made["loop"] = loop = asyncio.new_event_loop()
            cls._made["thread"] = threading.Thread(target=loop.run_forever, daemon=True)
            cls._made["thread"].start()

        async def one(call: Callable[[], bytes]) -> bytes:
            return await asyncio.to_thread(call)

        return [asyncio.run_coroutine_threadsafe(one(call), cls._made["loop"]).result() for call in calls]

    @classmethod
    def end(cls) -> None:
        if "pool" in cls._made:
            cls._made["pool"].shutdown()
        if "loop" in cls._made:
            loop = cls._made["loop"]
            asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            cls._made["thread"].join()
            loop.close()
        cls._made.clear()
        cleanup_resources()


WAYS = {
    "Thread": _started,
    "ThreadPoolExecutor": _executor,
    "ThreadPool": _pool,
    "nested": _nested,
    "asyncio": _asyncio,
    "anyio": _anyio,
    "kept pool": _Kept.pool,
    "kept loop": _Kept.loop,
}


class InThreads(Hashed):
    """Reads the first file of a sample, and the others in threads: in another way in each sample."""

    def __init__(self, root: Path, length: int) -> None:
        super().__init__(root, length, parts=(4,))

    def __getitem__(self, index: int) -> tuple[int, list[bytes]]:
        first, *names = self.names_of(index)
        in_threads = list(WAYS.values())[index % len(WAYS)]
        return index, [read(self.root, first), *in_threads([partial(read, self.root, name) for name in names])]


class Chunked(Dataset[list[float]]):
    """Rows of a Zarr array, whose chunks Zarr opens in threads, from a loop in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.array: Any = zarr.open(str(path), mode="r")

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> list[float]:
        return self.array[index].tolist()  # type: ignore[no-any-return]


NUM_SAMPLES = 40
NUM_FILES = 4


def in_threads(root: Path) -> InThreads:
    dataset = InThreads(root, NUM_SAMPLES)
    write_hashed(root, dataset)
    return dataset


def chunked(root: Path) -> Chunked:
    array = zarr.create_array(str(root), shape=(NUM_SAMPLES, NUM_FILES * 5), chunks=(1, 5), dtype="f4")
    array[:] = np.arange(array.size).reshape(array.shape)
    return Chunked(root)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [in_threads, chunked])
def test_files_of_threads_are_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Any], num_workers: int
) -> None:
    """The next loader has them before they are read, although the cache is empty."""
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path / "data"))
    dataset = make(tmp_path / "data")
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": kept, "num_workers": num_workers}
    truth = list(DataLoader(dataset, **options))
    try:
        _Kept.end()  # no worker has them
        assert list(prefeed.DataLoader(dataset, **options)) == truth
        before = statistics(reads=NUM_FILES * NUM_SAMPLES)
        with NodeClient.connect(resolve()) as node:
            node.clear(None)
        assert list(prefeed.DataLoader(dataset, **options)) == truth
        after = statistics(reads=2 * NUM_FILES * NUM_SAMPLES)
        assert (after.misses - before.misses, after.direct_reads) == (0, 0)
    finally:
        _Kept.end()


class AllInThreads(Hashed):
    """Reads nothing in its own thread."""

    def __getitem__(self, index: int) -> tuple[int, list[bytes]]:
        return index, _executor([partial(read, self.root, name) for name in self.names_of(index)])


def test_slow_storage_is_noticed_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that began in place is served once its reads are found to be slow."""
    set_limits(monkeypatch, start_ahead=True, read_in_place=True)
    source = write_hashed(tmp_path / "data", AllInThreads(tmp_path / "data", NUM_SAMPLES))
    with slow_files(source, open_seconds=0.01) as slow:
        loader = prefeed.DataLoader(AllInThreads(slow.path, NUM_SAMPLES), batch_size=4, collate_fn=kept)
        truth = list(DataLoader(Hashed(source, NUM_SAMPLES), batch_size=4, collate_fn=kept))
        for _ in range(20):
            assert list(loader) == truth
            if prefeed.statistics().reads:
                break
        assert prefeed.statistics().reads > 0


OWN_THREADS = warm.given_as_text("""
import queue, sys, threading
from pathlib import Path
import prefeed
from torch.utils.data import DataLoader
from e2e.hashed import Hashed, kept

class Queued(Hashed):
    questions, answers = queue.Queue(), queue.Queue()
    def __getitem__(self, index):
        self.questions.put(index)
        return self.answers.get()

dataset = Queued(Path(sys.argv[1]), 20)
def work():
    while (index := dataset.questions.get()) is not None:
        dataset.answers.put(Hashed.__getitem__(dataset, index))
thread = threading.Thread(target=work)
thread.start()
seen = [sample for batch in DataLoader(dataset, batch_size=4, collate_fn=kept) for sample in batch]
dataset.questions.put(None)
thread.join()
assert seen == [Hashed.__getitem__(dataset, index) for index in range(20)]
""")


def test_reads_in_threads_of_its_own_are_said(tmp_path: Path) -> None:
    """Whose samples these are is not known: they are read as without prefeed."""
    root = write_hashed(tmp_path / "data", Hashed(tmp_path / "data", 20))
    command = [sys.executable, "-m", "prefeed", "run", "--root", str(root), "-c", OWN_THREADS, str(root)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "prefeed: 20 direct reads in threads of its own: PREFEED_READS=all answers them" in ended.stderr
    assert "PREFEED_READS=all" in ended.stderr
    found = prefeed.statistics()
    assert (found.reads, found.direct_reads) == (20, 20)
    assert found.errors == {"reads-in-threads-of-its-own": 20}
