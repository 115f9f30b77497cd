"""A manifest of ten million objects: opening it, planning a shuffled epoch, and the server's memory.

``python -m prefeed_bench.cases.scale JOB`` reads the order of torch's sampler ahead, in a process of its own; ``JOB`` is an ``OrderJob``.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

import msgspec
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
from prefeed_bench.processes import main_of_child, run_child

_OBJECTS = 10_000_000
_QUICK_OBJECTS = 100_000
_OBJECT_BYTES = 84_000
_MEMORY_BYTES = 64 * 1024**2
_CONSUMER = 1


def run(options: Options) -> BenchResult:
    """Measure opening and planning on a synthetic listing; every path of it answers with the same object."""
    num_objects = options.num_objects or (_QUICK_OBJECTS if options.quick else _OBJECTS)
    order = np.random.default_rng(0).permutation(num_objects).astype(np.int64)
    with tempfile.TemporaryDirectory(prefix="prefeed-scale-") as directory:
        (Path(directory) / "object").write_bytes(bytes(_OBJECT_BYTES))
        with nginx_origin(Path(directory), every_path="object") as origin:

            def prefeed() -> dict[str, float]:
                with temporary_home(_MEMORY_BYTES) as home:
                    return _measure(home, origin, order) | _read_order(num_objects)

            runs = alternate({"prefeed": prefeed}, runs=options.runs, say=options.say)
    return Samples(runs["prefeed"]).result(
        "scale",
        runs,
        "open_s: the server opens the manifest on disk and the client maps it; the listing was written before",
        "plan_register_s: the order is written to a file, sent, and the server has taken it in",
        "server_rss_mib: VmRSS after planning, mapped manifest and memory tier (64 MiB) included",
        "order_s: a loader reads the order of torch's RandomSampler ahead; order_growth_mib: growth of its VmHWM meanwhile",
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


class OrderJob(msgspec.Struct, frozen=True, kw_only=True):
    """Read the order of a shuffled epoch ahead.

    Attributes:
        num_objects: Samples of the dataset.
    """

    num_objects: int


class OrderOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What it took: seconds, and MiB by which the peak of resident memory grew."""

    seconds: float
    growth_mib: float


def measure_order(job: OrderJob) -> OrderOutcome:
    """Do the job in this process."""
    from torch.utils.data import BatchSampler, RandomSampler  # the command line must start without torch

    from prefeed.torch.order import shadow_order

    sampler = BatchSampler(RandomSampler(range(job.num_objects)), 64, False)
    shadow_order(BatchSampler(RandomSampler(range(64)), 64, False))
    before_mib = memory_mib(os.getpid())["VmHWM"]
    started = time.perf_counter()
    order = shadow_order(sampler)
    seconds = time.perf_counter() - started
    assert len(order) == job.num_objects
    return OrderOutcome(seconds=seconds, growth_mib=memory_mib(os.getpid())["VmHWM"] - before_mib)


def _read_order(num_objects: int) -> dict[str, float]:
    job = OrderJob(num_objects=num_objects)
    outcome = run_child("prefeed_bench.cases.scale", job, OrderOutcome, name="the order")
    return {"order_s": outcome.seconds, "order_growth_mib": outcome.growth_mib}


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


if __name__ == "__main__":
    main_of_child(OrderJob, measure_order)
