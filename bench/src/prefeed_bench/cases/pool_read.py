"""From a full pool into an empty memory tier: how much the server itself takes, and that the origin is not asked."""

from __future__ import annotations

import time
from typing import Final

from prefeed.client.node import NodeClient
from prefeed_bench.harness import BenchResult, Options, Samples, alternate, cpu_seconds
from prefeed_bench.home import Home, temporary_home
from prefeed_bench.memcached import memcached_ring
from prefeed_bench.photo_bucket import photo_bucket
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.requirements import BenchFailedError
from prefeed_bench.s3_origin import Bucket

_SERVERS: Final = 2
_POOL_ROOM: Final = 1.5
"""Times the data, in all servers together: slabs do not fill up to the last byte, nor keys spread evenly."""

_FILL_SECONDS: Final = 60.0


def run(options: Options) -> BenchResult:
    """Measure objects a second and the server's processor time an object while a node reads everything from the pool."""
    photos = options.photos()
    each_mib = 64 + int(_POOL_ROOM * photos.total_bytes / _SERVERS) // 1024**2
    with photo_bucket(photos) as bucket, memcached_ring(_SERVERS, memory_mib=each_mib) as ring:
        pool = ",".join(server.address for server in ring)
        _fill(bucket, photos, pool)
        runs = alternate({"pool": lambda: _warm(bucket, photos, pool)}, runs=options.runs, say=options.say)["pool"]
    samples = Samples()
    for figures in runs:
        samples.add(**figures)
    return BenchResult(
        name="pool_read",
        fields=samples.medians(),
        spread=samples.spread(),
        runs={"pool": runs},
        notes=(
            f"a server just started, listing done before; {_SERVERS} memcached with two threads each share the cores",
            "user and system time of the node's server, memory tier on LMDB included",
        ),
    )


def _fill(bucket: Bucket, photos: PhotoFolder, pool: str) -> None:
    """Let another node fetch everything, and wait until it has put all of it into the pool."""
    with temporary_home(2 * photos.total_bytes, pool=pool) as home, NodeClient.connect(home.config) as client:
        client.warm(bucket.url)
        deadline = time.monotonic() + _FILL_SECONDS
        while (found := client.statistics().pool).stored < photos.num_photos:
            if found.dropped or found.refused or time.monotonic() > deadline:
                raise BenchFailedError(f"the pool was not filled: {found}")
            time.sleep(0.05)


def _warm(bucket: Bucket, photos: PhotoFolder, pool: str) -> dict[str, float]:
    with temporary_home(2 * photos.total_bytes, pool=pool) as home, NodeClient.connect(home.config) as client:
        client.open_dataset(bucket.url)
        return _measure(bucket, photos, home, client)


def _measure(bucket: Bucket, photos: PhotoFolder, home: Home, client: NodeClient) -> dict[str, float]:
    counter = bucket.origin.counter()
    cpu_before, started = cpu_seconds(home.server_pid), time.perf_counter()
    warmed = client.warm(bucket.url)
    seconds = time.perf_counter() - started
    cpu = cpu_seconds(home.server_pid) - cpu_before
    asked, found = client.statistics().origin_requests, client.statistics().pool
    if asked or warmed.fetched < photos.num_photos:
        raise BenchFailedError(f"{asked} objects came from the origin, {found.hits} from the pool: {found}, {warmed}")
    return {
        "objects_per_s": warmed.fetched / seconds,
        "cpu_us_per_object": cpu * 1e6 / warmed.fetched,
        "mb_per_s": warmed.bytes / seconds / 1e6,
        "origin_requests": counter.count(),
    }
