"""A process that is suspended (SIGSTOP, a paused container) holds up no other, wherever it stands, and harms none when it wakes."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest

import prefeed
from cache_user import key_of, value_of
from leaks import read_proc
from limits import set_limits
from prefeed.client.launch import try_connect
from prefeed.client.node import NodeClient
from prefeed.config import MIB, resolve
from prefeed.errors import PackOccupiedError, ServerUnavailableError
from prefeed.packing.journal import Journal
from prefeed.sources.manifest import COLUMNS, Manifest
from prefeed.stage_cache.cache_store import CacheName, CacheStore
from prefeed.store import shared
from prefeed.store.shared import SharedTier
from prefeed.system import locks
from prefeed.torch.loader import _attachment_of
from prefeed.wire.endpoint import ensure_private_dir
from process.children import child_running, stopped
from process.conditions import server_pid, wait_for
from sandbox import Sandbox


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was waited for in vain is waited for again at once; a sandbox's readers are closed at its end."""
    monkeypatch.setattr(locks, "FORGIVING_SECONDS", 0.5)
    monkeypatch.setattr("prefeed.store.shared.FORGIVING_SECONDS", 0.5)
    yield
    prefeed.datasets._readers.close()


def is_suspended(pid: int) -> bool:
    return read_proc(pid, "stat").rpartition(b")")[2].split()[0] == b"T"


@contextmanager
def suspended(target: Any, *args: Any) -> Iterator[tuple[int, Pipe]]:
    """Run a function in a child until it has suspended itself."""
    with child_running(target, *args) as (process, pipe):
        wait_for(lambda: is_suspended(process.pid), "the child to be suspended")
        yield process.pid, pipe


