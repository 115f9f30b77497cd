"""Nodes that share a pool: what they ask the origin for, what reading it takes, and what a lost server of it costs.

``python -m prefeed_bench.cases.pool JOB`` is one node that trains, in phases: ``JOB`` is a ``NodeJob`` as JSON. It reads its
part of each epoch as raw bytes and adds them up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import msgspec
import xxhash

from prefeed import Statistics
from prefeed.client.node import NodeClient
from prefeed.errors import TierFullError
from prefeed_bench.cases.fetch import measure_warming
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import Home, statistics_of, temporary_home
from prefeed_bench.memcached import Memcached, memcached_ring
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.processes import PhasedProcess, job_of_child, run_phase, serve_phases
from prefeed_bench.s3_origin import Bucket, photo_bucket

_NODES: Final = 4
_QUICK_NODES: Final = 2
_EPOCHS: Final = 4
_LATENCY_SECONDS: Final = 0.02
_MEMORY_RATIO: Final = 0.10
"""Of the data, in the memory of one node."""

_LEAST_MEMORY_BYTES: Final = 6 * 1024**2
_POOL_RATIO: Final = 1.5
"""Times the data, in all memcached together: slabs do not fill up to the last byte, nor keys spread evenly."""

_SETTLE_SECONDS: Final = 0.2
_MOST_SETTLING: Final = 100
_FILL_SECONDS: Final = 60.0
_READ_SERVERS: Final = 2
_FAULT_SERVERS: Final = 3
_USUAL_EPOCHS: Final = 3
_FAULT_AFTER: Final = 0.25
"""Of the epoch's objects: then the server dies."""

_SUMS: Final = 1 << 64


# ---------------------------------------------------------------- one node that trains


class NodeJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one node has to read.

    Attributes:
        url: The origin.
        rank: Of this node.
        num_nodes: Nodes that train together; 1: this one reads everything, in an order of its rank's own.
        batch_size: Objects per batch.
    """

    url: str
    rank: int
    num_nodes: int
    batch_size: int = 32


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch, by its number from 0."""

    number: int


class EpochOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one node read in one epoch.

    Attributes:
        objects: How many.
        seconds: Until the last of them.
        longest_wait: Longest time between two batches, in seconds.
        checksum: Sum of the hashes of all bytes, modulo 2**64: equal objects in any order, equal sums.
    """

    objects: int
    seconds: float
    longest_wait: float
    checksum: int


def _node_process(job: NodeJob, env: Mapping[str, str]) -> PhasedProcess[EpochOutcome]:
    return PhasedProcess("prefeed_bench.cases.pool", job, EpochOutcome, name=f"node {job.rank}", env=env)


def _serve(job: NodeJob) -> None:
    """Read as standard input says, until it ends."""
    from prefeed import DataLoader
    from prefeed.datasets import Objects

    dataset = Objects(job.url, pattern="**/*.jpg")
    sampler = _sampler(job, dataset)
    loader: Any = DataLoader(dataset, batch_size=job.batch_size, sampler=sampler, collate_fn=list)
    serve_phases(Epoch, lambda epoch: _read(loader, sampler.set_epoch, epoch.number))


def _sampler(job: NodeJob, dataset: Any) -> Any:
    from torch.utils.data import DistributedSampler

    seed = 0 if job.num_nodes > 1 else job.rank
    return DistributedSampler(dataset, num_replicas=job.num_nodes, rank=job.rank % job.num_nodes, seed=seed)


def _read(loader: Any, set_epoch: Callable[[int], None], epoch: int) -> EpochOutcome:
    set_epoch(epoch)
    objects = total = 0
    longest = 0.0
    started = last = time.perf_counter()
    for batch in loader:
        now = time.perf_counter()
        longest = max(longest, now - last)
        objects += len(batch)
        total += sum(map(xxhash.xxh3_64_intdigest, batch))
        last = time.perf_counter()
    return EpochOutcome(objects=objects, seconds=last - started, longest_wait=longest, checksum=total % _SUMS)


def _checksum(photos: PhotoFolder) -> int:
    """Return ``EpochOutcome.checksum`` of one node that reads everything."""
    return sum(xxhash.xxh3_64_intdigest((photos.root / path).read_bytes()) for path in photos.sizes) % _SUMS


@contextmanager
def _pool(num_servers: int, photos: PhotoFolder, *, beside_mib: int = 64) -> Iterator[tuple[str, Memcached]]:
    """Run memcached servers with room for all pictures; give their ``PREFEED_POOL``, and the first of them."""
    each_mib = beside_mib + int(_POOL_RATIO * photos.total_bytes / num_servers) // 1024**2
    with memcached_ring(num_servers, memory_mib=each_mib) as ring:
        yield ",".join(server.address for server in ring), ring[0]


def _wait_until_filled(home: Home, num_objects: int) -> None:
    """Wait until the node has put that many objects into the pool."""
    deadline = time.monotonic() + _FILL_SECONDS
    while (found := statistics_of(home).pool).stored < num_objects:
        if found.dropped or found.refused or time.monotonic() > deadline:
            raise BenchFailedError(f"the pool was not filled: {found}")
        time.sleep(0.05)


# ---------------------------------------------------------------- pool: four nodes, memory for a tenth of the data each


def run(options: Options) -> BenchResult:
    """Count what all nodes together ask the origin for, epoch by epoch: parts of one epoch, and everybody everything."""
    photos = options.photos()
    with photo_bucket(photos, _LATENCY_SECONDS) as bucket:
        num_nodes = _QUICK_NODES if options.quick else _NODES
        train = partial(_train, bucket, photos, _checksum(photos), num_nodes)
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
    memory = max(int(_MEMORY_RATIO * photos.total_bytes), _LEAST_MEMORY_BYTES)
    with ExitStack() as stack:
        pool = {}
        if has_pool:
            pool["pool"], _ = stack.enter_context(_pool(num_nodes, photos, beside_mib=16))
        homes = [stack.enter_context(temporary_home(memory, **pool)) for _ in range(num_nodes)]
        jobs = [NodeJob(url=bucket.url, rank=rank, num_nodes=num_nodes if parts else 1) for rank in range(num_nodes)]
        nodes = [stack.enter_context(_node_process(job, home.env)) for job, home in zip(jobs, homes, strict=True)]
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
        before = [statistics_of(home) for home in homes]
        time.sleep(_SETTLE_SECONDS)
        after = [statistics_of(home) for home in homes]
        if before == after:
            return after
    raise BenchFailedError("the servers did not come to rest between two epochs")


def _check(outcomes: Sequence[Sequence[EpochOutcome]], expected: int, *, copies: int) -> None:
    for number, epoch in enumerate(outcomes, start=1):
        if sum(outcome.checksum for outcome in epoch) % _SUMS != expected * copies % _SUMS:
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
    return samples.result(
        "pool",
        runs,
        f"{_NODES} nodes: a server, a home, a training process and a memcached each, memory for {_MEMORY_RATIO:.0%} of the data",
        f"the origin is an S3 endpoint with {_LATENCY_SECONDS * 1000:.0f} ms; later: mean of epochs 2 to {_EPOCHS}",
        "requests as the endpoint counts them, listings included, and what is fetched ahead for the next epoch",
        "parts: a DistributedSampler over the nodes; everything: each node reads all of it, in its own order",
        objects=num_objects,
    )


# ---------------------------------------------------------------- pool_read: from a full pool into an empty memory tier


def run_read(options: Options) -> BenchResult:
    """Measure objects per second and the server's processor time per object while a node reads everything from the pool."""
    photos = options.photos()
    with photo_bucket(photos) as bucket, _pool(_READ_SERVERS, photos) as (pool, _):
        with temporary_home(2 * photos.total_bytes, pool=pool) as home, NodeClient.connect(home.config) as client:
            client.warm(bucket.url)
            _wait_until_filled(home, photos.num_photos)
        runs = alternate({"pool": partial(_warm, bucket, photos, pool)}, runs=options.runs, say=options.say)
    return Samples(runs["pool"]).result(
        "pool_read",
        runs,
        f"a server just started, listing done before; {_READ_SERVERS} memcached with two threads each share the cores",
        "user and system time of the node's server, memory tier included",
    )


