"""Batches a second that a loader brings to the main process when its samples are there already.

Run as ``python -m prefeed.bench.ceiling JOB``, where ``JOB`` is a ``CeilingJob`` as JSON; prints a ``CeilingOutcome``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import xxhash

from prefeed.bench.child import main_of_child, run_child
from prefeed.bench.loading import Loader, loader_class
from prefeed.bench.rows import DType, MadeRows, ReadyRows

if TYPE_CHECKING:
    import torch.utils.data


class CeilingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant does.

    Attributes:
        loader: Whose ``DataLoader``.
        rows_from: ``memory``: a tensor; ``cache``: entries of a stage cache.
        dtype: Of the rows, 3 x 224 x 224.
        num_rows: Rows, drawn with replacement.
        batches: Batches that are timed.
        batch_size: Rows a batch.
        num_workers: Worker processes; they stay.
    """

    loader: Loader
    rows_from: Literal["memory", "cache"]
    dtype: DType
    num_rows: int
    batches: int
    batch_size: int
    num_workers: int = 2


class CeilingOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant measured.

    Attributes:
        batches_s: Batches a second of the second epoch; the first one starts workers and touches each page.
        digest: Hash of a few values of each row, in order: equal digests, equal batches.
    """

    batches_s: float
    digest: str


def run_ceiling(job: CeilingJob, *, env: Mapping[str, str]) -> CeilingOutcome:
    """Run one variant in a new process; rows that the cache does not hold are made there first.

    Args:
        job: What to do.
        env: Says which node cache.

    Raises:
        BenchFailedError: The child failed.
    """
    name = f"{job.loader}'s loader over rows of the {job.rows_from}"
    return run_child("prefeed.bench.ceiling", job, CeilingOutcome, name=name, env=env)


def measure(job: CeilingJob) -> CeilingOutcome:
    """Do the job in this process."""
    loader = _make_loader(job)
    digest = xxhash.xxh3_64()
    _iterate(loader, digest)
    seconds = _iterate(loader, digest)
    return CeilingOutcome(batches_s=job.batches / seconds, digest=digest.hexdigest())


def _iterate(loader: Iterable[torch.Tensor], digest: xxhash.xxh3_64) -> float:
    """Return the seconds of one epoch."""
    started = time.perf_counter()
    for batch in loader:
        # batch: (rows, 3, 224, 224)
        digest.update(batch[:, :, ::112, ::112].contiguous().numpy().data)
    return time.perf_counter() - started


def _make_loader(job: CeilingJob) -> torch.utils.data.DataLoader[torch.Tensor]:
    import torch.utils.data  # bench modules are imported by the command line, which must start without torch

    dataset = _dataset(job)
    sampler = torch.utils.data.RandomSampler(
        dataset,
        replacement=True,
        num_samples=job.batches * job.batch_size,
        generator=torch.Generator().manual_seed(0),
    )
    loader: torch.utils.data.DataLoader[torch.Tensor] = loader_class(job.loader)(
        dataset,
        batch_size=job.batch_size,
        sampler=sampler,
        num_workers=job.num_workers,
        persistent_workers=True,
    )
    return loader


def _dataset(job: CeilingJob) -> Any:
    made = MadeRows(job.num_rows, job.dtype)
    if job.rows_from == "memory":
        return ReadyRows.of(made)
    from prefeed.stage_cache import CachedDataset  # torch's own variants do without

    cached = CachedDataset(made)
    for at in range(0, job.num_rows, job.batch_size):
        cached.samples(range(at, min(at + job.batch_size, job.num_rows)))
    cached.close()
    return cached


if __name__ == "__main__":
    main_of_child(CeilingJob, measure, sys.argv[1])
