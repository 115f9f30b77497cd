"""The memory tier has no name: whoever has the server's socket reads it, and it is freed with the server, whatever readers hold."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import prefeed
from namespaces import container_running
from prefeed.client.launch import start_server
from prefeed.config import resolve
from process.children import child_running, stopped
from process.conditions import NUM_OBJECTS, OBJECT_BYTES, kill, make_objects, server_pid, status, wait_for

MIB = 1024**2
SHM_BYTES = 64 * MIB
"""Size of /dev/shm in a container, unless its user asks for more."""

LARGE = 96


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_objects(tmp_path / "objects")


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def loader_of(root: Path, **kwargs: Any) -> Any:
    return prefeed.DataLoader(prefeed.datasets.Objects(root), batch_size=8, shuffle=True, collate_fn=list, **kwargs)


def is_right(loader: Any, root: Path) -> bool:
    """Return whether an epoch gives each object once, with its own bytes."""
    return sorted(data for batch in loader for data in batch) == [path.read_bytes() for path in sorted(root.iterdir())]


def _train_when_told(root: Path, pipe: Connection) -> None:
    """Train an epoch, or return the memory that this process's descriptors of tiers keep; idle in between."""
    loader = loader_of(root)
    while told := pipe.recv():
        pipe.send(is_right(loader, root) if told == "train" else held_bytes())


def held_bytes() -> int:
    """Return the memory of the tiers that this process has descriptors of."""
    held = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:prefeed"):
                held += os.fstat(int(name)).st_blocks * 512
    return held


def ask(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return pipe.recv()


def hits_of_an_epoch(pipe: Connection) -> int:
    before = prefeed.statistics().hits
    assert ask(pipe, "train")
    return prefeed.statistics().hits - before


# ------------------------------------------------------------ the server's end


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_the_memory_goes_with_the_server_under_an_idle_reader(
    root: Path, how: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader goes on at the origin, then with the next server."""
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    start_server(resolve())
    with child_running(_train_when_told, root) as (_, reader):
        assert ask(reader, "train")
        assert ask(reader, "held") > NUM_OBJECTS * OBJECT_BYTES
        kill(server_pid(), how)
        wait_for(lambda: ask(reader, "held") == 0, "the memory to be free")
        assert ask(reader, "train")
        assert status() is None
        start_server(resolve())
        wait_for(lambda: hits_of_an_epoch(reader) == NUM_OBJECTS, "an epoch of hits")
        assert prefeed.statistics().origin_requests == NUM_OBJECTS
        assert ask(reader, "held") > NUM_OBJECTS * OBJECT_BYTES


# ------------------------------------------------------------ workers


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_all_kinds_read_without_the_server(root: Path, method: str) -> None:
    loader = loader_of(root, num_workers=2, persistent_workers=True, multiprocessing_context=method)
    assert is_right(loader, root)
    assert is_right(loader, root)
    with stopped(server_pid()):
        assert is_right(loader, root)
    statistics = prefeed.statistics()
    assert statistics.origin_requests == NUM_OBJECTS
    assert statistics.hits >= 2 * NUM_OBJECTS
    del loader


# ------------------------------------------------------------ containers


def _train_large(root: Path, pipe: Connection) -> None:
    loader = loader_of(root)
    right = [is_right(loader, root) for _ in range(2)]
    statistics = prefeed.statistics()
    status = os.statvfs("/dev/shm")
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    pipe.send((right, statistics.resident_bytes, statistics.origin_requests, statistics.hits, used))
    pipe.recv()


def test_a_container_with_little_shared_memory_caches_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_MEMORY_DIR", "/dev/shm")
    monkeypatch.setenv("PREFEED_MEMORY", "160MiB")
    root = tmp_path / "large"
    root.mkdir()
    for number in range(LARGE):
        (root / f"{number:03}").write_bytes(bytes([number]) * MIB)
    with container_running(_train_large, root, shm_bytes=SHM_BYTES) as (_, pipe):
        right, resident_bytes, origin_requests, hits, used = pipe.recv()
    assert right == [True, True]
    assert resident_bytes > LARGE * MIB > SHM_BYTES
    assert origin_requests == LARGE
    assert hits >= LARGE
    assert used < MIB


def test_containers_that_share_only_a_home_and_a_socket_hit(root: Path) -> None:
    """Each has process ids, mounts, users and a /dev/shm of its own."""
    start_server(resolve())
    with (
        container_running(_train_when_told, root, shm_bytes=SHM_BYTES) as (_, one),
        container_running(_train_when_told, root, shm_bytes=SHM_BYTES) as (_, two),
    ):
        assert ask(one, "train")
        assert [hits_of_an_epoch(pipe) for pipe in (one, two)] == [NUM_OBJECTS] * 2
        assert ask(two, "held") > NUM_OBJECTS * OBJECT_BYTES
    statistics = prefeed.statistics()
    assert (statistics.origin_requests, statistics.direct_reads) == (NUM_OBJECTS, 0)
