"""``prefeed doctor`` on three jobs, and what its cure then brings: prediction beside result.

Origin-bound: random crops of pictures on a directory whose opens take 20 ms. Decode-bound: fixed preprocessing of pictures in
the page cache, for a fast device. Compute-bound: the same for a slow one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prefeed_bench.errors import BenchFailedError
from prefeed_bench.fuse_mount import slow_mount
from prefeed_bench.harness import BenchResult, Options, Samples
from prefeed_bench.home import temporary_home
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.processes import SCRIPTS, run_program


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """How much is measured.

    Attributes:
        workers: Of the job as it is.
        batch_size: Pictures per batch; the device is busy for each of them as long as with any other size.
        steps: Of each trial of the doctor.
        plain_batches: Batches of the job as it is: its rate is even, and a whole epoch would take most of the
            benchmark's time.
    """

    workers: int
    batch_size: int
    steps: int
    plain_batches: int


_USUAL: Final = _Size(workers=2, batch_size=32, steps=20, plain_batches=40)
_QUICK: Final = _Size(workers=1, batch_size=2, steps=4, plain_batches=4)

NOTES: Final = (
    "predicted: by prefeed doctor, from 20 steps per trial",
    "measured: images per second of the second epoch with the cure, over those of the job as it is (its first 40 batches)",
    "rates are from the first batch on: the doctor predicts steps, and the start of the workers is none",
    "compute: no cure is worth while; predicted is what perfect loading would gain, measured what the cache gains",
    "error: measured over predicted, less 1",
    "batches of 32, 2 workers; the device is a wait of 25, 5 and 250 ms per batch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One of the three.

    Attributes:
        step_ms: The device is busy so long with a batch of the usual size.
        arguments: Further ones of ``scripts/job.py``.
        is_slow: On the slow directory.
    """

    step_ms: float
    arguments: tuple[str, ...] = ()
    is_slow: bool = False

    def arguments_of(self, size: _Size) -> tuple[str, ...]:
        """Return those of ``scripts/job.py``."""
        step_ms = self.step_ms * size.batch_size / _USUAL.batch_size
        sizes = ("--workers", str(size.workers), "--batch-size", str(size.batch_size))
        return (*self.arguments, "--step-ms", f"{step_ms:g}", *sizes)


_JOBS: Final = {
    "origin": _Job(step_ms=25, arguments=("--train",), is_slow=True),
    "decode": _Job(step_ms=5),
    "compute": _Job(step_ms=250),
}


def run(options: Options) -> BenchResult:
    """Examine each job, apply the cure, and compare."""
    photos = options.photos()
    samples, detail = Samples(), []
    for number in range(options.runs):
        for name, job in _JOBS.items():
            options.say(f"run {number + 1} of {options.runs}: {name}")
            found = _compare(photos, job, _QUICK if options.quick else _USUAL)
            detail.append({"job": name, **found})
            predicted, measured = found["predicted"], found["measured"]
            figures = {"predicted": predicted, "measured": measured, "error": measured / predicted - 1}
            samples.add(**{f"{name}_{key}": value for key, value in figures.items()})
            samples.add(**{f"{name}_waiting": found["waiting"]})
    return samples.result("doctor", {"jobs": detail}, *NOTES)


def _compare(photos: PhotoFolder, job: _Job, size: _Size) -> dict[str, Any]:
    common = job.arguments_of(size)
    with _data(photos, job) as data:
        verdict = _examine([data, *common], steps=size.steps)
        plain = run_program("job.py", [data, *common, "--batches", str(size.plain_batches)])[0]
        cure = next((cure for cure in verdict["findings"] if cure["name"] == verdict["best"]), None)
        cured = _cured([data, *common], cure)
    rates = [_rate(epoch) for epoch in (plain, cured)]
    return {
        "waiting": verdict["waiting"],
        "cure": verdict["best"],
        "predicted": verdict["perfect_speedup"] if cure is None else cure["speedup"],
        "measured": rates[1] / rates[0],
        "text": verdict["text"],
    }


def _rate(epoch: dict[str, Any]) -> float:
    """Return images per second once the first batch is there: the start of the workers is no step."""
    images, seconds = epoch["images"] - epoch["first_images"], epoch["seconds"] - epoch["first_seconds"]
    rate: float = images / seconds
    return rate


@contextlib.contextmanager
def _data(photos: PhotoFolder, job: _Job) -> Iterator[str]:
    if not job.is_slow:
        yield str(photos.root)
        return
    with slow_mount(photos.root) as slow:
        yield str(slow.path)


def _examine(arguments: Sequence[str], *, steps: int) -> dict[str, Any]:
    """Return what ``prefeed doctor --json`` says of the job."""
    command = [sys.executable, "-m", "prefeed", "doctor", "--json", "--steps", str(steps)]
    line = [*command, str(SCRIPTS / "job.py"), *arguments]
    with temporary_home() as home:
        done = subprocess.run(line, env={**os.environ, **home.env}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailedError(f"prefeed doctor ended with status {done.returncode}: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _cured(arguments: Sequence[str], cure: dict[str, Any] | None) -> dict[str, Any]:
    """Return the second epoch of the job with the cure."""
    name = "cache" if cure is None else cure["name"]
    line = [*arguments, "--epochs", "2"]
    if name == "workers" and cure is not None:
        return run_program("job.py", [*line, "--workers", cure["what"].split()[0]])[1]
    if name in ("packing", "device prefetch"):
        return run_program("job.py", [*line, "--lean"])[1]
    with temporary_home() as home:
        root = {"PREFEED_ROOTS": arguments[0]}
        more = ["--cached"] if name == "stage cache" else []
        return run_program("job.py", [*line, *more], prefeed_env={**home.env, **root})[1]
