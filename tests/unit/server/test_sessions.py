"""What sessions and caches there are, and how much each may take."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cache_user import cache_user
from prefeed.config import KIB, MIB
from prefeed.core.shares import OVERHEAD_BYTES
from prefeed.errors import SessionNotFoundError, SpillingDisabledError, StoreError
from prefeed.server.sessions import DEFAULT_SESSION, Sessions, only_numa_node
from prefeed.server.tier_budget import Room
from prefeed.store.directory import allocated_bytes
from prefeed.store.read_counts import ReadCounts
from prefeed.system.locks import directory_lock
from prefeed.wire.messages import CacheOpened, CacheReads, GrowCache, OpenCache
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

BUDGET = 128 * MIB
OBJECTS_SHARE = 16 * MIB
VALUE = 256 * KIB


class Objects:
    """What stands for the tier of objects."""

    def __init__(self) -> None:
        self.file_bytes = 0
        self.budget_bytes = BUDGET

    def resize(self, budget_bytes: int) -> int:
        self.budget_bytes = max(budget_bytes, self.file_bytes)
        return self.budget_bytes


@dataclass
class Bench:
    """Sessions over two directories."""

    root: Path
    disk_root: Path | None
    objects: Objects
    sessions: Sessions
    memory: Room
    disk: Room | None

    def restart(self, *, budget_bytes: int = BUDGET) -> None:
        """As after SIGKILL: another object finds what is there."""
        self.sessions.close()
        self.memory = Room(self.root, budget_bytes)
        self.disk = None if self.disk_root is None else Room(self.disk_root, BUDGET)
        self.sessions = Sessions(self.memory, self.disk)
        self.bind()

    def bind(self) -> None:
        self.memory.bind(objects_bytes=lambda: self.objects.file_bytes, resize_objects=self.objects.resize)

    def open(
        self, session: int = 0, cache: int = 1, *, client: str = "one", size_bytes: int = 0, spilling: bool = False
    ) -> CacheOpened:
        return self.sessions.open_cache(client, OpenCache(session, cache, "decode", size_bytes, spilling))

    def names(self) -> dict[int, list[int]]:
        return {one.session: [cache.cache for cache in one.caches] for one in self.sessions.list_sessions()}

    def check(self) -> None:
        """The budget holds, whatever was promised."""
        assert self.objects.budget_bytes + self.promised() <= BUDGET

    def promised(self) -> int:
        return BUDGET - self.memory.shares.objects_limit_bytes


@pytest.fixture
def bench(sandbox: Sandbox) -> Iterator[Bench]:
    yield from made(sandbox, with_disk=True)


@pytest.fixture
def diskless(sandbox: Sandbox) -> Iterator[Bench]:
    yield from made(sandbox, with_disk=False)


def made(sandbox: Sandbox, *, with_disk: bool) -> Iterator[Bench]:
    root, disk_root = sandbox.memory_dir / "store", sandbox.root / "disk" if with_disk else None
    memory, disk = Room(root, BUDGET), None if disk_root is None else Room(disk_root, BUDGET)
    bench = Bench(root, disk_root, Objects(), Sessions(memory, disk), memory, disk)
    bench.bind()
    yield bench
    bench.check()
    bench.sessions.close()


# ------------------------------------------------------------ sessions


def test_a_session_is_made_listed_and_dropped(diskless: Bench) -> None:
    first, second = diskless.sessions.new_session(), diskless.sessions.new_session()
    assert first != second
    assert all(0 < session < 2**32 for session in (first, second))
    assert sorted(diskless.names()) == sorted((first, second))

    diskless.sessions.drop_sessions([first, second])

    assert diskless.names() == {}
    assert not list((diskless.root / "sessions").iterdir())


def test_an_unknown_session_is_refused_with_how_to_make_one(diskless: Bench) -> None:
    with pytest.raises(SessionNotFoundError, match=r"session 7 not found.*prefeed session new"):
        diskless.open(session=7)


def test_dropping_is_all_or_nothing(diskless: Bench) -> None:
    session = diskless.sessions.new_session()
    with pytest.raises(SessionNotFoundError, match="session 99 "):
        diskless.sessions.drop_sessions([session, 99])
    assert session in diskless.names()


def test_the_default_session_is_made_by_itself(diskless: Bench) -> None:
    assert diskless.names() == {}
    opened = diskless.open()
    assert diskless.names() == {DEFAULT_SESSION: [1]}
    assert Path(opened.memory_dir).is_dir()
    assert Path(opened.memory_dir).stat().st_mode & 0o777 == 0o700


def test_ids_that_are_no_ids_are_refused(diskless: Bench) -> None:
    for session, cache in ((-1, 1), (0, -1), (0, 2**32)):
        with pytest.raises(SessionNotFoundError):
            diskless.open(session, cache)


# ------------------------------------------------------------ what there is


def test_a_cache_says_what_it_holds_and_how_it_was_read(diskless: Bench) -> None:
    session = diskless.sessions.new_session()
    opened = diskless.open(session, 5, size_bytes=8 * MIB)
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 3, VALUE) == 3
    diskless.sessions.count(CacheReads(session, 5, 9, 3))
    diskless.sessions.count(CacheReads(session, 6, 9, 3))  # dropped, or never made: nothing happens

    (info,) = diskless.sessions.list_sessions()[0].caches

    assert (info.cache, info.description, info.clients, info.size_bytes) == (5, "decode", 1, 8 * MIB)
    assert (info.memory_entries, info.memory_bytes, info.disk_entries) == (3, 3 * VALUE, 0)
    assert (info.average_bytes, info.hit_ratio) == (VALUE, 0.75)


def test_the_numa_node_is_named_where_there_is_one_only(tmp_path: Path) -> None:
    assert only_numa_node(tmp_path / "nowhere") is None
    (tmp_path / "node0").mkdir()
    (tmp_path / "possible").mkdir()
    assert only_numa_node(tmp_path) == 0
    (tmp_path / "node1").mkdir()
    assert only_numa_node(tmp_path) is None


# ------------------------------------------------------------ limits


def test_a_size_is_a_quota(diskless: Bench) -> None:
    assert diskless.open(size_bytes=8 * MIB).memory_limit_bytes == 8 * MIB
    grown = diskless.sessions.grow_cache("one", GrowCache(0, 1, 64 * MIB))
    assert grown.memory_limit_bytes == 8 * MIB


def test_without_a_size_half_of_what_is_free_is_given_and_more_when_asked(diskless: Bench) -> None:
    free = BUDGET - OBJECTS_SHARE - OVERHEAD_BYTES
    limit = diskless.open().memory_limit_bytes
    assert limit == free // 2 // 4096 * 4096
    grown = diskless.sessions.grow_cache("one", GrowCache(0, 1, limit + 1)).memory_limit_bytes
    assert grown == free
    assert diskless.sessions.grow_cache("one", GrowCache(0, 1, grown + 1)).memory_limit_bytes == grown


def test_who_asks_for_what_was_given_already_is_given_nothing(diskless: Bench) -> None:
    limit = diskless.open().memory_limit_bytes
    assert diskless.sessions.grow_cache("two", GrowCache(0, 1, limit)).memory_limit_bytes == limit


def test_the_objects_get_what_is_left_and_keep_their_share(diskless: Bench) -> None:
    limit = diskless.open(size_bytes=32 * MIB).memory_limit_bytes
    assert diskless.objects.budget_bytes == BUDGET - limit - OVERHEAD_BYTES
    diskless.open(cache=2, size_bytes=1 << 40)
    assert diskless.objects.budget_bytes >= OBJECTS_SHARE
    diskless.check()


def test_who_opens_a_cache_hears_how_much_it_could_take(diskless: Bench) -> None:
    """Also of one that others opened smaller before: it may grow."""
    for size in (8 * MIB, 16 * MIB):
        assert diskless.open(size_bytes=size).memory_most_bytes > 16 * MIB
    opened = diskless.open(cache=2, size_bytes=1 << 40)
    assert opened.memory_most_bytes == opened.memory_limit_bytes < BUDGET - OBJECTS_SHARE


def test_what_the_objects_have_taken_is_not_given_away(diskless: Bench) -> None:
    diskless.objects.file_bytes = 100 * MIB
    limit = diskless.open(size_bytes=1 << 40).memory_limit_bytes
    assert 100 * MIB + limit + OVERHEAD_BYTES <= BUDGET
    assert limit > 27 * MIB
    diskless.objects.file_bytes = BUDGET - limit - OVERHEAD_BYTES
    assert diskless.open(cache=2).memory_limit_bytes == 0


def test_opened_with_two_sizes_the_larger_limit_holds(diskless: Bench) -> None:
    diskless.open(size_bytes=8 * MIB)
    diskless.open(client="two", size_bytes=16 * MIB)
    grown = diskless.sessions.grow_cache("one", GrowCache(0, 1, 64 * MIB))
    assert grown.memory_limit_bytes == 16 * MIB
    diskless.open(client="three")
    grown = diskless.sessions.grow_cache("one", GrowCache(0, 1, 64 * MIB))
    assert grown.memory_limit_bytes >= 64 * MIB


def test_a_cache_that_is_unused_keeps_what_its_file_takes(diskless: Bench) -> None:
    opened = diskless.open(client="one")
    diskless.open(client="two")
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 8, VALUE) == 8
    diskless.sessions.leave("one")
    assert diskless.memory.limit_of((0, 1)) == opened.memory_limit_bytes
    diskless.sessions.leave("two")
    taken = allocated_bytes(Path(opened.memory_dir))
    assert 8 * VALUE < taken < 9 * VALUE
    assert diskless.memory.limit_of((0, 1)) == taken
    assert diskless.objects.budget_bytes == BUDGET - taken - OVERHEAD_BYTES
    assert not diskless.sessions.has_unsettled


def test_a_process_that_comes_later_writes_no_more_than_it_is_told(diskless: Bench) -> None:
    opened = diskless.open()
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 8, VALUE) == 8
    diskless.sessions.leave("one")
    diskless.objects.file_bytes = diskless.objects.budget_bytes  # nothing is free any more
    again = diskless.open()
    assert again.memory_limit_bytes < 9 * VALUE
    with cache_user(again.memory_dir, again.memory_limit_bytes) as user:
        assert user.count(8) == 8
        assert user.put(8, 40, VALUE) <= 1
    assert allocated_bytes(diskless.root) <= diskless.promised()


def test_a_limit_is_not_lowered_under_a_process_that_has_the_store_open(diskless: Bench) -> None:
    opened = diskless.open()
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 4, VALUE) == 4
        diskless.sessions.leave("one")
        assert diskless.sessions.has_unsettled
        assert diskless.memory.limit_of((0, 1)) == opened.memory_limit_bytes
        user.let_go()
        diskless.sessions.settle()
        assert not diskless.sessions.has_unsettled
        assert diskless.memory.limit_of((0, 1)) < 6 * VALUE


# ------------------------------------------------------------ who goes when there is no room


def fill(bench: Bench, cache: int, *, session: int = 0, size_bytes: int = 40 * MIB) -> None:
    """A cache that nobody uses takes that much."""
    opened = bench.open(session, cache, client="filler", size_bytes=size_bytes)
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, size_bytes // MIB, MIB) >= size_bytes // MIB - 2
    bench.sessions.leave("filler")


def test_the_least_recently_used_idle_cache_of_the_default_session_goes(diskless: Bench) -> None:
    fill(diskless, 1)
    fill(diskless, 2)
    diskless.open(cache=1, client="reader", size_bytes=40 * MIB)
    diskless.sessions.leave("reader")

    opened = diskless.open(cache=3, size_bytes=60 * MIB)

    assert opened.memory_limit_bytes == 60 * MIB
    assert diskless.names() == {DEFAULT_SESSION: [1, 3]}


def test_a_growing_cache_makes_others_go_too(diskless: Bench) -> None:
    fill(diskless, 1)
    limit = diskless.open(cache=2).memory_limit_bytes
    grown = diskless.sessions.grow_cache("one", GrowCache(0, 2, limit + 40 * MIB))
    assert grown.memory_limit_bytes >= limit + 40 * MIB
    assert diskless.names() == {DEFAULT_SESSION: [2]}


def test_caches_in_use_and_those_of_other_sessions_stay(diskless: Bench) -> None:
    session = diskless.sessions.new_session()
    fill(diskless, 1, session=session)
    fill(diskless, 2)
    opened = diskless.open(cache=2, client="reader", size_bytes=40 * MIB)
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.count(1) == 1
        diskless.sessions.leave("reader")  # its process still has the store open
        limit = diskless.open(cache=3).memory_limit_bytes
        assert limit < 40 * MIB
        assert diskless.names() == {DEFAULT_SESSION: [2, 3], session: [1]}


def test_what_processes_hold_of_a_dropped_cache_counts_until_they_let_go(diskless: Bench) -> None:
    session = diskless.sessions.new_session()
    opened = diskless.open(session, 1, size_bytes=80 * MIB)
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 4, VALUE) == 4
        diskless.sessions.drop_sessions([session])
        assert not Path(opened.memory_dir).exists()
        assert diskless.open().memory_limit_bytes < 48 * MIB
        assert diskless.sessions.has_unsettled
        user.let_go()
        diskless.sessions.settle()
        assert not diskless.sessions.has_unsettled
        limit = diskless.sessions.grow_cache("one", GrowCache(0, 1, 100 * MIB)).memory_limit_bytes
        assert limit >= 100 * MIB


def test_growing_a_dropped_cache_is_refused(diskless: Bench) -> None:
    session = diskless.sessions.new_session()
    first = diskless.open(session, 1)
    diskless.sessions.drop_sessions([session])
    with pytest.raises(SessionNotFoundError, match="dropped"):
        diskless.sessions.grow_cache("one", GrowCache(session, 1, 1))
    diskless.sessions.leave("one")
    assert diskless.open(DEFAULT_SESSION, 1).instance != first.instance


# ------------------------------------------------------------ after a crash


def test_everything_continues_after_a_crash(bench: Bench) -> None:
    session = bench.sessions.new_session()
    opened = bench.open(session, 1, size_bytes=8 * MIB)
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 8, VALUE) == 8
        bench.restart()
        assert bench.memory.limit_of((session, 1)) == 8 * MIB  # the process may still write
        assert user.put(8, 4, VALUE) == 4
    assert bench.names() == {session: [1]}
    again = bench.open(session, 1)
    assert (again.instance, again.memory_dir) == (opened.instance, opened.memory_dir)
    assert bench.sessions.list_sessions()[0].caches[0].memory_entries == 12


def test_what_was_half_made_or_half_dropped_is_removed(bench: Bench) -> None:
    session = bench.sessions.new_session()
    bench.open(session, 1)
    sessions = bench.root / "sessions"
    (sessions / str(session) / "2").mkdir()
    (sessions / str(session) / "3").mkdir()
    (sessions / str(session) / "3" / "cache.json").write_text('{"description": "x"')
    (sessions / ".gone-0123").mkdir()
    (sessions / ".gone-0123" / "data.mdb").write_bytes(b"x")
    (sessions / "stray").write_bytes(b"x")

    bench.restart()

    assert bench.names() == {session: [1]}
    assert [path.name for path in sessions.iterdir()] == [str(session)]
    assert [path.name for path in (sessions / str(session)).iterdir()] == ["1"]


def test_a_smaller_budget_after_a_crash_makes_the_oldest_go(bench: Bench) -> None:
    session = bench.sessions.new_session()
    fill(bench, 1, session=session, size_bytes=30 * MIB)
    fill(bench, 2, size_bytes=30 * MIB)
    bench.restart(budget_bytes=64 * MIB)
    assert bench.names() == {session: [1], DEFAULT_SESSION: []}
    assert bench.memory.shares.objects_limit_bytes >= OBJECTS_SHARE


# ------------------------------------------------------------ disk


def test_spilling_without_a_disk_tier_is_refused_with_what_to_do(diskless: Bench) -> None:
    with pytest.raises(SpillingDisabledError, match=r"PREFEED_DISK.*cache_admin --start -s DIR"):
        diskless.open(spilling=True)
    assert diskless.names() == {}


def test_a_spilling_cache_has_a_part_on_disk_that_survives_the_memory(bench: Bench) -> None:
    session = bench.sessions.new_session()
    opened = bench.open(session, 1, spilling=True)
    assert opened.disk_limit_bytes >= 50 * MIB
    assert bench.open(session, 2).disk_dir == ""
    with cache_user(opened.disk_dir, opened.disk_limit_bytes) as user:  # LMDB's file is the same in both
        assert user.put(0, 2, VALUE) == 2
    bench.sessions.remove_memory()

    bench.restart()

    assert bench.names() == {session: [1]}
    again = bench.open(session, 1)
    assert (again.instance, again.disk_dir) == (opened.instance, opened.disk_dir)
    assert Path(again.memory_dir).is_dir()
    bench.sessions.drop_sessions([session])
    assert not Path(opened.disk_dir).exists()


def test_a_session_that_the_end_of_the_server_would_lose_is_known(bench: Bench) -> None:
    assert not bench.sessions.would_be_lost
    bench.open()
    assert not bench.sessions.would_be_lost  # the default session is made again by itself
    session = bench.sessions.new_session()
    assert bench.sessions.would_be_lost
    opened = bench.open(session, 1, spilling=True)
    assert not bench.sessions.would_be_lost  # all there is of it is on disk
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 1, VALUE) == 1
    assert bench.sessions.would_be_lost


def test_directories_that_somebody_removed_are_made_again(bench: Bench) -> None:
    opened = bench.open()
    shutil.rmtree(bench.root / "sessions")
    assert bench.open().memory_dir == opened.memory_dir
    assert Path(opened.memory_dir).is_dir()


# ------------------------------------------------------------ who else may write there

OTHER_USER = 65534


@pytest.fixture
def planted(bench: Bench) -> Path:
    """A cache of a session on disk, as an earlier server has left it."""
    session = bench.sessions.new_session()
    opened = bench.open(session, 1, spilling=True)
    bench.sessions.remove_memory()
    bench.restart()
    assert bench.names() == {session: [1]}
    return Path(opened.disk_dir)


def give_away(path: Path) -> None:
    path.chmod(0o777)
    try:
        os.chown(path, OTHER_USER, OTHER_USER)
    except PermissionError:
        pytest.skip("only root may give directories away")


@pytest.mark.parametrize("up", [1, 2, 3], ids=["session", "sessions", "root"])
def test_a_directory_of_another_user_is_not_used(bench: Bench, planted: Path, up: int) -> None:
    """Entries may be pickles: who puts one there runs code here."""
    give_away(planted.parents[up - 1])
    if up == 1:
        bench.restart()
        assert bench.names() == {}
        return
    with pytest.raises(StoreError, match=r"belongs to user|of this user"):
        bench.restart()
    with pytest.raises(StoreError, match=r"belongs to user|of this user"):
        bench.sessions.disk.files.make_session(7)  # type: ignore[union-attr]
    shutil.rmtree(bench.disk_root or "")


def test_a_cache_that_others_could_write_to_is_removed(bench: Bench, planted: Path) -> None:
    planted.chmod(0o770)
    bench.restart()
    assert not planted.exists()


def test_the_disk_tier_may_lie_where_all_may_write_as_in_tmp(bench: Bench, planted: Path) -> None:
    root = planted.parents[2]
    root.chmod(0o1777)
    bench.restart()
    assert bench.names() == {int(planted.parent.name): [1]}
    assert root.stat().st_mode & 0o7777 == 0o1777
    root.chmod(0o775)
    bench.restart()
    assert root.stat().st_mode & 0o7777 == 0o755


# ------------------------------------------------------------ what cannot be made, or looked into


def test_a_cache_whose_directory_cannot_be_made_is_not_there(bench: Bench) -> None:
    session = bench.sessions.new_session()
    in_the_way = bench.root / "sessions" / str(session) / "1"
    in_the_way.write_bytes(b"")
    before = bench.promised()
    with pytest.raises(StoreError, match="cannot make the cache"):
        bench.open(session, 1, size_bytes=8 * MIB, spilling=True)
    assert bench.names() == {session: []}
    assert bench.promised() == before
    assert not bench.sessions.has_unsettled
    assert bench.open(session, 1, size_bytes=8 * MIB).memory_limit_bytes == 8 * MIB


def test_a_client_that_could_not_open_a_cache_does_not_use_it(bench: Bench) -> None:
    session = bench.sessions.new_session()
    opened = bench.open(session, 1)
    shutil.rmtree(opened.memory_dir)
    Path(opened.memory_dir).write_bytes(b"")
    for client in ("one", "two"):
        with pytest.raises(StoreError, match="cannot make the cache"):
            bench.open(session, 1, client=client)
    assert bench.sessions.list_sessions()[0].caches[0].clients == 1  # the one that had it open before


def test_a_process_that_is_stopped_in_a_directory_is_not_waited_for(diskless: Bench) -> None:
    opened = diskless.open()
    with cache_user(opened.memory_dir, opened.memory_limit_bytes) as user:
        assert user.put(0, 4, VALUE) == 4
    with directory_lock(Path(opened.memory_dir)):
        diskless.sessions.leave("one")
        assert diskless.sessions.has_unsettled
        (info,) = diskless.sessions.list_sessions()[0].caches
        assert info.memory_entries == 0  # for now
    diskless.sessions.settle()
    assert not diskless.sessions.has_unsettled
    (info,) = diskless.sessions.list_sessions()[0].caches
    assert info.memory_entries == 4


def test_reads_that_processes_count_by_themselves_are_seen(diskless: Bench) -> None:
    opened = diskless.open()
    counts = ReadCounts(opened.memory_dir)
    assert counts.try_add(3, 1)
    diskless.sessions.count(CacheReads(0, 1, 1, 0))
    (info,) = diskless.sessions.list_sessions()[0].caches
    assert (info.hits, info.misses) == (4, 1)
    counts.close()
