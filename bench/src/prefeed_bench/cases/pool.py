"""Four nodes that train together, with memory for a tenth of the data each, and a pool for all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from prefeed.client.node import NodeClient
from prefeed.types import Statistics
from prefeed_bench.fleet import Epoch, EpochOutcome, NodeJob, checksum, node_process
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import Home, temporary_home
from prefeed_bench.memcached import memcached_ring
from prefeed_bench.phases import run_phase
from prefeed_bench.photo_bucket import photo_bucket
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.requirements import BenchFailedError
from prefeed_bench.s3_origin import Bucket

_NODES: Final = 4
_QUICK_NODES: Final = 2
_EPOCHS: Final = 4
_LATENCY_SECONDS: Final = 0.02
_ROOM: Final = 0.10
"""Of the data, in the memory of one node."""

_LEAST_MEMORY_BYTES: Final = 6 * 1024**2
_POOL_ROOM: Final = 1.5
"""Times the data, in all memcached together: slabs do not fill up to the last byte."""

_SETTLE_SECONDS: Final = 0.2
_MOST_SETTLING: Final = 100


def run(options: Options) -> BenchResult:
    """Count what all nodes together ask the origin for, epoch by epoch: parts of one epoch, and everybody everything."""
    photos = options.photos()
    expected = sum(checksum(path.read_bytes()) for path in sorted(photos.root.rglob("*.jpg"))) % (1 << 64)
    with photo_bucket(photos, _LATENCY_SECONDS) as bucket:
        num_nodes = _QUICK_NODES if options.quick else _NODES
        train = partial(_train, bucket, photos, expected, num_nodes)
        variants: dict[str, Callable[[], dict[str, Any]]] = {"parts": partial(train, parts=True)}
        if not options.quick:
            variants["parts_without_pool"] = partial(train, parts=True, has_pool=False)
            variants["everything"] = partial(train, parts=False)
        runs = alternate(variants, runs=options.runs, say=options.say)
    return _result(runs, photos.num_photos)


def _train(
    bucket: Bucket, photos: PhotoFolder, expected: int, num_nodes: int, *, parts: bool, has_pool: bool = True
) -> dict[str, Any]:  # fmt: skip
    """Train for some epochs on empty caches; return what was asked of whom, by epoch."""
    memory = max(int(_ROOM * photos.total_bytes), _LEAST_MEMORY_BYTES)
    with ExitStack() as stack:
        pool = {}
        if has_pool:
            each_mib = 16 + int(_POOL_ROOM * photos.total_bytes / num_nodes) // 1024**2
            ring = stack.enter_context(memcached_ring(num_nodes, memory_mib=each_mib))
            pool = {"pool": ",".join(server.address for server in ring)}
        homes = [stack.enter_context(temporary_home(memory, **pool)) for _ in range(num_nodes)]
        jobs = [NodeJob(url=bucket.url, rank=rank, num_nodes=num_nodes if parts else 1) for rank in range(num_nodes)]
        nodes = [stack.enter_context(node_process(job, home.env)) for job, home in zip(jobs, homes, strict=True)]
        for node in nodes:
            node.wait_ready()
        counter = bucket.origin.counter()
        counts: list[int] = []
        outcomes: list[list[EpochOutcome]] = []
        pools: list[tuple[int, int]] = []
        for number in range(_EPOCHS):
            before = sum(counts)
            outcomes.append(run_phase(nodes, Epoch(number=number)))
            statistics = _settled(homes)
            counts.append(counter.count() - before)
            pools.append((sum(s.pool.hits for s in statistics), sum(s.pool.misses for s in statistics)))
    _check(outcomes, expected, copies=1 if parts else num_nodes)
    later_hits, later_misses = (after - first for first, after in zip(pools[0], pools[-1], strict=True))
    return {
        "origin_requests": counts,
        "seconds": [max(outcome.seconds for outcome in epoch) for epoch in outcomes],
        "pool_hit_ratio": later_hits / max(1, later_hits + later_misses),
    }


def _settled(homes: Sequence[Home]) -> list[Statistics]:
    """Return the counts of all servers, once nothing is fetched ahead for the next epoch any more."""
    for _ in range(_MOST_SETTLING):
        before = [_statistics(home) for home in homes]
        time.sleep(_SETTLE_SECONDS)
        after = [_statistics(home) for home in homes]
        if before == after:
            return after
    raise BenchFailedError("the servers did not come to rest between two epochs")


def _statistics(home: Home) -> Statistics:
    with NodeClient.connect(home.config, autostart=False) as client:
        return client.statistics()


def _check(outcomes: Sequence[Sequence[EpochOutcome]], expected: int, *, copies: int) -> None:
    for number, epoch in enumerate(outcomes, start=1):
        if sum(outcome.checksum for outcome in epoch) % (1 << 64) != expected * copies % (1 << 64):
            raise BenchFailedError(f"epoch {number} read other bytes than the origin's")


def _result(runs: Mapping[str, Sequence[dict[str, Any]]], num_objects: int) -> BenchResult:
    samples = Samples()
    for run in runs["parts"]:
        first, *later = run["origin_requests"]
        samples.add(
            origin_requests_first_epoch=first,
            origin_requests_later_epochs=sum(later) / len(later),
            pool_hit_ratio=run["pool_hit_ratio"],
            first_epoch_s=run["seconds"][0],
            later_epoch_s=sum(run["seconds"][1:]) / len(later),
        )
    for name in ("parts_without_pool", "everything"):
        for run in runs.get(name, ()):
            first, *later = run["origin_requests"]
            samples.add(**{f"{name}_first_epoch": first, f"{name}_later_epochs": sum(later) / len(later)})
    return BenchResult(
        name="pool",
        fields={"objects": num_objects, **samples.medians()},
        spread=samples.spread(),
        runs=runs,
        notes=(
            f"{_NODES} nodes: a server, a home, a training process and a memcached each, memory for {_ROOM:.0%} of the data",
            f"the origin is an S3 endpoint with {_LATENCY_SECONDS * 1000:.0f} ms; later: mean of epochs 2 to {_EPOCHS}",
            "requests as the endpoint counts them, listings included, and what is fetched ahead for the next epoch",
            "parts: a DistributedSampler over the nodes; everything: each node reads all of it, in its own order",
        ),
    )
