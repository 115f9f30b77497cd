"""How often the origin is asked: once an object while all fits, and for the rest alone when it does not."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prefeed
import servers
import warm
from leaks import wait_until
from limits import set_limits

NUM_OBJECTS = 400
OBJECT_BYTES = 39_000
LOOKAHEAD_OBJECTS = 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    root = tmp_path / "data"
    root.mkdir()
    for index in range(NUM_OBJECTS):
        (root / f"{index:04}.bin").write_bytes(index.to_bytes(4, "little") + rng.bytes(OBJECT_BYTES - 4))
    servers.write_index(root)
    return root


@pytest.fixture
def server(root: Path) -> Iterator[servers.FileServer]:
    with servers.http_server(root) as server:
        yield server


def fetched(server: servers.FileServer) -> Counter[str]:
    """Return how often each object was asked for."""
    return Counter(path for _, path, _ in server.requests if path.endswith(".bin"))


def read_epoch(loader: Any, expected: list[bytes]) -> None:
    """Read an epoch and check every byte of it."""
    seen = [data for batch in loader for data in batch]
    assert sorted(int.from_bytes(data[:4], "little") for data in seen) == list(range(len(expected)))
    assert all(data == expected[int.from_bytes(data[:4], "little")] for data in seen)


def contents(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(root.glob("*.bin"))]


def loader_of(dataset: Any, **kwargs: Any) -> Any:
    return prefeed.DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=list, **kwargs)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_once_an_object(root: Path, server: servers.FileServer, num_workers: int) -> None:
    """Two loaders in turns, then another process: the first epoch asks once, later ones never."""
    objects = prefeed.datasets.Objects(server.url)
    one, other = (loader_of(objects, num_workers=num_workers) for _ in range(2))
    data = contents(root)
    both = [(a, b) for a, b in zip(one, other, strict=True)]
    for side in (0, 1):
        assert sorted(x for pair in both for x in pair[side]) == sorted(data)
    assert fetched(server) == dict.fromkeys((f"/{i:04}.bin" for i in range(NUM_OBJECTS)), 1)
    read_epoch(one, data)
    read_epoch(other, data)
    subprocess.run([sys.executable, "-c", READ_ALL, server.url], check=True, timeout=300)
    assert fetched(server).total() == NUM_OBJECTS
    statistics = prefeed.statistics()
    assert statistics.origin_requests == NUM_OBJECTS
    assert statistics.origin_bytes == NUM_OBJECTS * OBJECT_BYTES
    assert statistics.resident_objects == NUM_OBJECTS
    assert statistics.direct_reads == 0
    assert statistics.best_hit_ratio == 1.0


READ_ALL = warm.given_as_text("""
import sys, prefeed
loader = prefeed.DataLoader(prefeed.datasets.Objects(sys.argv[1]), batch_size=8, shuffle=True, collate_fn=list)
assert sum(len(batch) for batch in loader) == 400
""")


def test_all_reads_are_counted(root: Path, server: servers.FileServer) -> None:
    """Each read is a hit, late, a miss or direct, and nothing else."""
    loader = loader_of(prefeed.datasets.Objects(server.url), num_workers=2)
    for epoch in (1, 2, 3):
        read_epoch(loader, contents(root))
        assert wait_until(lambda: prefeed.statistics().reads == epoch * NUM_OBJECTS, timeout_seconds=60)  # noqa: B023
    statistics = prefeed.statistics()
    assert statistics.hits >= 2 * NUM_OBJECTS
    assert statistics.hit_ratio == statistics.hits / (3 * NUM_OBJECTS)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_half_the_dataset(
    root: Path, server: servers.FileServer, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W objects of which C fit: later epochs ask for about W - C."""
    monkeypatch.setenv("PREFEED_MEMORY", str(NUM_OBJECTS * OBJECT_BYTES // 2))
    set_limits(monkeypatch, lookahead_bytes=LOOKAHEAD_OBJECTS * OBJECT_BYTES)
    loader = loader_of(
        prefeed.datasets.Objects(server.url), num_workers=num_workers, persistent_workers=num_workers > 0
    )
    data = contents(root)
    read_epoch(loader, data)
    assert fetched(server).total() <= NUM_OBJECTS + LOOKAHEAD_OBJECTS
    for _ in range(3):
        before = fetched(server).total()
        residents = prefeed.statistics().resident_objects
        assert residents > 0.25 * NUM_OBJECTS
        read_epoch(loader, data)
        asked = fetched(server).total() - before
        # What is fetched ahead for the next epoch is asked for before this one's end is counted.
        assert abs(asked - (NUM_OBJECTS - residents)) <= LOOKAHEAD_OBJECTS
    statistics = prefeed.statistics()
    assert statistics.resident_bytes + statistics.transient_bytes <= statistics.budget_bytes
    assert statistics.best_hit_ratio == pytest.approx(0.5, abs=0.15)


def test_evaluation_in_another_process_shares(root: Path, server: servers.FileServer) -> None:
    """Two processes that begin at the same time ask for each object once between them."""
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    process = context.Process(target=read_when_told, args=(ready, go, server.url))
    process.start()
    assert ready.acquire(timeout=60)
    go.set()
    read_all(server.url)
    process.join()
    assert process.exitcode == 0
    process.close()
    assert fetched(server) == dict.fromkeys((f"/{i:04}.bin" for i in range(NUM_OBJECTS)), 1)


def read_when_told(ready: Any, go: Any, url: str) -> None:
    import prefeed.torch.loader  # noqa: F401 - the wait is for the reading, not for the import

    ready.release()
    go.wait()
    read_all(url)


def read_all(url: str) -> None:
    loader = loader_of(prefeed.datasets.Objects(url))
    assert sum(len(batch) for batch in loader) == NUM_OBJECTS
