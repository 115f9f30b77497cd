"""What a cache may take, and what of the server it waits for, while that comes, goes and hangs."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from asking import list_sessions, open_cache
from cache_user import cache_user, key_of, value_of
from prefeed.client.connection import Connection
from prefeed.client.node import NodeClient
from prefeed.config import KIB, MIB, resolve
from prefeed.core.shares import OVERHEAD_BYTES
from prefeed.stage_cache.cache_store import CacheName, CacheStore
from prefeed.store.directory import allocated_bytes
from process.children import stopped
from process.conditions import kill, server_pid, wait_for
from sandbox import Sandbox

BUDGET = 64 * MIB  # what a test's home has
VALUE = 500 * KIB


def name(cache: int, *, session: int = 0, size_bytes: int = 0) -> CacheName:
    return CacheName(session=session, cache=cache, description="decode", size_bytes=size_bytes)


@contextmanager
def opened(which: CacheName) -> Iterator[CacheStore]:
    with closing(CacheStore.open(resolve(), which)) as store:
        yield store


@contextmanager
def connected() -> Iterator[Connection]:
    with closing(Connection.open(resolve(), answer_seconds=60)) as connection:
        yield connection


def put(store: CacheStore, index: int) -> bool:
    return store.put(key_of(index), [value_of(index, VALUE)])


def fill(store: CacheStore, *, first: int = 0) -> int:
    """Put until nothing more is taken; return how many were."""
    return next(count for count in range(1000) if not put(store, first + count))


def fill_from_a_copy(pickled: bytes) -> None:
    with closing(pickle.loads(pickled)) as store:
        for index in range(200):
            put(store, 1000 + index)


# ---------------------------------------------------------------- room


@pytest.mark.parametrize("how", ["closed", "copied", "spawned"])
def test_room_that_was_given_back_is_not_used(sandbox: Sandbox, how: str) -> None:
    """A limit that was told when there was more room, or to a process that is gone, is asked for again."""
    with connected() as connection, ExitStack() as stack:
        node = NodeClient(connection)
        session, before = node.new_session(), node.statistics().budget_bytes
        first = stack.enter_context(opened(name(1, session=session)))
        assert put(first, 0)
        assert node.statistics().budget_bytes < before - 2 * MIB
        pickled = pickle.dumps(first)
        first.close()
        wait_for(lambda: node.statistics().budget_bytes > before - 2 * MIB, "its room to be taken back")
        second = stack.enter_context(opened(name(2, session=session)))
        assert fill(second) * VALUE > 0.55 * BUDGET
        if how == "closed":
            fill(first, first=1)
        elif how == "copied":
            fill_from_a_copy(pickled)
        else:
            process = multiprocessing.get_context("spawn").Process(target=fill_from_a_copy, args=(pickled,))
            process.start()
            process.join()
            assert process.exitcode == 0
            process.close()
        assert allocated_bytes(sandbox.memory_dir) <= BUDGET
        # The server gives space back when the copy is gone, and the store cannot be opened at that moment.
        wait_for(lambda: first.get(key_of(0)) == value_of(0, VALUE), "the value")


def test_nothing_is_written_while_a_server_that_is_there_says_nothing(sandbox: Sandbox) -> None:
    """It may have given the room to another."""
    with opened(name(1)) as store:
        assert put(store, 0)
        store.close()
        with stopped(server_pid()):
            assert not put(store, 1)
            assert store.get(key_of(0)) == value_of(0, VALUE)
            assert not put(store, 2)
        store._here.link._retry_at = 0.0  # later
        assert put(store, 3)


def test_without_a_server_the_limit_stands() -> None:
    with opened(name(1)) as store:
        kill(server_pid())
        stored = fill(store)
        assert 0.3 * BUDGET < stored * VALUE < 0.5 * BUDGET
        with connected():  # another server, which finds what there is
            assert store.get(key_of(stored - 1)) == value_of(stored - 1, VALUE)
            store._skip = 0
            assert fill(store, first=stored) > 0  # asked for more
        assert store._here.link.is_connected()


# ---------------------------------------------------------------- a server that hangs


def test_a_stopped_server_does_not_delay_others(sandbox: Sandbox) -> None:
    """A full cache asks for more room, is not answered, and goes on without for a while."""
    with opened(name(1)) as store:
        fill(store)
        with stopped(server_pid()):
            assert not any(put(store, 5000 + index) for index in range(50))  # each of them would wait
            store.count(1, 1)
            store.report(now=True)
            assert store.get(key_of(0)) == value_of(0, VALUE)


def test_a_cache_that_has_its_size_asks_for_no_more() -> None:
    size_bytes = 8 * MIB + 5
    with opened(name(1, size_bytes=size_bytes)) as store:
        fill(store)
        with stopped(server_pid()):
            assert not any(put(store, 5000 + index) for index in range(50))
            assert store._here.link.is_connected()  # it would not be, had it not been answered
        assert allocated_bytes(Path(store._here.place.opened.memory_dir)) <= size_bytes + OVERHEAD_BYTES


# ---------------------------------------------------------------- a process that hangs


@contextmanager
def holder_of(directory: str) -> Iterator[None]:
    """A process that has the store there open, and hangs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with (Path(directory) / "store" / "segment").open("rb") as segment:
            fcntl.flock(segment, fcntl.LOCK_SH)
            os.write(writer, b"1")
            signal.pause()
    os.read(reader, 1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_a_process_that_hangs_in_a_cache_stops_no_server() -> None:
    with connected() as other, NodeClient.connect(resolve()) as node:
        session = NodeClient(other).new_session()
        with connected() as connection:
            where = open_cache(connection, session, 1, description="decode")
            with cache_user(where.memory_dir, where.memory_limit_bytes) as user:
                assert user.put(0, 4, VALUE) == 4
            before = node.statistics().budget_bytes
            holder = ExitStack()
            holder.enter_context(holder_of(where.memory_dir))
        with holder:
            (found,) = list_sessions(other)  # after the client has left
            assert [cache.cache for cache in found.caches] == [1]
            open_cache(other, 0, 2, description="resize")
            held = node.statistics().budget_bytes
            assert held <= before
        (found,) = [one for one in list_sessions(other) if one.session == session]
        assert found.caches[0].memory_entries == 4
        wait_for(lambda: node.statistics().budget_bytes > held, "its room to be taken back")
        NodeClient(other).drop_sessions([session])
