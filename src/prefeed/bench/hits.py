"""Reads warm entries of a stage cache into one reused batch, in turn with a plain copy of as many rows.

Run as ``python -m prefeed.bench.hits JOB``, where ``JOB`` is a ``HitJob`` as JSON; prints a ``HitOutcome``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from prefeed.bench.child import main_of_child, run_child
from prefeed.bench.requirements import BenchFailedError
from prefeed.bench.rows import SHAPE, MadeRows, ReadyRows, row_bytes

if TYPE_CHECKING:
    import torch

    from prefeed.stage_cache import CachedDataset

Batches = list[list[int]]


class HitJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is read.

    Attributes:
        num_rows: Rows, float32, 3 x 224 x 224; a multiple of ``batch_size``.
        passes: How often all of them are read, each way, in random order.
        batch_size: Rows a batch.
    """

    num_rows: int
    passes: int
    batch_size: int = 64


class HitOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the passes, in seconds a pass.

    Attributes:
        cached_seconds: Views of the cache's entries, copied into the batch.
        owned_seconds: Samples that own what they hold, as ``cached[i]`` gives them, copied into the batch.
        memory_seconds: Rows of an array in memory, copied into the batch.
        rows: Rows a pass.
        bytes: Bytes a pass.
    """

    cached_seconds: float
    owned_seconds: float
    memory_seconds: float
    rows: int
    bytes: int


def run_hits(job: HitJob, *, env: Mapping[str, str]) -> HitOutcome:
    """Read the rows in a new process, which makes those that the cache does not hold.

    Args:
        job: What to read.
        env: Says which node cache.

    Raises:
        BenchFailedError: The child failed, or what it read was not what it should be.
    """
    return run_child("prefeed.bench.hits", job, HitOutcome, name="reading the cache", env=env)


def measure(job: HitJob) -> HitOutcome:
    """Do the job in this process."""
    import torch  # bench modules are imported by the command line, which must start without torch

    from prefeed.stage_cache import CachedDataset

    torch.set_num_threads(1)  # as in a loader's worker
    order = np.random.default_rng(0).permutation(job.num_rows).tolist()
    batches = [order[at : at + job.batch_size] for at in range(0, len(order), job.batch_size)]
    made = MadeRows(job.num_rows, "float32")
    cached = CachedDataset(made)
    for batch in batches:
        cached.samples(batch)
    ready = ReadyRows.of(made)
    into = torch.zeros((job.batch_size, *SHAPE))
    _check(cached, ready, into, batches)
    ways = {
        "cached": lambda: _views(cached, into, batches),
        "memory": lambda: _rows(ready, into, batches),
        "owned": lambda: _owned(cached, into, batches),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(job.passes):
        for name, way in ways.items():
            seconds[name].append(_seconds(way))
    cached.close()
    return HitOutcome(
        cached_seconds=median(seconds["cached"]),
        owned_seconds=median(seconds["owned"]),
        memory_seconds=median(seconds["memory"]),
        rows=job.num_rows,
        bytes=job.num_rows * row_bytes("float32"),
    )


def _check(cached: CachedDataset, ready: ReadyRows, into: torch.Tensor, batches: Batches) -> None:
    """Raise unless each row is found in the cache, and is what was made."""
    import torch  # as above

    for batch in batches:
        absent = sum(cached.absent(batch))
        if absent:
            raise BenchFailedError(
                f"{absent} of {len(batch)} rows of a batch are not in the cache: it has no room for them"
            )
        _views(cached, into, [batch])
        for row, index in zip(into, batch, strict=True):
            if not torch.equal(row, ready[index]):
                raise BenchFailedError(f"row {index} of the cache is not what was put there")


def _views(cached: CachedDataset, into: torch.Tensor, batches: Batches) -> None:
    for batch in batches:
        with ExitStack() as stack:
            for row, sample in zip(into, cached.samples(batch, borrow=stack), strict=True):
                row.copy_(sample)


def _owned(cached: CachedDataset, into: torch.Tensor, batches: Batches) -> None:
    for batch in batches:
        for row, sample in zip(into, cached.samples(batch), strict=True):
            row.copy_(sample)


def _rows(ready: ReadyRows, into: torch.Tensor, batches: Batches) -> None:
    for batch in batches:
        for row, index in zip(into, batch, strict=True):
            row.copy_(ready[index])


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main_of_child(HitJob, measure, sys.argv[1])
