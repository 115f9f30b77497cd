"""What ``prefeed top`` sees in its tests: always the same."""

from __future__ import annotations

from dataclasses import replace

from prefeed.cli.top_view import Look, Sample, SampleSetRow
from prefeed.types import DiskCounts, EpochWait, PlanInfo, PoolCounts, ReadCounts, ServerStatus, Statistics

GIB = 1024**3
HOME = "/home/u/.cache/prefeed"

STATUS = ServerStatus(
    pid=4321,
    version="0.1.0",
    home=HOME,
    store="/dev/shm/prefeed-1000-ab12cd34",
    on_tmpfs=True,
    uptime_seconds=7320.0,
    clients=9,
    plans=3,
    in_flight=58,
    max_in_flight=64,
    notices=("the memory tier may take 32.00 GiB, not 64.00 GiB: more would not leave room for the processes",),
)
EPOCHS = (
    EpochWait(loader="ImageFolder", rank=0, epoch=1, batches=5005, seconds=640.0, waited_seconds=210.0),
    EpochWait(loader="ImageFolder", rank=1, epoch=1, batches=5005, seconds=641.0, waited_seconds=208.0),
    EpochWait(loader="ImageFolder", rank=0, epoch=2, batches=5005, seconds=431.0, waited_seconds=3.0),
    EpochWait(loader="ImageFolder", rank=1, epoch=2, batches=5005, seconds=431.5, waited_seconds=28.0),
)
PLANS = (
    PlanInfo(
        consumer=11,
        dataset="s3://datasets/imagenet-2012/train",
        position=412_000,
        length=640_583,
        ahead_objects=4000,
        ahead_bytes=400_000_000,
        reads=ReadCounts(hits=1_500_000, late=40_000, misses=100_000, direct_reads=0),
        has_next=True,
        last_epoch=EPOCHS[2],
    ),
    PlanInfo(
        consumer=12,
        dataset="s3://datasets/imagenet-2012/train",
        position=409_600,
        length=640_584,
        reads=ReadCounts(hits=1_400_000, late=40_000, misses=200_000, direct_reads=100),
        last_epoch=EPOCHS[3],
    ),
    PlanInfo(consumer=-1, dataset="/mnt/nfs/validation", position=12_000, length=50_000, warm=True),
)
STATISTICS = Statistics(
    hits=2_900_000,
    late=80_000,
    misses=300_000,
    direct_reads=100,
    hit_bytes=290 * GIB,
    origin_requests=1_400_000,
    origin_bytes=150 * GIB,
    resident_objects=310_000,
    resident_bytes=31 * GIB,
    transient_objects=4_000,
    transient_bytes=GIB // 2,
    budget_bytes=32 * GIB,
    errors={"source-throttled": 12, "entry-lost": 1},
    best_hit_ratio=0.93,
    disk=DiskCounts(objects=900_000, bytes=90 * GIB, budget_bytes=200 * GIB, reads=120_000),
    pool=PoolCounts(servers=4, left_out=1, hits=210_000, misses=1_400_000, stored=330_000, corrupt=2),
    epochs=EPOCHS,
)
SAMPLE_SETS = (
    SampleSetRow(name="imagenet", phase="Ready", cached_bytes=138 * GIB, total_bytes=138 * GIB),
    SampleSetRow(name="openimages", phase="Syncing", cached_bytes=21 * GIB, total_bytes=512 * GIB),
)
SAMPLE = Sample(status=STATUS, statistics=STATISTICS, plans=PLANS, sample_sets=SAMPLE_SETS)

NO_SERVER = Look(trouble=f"no server runs for {HOME}; start one with `prefeed server start`")


def later(sample: Sample, seconds: float, *, reads: int = 0, origin_requests: int = 0, origin_bytes: int = 0) -> Sample:
    """Return the sample so much later, when the first plan has made that many reads more, all of them hits of 100 KB."""
    first, *others = sample.plans
    statistics = sample.statistics
    moved = replace(first, position=first.position + reads, reads=replace(first.reads, hits=first.reads.hits + reads))
    return replace(
        sample,
        status=replace(sample.status, uptime_seconds=sample.status.uptime_seconds + seconds),
        statistics=replace(
            statistics,
            hits=statistics.hits + reads,
            hit_bytes=statistics.hit_bytes + 100_000 * reads,
            origin_requests=statistics.origin_requests + origin_requests,
            origin_bytes=statistics.origin_bytes + origin_bytes,
        ),
        plans=(moved, *others),
    )


def looks(number: int = 40) -> list[Look]:
    """Return looks a second apart, with rates that rise and fall."""
    found = [SAMPLE]
    for index in range(1, number):
        reads = 3000 + 150 * (index % 12)
        found.append(
            later(found[-1], 1.0, reads=reads, origin_requests=40 * (index % 9), origin_bytes=4_000_000 * (index % 9))
        )
    return [Look(sample=sample) for sample in found]
