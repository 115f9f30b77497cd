"""A cache in one process, without a server; what the server has to do with it is in tests/process/test_cache_stores.py."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cache_user import key_of, value_of
from prefeed.config import GIB, KIB, MIB, Config, resolve
from prefeed.stage_cache.cache_link import CacheLink
from prefeed.stage_cache.cache_store import CacheName, CacheStore
from prefeed.store.read_counts import counted_reads
from prefeed.wire.messages import CacheOpened
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

LIMIT = 16 * MIB
VALUE = 100 * KIB
NAME = CacheName(session=0, cache=1, description="decode", spilling=True)


@pytest.fixture
def opened(sandbox: Sandbox) -> CacheOpened:
    """What a server said that is there no more."""
    memory, disk = sandbox.memory_dir / "cache", sandbox.root / "cache"
    memory.mkdir()
    disk.mkdir()
    return CacheOpened(str(memory), LIMIT, str(disk), LIMIT, "one")


@pytest.fixture
def store(opened: CacheOpened) -> Iterator[CacheStore]:
    store = CacheStore(resolve(), NAME, opened)
    yield store
    store.close()


def put(store: CacheStore, index: int, version: int = 0) -> bool:
    return store.put(key_of(index), memoryview(value_of(index + version, VALUE)))


def in_child(act: object) -> int:
    """Run a function in a forked child and return what it returns."""
    pid = os.fork()
    if pid == 0:
        os._exit(act())  # type: ignore[operator]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("spilling", [False, True])
def test_a_size_that_the_node_does_not_have_is_said_once(
    opened: CacheOpened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spilling: bool
) -> None:
    def link(config: Config, name: CacheName) -> tuple[CacheLink, CacheOpened]:
        return CacheLink(config, name), replace(opened, memory_most_bytes=3 * GIB)

    monkeypatch.setattr(CacheLink, "open", link)
    monkeypatch.setattr("prefeed.places._said", set())
    for size_bytes in (0, 3 * GIB, 10**6 * MIB, 10**6 * MIB):
        name = CacheName(session=5, cache=1, description="", size_bytes=size_bytes, spilling=spilling)
        CacheStore.open(resolve(), name).close()
    (said,) = caplog.messages
    assert "session 5 was asked for with size=1000000, which is in MB: 976.56 GiB. The node server has 3.00 GiB" in said
    assert "size=3072 or less" in said
    assert "PREFEED_MEMORY" in said
    assert ("go to disk. " in said, "spilling=True" in said) == (spilling, not spilling)


def test_without_a_server_what_it_said_last_continues(store: CacheStore) -> None:
    assert put(store, 1)
    assert store.get(key_of(1)) == value_of(1, VALUE)
    assert store.get(key_of(2)) is None
    assert store.statistics() == (1, 0, VALUE)


def test_what_has_no_room_goes_to_disk_and_then_nowhere(store: CacheStore) -> None:
    count = next(index for index in range(10_000) if not put(store, index))
    in_memory, on_disk, _ = store.statistics()
    assert min(in_memory, on_disk) * VALUE > 0.8 * LIMIT
    assert in_memory + on_disk == count
    assert not store.takes_more
    assert all(store.get(key_of(index)) == value_of(index, VALUE) for index in range(count))


def test_that_it_is_full_is_said_once(store: CacheStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="prefeed")
    while store.put(os.urandom(16), memoryview(bytes(100_000))):
        assert not caplog.records
    store.put(os.urandom(16), memoryview(bytes(100_000)))
    (record,) = caplog.records
    assert " is full: " in record.message
    assert "raise its size, PREFEED_MEMORY or PREFEED_DISK" in record.message


def test_a_fresh_value_on_disk_hides_what_memory_cannot_let_go_of(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(store, 1)
    memory = store._here.place.tiers[0]
    with monkeypatch.context() as patch:
        patch.setattr(memory, "put_many", lambda _: 0)  # pages that readers pin: neither deleted nor replaced
        assert put(store, 1, version=7)
        assert store.get(key_of(1)) == value_of(8, VALUE)
    assert put(store, 1, version=9)
    assert store.get(key_of(1)) == value_of(10, VALUE)


def test_a_child_forked_while_a_thread_is_at_it_continues_by_itself(store: CacheStore) -> None:
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock, store._here.link._counting:
            held.set()
            go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        assert in_child(lambda: 10 if put(store, 1) and put(store, 2) else 20) == 10
    finally:
        go.set()
        holder.join()
    assert store.get(key_of(2)) == value_of(2, VALUE)


def test_threads_of_a_child_share_what_is_open(store: CacheStore) -> None:
    """None of them opens the cache under another that uses it."""
    assert put(store, 0)

    def act() -> int:
        place, claims = store._here.place, store.claims
        threads = [threading.Thread(target=put, args=(store, index)) for index in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        same = store._here.place is place and store.claims is claims
        return 10 if same and store.statistics()[0] == 9 else 20

    assert in_child(act) == 10


def test_a_copy_opens_the_cache_for_itself(store: CacheStore) -> None:
    assert put(store, 1)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get(key_of(1)) == value_of(1, VALUE)
    assert put(copy, 2)
    assert store.get(key_of(2)) == value_of(2, VALUE)
    copy.close()


def test_a_removed_cache_takes_nothing(store: CacheStore, opened: CacheOpened) -> None:
    assert put(store, 1)
    for directory in (opened.memory_dir, opened.disk_dir):
        for path in Path(directory).iterdir():
            path.unlink()
        Path(directory).rmdir()
    assert store.get(key_of(1)) is None
    assert not put(store, 1)


def test_reads_are_counted_however_a_process_ends(store: CacheStore, opened: CacheOpened) -> None:
    store.count(3, 1)

    def act() -> int:
        store.count(1, 1)
        store.count(10, 0)
        return 10

    for _ in range(2):
        assert in_child(act) == 10
    assert counted_reads(Path(opened.memory_dir)) == (25, 3)
    store.close()
    store.count(1, 0)
    assert counted_reads(Path(opened.memory_dir)) == (26, 3)
