"""Nodes that share a pool: the origin is asked once by all of them, and a changed file is never the old one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fake_sources import MemorySource
from leaks import wait_until
from memcached import Memcached, memcached
from nodes import RecordingTier, Rig, memory_source, rig
from prefeed.config import Config, resolve
from prefeed.core.actions import Outcome
from prefeed.errors import ConfigError
from prefeed.server.fetchers import Fetchers
from prefeed.server.main import open_pool
from prefeed.server.pool import PoolTier
from prefeed.types import FetchedObject, ObjectInfo

pytestmark = pytest.mark.usefixtures("sandbox")

OBJECTS = 20


@pytest.fixture
def server() -> Iterator[Memcached]:
    with memcached() as server:
        yield server


@contextmanager
def node_of(directory: Path, server: Memcached) -> Iterator[tuple[Rig, PoolTier]]:
    """A node with threads whose fetchers have the pool behind them."""
    directory.mkdir()
    with rig(directory, threads=True, tier=RecordingTier(1 << 30)) as made:
        pool = PoolTier([server.address], timeout_seconds=60.0, clock=time.monotonic)
        made.node.pool = pool
        made.node.fetchers = Fetchers(max_threads=8, clock=time.monotonic, wake=made.woken.set, pool=pool)
        made.node.checks._submit = made.node.fetchers.submit_check
        try:
            yield made, pool
        finally:
            pool.close()


def values_in(node: Rig) -> dict[bytes, tuple[bytes | None, bool]]:
    """Return the values in memory by key, and whether they are freed once read."""
    return {key: (node.tier.get(key), is_transient) for key, _, is_transient in node.tier.entries()}


def fill(directory: Path, server: Memcached) -> dict[bytes, tuple[bytes | None, bool]]:
    """Let a node fetch everything and store it in the pool; return what it has in memory."""
    with node_of(directory, server) as (node, pool):
        dataset = node.open(memory_source(OBJECTS))
        node.plan(1, dataset, range(OBJECTS))
        node.pump_until(lambda: node.num_residents(dataset) == OBJECTS)
        assert wait_until(lambda: pool.counts().stored == OBJECTS, timeout_seconds=60)
        counts = node.node.statistics()
        assert (counts.origin_requests, counts.pool.hits, counts.pool.misses) == (OBJECTS, 0, OBJECTS)
        return values_in(node)


def test_the_second_node_asks_the_pool_and_not_the_origin(tmp_path: Path, server: Memcached) -> None:
    values = fill(tmp_path / "one", server)
    with node_of(tmp_path / "other", server) as (other, _):
        dataset = other.open(memory_source(OBJECTS))
        other.plan(1, dataset, range(OBJECTS))
        other.pump_until(lambda: other.num_residents(dataset) == OBJECTS)
        counts = other.node.statistics()
        assert (counts.origin_requests, counts.origin_bytes) == (0, 0)
        assert (counts.pool.hits, counts.pool.stored) == (OBJECTS, 0)
        assert values_in(other) == values
        assert dataset.limit._best == float("inf")  # the pool's speed says nothing of the origin


def test_a_file_that_another_node_opened_comes_from_the_pool_and_a_changed_one_does_not(
    tmp_path: Path, server: Memcached
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    with node_of(tmp_path / "one", server) as (one, pool):
        asked = one.demand_file(one.open_catalogue(path), path)
        one.pump_until(lambda: asked.outcome is not None)
        assert wait_until(lambda: pool.counts().stored == 1, timeout_seconds=60)
    with node_of(tmp_path / "other", server) as (other, _):
        asked = other.demand_file(other.open_catalogue(path), path)
        other.pump_until(lambda: asked.outcome is not None)
        assert asked.outcome in (Outcome.STORED, Outcome.INLINE)
        assert other.node.statistics().pool.hits == 1
        assert other.node.statistics().origin_requests == 0
    path.write_bytes(b"second")
    with node_of(tmp_path / "third", server) as (third, _):
        asked = third.demand_file(third.open_catalogue(path), path)
        third.pump_until(lambda: asked.outcome is not None)
        assert third.node.statistics().pool.hits == 0
        assert third.node.statistics().origin_requests == 1


class Unversioned(MemorySource):
    """An origin that says nothing of versions, as an index over HTTP does."""

    def fetch(self, path: str) -> FetchedObject:
        return replace(super().fetch(path), version="")

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        for page in super().list_objects():
            yield [replace(info, version="") for info in page]


def test_what_names_no_version_is_neither_stored_nor_looked_for(tmp_path: Path, server: Memcached) -> None:
    with node_of(tmp_path / "one", server) as (one, pool):
        asked = one.demand(one.open(Unversioned({"a": b"bytes"}, url="memory://test")), 0)
        one.pump_until(lambda: asked.outcome is not None)
        counts = pool.counts()
        assert (counts.misses, counts.hits, one.node.statistics().origin_requests) == (0, 0, 1)
    assert server.statistics()["cmd_set"] == "0"


def test_settings_name_servers() -> None:
    def pool(value: object) -> str:
        return resolve({"pool": value}, environ={}).pool

    assert pool(" b:2, a:1 ,b:2,") == "b:2,a:1"
    assert pool(["[::1]:11211", "/run/m.sock"]) == "[::1]:11211,/run/m.sock"
    assert pool("") == pool("none") == ""
    assert open_pool(Config()) is None


@pytest.mark.parametrize(
    "entry", ["host", "host:", "host:0", "host:65536", ":1", "a b:1", "http://host:1", "::1:11211"]
)
def test_a_malformed_server_is_named(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a pool server; write host:port") as raised:
        resolve({"pool": f"good:1,{entry}"}, environ={})
    assert repr(entry) in str(raised.value)
