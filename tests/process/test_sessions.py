"""Sessions while processes come, go and are killed: nothing is lost that should stay, and the budget always holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from asking import first_client, grow_cache, list_sessions, open_cache
from cache_user import cache_user
from leaks import wait_until
from prefeed.client.connection import Connection
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import KIB, MIB, resolve
from prefeed.errors import SessionNotFoundError, SpillingDisabledError
from prefeed.store.directory import allocated_bytes
from prefeed.types import CacheInfo
from prefeed.wire import messages as m
from process.conditions import kill, server_pid, wait_for
from sandbox import Sandbox

VALUE = 200 * KIB


@contextmanager
def connected(**settings: object) -> Iterator[Connection]:
    with closing(Connection.open(resolve(settings, limits={"disk_free_bytes": 0}))) as connection:
        yield connection


def store_of(sandbox: Sandbox) -> Path:
    return sandbox.memory_dir / f"prefeed-{os.getuid()}-{resolve().node_id}"


def cache_of(connection: Connection, session: int) -> CacheInfo:
    (found,) = [one for one in list_sessions(connection) if one.session == session]
    return found.caches[0]


def test_sessions_continue_after_the_server_was_killed() -> None:
    with connected() as connection:
        session, empty = NodeClient(connection).new_session(), NodeClient(connection).new_session()
        opened = open_cache(connection, session, 1, description="decode")
        with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
            assert user.put(0, 20, VALUE) == 20
            kill(server_pid())
            assert user.put(20, 20, VALUE) == 20  # nobody is needed for that
            with connected() as again:
                assert cache_of(again, session).memory_entries == 40
                assert {one.session for one in list_sessions(again)} == {session, empty}
                reopened = open_cache(again, session, 1, description="decode")
                assert (reopened.memory_dir, reopened.instance) == (opened.memory_dir, opened.instance)
                assert reopened.memory_limit_bytes >= opened.memory_limit_bytes
                assert user.count(40) == 40


def test_a_stopped_server_takes_memory_along_and_leaves_the_disk(sandbox: Sandbox) -> None:
    with connected(disk="1GiB") as connection:
        in_memory, on_disk = NodeClient(connection).new_session(), NodeClient(connection).new_session()
        open_cache(connection, in_memory, 1, description="decode")
        opened = open_cache(connection, on_disk, 2, description="resize", spilling=True)
        assert Path(opened.disk_dir).is_relative_to(resolve().disk_path)
    with NodeClient.connect(resolve(), autostart=False) as node:
        node.stop()
    assert not store_of(sandbox).exists()
    with connected(disk="1GiB") as connection:
        assert [one.session for one in list_sessions(connection)] == [on_disk]
        found = cache_of(connection, on_disk)
        assert (found.description, found.spilling) == ("resize", True)
        again = open_cache(connection, on_disk, 2, description="resize", spilling=True)
        assert (again.disk_dir, again.instance) == (opened.disk_dir, opened.instance)
        with pytest.raises(SessionNotFoundError, match="cache_admin -g"):
            open_cache(connection, in_memory, 1, description="decode")


def test_spilling_needs_a_disk_tier() -> None:
    with connected() as connection, pytest.raises(SpillingDisabledError, match="PREFEED_DISK"):
        open_cache(connection, 0, 1, description="decode", spilling=True)


def test_objects_and_caches_grow_within_the_budget_together(sandbox: Sandbox, tmp_path: Path) -> None:
    """Sum of all blocks below the store's directory, looked at all the time."""
    budget = 64 * MIB
    root = tmp_path / "objects"
    root.mkdir()
    for index in range(150):
        (root / f"{index:03}").write_bytes(bytes([index]) * 300_000)
    store, most = store_of(sandbox), 0
    with ExitStack() as stack:
        connection = stack.enter_context(connected(memory=budget))
        limits = {}
        users = {}
        for cache in (1, 2):
            opened = open_cache(connection, 0, cache, description="decode")
            limits[cache] = opened.memory_limit_bytes
            users[cache] = stack.enter_context(cache_user(opened.memory_dir, opened.memory_limit_bytes))
        warming = stack.enter_context(warm(root))
        done = dict.fromkeys(users, 0)
        for _ in range(120):
            for cache, user in users.items():
                stored = user.put(done[cache], 4, VALUE)
                done[cache] += stored
                if stored < 4:
                    wanted = limits[cache] + MIB
                    grown = grow_cache(connection, 0, cache, wanted).memory_limit_bytes
                    if grown > limits[cache]:
                        limits[cache] = grown
                        user.grow(grown)
                most = max(most, allocated_bytes(store))
        assert warming.wait(60) == 0
        most = max(most, allocated_bytes(store))
        assert most <= budget
        assert sum(done.values()) * VALUE > budget // 2
        for cache, user in users.items():
            assert user.count(done[cache]) == done[cache]
    with NodeClient.connect(resolve(), autostart=False) as node:
        assert node.statistics().resident_objects > 0


