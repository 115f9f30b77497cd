"""What the tests of MindSpore's cases share: sessions, what a cache holds, samples compared, jobs of their own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Sampler

import prefeed
from asking import list_sessions
from prefeed.client.connection import Connection
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.types import CacheInfo

TESTS = Path(__file__).parents[1]

# ---------------------------------------------------------------- sessions


def make_session() -> int:
    """Return a new session; the server is started if there is none."""
    with closing(Connection.open(current())) as connection:
        return NodeClient(connection).new_session()


def drop_session(session: int) -> None:
    with closing(Connection.open(current(), autostart=False)) as connection:
        NodeClient(connection).drop_sessions([session])


def caches_of(session: int) -> tuple[CacheInfo, ...]:
    """Return the session's caches, as the server lists them."""
    with closing(Connection.open(current(), autostart=False)) as connection:
        (found,) = [one for one in list_sessions(connection) if one.session == session]
    return found.caches


def stop_server() -> None:
    with NodeClient.connect(current(), autostart=False) as node:
        node.stop()


# ---------------------------------------------------------------- samples


def same(one: Any, other: Any) -> bool:
    """Return True when two samples have the same types and values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and np.array_equal(
            one.numpy(), other.numpy()
        )  # torch.equal takes 100 times as long
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Image.Image):
        return one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return bool(one == other)


def rows(dataset: Any) -> list[Any]:
    """Return every sample, in order."""
    return [dataset[index] for index in range(len(dataset))]


def assert_same_rows(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    different = [at for at, pair in enumerate(zip(found, expected, strict=True)) if not same(*pair)]
    assert not different, f"rows {different[:10]} of {len(expected)} differ; the first: {found[different[0]]}"


def keep(batch: list[Any]) -> list[Any]:
    """Collate to what the samples are."""
    return batch


def loaded(dataset: Any, **kwargs: Any) -> list[Any]:
    """Return the samples of an epoch through a loader."""
    settings: dict[str, Any] = {"batch_size": 4, "collate_fn": keep, **kwargs}
    return [sample for batch in prefeed.DataLoader(dataset, **settings) for sample in batch]


def assert_counts(cache: Any, *, rows: int, hits: int, misses: int | None = None, on_disk: int = 0) -> None:
    """Check what a cache holds and how it was read; it misses each row once, if nothing else is said."""
    found = cache.get_stat()
    held = (found.num_mem_cached, found.num_disk_cached, found.hits, found.misses)
    wanted = (rows, on_disk, hits, rows if misses is None else misses)
    assert held == wanted, f"(in memory, on disk, hits, misses) are {held}, not {wanted}"
    assert found.avg_cache_sz > 0 or not rows


def assert_cached(pipeline: Any, expected: Sequence[Any], *, epochs: int = 2) -> None:
    """Read a pipeline whose root is a cache: it gives what is expected, and makes each row once."""
    for _ in range(epochs):
        assert_same_rows(rows(pipeline), expected)
    assert_counts(pipeline, rows=len(expected), hits=(epochs - 1) * len(expected))


class Endless(Sampler[int]):
    """All indices in order, again and again."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from range(self.length)


# ---------------------------------------------------------------- jobs


class Job:
    """A pipeline read by a process of its own: ``e2e.parity_job``."""

    def __init__(self, **what: Any) -> None:
        line = [sys.executable, "-m", "e2e.parity_job", json.dumps(what)]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def line(self) -> Any:
        """Wait for the next thing that it says."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, self.errors()
        return json.loads(text)

    def go_on(self) -> None:
        """Let a job that waits take its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self) -> None:
        """Wait until it has ended as it should."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait() == 0, self.errors()


@contextmanager
def jobs(arguments: Iterable[dict[str, Any]]) -> Iterator[list[Job]]:
    """Run jobs side by side; those that still run in the end are killed."""
    started = [Job(**what) for what in arguments]
    try:
        yield started
    finally:
        for job in started:
            job.process.kill()
            job.process.wait()
            for pipe in (job.process.stdin, job.process.stdout, job.process.stderr):
                assert pipe is not None
                pipe.close()


def run_jobs(*arguments: dict[str, Any]) -> list[Any]:
    """Return what each job found; they run side by side."""
    with jobs(arguments) as started:
        found = [job.line() for job in started]
        for job in started:
            job.end()
    return found
