"""Trainers and servers in containers that share home and memory: each is process 1 of a PID namespace of its own."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.stages import Files, Log, values, write_file, write_files
from log_tiers import key_of, value_of
from namespaces import container_running
from prefeed.client.launch import start_server
from prefeed.config import resolve
from prefeed.server.main import main
from prefeed.store.shared import SharedTier
from prefeed.store.shared_files import try_trim
from prefeed.torch.loader import DataLoader
from process.conditions import NUM_OBJECTS, make_objects, status, wait_for
from sandbox import Sandbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_objects(tmp_path / "objects")


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def _serve(pipe: Connection) -> None:
    sys.argv[1:] = []  # those of pytest
    pipe.send(main())


def _train(root: Path, num_workers: int, pipe: Connection) -> None:
    """Train an epoch whenever told, and say whether each object came once, with its own bytes."""
    said = collect_warnings()
    expected = sorted(digest(file.read_bytes()) for file in root.iterdir())
    loader: Any = DataLoader(
        prefeed.datasets.Objects(root), batch_size=8, shuffle=True, num_workers=num_workers, collate_fn=list
    )
    while pipe.recv():
        seen = sorted(digest(data) for batch in loader for data in batch)
        pipe.send((seen == expected, said))
        said.clear()


def collect_warnings() -> list[str]:
    """Return where this process's warnings go from now on."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("prefeed").addHandler(handler)
    return said


def digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def epoch(*pipes: Connection) -> None:
    """Let all train an epoch at the same time; their batches are right, and nobody warns of anything."""
    assert all(said == [] for said in train(*pipes))


def train(*pipes: Connection) -> list[list[str]]:
    """Let all train an epoch at the same time; return what each warned of."""
    for pipe in pipes:
        pipe.send("train")
    answers = [pipe.recv() for pipe in pipes]
    assert all(is_right for is_right, _ in answers)
    return [said for _, said in answers]


def test_they_hit_what_one_server_holds(root: Path, sandbox: Sandbox) -> None:
    with (
        container_running(_serve) as (_, _server),
        container_running(_train, root, 0) as (_, first),
        container_running(_train, root, 2) as (_, second),
        container_running(_train, root, 0) as (_, third),
    ):
        wait_for(status, "a server")
        epoch(first, second, third)
        epoch(first, second, third)
        statistics = prefeed.statistics()
        assert statistics.origin_requests == NUM_OBJECTS
        assert statistics.direct_reads == 0
        assert not statistics.errors
        assert statistics.hits + statistics.late + statistics.misses == 6 * NUM_OBJECTS
        before = statistics.hits
        epoch(first, second, third)
        assert prefeed.statistics().hits - before == 3 * NUM_OBJECTS


def test_what_does_not_fit_is_right_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values come and go under readers: half of the objects fit."""
    monkeypatch.setenv("PREFEED_MEMORY", "5MiB")
    with (
        container_running(_train, root, 0) as (_, first),
        container_running(_train, root, 2) as (_, second),
        container_running(_train, root, 0) as (_, third),
    ):
        for _ in range(3):
            epoch(first, second, third)
        statistics = prefeed.statistics()
        assert statistics.hits > NUM_OBJECTS
        # What is freed for one reader between the answer to another and his look is read from the origin, by whomever.
        assert statistics.direct_reads < NUM_OBJECTS // 10


def test_another_container_takes_over_when_the_servers_is_killed(root: Path) -> None:
    """Its memory is gone with it; the next server fetches each object once, for all its clients."""
    with container_running(_serve) as (server, _):
        wait_for(status, "a server")
        with (
            container_running(_train, root, 0) as (_, first),
            container_running(_train, root, 2) as (_, second),
        ):
            epoch(first, second)
            first.send("train")
            server.kill()
            assert first.recv()[0]
            wait_for(status, "another server")
            wait_for(lambda: hits_of_an_epoch(first, second) >= 2 * (NUM_OBJECTS - 2 * 16), "an epoch of hits")
            assert prefeed.statistics().origin_requests == NUM_OBJECTS


def hits_of_an_epoch(*pipes: Connection) -> int:
    before = prefeed.statistics().hits
    train(*pipes)
    return prefeed.statistics().hits - before


# ---------------------------------------------------------------- caches of stages, which every process writes

LIMIT_BYTES = 8 * 1024**2


def _use_cache(directory: Path, on_disk: bool, pipe: Connection) -> None:
    """Put a value, or look for one: whatever is told."""
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    while told := pipe.recv():
        what, number = told
        if what == "put":
            pipe.send(tier.put_many([(key_of(number), value_of(number, 5000))]))
        else:
            pipe.send(tier.get(key_of(number)) == value_of(number, 5000))


def ask(pipe: Connection, what: str, number: int) -> Any:
    pipe.send((what, number))
    return pipe.recv()


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_containers_share_a_cache(sandbox: Sandbox, on_disk: bool) -> None:
    """Their processes have the same ids, each in its PID namespace."""
    directory = sandbox.memory_dir / "cache"
    directory.mkdir(mode=0o700)
    with (
        container_running(_use_cache, directory, on_disk) as (first, one),
        container_running(_use_cache, directory, on_disk) as (_, two),
    ):
        for number in range(10):
            writing, reading = (one, two) if number % 2 else (two, one)
            assert ask(writing, "put", number) == 1
            assert ask(reading, "get", number)
        first.kill()
        assert all(ask(two, "get", number) for number in range(10))
        assert ask(two, "put", 10) == 1
        assert not try_trim(directory, on_disk=on_disk).is_done, "it is open in a container"


def _map(root: Path, pipe: Connection) -> None:
    """Take the samples of a cached stage whenever told; say what they are, what was made, and what was said."""
    said = collect_warnings()
    log = Log(root.with_name("log"))
    cached = prefeed.CachedDataset(Files(root, 20, log))
    while pipe.recv():
        pipe.send((values(cached[index] for index in range(20)), len(log.take()), list(said)))


def test_a_sample_is_made_once_for_two_containers(tmp_path: Path) -> None:
    root = write_files(tmp_path / "data", 20)
    right = [(index, index) for index in range(20)]
    with (
        container_running(_map, root) as (first, one),
        container_running(_map, root) as (_, two),
    ):
        assert take(one) == (right, 20, [])
        assert take(two) == (right, 0, [])
        write_file(root, 3, 100, seconds=5)
        right[3] = (100, 3)
        assert take(two) == (right, 1, [])
        assert take(one) == (right, 0, [])
        first.kill()
        assert take(two) == (right, 0, [])


def test_samples_are_right_in_a_container_that_does_not_see_the_cache(tmp_path: Path) -> None:
    """It shares home and socket with the server, and no /dev/shm."""
    root = write_files(tmp_path / "data", 20)
    start_server(resolve())
    with container_running(_map, root, shm_bytes=64 * 1024**2) as (_, pipe):
        samples, num_made, said = take(pipe)
        assert (samples, num_made) == ([(index, index) for index in range(20)], 20)
        assert ["another directory there" in text for text in said] == [True]


def take(pipe: Connection) -> Any:
    pipe.send("take")
    return pipe.recv()
