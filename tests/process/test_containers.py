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
from namespaces import container_running
from prefeed.server.main import main
from prefeed.torch.loader import DataLoader
from process.conditions import NUM_OBJECTS, make_objects, status, wait_for
from sandbox import Sandbox

pytestmark = pytest.mark.timeout(120)


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
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("prefeed").addHandler(handler)
    expected = sorted(digest(file.read_bytes()) for file in root.iterdir())
    loader: Any = DataLoader(
        prefeed.datasets.Objects(root), batch_size=8, shuffle=True, num_workers=num_workers, collate_fn=list
    )
    while pipe.recv():
        seen = sorted(digest(data) for batch in loader for data in batch)
        pipe.send((seen == expected, said))
        said.clear()


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
        assert statistics.direct_reads == 0
        assert statistics.hits > 0
        assert "entry-lost" not in statistics.errors


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
