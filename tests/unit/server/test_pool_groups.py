"""Where the pool has most of what it is asked for, one thread asks for many objects at once."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leaks import wait_until
from memcached import Memcached, memcached
from nodes import memory_source
from prefeed.pool.values import claim, pool_key
from prefeed.server.pool import PoolTier
from unit.server.test_pool import KEY, LARGE, OTHER, VALUE, store, tier_of
from unit.server.test_pool_nodes import node_of

pytestmark = pytest.mark.usefixtures("sandbox")

OBJECTS = 200
ABSENT = bytes(reversed(range(16)))


@pytest.fixture
def server() -> Memcached:
    with memcached() as server:
        yield server


def read_many(tier: PoolTier, *keys: bytes) -> dict[bytes, bytes]:
    return {key: bytes(data) for key, data in tier.read_many(keys, expected_bytes=len(VALUE)).items()}


def test_what_is_there_is_returned_and_counted_and_the_rest_is_not_reported(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        store(tier, KEY, VALUE)
        assert read_many(tier, ABSENT, KEY) == {KEY: VALUE}
        counts = tier.counts()
        assert (counts.hits, counts.misses, counts.read_bytes) == (1, 0, len(VALUE))
        assert int(server.statistics()["curr_items"]) == 1  # no claim


def test_objects_in_parts_claims_and_wrong_values_are_left_to_the_one_who_asks_for_each(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        store(tier, KEY, LARGE)
        (only,) = tier._ring.servers
        only.write(pool_key(OTHER), claim(b"somebody"))
        only.write(pool_key(ABSENT), random.Random(3).randbytes(500))
        assert read_many(tier, KEY, OTHER, ABSENT) == {}
        assert tier.counts().hits == 0
        assert bytes(tier.read(KEY) or b"") == LARGE
        assert tier.read(ABSENT) is None
        assert tier.counts().corrupt == 1


def test_a_value_with_a_wrong_byte_is_not_returned(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        store(tier, KEY, VALUE)
        (only,) = tier._ring.servers
        good = bytes(only.read(pool_key(KEY)) or b"")
        for at in random.Random(4).sample(range(len(good)), 40):
            only.write(pool_key(KEY), good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
            assert read_many(tier, KEY) == {}


def test_the_pool_is_rich_while_it_has_most_of_what_it_is_asked_for(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        assert not tier.is_rich
        store(tier, KEY, VALUE)
        for _ in range(100):
            tier.read(KEY)
        assert tier.is_rich
        for number in range(100):
            tier.read(number.to_bytes(16, "big"))
        assert not tier.is_rich


def questions_of(tier: PoolTier, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many objects each question is for."""
    asked: list[int] = []
    real = tier.read_many

    def read_many(keys: Any, *, expected_bytes: int) -> Any:
        asked.append(len(keys))
        return real(keys, expected_bytes=expected_bytes)

    monkeypatch.setattr(tier, "read_many", read_many)
    return asked


@pytest.mark.parametrize("missing", [0, 1, 10], ids=["all there", "one missing", "some missing"])
def test_a_node_reads_a_rich_pool_in_groups_and_the_origin_for_what_is_missing(
    tmp_path: Path, server: Memcached, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node_of(tmp_path / "one", server) as (node, pool):
        dataset = node.open(memory_source(OBJECTS))
        node.plan(1, dataset, range(missing, OBJECTS))
        node.pump_until(lambda: node.num_residents(dataset) == OBJECTS - missing)
        assert wait_until(lambda: pool.counts().stored == OBJECTS - missing, timeout_seconds=60)
    with node_of(tmp_path / "other", server) as (other, pool):
        pool._recent = 1.0
        asked = questions_of(pool, monkeypatch)
        dataset = other.open(memory_source(OBJECTS))
        other.plan(1, dataset, [*range(missing, OBJECTS), *range(missing)])
        other.pump_until(lambda: other.num_residents(dataset) == OBJECTS)
        counts = other.node.statistics()
        assert (counts.origin_requests, counts.pool.hits) == (missing, OBJECTS - missing)
        assert max(asked) > 1
        assert sum(asked) <= OBJECTS  # an object that was sought is not sought in a group again


def test_large_objects_which_lie_in_parts_are_asked_for_one_by_one(
    tmp_path: Path, server: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node_of(tmp_path / "one", server) as (node, pool):
        pool._recent = 1.0
        asked = questions_of(pool, monkeypatch)
        dataset = node.open(memory_source(20, size=1024**2))
        node.plan(1, dataset, range(20))
        node.pump_until(lambda: node.num_residents(dataset) == 20)
        assert asked == []


def test_a_defect_of_the_pool_ends_no_thread_and_forgets_no_object(
    tmp_path: Path, server: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("a defect")

    with node_of(tmp_path / "one", server) as (node, pool):
        pool._recent = 1.0
        monkeypatch.setattr(pool, "read_many", fail)
        dataset = node.open(memory_source(OBJECTS))
        node.plan(1, dataset, range(OBJECTS))
        node.pump_until(lambda: node.num_residents(dataset) == OBJECTS)
        assert node.node.statistics().origin_requests == OBJECTS


def test_a_defect_of_the_disk_ends_no_thread_and_forgets_no_object(tmp_path: Path, server: Memcached) -> None:
    questions = itertools.count()

    def read(key: bytes) -> None:
        if next(questions) == 0:
            raise RuntimeError("a defect")

    with node_of(tmp_path / "one", server) as (node, pool):
        pool._recent = 1.0
        node.node.fetchers._disk = SimpleNamespace(read=read)  # type: ignore[assignment]
        dataset = node.open(memory_source(OBJECTS))
        node.plan(1, dataset, range(OBJECTS))
        node.pump_until(lambda: node.num_residents(dataset) == OBJECTS, timeout_seconds=60)
