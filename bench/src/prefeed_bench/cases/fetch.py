"""Origin to memory tier without added latency: how much the server itself takes."""

from __future__ import annotations

import time

from prefeed.client.node import NodeClient
from prefeed_bench.harness import BenchResult, Options, Samples, alternate, cpu_seconds
from prefeed_bench.home import temporary_home
from prefeed_bench.origin import Origin, nginx_origin
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.requirements import BenchFailedError


def run(options: Options) -> BenchResult:
    """Measure objects a second and the server's processor time an object while everything is fetched once."""
    photos = options.photos()
    with nginx_origin(photos.root) as origin:
        runs = alternate({"prefeed": lambda: _warm(origin, photos)}, runs=options.runs, say=options.say)["prefeed"]
    samples = Samples()
    for figures in runs:
        samples.add(**figures)
    return BenchResult(
        name="fetch",
        fields=samples.medians(),
        spread=samples.spread(),
        runs={"prefeed": runs},
        notes=("a server just started, listing done before; nginx shares the cores; user and system time",),
    )


def _warm(origin: Origin, photos: PhotoFolder) -> dict[str, float]:
    with temporary_home(2 * photos.total_bytes) as home, NodeClient.connect(home.config) as client:
        client.open_dataset(origin.url)
        cpu_before, started = cpu_seconds(home.server_pid), time.perf_counter()
        warmed = client.warm(origin.url)
        seconds = time.perf_counter() - started
        cpu = cpu_seconds(home.server_pid) - cpu_before
    if warmed.fetched < photos.num_photos:
        raise BenchFailedError(f"only {warmed.fetched} of {photos.num_photos} objects were fetched: {warmed}")
    return {
        "objects_per_s": warmed.fetched / seconds,
        "cpu_us_per_object": cpu * 1e6 / warmed.fetched,
        "mb_per_s": warmed.bytes / seconds / 1e6,
    }