@contextmanager
def warm(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let objects be fetched meanwhile."""
    process = subprocess.Popen([sys.executable, "-m", "prefeed", "warm", str(root)], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_what_a_cache_does_not_need_goes_back_to_the_objects() -> None:
    with connected() as other:
        with connected() as connection, NodeClient.connect(resolve()) as node:
            before = node.statistics().budget_bytes
            open_cache(connection, 0, 1, description="decode")
            assert node.statistics().budget_bytes < before - 20 * MIB
        with NodeClient.connect(resolve()) as node:
            wait_for(lambda: node.statistics().budget_bytes > before - MIB, "the objects to have it back")
        assert len(list_sessions(other)) == 1


def test_a_killed_client_gives_its_room_back_when_its_processes_are_gone() -> None:
    with connected() as other, NodeClient.connect(resolve()) as node:
        before = node.statistics().budget_bytes
        with connected() as connection:
            opened = open_cache(connection, 0, 1, description="decode")
            with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
                assert user.put(0, 2, VALUE) == 2
                connection.close()
                assert cache_of(other, 0).memory_entries == 2
                assert node.statistics().budget_bytes < before - 20 * MIB  # a process may still write
        wait_for(lambda: node.statistics().budget_bytes > before - 2 * MIB, "its limit to be lowered")


def test_dropping_under_open_readers_and_writers() -> None:
    with connected() as connection:
        session = NodeClient(connection).new_session()
        opened = open_cache(connection, session, 1, description="decode")
        with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
            assert user.put(0, 10, VALUE) == 10
            NodeClient(connection).drop_sessions([session])
            assert list_sessions(connection) == ()
            assert not Path(opened.memory_dir).exists()
            assert user.count(10) in (0, 10)
            assert user.put(10, 1, VALUE) == 0
        connection.send(m.CacheReads(session, 1, hits=1, misses=1))
        with pytest.raises(SessionNotFoundError, match="dropped"):
            grow_cache(connection, session, 1, MIB)


def test_reads_are_counted_over_all_clients() -> None:
    with connected() as one, connected() as two:
        open_cache(one, 0, 1, description="decode")
        one.send(m.CacheReads(0, 1, hits=3, misses=1))
        two.send(m.CacheReads(0, 1, hits=1, misses=3))
        list_sessions(two)  # what was said on that connection was heard
        assert wait_until(lambda: cache_of(one, 0).hits == 4, timeout_seconds=60)
        assert cache_of(one, 0).misses == 4


def test_a_server_with_a_session_in_memory_does_not_end_for_being_idle(sandbox: Sandbox) -> None:
    config = resolve({"idle_timeout": 0.2})
    pid, connection = first_client(lambda: start_server(config), lambda _: Connection.open(config, autostart=False))
    with closing(connection):
        session = NodeClient(connection).new_session()

    def uptime() -> float:
        with NodeClient.connect(config, autostart=False) as node:
            return node.status().uptime_seconds

    assert wait_until(lambda: uptime() > 1.0, timeout_seconds=60)
    with connected(autostart=False) as connection:
        assert server_pid() == pid
        NodeClient(connection).drop_sessions([session])
    assert wait_until(lambda: not store_of(sandbox).exists(), timeout_seconds=60)
