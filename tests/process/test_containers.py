"""Trainers and servers in containers that share home and memory: each is process 1 of a PID namespace of its own."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.stages import Files, Log, values, write_file, write_files
from namespaces import container_running
from prefeed.server.main import main
from prefeed.store.shared import SharedTier
from prefeed.torch.loader import DataLoader
from process.conditions import NUM_OBJECTS, make_objects, status, wait_for
from sandbox import Sandbox
from tier_contract import key_of, value_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_objects(tmp_path / "objects")


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def _serve(pipe: Connection) -> None:
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
    """With all that was in it; what was cached is read from where it was, by the next server's clients."""
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
            assert prefeed.statistics().origin_requests == 0, "it found all of them in the store"


def hits_of_an_epoch(*pipes: Connection) -> int:
    before = prefeed.statistics().hits
    train(*pipes)
    return prefeed.statistics().hits - before


# ---------------------------------------------------------------- caches of stages, which every process writes

LIMIT_BYTES = 8 * 1024**2


def _use_cache(directory: Path, on_disk: bool, pipe: Connection) -> None:
    """Put a value, look for one, close the store: whatever is told."""
    said = collect_warnings()
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    while told := pipe.recv():
        what, number = told
        if what == "put":
            pipe.send(tier.put_many([(key_of(number), value_of(number, 5000))]))
        elif what == "get":
            pipe.send(tier.get(key_of(number)) == value_of(number, 5000))
        elif what == "said":
            pipe.send((list(said), tier.is_in_use_elsewhere()))
        else:
            pipe.send(tier.close())


def ask(pipe: Connection, what: str, number: int = 0) -> Any:
    pipe.send((what, number))
    return pipe.recv()


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("ends", ["killed", "closed"])
def test_one_namespace_at_a_time_has_a_cache(sandbox: Sandbox, on_disk: bool, ends: str) -> None:
    """LMDB would take the processes of the other for its own, or for dead: the other makes its samples, and says so."""
    directory = sandbox.memory_dir / "cache"
    directory.mkdir(mode=0o700)
    onlooker = SharedTier(directory, limit_bytes=1, on_disk=on_disk, adopts=False)
    with (
        container_running(_use_cache, directory, on_disk) as (first, writing),
        container_running(_use_cache, directory, on_disk) as (_, second),
    ):
        assert ask(writing, "put", 0) == 1
        for _ in range(2):
            assert ask(second, "get", 0) is False
            assert ask(second, "put", 1) == 0
        assert ask(writing, "get", 0)
        said, is_in_use = ask(second, "said")
        assert len(said) == 1
        assert "another PID namespace" in said[0]
        assert is_in_use
        assert onlooker.statistics().entries == 0
        first.kill() if ends == "killed" else ask(writing, "close")
        assert onlooker.statistics().entries == 0, "who only looks into it does not make it his"
        assert ask(second, "get", 0), "what was stored is the next one's"
        assert ask(second, "put", 1) == 1
        if ends == "closed":
            assert ask(writing, "put", 2) == 0
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    assert [tier.get(key_of(number)) == value_of(number, 5000) for number in range(2)] == [True, True]
    assert tier.put_many([(key_of(2), value_of(2, 5000))]) == 1
    tier.close()


def _map(root: Path, pipe: Connection) -> None:
    """Take the samples of a cached stage whenever told; say what they are, what was made, and what was said."""
    said = collect_warnings()
    log = Log(root.with_name("log"))
    cached = prefeed.CachedDataset(Files(root, 20, log))
    while pipe.recv():
        pipe.send((values(cached[index] for index in range(20)), len(log.take()), list(said)))


def test_samples_are_right_in_the_container_that_has_no_cache(tmp_path: Path) -> None:
    root = write_files(tmp_path / "data", 20)
    right = [(index, index) for index in range(20)]
    with (
        container_running(_map, root) as (first, one),
        container_running(_map, root) as (_, two),
    ):
        assert take(one) == (right, 20, [])
        assert take(one) == (right, 0, [])
        budget = prefeed.statistics().budget_bytes
        samples, num_made, said = take(two)
        assert (samples, num_made, len(said)) == (right, 20, 1)
        assert prefeed.statistics().budget_bytes == budget, "what stores nothing asks for no room"
        write_file(root, 3, 100, seconds=5)
        right[3] = (100, 3)
        assert take(two)[:2] == (right, 20)
        assert take(one) == (right, 1, [])
        first.kill()
        assert take(two)[:2] == (right, 0)


def take(pipe: Connection) -> Any:
    pipe.send("take")
    return pipe.recv()