def _warm(bucket: Bucket, photos: PhotoFolder, pool: str) -> dict[str, float]:
    with temporary_home(2 * photos.total_bytes, pool=pool) as home, NodeClient.connect(home.config) as client:
        counter = bucket.origin.counter()
        figures = measure_warming(home, client, bucket.url, photos)
        if asked := client.statistics().origin_requests:
            raise BenchFailedError(f"{asked} objects came from the origin: {client.statistics().pool}")
        return {**figures, "origin_requests": counter.count()}


# ---------------------------------------------------------------- pool_fault: a server of the pool dies in the middle of an epoch


def run_fault(options: Options) -> BenchResult:
    """Measure the longest wait for a batch in an epoch with a fault, beyond that of epochs without; and what went wrong."""
    photos = options.photos()
    with photo_bucket(photos, _LATENCY_SECONDS) as bucket:
        train = partial(_train_with_fault, bucket, photos, _checksum(photos))
        variants = {"killed": partial(train, Memcached.kill), "paused": partial(train, Memcached.pause)}
        runs = alternate(variants, runs=options.runs, say=options.say)
    return _fault_result(runs)


def _train_with_fault(
    bucket: Bucket, photos: PhotoFolder, expected: int, fault: Callable[[Memcached], None]
) -> dict[str, Any]:  # fmt: skip
    with ExitStack() as stack:
        pool, victim = stack.enter_context(_pool(_FAULT_SERVERS, photos))
        home = stack.enter_context(temporary_home(_LEAST_MEMORY_BYTES, pool=pool))
        node = stack.enter_context(_node_process(NodeJob(url=bucket.url, rank=0, num_nodes=1), home.env))
        node.wait_ready()
        run_phase([node], Epoch(number=0))
        _wait_until_filled(home, photos.num_photos)
        usual = [run_phase([node], Epoch(number=number))[0] for number in range(1, 1 + _USUAL_EPOCHS)]
        before = statistics_of(home)
        outcome = _faulty_epoch(
            home, node, lambda: fault(victim), before.pool.hits + int(_FAULT_AFTER * photos.num_photos)
        )
        after = statistics_of(home)
    if after.pool.failures == 0:
        raise BenchFailedError(f"the server was not missed: {after.pool}")
    usual_longest = max(epoch.longest_wait for epoch in usual)
    return {
        "stall_s": max(0.0, outcome.longest_wait - usual_longest),
        "longest_wait_s": outcome.longest_wait,
        "usual_longest_wait_s": usual_longest,
        "wrong_epochs": sum(epoch.checksum != expected for epoch in (*usual, outcome)),
        "missing_objects": photos.num_photos - outcome.objects,
        "errors": _num_errors(after) - _num_errors(before),
        "origin_requests": after.origin_requests - before.origin_requests,
    }


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


def _num_errors(statistics: Statistics) -> int:
    """Return how many there were, but for those of the memory tier, which is too small on purpose."""
    return sum(count for code, count in statistics.errors.items() if code != TierFullError.code)


def _fault_result(runs: Mapping[str, Sequence[dict[str, Any]]]) -> BenchResult:
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
    return samples.result(
        "pool_fault",
        runs,
        f"one node, {_LEAST_MEMORY_BYTES // 1024**2} MiB of memory, {_FAULT_SERVERS} memcached, S3 with {_LATENCY_SECONDS * 1000:.0f} ms",
        "one memcached gets SIGKILL after a quarter of an epoch; paused: SIGSTOP",
        f"stall: the longest wait for a batch in that epoch less the longest of {_USUAL_EPOCHS} epochs before it",
        "wrong_bytes: epochs whose bytes do not add up, and objects missing; errors: those that the server counts",
    )


if __name__ == "__main__":
    _serve(job_of_child(NodeJob))
