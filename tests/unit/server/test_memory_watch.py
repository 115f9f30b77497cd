"""What the tier is granted while jobs grow; the machine is a number, the tier a real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.server.memory_watch import BUSY_SECONDS, CALM_SECONDS, GIVEN_BACK, TIGHT_SECONDS, MemoryWatch
from prefeed.server.node import Node
from prefeed.server.sessions import DEFAULT_SESSION, Sessions
from prefeed.server.tier_budget import Room
from prefeed.store.layout import MIN_BUDGET_BYTES
from prefeed.store.reader import TierReader
from prefeed.store.writer import TierWriter
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


@dataclass
class Machine:
    """A control group of 100 MiB, in which the tier is, and programs that have so much."""

    store: Path
    programs: int = 5 * MIB
    files: int = 0

    def taken(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self.store.rglob("*"))

    def read(self) -> Memory:
        usage = self.taken() + self.programs + self.files
        group = MemoryGroup(limit_bytes=LIMIT, usage_bytes=usage, used_files_bytes=self.files)
        return Memory(total_bytes=GIB, available_bytes=GIB, groups=(group,))


@dataclass
class Server:
    """What the watch looks after."""

    machine: Machine
    node: Node
    sessions: Sessions
    watch: MemoryWatch

    def look(self) -> float:
        """Look until nothing is left to be done; return when the next look is."""
        for _ in range(1000):
            seconds = self.watch.look()
            if seconds != BUSY_SECONDS:
                break
        return seconds

    def fill(self) -> int:
        """Put values into the tier until it is full; return how many there are."""
        stored = 0
        for number in range(2000):
            try:
                self.node._tier.put_many([(number.to_bytes(16, "big"), bytes([number % 251]) * SIZE, False)])
            except Exception:  # noqa: BLE001 - it is full
                break
            stored += 1
        return stored


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Server]:
    store = sandbox.memory_dir / "store"
    room = Room(store, ASKED)
    sessions = Sessions(room, None)
    tier = TierWriter.open(store, budget_bytes=ASKED)
    node = Node(resolve(), tier, clock=lambda: 0.0, wake=lambda: None, call_later=lambda *_: None)
    sessions.share_memory_with(node)
    machine = Machine(store)
    watch = MemoryWatch(
        store_dir=store, asked_bytes=ASKED, granted_bytes=ASKED, notice=None, node=node, sessions=sessions,
        read=machine.read,
    )  # fmt: skip
    yield Server(machine, node, sessions, watch)
    node.close()
    sessions.close()
    tier.destroy()


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


def test_pages_that_were_made_ahead_go_back_first(server: Server) -> None:
    """Values that are there stay, and can be read."""
    server.node._tier.put_many([(bytes(16), b"x" * SIZE, False)])
    server.machine.programs = 88 * MIB
    assert server.look() == TIGHT_SECONDS
    assert server.machine.taken() <= MIN_BUDGET_BYTES + MIB
    reader = TierReader(server.machine.store)
    assert reader.get(bytes(16)) == b"x" * SIZE
    reader.close()


def test_the_smallest_tier_stays_whatever_happens(server: Server) -> None:
    server.machine.programs = 2 * LIMIT
    assert server.look() == TIGHT_SECONDS
    assert server.node.scheduler.residency.budget_bytes > 0
    assert server.node.tier_bytes <= MIN_BUDGET_BYTES


def test_unused_caches_go_when_they_have_all_that_is_left(server: Server) -> None:
    """And those grow no more that somebody has open."""
    opened = server.sessions.open_cache("client", OpenCache(DEFAULT_SESSION, 1, "", 0, False))
    directory = Path(opened.memory_dir)
    (directory / "data.mdb").write_bytes(bytes(20 * MIB))
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
