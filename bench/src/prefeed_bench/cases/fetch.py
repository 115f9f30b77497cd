"""Origin to memory tier without added latency: how much the server itself takes."""

from __future__ import annotations

import time

from prefeed.client.node import NodeClient
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate, cpu_seconds
from prefeed_bench.home import Home, temporary_home
from prefeed_bench.origin import nginx_origin
from prefeed_bench.photos import PhotoFolder


def run(options: Options) -> BenchResult:
    """Measure objects per second and the server's processor time per object while everything is fetched once."""
    photos = options.photos()

    def fetched(url: str) -> dict[str, float]:
        with temporary_home(2 * photos.total_bytes) as home, NodeClient.connect(home.config) as client:
            return measure_warming(home, client, url, photos)

    with nginx_origin(photos.root) as origin:
        runs = alternate({"prefeed": lambda: fetched(origin.url)}, runs=options.runs, say=options.say)
    note = "a server just started, listing done before; nginx shares the cores; user and system time"
    return Samples(runs["prefeed"]).result("fetch", runs, note)


def measure_warming(home: Home, client: NodeClient, url: str, photos: PhotoFolder) -> dict[str, float]:
    """Bring all pictures into the empty memory tier of a node; return what its server took.

    Raises:
        BenchFailedError: Some were not fetched.
    """
    client.open_dataset(url)
    cpu_before, started = cpu_seconds(home.server_pid), time.perf_counter()
    warmed = client.warm(url)
    seconds = time.perf_counter() - started
    cpu = cpu_seconds(home.server_pid) - cpu_before
    if warmed.fetched < photos.num_photos:
        raise BenchFailedError(f"only {warmed.fetched} of {photos.num_photos} objects were fetched: {warmed}")
    return {
        "objects_per_s": warmed.fetched / seconds,
        "cpu_us_per_object": cpu * 1e6 / warmed.fetched,
        "mb_per_s": warmed.bytes / seconds / 1e6,
    }
