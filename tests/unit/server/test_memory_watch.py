"""What the tier is granted while jobs grow; the machine is a number, the tier a real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodes import RecordingTier, Rig, content, memory_source, rig
from prefeed.server.datasets import Dataset
from prefeed.server.memory_watch import BUSY_SECONDS, CALM_SECONDS, GIVEN_BACK, TIGHT_SECONDS, MemoryWatch
from prefeed.server.node import Node
from prefeed.server.sessions import DEFAULT_SESSION, Sessions
from prefeed.server.tier_budget import Room
from prefeed.store.log import MIN_BUDGET_BYTES, capacity_within
from prefeed.system.memory import Memory, MemoryGroup
from prefeed.wire.messages import GrowCache, OpenCache
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

MIB = 1024**2
GIB = 1024**3
LIMIT = 100 * MIB
RESERVE = 10 * MIB
ASKED = 80 * MIB
SIZE = 100_000
NUM_OBJECTS = 1000


@dataclass
class Machine:
    """A control group of 100 MiB, in which the tier and the stage caches are, and programs that have so much."""

    tier: RecordingTier
    store: Path
    programs: int = 5 * MIB
    files: int = 0

    def taken(self) -> int:
        caches = sum(path.stat().st_blocks * 512 for path in self.store.rglob("*"))
        return self.tier.file_bytes() + caches

    def read(self) -> Memory:
        usage = self.taken() + self.programs + self.files
        group = MemoryGroup(limit_bytes=LIMIT, usage_bytes=usage, used_files_bytes=self.files)
        return Memory(total_bytes=GIB, available_bytes=GIB, groups=(group,))


@dataclass
class Server:
    """What the watch looks after."""

    rig: Rig
    machine: Machine
    sessions: Sessions
    watch: MemoryWatch

    @property
    def node(self) -> Node:
        return self.rig.node

    @property
    def tier(self) -> RecordingTier:
        return self.rig.tier

    def look(self) -> float:
        """Look until nothing is left to be done; return when the next look is."""
        for _ in range(1000):
            seconds = self.watch.look()
            if seconds != BUSY_SECONDS:
                break
        return seconds

    def fill(self) -> Dataset:
        """Fetch objects until the tier is full, as for a plan that goes through all of them."""
        dataset = self.rig.open(memory_source(NUM_OBJECTS, size=SIZE))
        self.rig.plan(1, dataset, range(NUM_OBJECTS))
        self.rig.deliver_all()
        return dataset


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Server]:
    store = sandbox.memory_dir / "store"
    store.mkdir()
    room = Room(store, ASKED)
    sessions = Sessions(room, None)
    with rig(sandbox.home, tier=RecordingTier(capacity_within(ASKED))) as made:
        sessions.share_memory_with(made.node)
        machine = Machine(made.tier, store)
        watch = MemoryWatch(
            asked_bytes=ASKED, granted_bytes=ASKED, notice=None, node=made.node, sessions=sessions, read=machine.read
        )
        yield Server(made, machine, sessions, watch)
    sessions.close()


def test_with_room_for_all_nothing_happens(server: Server) -> None:
    assert server.look() == CALM_SECONDS
    assert server.watch.notice is None
    assert server.node.scheduler.residency.budget_bytes > 70 * MIB
    assert server.node.statistics().errors == {}


def test_a_job_that_grows_takes_room_that_was_granted_and_not_taken(server: Server) -> None:
    server.machine.programs = 60 * MIB
    assert server.look() == CALM_SECONDS
    assert server.watch.notice is not None
    assert "stay free for programs" in server.watch.notice
    assert server.node.scheduler.residency.budget_bytes <= LIMIT - RESERVE - 60 * MIB
    assert server.node.statistics().errors == {}  # nothing had to go


def test_it_is_granted_more_when_the_job_shrinks(server: Server) -> None:
    server.machine.programs = 60 * MIB
    server.look()
    server.machine.programs = 5 * MIB
    server.look()
    assert server.watch.notice is None
    assert server.node.scheduler.residency.budget_bytes > 70 * MIB


def test_cached_files_take_nothing_away(server: Server) -> None:
    server.machine.files = 90 * MIB
    server.look()
    assert server.node.scheduler.residency.budget_bytes > 70 * MIB


def test_values_go_until_the_tier_fits(server: Server) -> None:
    """Those that are read last go first; others stay, and can be read."""
    dataset = server.fill()
    before = server.tier.num_entries
    server.machine.programs = 20 * MIB
    server.look()
    assert server.machine.taken() <= LIMIT - RESERVE - 20 * MIB
    left = [number for number in range(NUM_OBJECTS) if server.tier.get(dataset.key(number)) is not None]
    assert left == list(range(server.tier.num_entries))
    assert 600 < len(left) < before
    assert server.tier.get(dataset.key(0)) == content(0, SIZE)


def test_the_smallest_tier_stays_whatever_happens(server: Server) -> None:
    server.machine.programs = 2 * LIMIT
    assert server.look() == TIGHT_SECONDS
    assert server.node.scheduler.residency.budget_bytes > 0
    assert server.node.tier_bytes <= MIN_BUDGET_BYTES


def test_unused_caches_go_when_they_have_all_that_is_left(server: Server) -> None:
    """And those grow no more that somebody has open."""
    opened = server.sessions.open_cache("client", OpenCache(DEFAULT_SESSION, 1, "", 0, False))
    directory = Path(opened.memory_dir)
    (directory / "segment-0").write_bytes(bytes(20 * MIB))
    server.sessions.leave("client")
    server.machine.programs = 70 * MIB
    server.look()
    assert not directory.exists()
    opened = server.sessions.open_cache("client", OpenCache(DEFAULT_SESSION, 2, "", 0, False))
    grown = server.sessions.grow_cache("client", GrowCache(DEFAULT_SESSION, 2, 60 * MIB))
    assert grown.memory_limit_bytes < 20 * MIB
    assert os.path.isdir(opened.memory_dir)


def test_each_time_that_something_has_to_go_is_counted_and_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "prefeed")  # as sidecars and servers of nodes do
    server.fill()
    server.machine.programs = 40 * MIB
    server.watch.look()
    assert server.node.statistics().errors[GIVEN_BACK] == 1
    assert "stay free for programs" in caplog.text
