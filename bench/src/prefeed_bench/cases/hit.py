"""Reads of objects in the memory tier and ``prefeed.read``, against the same files read from the page cache."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np

import prefeed
from prefeed.client.node import NodeClient
from prefeed.client.readers import process_readers
from prefeed.client.tiers import tier_of
from prefeed.sources.manifest import Manifest
from prefeed.store.log import LogReader
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.photos import PhotoFolder

_PASSES = 10
"""Passes over all objects in one run of the fast variants."""

_READS = 10_000
_READS_IF_QUICK = 500


def run(options: Options) -> BenchResult:
    """Measure one object in random order, once every object is in the memory tier."""
    photos = options.photos()
    url = str(photos.root)
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home(2 * photos.total_bytes))
        stack.enter_context(
            patch.dict(os.environ, home.env)
        )  # for ``prefeed.read``, which is called as programs call it
        stack.callback(process_readers.close)
        client = stack.enter_context(NodeClient.connect(home.config))
        manifest = Manifest.open(client.open_dataset(url).manifest_dir)
        warmed = client.warm(url)
        if warmed.resident != warmed.objects:
            raise BenchFailedError(f"only {warmed.resident} of {warmed.objects} objects fit into the memory tier")
        reader = tier_of(client.connection.instance)
        assert reader is not None
        pictures = [i for i in range(len(manifest)) if manifest.path(i).endswith(".jpg")]
        order = np.random.default_rng(0).permutation(pictures).tolist()
        num_reads = _READS_IF_QUICK if options.quick else _READS
        runs = alternate(_variants(photos, manifest, reader, order, num_reads), runs=options.runs + 1, say=options.say)
    return _result({name: done[1:] for name, done in runs.items()})  # the first run touches every page once


def _variants(
    photos: PhotoFolder, manifest: Manifest, reader: LogReader, order: list[int], num_reads: int
) -> dict[str, Callable[[], float]]:
    keys = [manifest.key(number) for number in order]
    paths = [str(photos.root / manifest.path(number)) for number in order]
    num_objects = len(order)
    buffer = memoryview(bytearray(max(int(manifest.sizes.max()), 1)))

    def values() -> None:
        for key in keys:
            if reader.get(key) is None:
                raise BenchFailedError("an object left the memory tier during the benchmark")

    def values_by_id() -> None:
        for number in order:
            reader.get(manifest.key(number))

    def into_buffer() -> None:
        for key in keys:
            reader.read_into(key, buffer)

    def files() -> None:
        for path in paths:
            with open(path, "rb") as file:
                file.read()

    return {
        "us_per_sample": lambda: _microseconds(values, num_objects, passes=_PASSES),
        "page_cache_us_per_sample": lambda: _microseconds(files, num_objects, passes=2),
        "by_id_us_per_sample": lambda: _microseconds(values_by_id, num_objects, passes=_PASSES),
        "into_us_per_sample": lambda: _microseconds(into_buffer, num_objects, passes=2),
        "read_median_us": lambda: _read_microseconds(paths, num_reads, percentile=50),
        "read_p99_us": lambda: _read_microseconds(paths, num_reads, percentile=99),
    }


def _read_microseconds(paths: list[str], num_reads: int, *, percentile: float) -> float:
    seconds = []
    for path in itertools.islice(itertools.cycle(paths), num_reads):
        started = time.perf_counter()
        prefeed.read(path)
        seconds.append(time.perf_counter() - started)
    return float(np.percentile(seconds, percentile)) * 1e6


def _microseconds(work: Callable[[], None], num_objects: int, *, passes: int) -> float:
    started = time.perf_counter()
    for _ in range(passes):
        work()
    return (time.perf_counter() - started) * 1e6 / (num_objects * passes)


def _result(runs: dict[str, list[float]]) -> BenchResult:
    samples = Samples()
    for values in zip(*runs.values(), strict=True):
        figures = dict(zip(runs, values, strict=True))
        samples.add(**figures, ratio=figures["page_cache_us_per_sample"] / figures["us_per_sample"])
    return samples.result(
        "hit",
        runs,
        "us_per_sample: the value of a key, as bytes; into_us_per_sample: the same, into a buffer that is used again",
        "by_id_us_per_sample: the value, with its key looked up in the manifest",
        "page_cache_us_per_sample: open(path, 'rb').read()",
        "read_median_us, read_p99_us: 10,000 calls of prefeed.read(path), one by one",
    )
