"""Processes that fetch: each object comes once, and nothing is lost with a process, whatever happens to it."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import servers
from leaks import parent_of, read_proc, wait_until
from nodes import FakeClock, Loop, kill
from prefeed.server import fetch_processes
from prefeed.server.fetch_processes import Delivery, FetchProcesses
from prefeed.sources.quick_fetches import QuickOrigin
from prefeed.store.entry_sums import sum_of

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_OBJECTS = 60
SIZE = 20_000


class Node:
    """Fetch processes, and the turns of their loop."""

    def __init__(self, number: int | None) -> None:
        self.loop = Loop()
        self.processes: FetchProcesses[int] = FetchProcesses(
            number=number, watcher=self.loop, clock=self.loop.timers.clock
        )
        self.data: dict[int, bytes] = {}
        self.failures: dict[int, str] = {}
        self.sums: dict[int, int] = {}
        self.lost: list[int] = []

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            self.loop.turn()
            self.take()

    def take(self) -> None:
        for delivery in self.processes.take(1000):
            self._keep(delivery)
        self.lost += self.processes.take_lost()
        self.processes.flush()

    def _keep(self, delivery: Delivery[int]) -> None:
        assert delivery.job not in self.data | self.failures
        self.sums[delivery.job] = delivery.value_sum
        if delivery.lease is None:
            self.failures[delivery.job] = delivery.failure
        else:
            self.data[delivery.job] = bytes(delivery.lease.data)
            delivery.lease.release()
            delivery.lease.release()

    def start(self) -> None:
        """Have the processes started, and wait until they fetch."""
        self.processes.expect(10_000)
        self.until(lambda: self.processes.num_ready == len(self.processes.process_ids) > 0)

    def fetch(self, origin: QuickOrigin, *indices: int, size: int = SIZE) -> int:
        """Return how many of them the processes took."""
        taken = [self.processes.try_fetch(origin, b"/%03d.bin" % index, size, index) for index in indices]
        self.processes.flush()
        return sum(taken)


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    node = Node(getattr(request, "param", 1))
    yield node
    node.processes.close()
    node.loop.selector.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.FileServer]:
    for index in range(NUM_OBJECTS):
        (tmp_path / f"{index:03}.bin").write_bytes(bytes([index]) * SIZE)
    with servers.http_server(tmp_path) as server:
        yield server


@pytest.fixture
def origin(server: servers.FileServer) -> QuickOrigin:
    parts = urlsplit(server.url)
    assert parts.port is not None
    return QuickOrigin(server.url, False, "127.0.0.1", parts.port, f"Host: {parts.netloc}\r\n".encode(), 60.0)


def expected(*indices: int) -> dict[int, bytes]:
    return {index: bytes([index]) * SIZE for index in indices}


@pytest.mark.parametrize("node", [1, 2], indirect=True)
def test_each_object_is_asked_for_once(node: Node, server: servers.FileServer, origin: QuickOrigin) -> None:
    node.start()
    assert node.fetch(origin, *range(NUM_OBJECTS)) == NUM_OBJECTS
    node.until(lambda: len(node.data) == NUM_OBJECTS)
    assert node.data == expected(*range(NUM_OBJECTS))
    assert len(server.requests) == NUM_OBJECTS
    assert not node.lost


def test_sum_is_made_of_an_object_with_a_key(node: Node, server: servers.FileServer, origin: QuickOrigin) -> None:
    server.answers["/002.bin"] = servers.status(503)
    key = bytes(range(16))
    node.start()
    for index, of_key in ((0, key), (1, b""), (2, key)):
        node.processes.try_fetch(origin, b"/%03d.bin" % index, SIZE, index, key=of_key)
    node.processes.flush()
    node.until(lambda: len(node.sums) == 3)
    assert node.sums == {0: sum_of(key, bytes(SIZE)), 1: 0, 2: 0}


@pytest.mark.parametrize("node", [2], indirect=True)
def test_limit_is_for_all_processes_together(node: Node, server: servers.FileServer, origin: QuickOrigin) -> None:
    for index in range(20):
        server.answers[f"/{index:03}.bin"] = servers.silent
    node.start()
    node.processes.limit(origin, 6)
    node.fetch(origin, *range(20))
    node.until(lambda: len(server.requests) == 6)
    (one, other) = node.processes._processes
    assert (one.limits, other.limits) == ({0: 3}, {0: 3})
    assert len(node.data) == 0
    kill(one.program.pid)
    node.until(lambda: bool(node.lost))
    node.fetch(origin, 30)
    node.until(lambda: len(server.requests) == 9)
    assert other.limits == {0: 6}


def test_failure_is_told_with_its_job(node: Node, server: servers.FileServer, origin: QuickOrigin) -> None:
    server.answers["/001.bin"] = servers.status(503)
    node.start()
    node.fetch(origin, 0, 1, 2)
    node.until(lambda: len(node.data) == 2 and bool(node.failures))
    assert node.failures == {1: "status code: 503"}


def test_nothing_is_taken_before_a_process_is_ready(node: Node, origin: QuickOrigin) -> None:
    assert node.fetch(origin, 0) == 0
    assert len(node.processes.process_ids) == 1
    node.until(lambda: node.processes.num_ready == 1)
    assert node.fetch(origin, 0) == 1


@pytest.mark.parametrize("node", [None], indirect=True)
def test_few_fetches_start_no_process(node: Node, origin: QuickOrigin) -> None:
    node.processes.expect(fetch_processes.START_AFTER - 1)
    for _ in range(fetch_processes.START_AFTER - 1):
        assert node.fetch(origin, 0) == 0
    assert not node.processes.process_ids
    node.fetch(origin, 0)
    assert len(node.processes.process_ids) == 1


def test_large_object_is_not_taken(node: Node, origin: QuickOrigin) -> None:
    node.start()
    assert node.fetch(origin, 0, size=fetch_processes.LARGEST_BYTES + 1) == 0


def test_what_does_not_fit_into_the_ring_waits(
    node: Node, server: servers.FileServer, origin: QuickOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_processes, "RING_BYTES", 64 * 1024)
    node.start()
    node.fetch(origin, *range(NUM_OBJECTS))
    node.until(lambda: len(node.data) == NUM_OBJECTS)
    assert node.data == expected(*range(NUM_OBJECTS))
    assert len(server.requests) == NUM_OBJECTS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_process_that_dies_takes_only_its_own_fetches_along(
    node: Node,
    server: servers.FileServer,
    origin: QuickOrigin,
    number: signal.Signals,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node.start()
    node.fetch(origin, *range(10))
    node.until(lambda: len(node.data) == 10)
    for index in range(10, 20):
        server.answers[f"/{index:03}.bin"] = servers.silent
    node.fetch(origin, *range(10, 20))
    node.until(lambda: len(server.requests) == 20)
    (pid,) = node.processes.process_ids
    with caplog.at_level(logging.WARNING):
        os.kill(pid, number)
        node.until(lambda: len(node.lost) == 10)
    assert sorted(node.lost) == list(range(10, 20))
    assert f"fetch process {pid} has ended; the server makes its 10 fetches" in caplog.text
    node.until(lambda: not Path(f"/proc/{pid}").exists() or parent_of(pid) != os.getpid() or _tick(node))
    assert node.data == expected(*range(10))


def _tick(node: Node) -> bool:
    if node.loop.timers.waiting:
        node.loop.timers.run_next()
    return False


def test_another_process_is_started_after_a_death(node: Node, server: servers.FileServer, origin: QuickOrigin) -> None:
    node.start()
    (first,) = node.processes.process_ids
    kill(first)
    node.until(lambda: not node.processes.process_ids)
    assert node.fetch(origin, 0) == 0  # and starts one
    node.until(lambda: node.processes.num_ready == 1)
    node.fetch(origin, *range(10))
    node.until(lambda: len(node.data) == 10)


def test_processes_that_die_at_once_are_started_less_and_less_often(node: Node, origin: QuickOrigin) -> None:
    for _ in range(2):
        node.fetch(origin, 0)
        (pid,) = node.processes.process_ids
        kill(pid)
        node.until(lambda: not node.processes.process_ids)
    node.fetch(origin, 0)
    assert not node.processes.process_ids
    node.loop.timers.clock.now += 2.0
    node.fetch(origin, 0)
    assert len(node.processes.process_ids) == 1


def test_death_between_arrival_and_its_use_loses_nothing(
    node: Node, server: servers.FileServer, origin: QuickOrigin
) -> None:
    node.start()
    node.fetch(origin, *range(20))

    def all_arrived() -> bool:
        node.loop.turn()
        return len(node.processes._deliveries) == 20

    assert wait_until(all_arrived, timeout_seconds=120)
    kill(node.processes.process_ids[0])
    node.until(lambda: not node.processes.process_ids)
    assert node.data == expected(*range(20))
    assert not node.lost


def test_one_of_two_dies(server: servers.FileServer, origin: QuickOrigin) -> None:
    node = Node(2)
    node.start()
    for index in range(20):
        server.answers[f"/{index:03}.bin"] = servers.silent
    node.fetch(origin, *range(20))
    node.until(lambda: len(server.requests) == 20)
    first, second = node.processes.process_ids
    kill(first)
    node.until(lambda: len(node.lost) == 10)
    assert node.processes.process_ids == [second]
    node.fetch(origin, 30, 31)
    node.until(lambda: len(node.data) == 2)
    node.processes.close()
    node.loop.selector.close()


def test_suspended_process_is_taken_for_dead(node: Node, server: servers.FileServer, origin: QuickOrigin) -> None:
    node.start()
    (pid,) = node.processes.process_ids
    os.kill(pid, signal.SIGSTOP)
    node.fetch(origin, *range(5))
    for _ in range(10):
        node.loop.timers.run_next()
        node.take()
    assert node.processes.process_ids == [pid]
    node.loop.timers.run_next()
    node.until(lambda: len(node.lost) == 5)
    assert node.processes.process_ids == []


def test_process_that_answers_is_not_taken_for_dead(node: Node) -> None:
    node.start()
    (process,) = node.processes._processes
    for _ in range(30):
        node.loop.timers.run_next()
        node.until(lambda: process.silent_ticks == 0)
    assert node.processes.num_ready == 1


def test_idle_processes_end_and_come_back(node: Node, origin: QuickOrigin) -> None:
    node.start()
    for _ in range(61):
        node.loop.timers.run_next()
        node.until(lambda: all(process.silent_ticks == 0 for process in node.processes._processes))
    assert not node.processes.process_ids
    while node.loop.timers.waiting:  # until the last one has gone
        node.loop.timers.run_next()
    node.fetch(origin, 0)
    assert len(node.processes.process_ids) == 1


@pytest.mark.parametrize("node", [None], indirect=True)
def test_busy_process_gets_a_second_one_where_there_are_cores(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.processes._most = 2
    node.start()
    node.processes._processes[0].cpu_seconds += 0.9
    node.loop.timers.run_next()
    assert len(node.processes.process_ids) == 2
    node.loop.timers.run_next()
    assert len(node.processes.process_ids) == 2


def test_process_that_cannot_be_started(
    node: Node, origin: QuickOrigin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            assert node.fetch(origin, 0) == 0
    assert caplog.text.count("no fetch process can be started") == 1


@pytest.mark.parametrize("node", [2], indirect=True)
def test_second_process_cannot_be_started(
    node: Node,
    server: servers.FileServer,
    origin: QuickOrigin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first one fetches everything, and one line says so."""
    start, num_asked = subprocess.Popen, 0

    def start_one(*args: Any, **options: Any) -> Any:
        nonlocal num_asked
        num_asked += 1
        if num_asked > 1:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", start_one)
    with caplog.at_level(logging.WARNING):
        node.start()
        assert node.fetch(origin, *range(NUM_OBJECTS)) == NUM_OBJECTS
        node.until(lambda: len(node.data) == NUM_OBJECTS)
    assert node.data == expected(*range(NUM_OBJECTS))
    assert num_asked > 1
    assert caplog.text.count("no further fetch process can be started") == 1
    assert ": 1 running" in caplog.text


def test_more_processes_than_cores_are_named(caplog: pytest.LogCaptureFixture) -> None:
    cores = len(os.sched_getaffinity(0))
    with caplog.at_level(logging.INFO, logger="prefeed"):
        FetchProcesses(number=cores + 1, watcher=Loop(), clock=FakeClock())
    assert f"fetch_processes is {cores + 1}, and the machine has {cores} cores" in caplog.text


def test_no_process_has_a_descriptor_of_the_server_but_its_own(node: Node, tmp_path: Path) -> None:
    with (tmp_path / "of the server").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        node.start()
        (pid,) = node.processes.process_ids
        targets = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    assert str(tmp_path / "of the server") not in targets


def test_close_with_fetches_under_way(server: servers.FileServer, origin: QuickOrigin) -> None:
    node = Node(1)
    node.start()
    server.answers["/000.bin"] = servers.silent
    node.fetch(origin, 0, 1)
    node.until(lambda: len(node.data) == 1)
    (pid,) = node.processes.process_ids
    node.processes.close()
    assert not read_proc(pid, "cmdline")
    assert node.fetch(origin, 2) == 0
    node.loop.timers.run_next()
    assert not node.loop.timers.waiting
    node.loop.selector.close()
