"""Warm entries of a stage cache, read into one reused batch; beside a plain copy, and MindSpore's cache if it is here.

``python -m prefeed_bench.cases.stage_hit JOB`` reads them, in turn with the plain copy: ``JOB`` is a ``HitJob`` as JSON, it prints a
``HitOutcome``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import stage_home
from prefeed_bench.origin import free_port
from prefeed_bench.processes import main_of_child, run_child, run_program
from prefeed_bench.rows import SHAPE, MadeRows, ReadyRows, row_bytes

if TYPE_CHECKING:
    import torch

    from prefeed import CachedDataset

VARIABLE: Final = "PREFEED_BENCH_MINDSPORE"
"""Names a Python that can import mindspore; its cache server's command lies beside it."""

_COMMAND_SECONDS: Final = 90.0

_ROWS = 1024
_QUICK_ROWS = 64
_PASSES = 11
_QUICK_PASSES = 2

_NOTES = (
    "in process, one thread, no loader; batches of 64 float32 rows of 3 x 224 x 224 in random order, one reused tensor",
    "of_memcpy: over copying as many rows of an array in memory, in the same order, into the same batch",
    "owned_rows_s: with samples that own their memory (cached[i]) and are then copied once more",
)
_WITH_MINDSPORE = (
    "mindspore_rows_s: warm epochs of its cache in turn with ours, 2 workers, the faster of two ways to take rows",
    "mindspore_batched: it makes batches of 64; mindspore_single: its rows are copied into one reused batch of 64",
)
_WITHOUT_MINDSPORE = (f"mindspore_rows_s: not measured; set {VARIABLE} to a Python that has mindspore",)


def run(options: Options) -> BenchResult:
    """Measure rows per second from the cache, from memory, and from MindSpore's cache."""
    job = HitJob(num_rows=_QUICK_ROWS if options.quick else _ROWS, passes=_QUICK_PASSES if options.quick else _PASSES)
    python = mindspore_python()
    with stage_home(job.num_rows, row_bytes("float32")) as home:
        variants: dict[str, Callable[[], Any]] = {"prefeed": lambda: run_hits(job, env=home.env)}
        if python is not None:
            photos = options.photos()
            rows = min(photos.num_photos, job.num_rows)
            variants["mindspore"] = lambda: mindspore_rates(python, photos.root, num_rows=rows, epochs=job.passes)
        runs = alternate(variants, runs=options.runs, say=options.say)
    return _result(runs)


def _result(runs: Mapping[str, list[Any]]) -> BenchResult:
    samples = Samples()
    for number, hits in enumerate(runs["prefeed"]):
        samples.add(**_of_prefeed(hits))
        if "mindspore" in runs:
            samples.add(**_of_mindspore(runs["mindspore"][number], hits))
    empty = {} if "mindspore" in runs else {"mindspore_rows_s": None, "of_mindspore": None}
    notes = (*_NOTES, *(_WITH_MINDSPORE if "mindspore" in runs else _WITHOUT_MINDSPORE))
    return samples.result("stage_hit", runs, *notes, **empty)


def _of_prefeed(hits: HitOutcome) -> dict[str, float]:
    return {
        "rows_s": hits.rows / hits.cached_seconds,
        "gb_s": hits.bytes / hits.cached_seconds / 1e9,
        "of_memcpy": hits.memory_seconds / hits.cached_seconds,
        "us_per_row": hits.cached_seconds / hits.rows * 1e6,
        "memcpy_rows_s": hits.rows / hits.memory_seconds,
        "owned_rows_s": hits.rows / hits.owned_seconds,
    }


def _of_mindspore(rates: Mapping[str, float], hits: HitOutcome) -> dict[str, float]:
    best = max(rates.values())
    return {
        "mindspore_rows_s": best,
        "of_mindspore": hits.rows / hits.cached_seconds / best,
        "mindspore_batched_rows_s": rates["batched"],
        "mindspore_single_rows_s": rates["single"],
    }


Batches = list[list[int]]


# ---------------------------------------------------------------- reading the cache


class HitJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is read.

    Attributes:
        num_rows: Rows, float32, 3 x 224 x 224; a multiple of ``batch_size``.
        passes: How often all of them are read, each way, in random order.
        batch_size: Rows per batch.
    """

    num_rows: int
    passes: int
    batch_size: int = 64


class HitOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the passes, in seconds per pass.

    Attributes:
        cached_seconds: Views of the cache's entries, copied into the batch.
        owned_seconds: Samples that own what they hold, as ``cached[i]`` gives them, copied into the batch.
        memory_seconds: Rows of an array in memory, copied into the batch.
        rows: Rows per pass.
        bytes: Bytes per pass.
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
    return run_child("prefeed_bench.cases.stage_hit", job, HitOutcome, name="reading the cache", env=env)


def measure(job: HitJob) -> HitOutcome:
    """Do the job in this process."""
    import torch  # bench modules are imported by the command line, which must start without torch

    from prefeed import CachedDataset

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


# ---------------------------------------------------------------- MindSpore, which needs an environment of its own


def mindspore_python() -> Path | None:
    """Return the Python that has MindSpore; None when none is named.

    Raises:
        MissingRequirementError: The one that is named has no cache server.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    python = Path(named)
    if not _admin(python).is_file():
        raise MissingRequirementError(
            f"{VARIABLE} is {named}, but there is no {_admin(python).name} beside it: `{named} -m pip install mindspore`"
        )
    return python


def mindspore_rates(python: Path, data: Path, *, num_rows: int, epochs: int) -> dict[str, float]:
    """Return rows per second of warm epochs, for each way of taking rows.

    Args:
        python: Has MindSpore.
        data: Pictures, a folder per class.
        num_rows: Rows per epoch.
        epochs: Warm ones.

    Raises:
        BenchFailedError: Its server or its reader failed.
    """
    with _session(python) as (port, session):
        arguments = ["--port", str(port), "--session", session, "--rows", str(num_rows), "--epochs", str(epochs)]
        found = run_program("mindspore_rows.py", [str(data), *arguments], python=python)
    return {line["way"]: line["rows_s"] for line in found}


@contextlib.contextmanager
def _session(python: Path) -> Iterator[tuple[int, str]]:
    """Start MindSpore's cache server with one session; stop it at the end of the block."""
    port = free_port()
    _run(python, "--start", port)
    try:
        yield port, _run(python, "--generate_session", port).split()[-1]
    finally:
        _run(python, "--stop", port)


def _run(python: Path, command: str, port: int) -> str:
    done = subprocess.run(
        [str(_admin(python)), command, "-p", str(port)],
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise BenchFailedError(f"{_admin(python).name} {command} ended with status {done.returncode}: {done.stderr}")
    return done.stdout


def _admin(python: Path) -> Path:
    return python.parent / "dataset-cache"


if __name__ == "__main__":
    main_of_child(HitJob, measure)
