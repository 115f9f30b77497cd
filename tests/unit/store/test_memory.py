"""Tiers in memory: descriptors that go to readers, and memory that is freed with its server, however that ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

import pytest

from leaks import descriptors_beyond, open_descriptors, parent_of, processes, read_proc, wait_until
from log_tiers import MIB, key_of, value_of
from prefeed.store.log import LogWriter, StoredValue
from prefeed.store.memory import NUM_FILES, MemoryFiles, MemoryReader
from process.children import child_running

pytestmark = pytest.mark.usefixtures("sandbox")

VALUES: Final = {key_of(number): value_of(number, 30_000) for number in range(20)}
WAIT_SECONDS: Final = 60.0


@pytest.fixture
def files() -> Iterator[MemoryFiles]:
    files = MemoryFiles()
    yield files
    files.close()


def filled(files: MemoryFiles) -> LogWriter:
    """Put the values; every third one is transient."""
    writer = LogWriter(files.index, files.segments, budget_bytes=8 * MIB)
    writer.put_many([(key, value, number % 3 == 0) for number, (key, value) in enumerate(VALUES.items())])
    return writer


def send(files: MemoryFiles, sock: socket.socket) -> None:
    socket.send_fds(sock, [b"welcome"], files.descriptors)


def receive(sock: socket.socket) -> list[int]:
    """Return the descriptors of a tier that was sent."""
    data, descriptors, _, _ = socket.recv_fds(sock, 100, NUM_FILES)
    assert (data, len(descriptors)) == (b"welcome", NUM_FILES)
    return descriptors


@contextmanager
def received(files: MemoryFiles) -> Iterator[MemoryReader]:
    """Yield a reader whose descriptors came over a socket."""
    here, there = socket.socketpair()
    with here, there:
        send(files, here)
        yield MemoryReader(receive(there))


def held_bytes(descriptors: list[int]) -> int:
    return sum(os.fstat(descriptor).st_blocks for descriptor in descriptors) * 512


def found_in(reader: MemoryReader) -> dict[bytes, bytes]:
    found = {key: reader.get(key) for key in VALUES}
    return {key: value for key, value in found.items() if value is not None}


# ---------------------------------------------------------------- readers


def test_descriptors_that_came_over_a_socket_are_read(files: MemoryFiles) -> None:
    writer = filled(files)
    with received(files) as reader:
        assert found_in(reader) == VALUES
        late = value_of(99, 100_000)
        writer.put_many([(key_of(99), late, False)])
        assert reader.get(key_of(99)) == late
        assert reader.read(key_of(99), 99_000, 5000) == late[99_000:]
        writer.free_many([key_of(99)])
        assert reader.get(key_of(99)) is reader.size_of(key_of(99)) is None


def test_a_reader_closes_its_descriptors_with_its_last_reference(files: MemoryFiles) -> None:
    filled(files)
    before = open_descriptors()
    with received(files) as reader:
        part = reader.lend(key_of(1), 1000)
        assert part is not None
        assert len(descriptors_beyond(before)) == NUM_FILES + 2  # and the sockets
        del reader
        assert isinstance(part, StoredValue)
        assert part.read(10, 20) == VALUES[key_of(1)][10:30]  # it holds the reader
        del part
    assert descriptors_beyond(before) == []


def test_a_forked_child_reads_what_comes_after_the_fork(files: MemoryFiles) -> None:
    writer = filled(files)
    with received(files) as reader, child_running(_read_each_time, reader) as (_, pipe):
        assert pipe.recv() == len(VALUES)
        writer.free_many(list(VALUES)[:5])
        pipe.send("again")
        assert pipe.recv() == len(VALUES) - 5
        writer.clear()
        pipe.send("again")
        assert pipe.recv() == 0


def _read_each_time(reader: MemoryReader, pipe: Connection) -> None:
    while True:
        found = found_in(reader)
        pipe.send(len(found) if found.items() <= VALUES.items() else -1)
        pipe.recv()


# ---------------------------------------------------------------- the end


def test_closing_frees_the_memory_under_readers() -> None:
    files = MemoryFiles()
    filled(files)
    with received(files) as reader:
        descriptors = list(reader._segments)
        part = reader.lend(key_of(1), 1000)
        assert isinstance(part, StoredValue)
        assert held_bytes(descriptors) >= 20 * 30_000
        files.close()
        assert held_bytes(descriptors) == 0
        assert found_in(reader) == {}
        assert reader.keys() == b""
        assert part.read(0, 10) is part.read_into(0, memoryview(bytearray(10))) is None
        assert reader.size_of(key_of(1)) is None


def test_a_killed_server_s_memory_is_freed_while_others_hold_it() -> None:
    """The reader here is one of an idle notebook, which keeps its descriptors."""
    here, there = socket.socketpair()
    with here, there, child_running(_serve, there.fileno()) as (server, pipe):
        guard = pipe.recv()
        reader = MemoryReader(receive(here))
        assert found_in(reader) == VALUES
        assert held_bytes(list(reader._segments)) >= 20 * 30_000
        os.kill(server.pid, signal.SIGKILL)
        assert wait_until(lambda: held_bytes(list(reader._segments)) == 0, timeout_seconds=WAIT_SECONDS)
        assert found_in(reader) == {}
        assert wait_until(lambda: not _is_running(guard), timeout_seconds=WAIT_SECONDS)


def test_the_guard_outlives_what_ends_programs() -> None:
    """Signals that a shell or a scheduler sends to the whole group reach it as well."""
    here, there = socket.socketpair()
    with here, there, child_running(_serve, there.fileno()) as (server, pipe):
        guard = pipe.recv()
        reader = MemoryReader(receive(here))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(guard, number)
        assert found_in(reader) == VALUES
        os.kill(server.pid, signal.SIGKILL)
        assert wait_until(lambda: found_in(reader) == {}, timeout_seconds=WAIT_SECONDS)


def test_the_guard_holds_nothing_of_the_server_but_its_memory() -> None:
    """A pipe or a lock that it kept would look like a server that lives."""
    read_end, write_end = os.pipe()
    here, there = socket.socketpair()
    with here, there, child_running(_serve, there.fileno(), write_end) as (_, pipe):
        os.close(write_end)
        guard = pipe.recv()
        names = [os.readlink(f"/proc/{guard}/fd/{number}") for number in os.listdir(f"/proc/{guard}/fd")]
        assert sorted(names) == sorted(
            ["anon_inode:[pidfd]", "/memfd:prefeed-index (deleted)"]
            + [f"/memfd:prefeed-segment-{number} (deleted)" for number in range(NUM_FILES - 1)]
        )
        for descriptor in receive(here):
            os.close(descriptor)
    os.close(read_end)


def test_closing_ends_the_guard() -> None:
    here, there = socket.socketpair()
    with here, there, child_running(_serve, there.fileno()) as (server, pipe):
        guard = pipe.recv()
        reader = MemoryReader(receive(here))
        pipe.send("end")
        server.join(WAIT_SECONDS)
        assert server.exitcode == 0
        assert not _is_running(guard)
        assert found_in(reader) == {}


def _serve(sock: int, *rest: object) -> None:
    """Hand out a tier, as a server does, and end when the pipe says so."""
    pipe = rest[-1]
    assert isinstance(pipe, Connection)
    files = MemoryFiles()
    files.guard()
    filled(files)
    [guard] = [pid for pid in processes() if parent_of(pid) == os.getpid()]
    with socket.socket(fileno=os.dup(sock)) as there:
        send(files, there)
    pipe.send(guard)
    pipe.recv()
    files.close()


def _is_running(pid: int) -> bool:
    stat = read_proc(pid, "stat").rpartition(b")")[2].split()
    return bool(stat) and stat[0] != b"Z"
