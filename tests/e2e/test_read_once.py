"""Read once: a dataset larger than the cache streams through it, and nothing is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import prefeed
from e2e.hashed import Hashed, kept, name_of
from leaks import wait_until
from limits import set_limits
from prefeed.types import Statistics
from slow_files import SlowDirectory, slow_files

NUM_OBJECTS = 600
OBJECT_BYTES = 70_000
MEMORY = 8 * 1024**2
LOOKAHEAD = 2 * 1024**2
BATCH_SIZE = 8
"""The data is five times the budget, and the budget is four times the lookahead."""

UNREPORTED_BYTES = 16 * 3 * OBJECT_BYTES
"""Read, and not yet reported as read: up to 16 objects a reader."""


class Declared(Hashed):
    """Says which files its samples open."""

    def prefeed_paths(self, index: int) -> list[str]:
        return [f"{self.root}/{name}" for name in self.names_of(index)]


CLASSES = {"declared": Declared, "learned": Hashed}
kinds = pytest.mark.parametrize("kind", CLASSES)
workers = pytest.mark.parametrize("num_workers", [0, 2])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    root = tmp_path / "data"
    for index in range(NUM_OBJECTS):
        file = root / name_of(index)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.bytes(OBJECT_BYTES))
    return root


@pytest.fixture
def slow(source: Path) -> Iterator[SlowDirectory]:
    with slow_files(source) as slow:
        yield slow


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", str(MEMORY))
    set_limits(monkeypatch, lookahead_bytes=LOOKAHEAD)


@contextmanager
def sampled() -> Iterator[list[Statistics]]:
    """Look at the node all the while; yield what was seen."""
    seen: list[Statistics] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(prefeed.statistics())
            done.wait(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def loader_of(dataset: Any, cls: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return cls(dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=kept, generator=generator, **kwargs)


def check_opens(slow: SlowDirectory, *, epochs: int) -> None:
    """Each file was opened once an epoch; some once more, ahead of an epoch whose order is known."""
    opens = slow.opens_by_file()
    assert set(opens) == {name_of(index) for index in range(NUM_OBJECTS)}
    ahead = [count - epochs for count in opens.values()]
    assert set(ahead) <= {0, 1}
    assert sum(ahead) * OBJECT_BYTES <= LOOKAHEAD


def is_empty() -> bool:
    found = prefeed.statistics()
    return found.resident_objects == found.transient_objects == found.resident_bytes == found.transient_bytes == 0


@kinds
@workers
@pytest.mark.usefixtures("small_memory")
def test_each_epoch_streams_through(
    source: Path, slow: SlowDirectory, monkeypatch: pytest.MonkeyPatch, kind: str, num_workers: int
) -> None:
    monkeypatch.setenv("PREFEED_READ_ONCE", "1")
    ours = loader_of(CLASSES[kind](slow.path, NUM_OBJECTS), num_workers=num_workers)
    truth = loader_of(CLASSES[kind](source, NUM_OBJECTS), DataLoader, num_workers=num_workers)

    for epoch in (1, 2, 3):
        with sampled() as seen:
            for batch, expected in zip(ours, truth, strict=True):
                assert batch == expected
        check_opens(slow, epochs=epoch)
        for statistics in seen:
            assert statistics.resident_objects == 0
            assert statistics.transient_bytes <= statistics.budget_bytes <= MEMORY
            assert statistics.transient_bytes <= LOOKAHEAD + UNREPORTED_BYTES
    statistics = prefeed.statistics()
    assert statistics.reads == 3 * NUM_OBJECTS
    assert statistics.direct_reads == 0
    del ours
    assert wait_until(is_empty, timeout_seconds=60), prefeed.statistics()


TRAIN = """
import sys
from pathlib import Path
from torch.utils.data import DataLoader
from e2e.hashed import Hashed, kept
loader = DataLoader(Hashed(Path(sys.argv[1]), int(sys.argv[2])), batch_size=8, collate_fn=kept, num_workers=2)
print(*sorted(index for batch in loader for index, _ in batch))
"""


@pytest.mark.usefixtures("small_memory")
def test_program_that_reads_once(slow: SlowDirectory, tmp_path: Path) -> None:
    """Twice: in the second run it is known what the samples open."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    line = [sys.executable, "-m", "prefeed", "run", "--read-once", str(script), str(slow.path), str(NUM_OBJECTS)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for run in (1, 2):
        process = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert process.stdout.split() == list(map(str, range(NUM_OBJECTS))), process.stderr
        assert wait_until(is_empty, timeout_seconds=60), prefeed.statistics()
        assert set(slow.opens_by_file()) == {name_of(index) for index in range(NUM_OBJECTS)}
        assert run * NUM_OBJECTS <= slow.opens() <= run * (NUM_OBJECTS + LOOKAHEAD // OBJECT_BYTES)
    assert prefeed.statistics().reads == 2 * NUM_OBJECTS
