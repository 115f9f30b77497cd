"""Warm stage entries through a loader with workers, against torch's loader over a tensor in memory.

``python -m prefeed_bench.cases.loader_ceiling JOB`` is one variant: ``JOB`` is a ``CeilingJob`` as JSON, it prints a ``CeilingOutcome``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import xxhash

from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import Home, stage_home
from prefeed_bench.loading import Loader, loader_class
from prefeed_bench.processes import main_of_child, run_child
from prefeed_bench.rows import DType, MadeRows, ReadyRows, row_bytes

if TYPE_CHECKING:
    import torch.utils.data

_ROWS: Final = 512
_BATCHES: Final = 300
_BATCH_SIZE: Final = 64
_QUICK_ROWS: Final = 16
_QUICK_BATCHES: Final = 4
_QUICK_BATCH_SIZE: Final = 8
_DTYPES: Final[dict[str, DType]] = {"f32": "float32", "u8": "uint8"}


def run(options: Options) -> BenchResult:
    """Measure batches per second: torch's loader over memory, prefeed's and torch's over a warm stage cache."""
    with stage_home(_ROWS, sum(map(row_bytes, _DTYPES.values()))) as home:
        variants: dict[str, Callable[[], CeilingOutcome]] = {}
        for short, dtype in _DTYPES.items():
            variants |= _variants(short, dtype, home, options)
        runs = alternate(variants, runs=options.runs, say=options.say)
    for short in _DTYPES:
        _check_same_batches([outcome for name, done in runs.items() if name.endswith(short) for outcome in done])
    samples = Samples()
    for number in range(options.runs):
        for short in _DTYPES:
            samples.add(**_figures(short, {name: done[number] for name, done in runs.items()}))
    return samples.result(
        "loader_ceiling",
        runs,
        f"batches of {_BATCH_SIZE} rows of 3 x 224 x 224, 2 workers that stay; the second epoch is timed, from iter(loader) on",
        "torch: torch's DataLoader over rows of one tensor in memory; prefeed: prefeed's over a warm CachedDataset",
        "torch_cached: torch's DataLoader over the same CachedDataset",
        f"{_ROWS} rows drawn with replacement; the main process looks at a few values of each row, nothing else",
    )


def _variants(short: str, dtype: DType, home: Home, options: Options) -> dict[str, Callable[[], CeilingOutcome]]:
    num_rows = _QUICK_ROWS if options.quick else _ROWS
    batches = _QUICK_BATCHES if options.quick else _BATCHES
    batch_size = _QUICK_BATCH_SIZE if options.quick else _BATCH_SIZE
    over_memory = CeilingJob(
        loader="torch", rows_from="memory", dtype=dtype, num_rows=num_rows, batches=batches, batch_size=batch_size
    )
    over_cache = msgspec.structs.replace(over_memory, rows_from="cache")
    return {
        f"torch_{short}": partial(run_ceiling, over_memory, env=home.env),
        f"prefeed_{short}": partial(run_ceiling, msgspec.structs.replace(over_cache, loader="prefeed"), env=home.env),
        f"torch_cached_{short}": partial(run_ceiling, over_cache, env=home.env),
    }


def _check_same_batches(outcomes: list[CeilingOutcome]) -> None:
    if len({outcome.digest for outcome in outcomes}) != 1:
        raise BenchFailedError("the variants saw different batches")


def _figures(short: str, done: dict[str, CeilingOutcome]) -> dict[str, float]:
    torchs, prefeeds, cached = (done[f"{name}_{short}"].batches_s for name in ("torch", "prefeed", "torch_cached"))
    return {
        f"torch_{short}_batches_s": torchs,
        f"prefeed_{short}_batches_s": prefeeds,
        f"{short}_ratio": prefeeds / torchs,
        f"torch_cached_{short}_batches_s": cached,
    }


# ---------------------------------------------------------------- one variant


class CeilingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant does.

    Attributes:
        loader: Whose ``DataLoader``.
        rows_from: ``memory``: a tensor; ``cache``: entries of a stage cache.
        dtype: Of the rows, 3 x 224 x 224.
        num_rows: Rows, drawn with replacement.
        batches: Batches that are timed.
        batch_size: Rows per batch.
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
        batches_s: Batches per second of the second epoch; the first one starts workers and touches each page.
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
    return run_child("prefeed_bench.cases.loader_ceiling", job, CeilingOutcome, name=name, env=env)


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
    from prefeed import CachedDataset  # torch's own variants do without

    cached = CachedDataset(made)
    for at in range(0, job.num_rows, job.batch_size):
        cached.samples(range(at, min(at + job.batch_size, job.num_rows)))
    cached.close()
    return cached


if __name__ == "__main__":
    main_of_child(CeilingJob, measure)