def suspend_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(params=["memory", "disk"])
def tier(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[SharedTier]:
    on_disk = request.param == "disk"
    directory = (sandbox.root if on_disk else sandbox.memory_dir) / "cache"
    directory.mkdir()
    tier = SharedTier(directory, limit_bytes=16 * MIB, on_disk=on_disk)
    assert tier.put_many([(key_of(0), value_of(0, 1000))]) == 1
    yield tier
    tier.close()


# ---------------------------------------------------------------- a store that many write


def _write_and_stop(tier: SharedTier, where: str, pipe: Pipe) -> None:
    """Put a value, and be suspended in the midst of it."""
    if where == "in the turn":
        files = tier._opened()
        assert files is not None
        with files.turn():
            suspend_myself()
    elif where == "between two turns":
        before = shared.write_parts

        def write(*args: Any) -> None:
            before(*args)
            suspend_myself()

        shared.write_parts = write
    else:
        with tier.batch() as batch:
            view = batch.get_view(key_of(0))
            assert view is not None
            suspend_myself()
            pipe.send(bytes(view))
            return
    pipe.send(tier.put_many([(key_of(1), value_of(1, 50_000))]))


def test_who_has_the_turn_to_write(tier: SharedTier) -> None:
    """Others read on, store nothing, and go on storing when he has woken up and ended what he began."""
    with suspended(_write_and_stop, tier, "in the turn") as (pid, pipe):
        assert tier.put_many([(key_of(1), value_of(2, 50_000)), (key_of(2), value_of(2, 50_000))]) == 0
        assert tier.is_kept_busy()
        assert tier.get(key_of(0)) == value_of(0, 1000)
        assert tier.get(key_of(1)) is None
        tier.empty()
        assert tier.get(key_of(0)) == value_of(0, 1000)
        tier.close()  # another process would open it now, and does
        assert tier.get(key_of(0)) == value_of(0, 1000)
        assert tier.put_many([(key_of(2), value_of(2, 50_000))]) == 0
        os.kill(pid, signal.SIGCONT)
        assert pipe.recv() == 1
        assert tier.get(key_of(1)) == value_of(1, 50_000)
        wait_for(lambda: tier.put_many([(key_of(2), value_of(2, 50_000))]) == 1, "the turn")
    assert tier.get(key_of(2)) == value_of(2, 50_000)
    assert not {tier.statistics().corrupt}.difference({0})


def test_who_writes_a_value(tier: SharedTier) -> None:
    """Others go on, and empty the store: what is written late is in no store, or found whole."""
    with suspended(_write_and_stop, tier, "between two turns") as (pid, pipe):
        assert tier.put_many([(key_of(1), value_of(2, 50_000))]) == 1
        os.kill(pid, signal.SIGCONT)
        assert pipe.recv() == 1
        assert tier.get(key_of(1)) == value_of(1, 50_000)
    with suspended(_write_and_stop, tier, "between two turns") as (pid, pipe):
        tier.empty()
        assert tier.put_many([(key_of(2), value_of(2, 50_000))]) == 1
        os.kill(pid, signal.SIGCONT)
        assert pipe.recv() == 0
        assert tier.keys() == [key_of(2)]


def test_who_reads_inside_a_batch(tier: SharedTier) -> None:
    """What a reader looks at stays, whatever others do meanwhile."""
    with suspended(_write_and_stop, tier, "in a batch") as (pid, pipe):
        assert tier.put_many([(key_of(0), value_of(5, 1000))]) == 1
        tier.empty()
        stored = sum(tier.put_many([(key_of(100 + i), value_of(i, 200_000))]) for i in range(200))
        assert 10 < stored < 200
        os.kill(pid, signal.SIGCONT)
        assert pipe.recv() == value_of(0, 1000)


def test_threads_that_wait_for_the_turn_do_not_wait_one_after_the_other(tier: SharedTier) -> None:
    """The second does not begin to wait when the first has given up."""
    turn = locks.ProcessLock(tier.directory / "store" / "index")
    with suspended(_write_and_stop, tier, "in the turn"):
        with pytest.raises(BlockingIOError), turn.hold():
            raise AssertionError
        assert turn.has_timed_out()
        with pytest.raises(BlockingIOError), turn.hold(within_seconds=1000):
            raise AssertionError
    turn.close()


# ---------------------------------------------------------------- stages


class Numbers:
    """Samples made of files; in a child, making the sample whose file says so suspends it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> bytes:
        with open(self.root / f"{index}.bin", "rb") as file:
            data = file.read()
        if os.environ.get("SUSPEND_AT") == str(index):
            del os.environ["SUSPEND_AT"]
            suspend_myself()
        return data * 100


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    for index in range(20):
        (tmp_path / f"{index}.bin").write_bytes(b"%d" % index * 1000)
    return Numbers(tmp_path)


def _make_all(cached: Any, how: str, pipe: Pipe) -> None:
    if how == "writes":  # in the turn
        before = shared._Files.replace

        def replace(self: Any, *args: Any) -> None:
            if "SUSPEND_AT" in os.environ:
                del os.environ["SUSPEND_AT"]
                suspend_myself()
            before(self, *args)

        shared._Files.replace = replace  # type: ignore[method-assign]
    pipe.send([cached[index] for index in range(len(cached))])


@pytest.mark.parametrize("how", ["makes", "writes"])
def test_who_fills_a_stage(numbers: Numbers, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody else has every sample; what could not be kept is counted, and a changed file is seen by all."""
    cached = prefeed.CachedDataset(numbers, version="numbers")
    expected = [numbers[index] for index in range(20)]
    monkeypatch.setenv("SUSPEND_AT", "9")
    with suspended(_make_all, cached, how) as (pid, pipe):
        monkeypatch.delenv("SUSPEND_AT")
        assert [cached[index] for index in range(20)] == expected
        (numbers.root / "9.bin").write_bytes(b"changed" * 100)
        assert cached[9] == b"changed" * 10_000
        os.kill(pid, signal.SIGCONT)
        assert pipe.recv()[10:] == expected[10:]
    store = cached._store
    assert store is not None
    wait_for(lambda: not any(tier.is_kept_busy() for tier in store._here.place.tiers), "the turn")
    for _ in range(2):
        assert [cached[index] for index in range(20)] == [*expected[:9], b"changed" * 10_000, *expected[10:]]
    store.report(now=True)
    with NodeClient.connect(resolve(), autostart=False) as node:
        not_stored = node.statistics().sessions.not_stored
        if how == "writes":
            wait_for(lambda: node.statistics().sessions.not_stored > 0, "the count")
        else:
            assert not_stored == 0
    assert store.statistics()[0] == 20
    cached.close()


def _put_and_stop(store: CacheStore, pipe: Pipe) -> None:
    _write_and_stop(store._here.place.tiers[0], "in the turn", pipe)


def test_room_is_not_asked_for_because_somebody_has_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    name = CacheName(session=0, cache=1, description="decode")
    with closing(CacheStore.open(resolve(), name)) as store:
        assert store.put(key_of(0), memoryview(value_of(0, 1000)))
        limit = store._here.place.tiers[0].limit_bytes
        with suspended(_put_and_stop, store):
            for index in range(3):
                assert not store.put(key_of(1 + index), memoryview(value_of(1, 1000)))
            assert store._here.place.tiers[0].limit_bytes == limit
            assert store.takes_more
    said = [record.getMessage() for record in caplog.records if "not cached for now" in record.getMessage()]
    assert len(said) <= 1  # once a process


# ---------------------------------------------------------------- the server, and who starts it


def test_the_server_while_a_loop_tells_it_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    """More than fits into the socket is told; samples that are in the tier are read, and nobody waits long for the rest."""
    monkeypatch.setattr("prefeed.client.consumer._COUNTS_SECONDS", 0.3)
    monkeypatch.setattr("prefeed.client.connection._GREETING_SECONDS", 0.3)
    monkeypatch.setattr("prefeed.client.reader._GRACE_SECONDS", 0.3)
    set_limits(monkeypatch, request_seconds=0.1)
    root = tmp_path / "data"
    root.mkdir()
    for index in range(400):
        (root / f"{index:04}").write_bytes(b"%d" % index)
    objects = prefeed.datasets.Objects(root)
    loader = prefeed.DataLoader(objects, batch_size=1, collate_fn=lambda batch: batch[0])
    expected = [b"%d" % index for index in range(400)]
    assert list(loader) == expected
    with stopped(server_pid()):
        for _ in range(2):
            assert list(loader) == expected
    assert list(loader) == expected
    wait_for(lambda: list(loader) == expected and loader_is_planned(loader), "a plan")


def loader_is_planned(loader: Any) -> bool:
    with NodeClient.connect(resolve(), autostart=False) as node:
        return bool(node.plans())


def _hold(path: Path, pipe: Pipe) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    suspend_myself()
    pipe.recv()


def test_who_starts_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is kept by a process that does not come to listen: the program trains, and later epochs have a plan."""
    set_limits(monkeypatch, start_seconds=0.5)
    root = tmp_path / "data"
    root.mkdir()
    for index in range(10):
        (root / f"{index}").write_bytes(b"%d" % index)
    expected = [b"%d" % index for index in range(10)]
    lock = next(path for path in resolve().common_runtime_dirs if path.parent.parent.is_dir()) / "server.lock"
    ensure_private_dir(lock.parent)
    with suspended(_hold, lock):
        objects = prefeed.datasets.Objects(root)
        assert [objects[index] for index in range(10)] == expected
        loader = prefeed.DataLoader(objects, batch_size=1, collate_fn=lambda batch: batch[0])
        assert list(loader) == expected
    set_limits(monkeypatch, start_seconds=30)
    wait_for(lambda: list(loader) == expected and is_served(loader), "a plan")
    wait_for(lambda: objects[1] == b"1" and prefeed.statistics().hits > 0, "reads of the cache")


def is_served(loader: Any) -> bool:
    return _attachment_of(loader, explicit=True).served is not None


def test_a_server_that_lets_no_client_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is suspended while so many come that its queue is full: who comes then goes on without it."""
    monkeypatch.setattr("prefeed.client.launch._LET_IN_TIME", struct.pack("@ll", 0, 50_000))
    config = resolve()
    ensure_private_dir(config.runtime_dir)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(os.fspath(config.socket_path))
        listener.listen(0)
        waiting = []
        with pytest.raises(ServerUnavailableError, match="accepts no connections"):
            for _ in range(8):
                reached = try_connect(config)
                assert reached is not None
                waiting.append(reached.sock)
        for sock in waiting:
            sock.close()
    config.socket_path.unlink()


# ---------------------------------------------------------------- packs and listings


def _pack_and_stop(directory: Path, pipe: Pipe) -> None:
    with Journal.open(directory):
        suspend_myself()
        pipe.recv()


def test_who_packs(tmp_path: Path) -> None:
    with (
        suspended(_pack_and_stop, tmp_path),
        pytest.raises(PackOccupiedError, match="another process packs"),
        Journal.open(tmp_path),
    ):
        raise AssertionError


def test_who_looks_whether_a_listing_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(b"x")
    objects = prefeed.datasets.Objects(tmp_path / "data")
    directory = objects._origin.manifest.directory
    del objects
    with suspended(_hold, directory / COLUMNS):
        found = Manifest.open(directory)
        assert found.path(0) == "x"
