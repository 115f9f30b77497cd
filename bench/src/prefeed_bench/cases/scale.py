"""A manifest of ten million objects: opening it, planning a shuffled epoch, and the server's memory."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefeed.client.node import NodeClient
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.manifest_writer import write_manifest
from prefeed.sources.urls import open_source
from prefeed.types import ENTRY_KEY_BYTES
from prefeed.wire import messages as m
from prefeed_bench.harness import BenchResult, Options, Samples, alternate, memory_mib
from prefeed_bench.home import Home, temporary_home
from prefeed_bench.origin import Origin, nginx_origin

_OBJECTS = 10_000_000
_QUICK_OBJECTS = 100_000
_OBJECT_BYTES = 84_000
_MEMORY_BYTES = 64 * 1024**2
_CONSUMER = 1


def run(options: Options) -> BenchResult:
    """Measure opening and planning on a synthetic listing; every path of it answers with the same object."""
    num_objects = _QUICK_OBJECTS if options.quick else _OBJECTS
    order = np.random.default_rng(0).permutation(num_objects).astype(np.int64)
    with tempfile.TemporaryDirectory(prefix="prefeed-scale-") as directory:
        (Path(directory) / "object").write_bytes(bytes(_OBJECT_BYTES))
        with nginx_origin(Path(directory), every_path="object") as origin:

            def prefeed() -> dict[str, float]:
                with temporary_home(_MEMORY_BYTES) as home:
                    return _measure(home, origin, order)

            runs = alternate({"prefeed": prefeed}, runs=options.runs, say=options.say)
    return Samples(runs["prefeed"]).result(
        "scale",
        runs,
        "open_s: the server opens the manifest on disk and the client maps it; the listing was written before",
        "plan_register_s: the order is written to a file, sent, and the server has taken it in",
        "server_rss_mib: VmRSS after planning, mapped manifest and memory tier (64 MiB) included",
        "server_private_mib: the anonymous part of it; server_peak_rss_mib: VmHWM",
        objects=num_objects,
    )


def _measure(home: Home, origin: Origin, order: NDArray[np.int64]) -> dict[str, float]:
    directory = ManifestLibrary(home.config.home).directory_of(origin.url, open_source(origin.url, home.config).mark)
    write_synthetic_manifest(directory, origin.url, len(order))
    with NodeClient.connect(home.config) as client:
        started = time.perf_counter()
        opened = client.open_dataset(origin.url, listing_age=math.inf)
        num_objects = len(Manifest.open(opened.manifest_dir))
        open_s = time.perf_counter() - started
        assert num_objects == len(order)
        started = time.perf_counter()
        _register(client, opened.dataset, order)
        plan_register_s = time.perf_counter() - started
        memory = memory_mib(home.server_pid)
    return {
        "open_s": open_s,
        "server_rss_mib": memory["VmRSS"],
        "plan_register_s": plan_register_s,
        "server_private_mib": memory["RssAnon"],
        "server_peak_rss_mib": memory["VmHWM"],
    }


def _register(client: NodeClient, dataset: int, order: NDArray[np.int64]) -> None:
    """Send the order as a loader does, and wait until the server answers the question after it."""
    ids_file = client.connection.runtime_dir / "bench-plan.u32"
    order.astype(np.uint32).tofile(ids_file)
    client.connection.send(m.RegisterPlan(_CONSUMER, dataset, str(ids_file), False))
    client.status()


def write_synthetic_manifest(directory: Path, url: str, num_objects: int) -> Manifest:
    """Write the listing of ``num_objects`` objects of one size, a thousand to a folder, with random keys."""
    # rows: (num_objects, 16) ASCII, "0012345/0678.jpg"
    numbers = np.arange(num_objects, dtype=np.int64)
    rows = np.empty((num_objects, 16), dtype=np.uint8)
    rows[:, :] = np.frombuffer(b"0000000/0000.jpg", dtype=np.uint8)
    for column, value in zip(range(6, -1, -1), _digits(numbers // 1000, 7), strict=True):
        rows[:, column] += value
    for column, value in zip(range(11, 7, -1), _digits(numbers % 1000, 4), strict=True):
        rows[:, column] += value
    keys = np.random.default_rng(1).integers(0, 256, (num_objects, ENTRY_KEY_BYTES), dtype=np.uint8)
    return write_manifest(
        directory,
        url,
        path_blob=rows.reshape(-1).data,
        offsets=np.arange(0, 16 * (num_objects + 1), 16, dtype=np.uint64),
        sizes=np.full(num_objects, _OBJECT_BYTES, dtype=np.uint64),
        version_hashes=np.zeros(num_objects, dtype=np.uint64),
        keys=keys,
    )


def _digits(numbers: NDArray[np.int64], count: int) -> list[NDArray[np.uint8]]:
    """Return the decimal digits of each number, lowest first."""
    return [(numbers // 10**place % 10).astype(np.uint8) for place in range(count)]
