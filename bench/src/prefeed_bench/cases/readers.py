"""Processes that read the memory tier at random, all at once: what a hit costs with 1, 8 and 64 of them.

``python -m prefeed_bench.cases.readers JOB`` is one of them, in phases: ``JOB`` is a ``ReadingJob`` as JSON.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec
import numpy as np

from prefeed.client.node import NodeClient
from prefeed.client.tiers import tier_of
from prefeed.config import resolve
from prefeed.sources.manifest import Manifest
from prefeed.store.log import LogReader
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.processes import PhasedProcess, job_of_child, run_phase, serve_phases

_BATCH: Final = 64
_HITS: Final = 1 << 20
"""Of all processes together, in one run."""

_QUICK_HITS: Final = 1 << 12
_PROCESSES: Final = (1, 8, 64)
_QUICK_PROCESSES: Final = (1, 4)


def run(options: Options) -> BenchResult:
    """Measure hits with each process in an order of its own, once every object is in the memory tier."""
    photos = options.photos()
    url = str(photos.root)
    numbers = _QUICK_PROCESSES if options.quick else _PROCESSES
    num_hits = _QUICK_HITS if options.quick else _HITS
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home(2 * photos.total_bytes))
        client = stack.enter_context(NodeClient.connect(home.config))
        manifest = client.open_dataset(url).manifest_dir
        warmed = client.warm(url)
        if warmed.resident != warmed.objects:
            raise BenchFailedError(f"only {warmed.resident} of {warmed.objects} objects fit into the memory tier")
        job = ReadingJob(manifest=str(manifest))
        readers = [
            stack.enter_context(
                PhasedProcess("prefeed_bench.cases.readers", job, Reading, name=f"reader {number}", env=home.env)
            )
            for number in range(max(numbers))
        ]
        for reader in readers:
            reader.wait_ready()
        variants: dict[str, Callable[[], Sequence[Reading]]] = {
            f"of_{number}": partial(run_phase, readers[:number], Phase(hits=num_hits // number)) for number in numbers
        }
        runs = alternate(variants, runs=options.runs + 1, say=options.say)
    return _result({name: done[1:] for name, done in runs.items()})  # the first run touches every page once


def _result(runs: dict[str, list[Sequence[Reading]]]) -> BenchResult:
    samples = Samples()
    for rounds in zip(*runs.values(), strict=True):
        for name, readings in zip(runs, rounds, strict=True):
            hits = sum(reading.hits for reading in readings)
            user = sum(reading.user_seconds for reading in readings)
            system = sum(reading.system_seconds for reading in readings)
            samples.add(
                **{
                    f"{name}_us_per_hit": (user + system) * 1e6 / hits,
                    f"{name}_system_us_per_hit": system * 1e6 / hits,
                    f"{name}_hits_s": hits / max(reading.seconds for reading in readings),
                }
            )
    return samples.result(
        "readers",
        runs,
        "of_N: N processes at once, each with keys in an order of its own; values as bytes",
        "us_per_hit: processor time of the processes, kernel included; system_us_per_hit: the kernel's part",
        "hits_s: of all together, until the last one is done",
    )


# ---------------------------------------------------------------- one of the processes


class ReadingJob(msgspec.Struct, frozen=True, kw_only=True):
    """The directory of the manifest whose objects are read."""

    manifest: str


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """How many hits each process has to make."""

    hits: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one process did in one phase: hits, and seconds by the clock and of the processor."""

    hits: int
    seconds: float
    user_seconds: float
    system_seconds: float


def serve(job: ReadingJob) -> None:
    """Read as standard input says, until it ends."""
    manifest = Manifest.open(job.manifest)
    keys = [manifest.key(number) for number in range(len(manifest)) if manifest.path(number).endswith(".jpg")]
    with NodeClient.connect(resolve()) as client:
        reader = tier_of(client.connection.instance)
    assert reader is not None
    draw = np.random.default_rng()
    serve_phases(Phase, lambda phase: _read(reader, keys, phase.hits, draw))


def _read(reader: LogReader, keys: Sequence[bytes], hits: int, draw: np.random.Generator) -> Reading:
    batches = [
        [keys[number] for number in numbers]
        for numbers in draw.integers(0, len(keys), (max(1, hits // _BATCH), _BATCH)).tolist()
    ]
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for batch in batches:
        for key in batch:
            if reader.get(key) is None:
                raise BenchFailedError("an object left the memory tier during the benchmark")
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    return Reading(
        hits=len(batches) * _BATCH,
        seconds=seconds,
        user_seconds=after.ru_utime - before.ru_utime,
        system_seconds=after.ru_stime - before.ru_stime,
    )


if __name__ == "__main__":
    serve(job_of_child(ReadingJob))
