"""A pool server dies in the middle of an epoch: how long training stops, and whether what it reads is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from prefeed.client.node import NodeClient
from prefeed.errors import TierFullError
from prefeed.types import Statistics
from prefeed_bench.fleet import Epoch, EpochOutcome, NodeJob, checksum, node_process
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import Home, temporary_home
from prefeed_bench.memcached import Memcached, memcached_ring
from prefeed_bench.phases import PhasedProcess
from prefeed_bench.photo_bucket import photo_bucket
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.requirements import BenchFailedError
from prefeed_bench.s3_origin import Bucket

_SERVERS: Final = 3
_LATENCY_SECONDS: Final = 0.02
_MEMORY_BYTES: Final = 6 * 1024**2
_POOL_ROOM: Final = 1.5
_USUAL_EPOCHS: Final = 3
_FAULT_AFTER: Final = 0.25
"""Of the epoch's objects: then the server dies."""

_FILL_SECONDS: Final = 60.0
_SUMS: Final = 1 << 64


def run(options: Options) -> BenchResult:
    """Measure the longest wait for a batch in an epoch with a fault, beyond that of epochs without; and what went wrong."""
    photos = options.photos()
    expected = sum(checksum(path.read_bytes()) for path in sorted(photos.root.rglob("*.jpg"))) % _SUMS
    with photo_bucket(photos, _LATENCY_SECONDS) as bucket:
        variants: dict[str, Callable[[], dict[str, Any]]] = {
            "killed": partial(_train, bucket, photos, expected, Memcached.kill),
            "paused": partial(_train, bucket, photos, expected, Memcached.pause),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    return _result(runs)


def _train(
    bucket: Bucket, photos: PhotoFolder, expected: int, fault: Callable[[Memcached], None]
) -> dict[str, Any]:  # fmt: skip
    each_mib = 64 + int(_POOL_ROOM * photos.total_bytes / _SERVERS) // 1024**2
    with ExitStack() as stack:
        ring = stack.enter_context(memcached_ring(_SERVERS, memory_mib=each_mib))
        addresses = ",".join(server.address for server in ring)
        home = stack.enter_context(temporary_home(_MEMORY_BYTES, pool=addresses))
        node = stack.enter_context(node_process(NodeJob(url=bucket.url, rank=0, num_nodes=1), home.env))
        node.wait_ready()
        usual = _usual_epochs(home, node, photos.num_photos)
        before = _statistics(home)
        outcome = _faulty_epoch(
            home, node, lambda: fault(ring[0]), before.pool.hits + int(_FAULT_AFTER * photos.num_photos)
        )
        after = _statistics(home)
    if after.pool.failures == 0:
        raise BenchFailedError(f"the server was not missed: {after.pool}")
    return {
        "stall_s": max(0.0, outcome.longest_wait - max(epoch.longest_wait for epoch in usual)),
        "longest_wait_s": outcome.longest_wait,
        "usual_longest_wait_s": max(epoch.longest_wait for epoch in usual),
        "wrong_epochs": sum(epoch.checksum != expected for epoch in (*usual, outcome)),
        "missing_objects": photos.num_photos - outcome.objects,
        "errors": _num_errors(after) - _num_errors(before),
        "origin_requests": after.origin_requests - before.origin_requests,
    }


def _usual_epochs(home: Home, node: PhasedProcess[EpochOutcome], num_objects: int) -> list[EpochOutcome]:
    """Train for an epoch that fills the pool, and for some that read it; return the latter."""
    node.begin(Epoch(number=0))
    node.outcome()
    deadline = time.monotonic() + _FILL_SECONDS
    while (found := _statistics(home).pool).stored < num_objects:
        if found.dropped or found.refused or time.monotonic() > deadline:
            raise BenchFailedError(f"the pool was not filled: {found}")
        time.sleep(0.05)
    outcomes = []
    for number in range(1, 1 + _USUAL_EPOCHS):
        node.begin(Epoch(number=number))
        outcomes.append(node.outcome())
    return outcomes


def _faulty_epoch(
    home: Home, node: PhasedProcess[EpochOutcome], fault: Callable[[], None], after_hits: int
) -> EpochOutcome:
    """Train for an epoch; let the fault happen when the pool has served that many reads since the server's start."""
    node.begin(Epoch(number=1 + _USUAL_EPOCHS))
    with NodeClient.connect(home.config, autostart=False) as client:
        deadline = time.monotonic() + _FILL_SECONDS
        while client.statistics().pool.hits < after_hits:
            if time.monotonic() > deadline:
                raise BenchFailedError("the epoch did not read from the pool")
            time.sleep(0.005)
    fault()
    return node.outcome()


def _statistics(home: Home) -> Statistics:
    with NodeClient.connect(home.config, autostart=False) as client:
        return client.statistics()


def _num_errors(statistics: Statistics) -> int:
    """Return how many there were, but for those of the memory tier, which is too small on purpose."""
    return sum(count for code, count in statistics.errors.items() if code != TierFullError.code)


def _result(runs: Mapping[str, Sequence[dict[str, Any]]]) -> BenchResult:
    samples = Samples()
    for found in runs["killed"]:
        samples.add(
            stall_s=found["stall_s"],
            wrong_bytes=found["wrong_epochs"] + found["missing_objects"],
            errors=found["errors"],
            longest_wait_s=found["longest_wait_s"],
            origin_requests=found["origin_requests"],
        )
    for found in runs["paused"]:
        samples.add(
            paused_stall_s=found["stall_s"],
            paused_wrong_bytes=found["wrong_epochs"] + found["missing_objects"],
            paused_errors=found["errors"],
        )
    return BenchResult(
        name="pool_fault",
        fields=samples.medians(),
        spread=samples.spread(),
        runs=runs,
        notes=(
            f"one node, {_MEMORY_BYTES // 1024**2} MiB of memory, {_SERVERS} memcached, S3 with {_LATENCY_SECONDS * 1000:.0f} ms",
            "one memcached gets SIGKILL after a quarter of an epoch; paused: SIGSTOP",
            f"stall: the longest wait for a batch in that epoch less the longest of {_USUAL_EPOCHS} epochs before it",
            "wrong_bytes: epochs whose bytes do not add up, and objects missing; errors: those that the server counts",
        ),
    )
