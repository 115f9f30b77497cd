"""From an HTTP origin with 20 ms latency to a directory: how many objects a sync copies a second."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from prefeed import Config
from prefeed.jobs.options import SyncOptions
from prefeed.jobs.sync import sync
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.origin import Origin, nginx_origin
from prefeed_bench.photos import PhotoFolder

LATENCY_SECONDS: Final = 0.020
_TARGETS: Final = Path("/dev/shm")


def run(options: Options) -> BenchResult:
    """Measure a sync of all pictures into an empty directory, and one that finds all of them there."""
    photos = options.photos()
    with nginx_origin(photos.root, LATENCY_SECONDS) as origin:
        runs = alternate({"sync": lambda: _sync(origin, photos)}, runs=options.runs, say=options.say)
    note = "into a new directory on tmpfs; each file is read back before it gets its name; nginx shares the cores"
    return Samples(runs["sync"]).result("sync", runs, note)


def _sync(origin: Origin, photos: PhotoFolder) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="prefeed-sync-", dir=_TARGETS if _TARGETS.is_dir() else None) as scratch:
        target, config = f"{scratch}/target", Config(home=Path(scratch) / "home")
        cpu_before, started = time.process_time(), time.perf_counter()
        result = sync(origin.url, target, SyncOptions(), config)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_before
        started = time.perf_counter()
        again = sync(origin.url, target, SyncOptions(), config)
        again_seconds = time.perf_counter() - started
    if not result.is_complete or result.num_copied < photos.num_photos or again.num_copied:
        raise BenchFailedError(f"of {photos.num_photos} objects not all were copied once: {result}, {again}")
    return {
        "objects_per_s": result.num_copied / seconds,
        "cpu_us_per_object": cpu * 1e6 / result.num_copied,
        "mb_per_s": result.bytes_copied / seconds / 1e6,
        "compared_per_s": again.num_skipped / again_seconds,
    }
