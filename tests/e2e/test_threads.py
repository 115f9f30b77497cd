"""Reads in threads: a miss waits for its own object only, and threads that a sample starts read for that sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

import prefeed
import prefeed.api
from leaks import wait_until
from prefeed.client.blocks import close_blocks
from servers import FileServer, Handler, http_server, write_index

NUM_OBJECTS = 6


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()
    prefeed.api._readers.close()
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
