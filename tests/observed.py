"""Observations of a node that has everything, and of one that has nothing."""

from __future__ import annotations

from dataclasses import replace

from prefeed.server.status import EpochTotals, Observation
from prefeed.types import (
    DiskCounts,
    EpochWait,
    OriginReads,
    PlanInfo,
    PoolCounts,
    ServerStatus,
    SessionCounts,
    Statistics,
)

STATUS = ServerStatus(
    pid=1, version="1.2", home="/h", store="/s", on_tmpfs=True, uptime_seconds=5.0, clients=2, plans=1, in_flight=3,
    max_in_flight=64,
)  # fmt: skip
EPOCH = EpochWait(loader="Files", rank=1, epoch=4, batches=9, seconds=8.0, waited_seconds=2.0)
PLAN = PlanInfo(consumer=7, dataset="s3://bucket/train", position=5, length=20, ahead_bytes=99, memory_bytes=4096)
FULL = Observation(
    STATUS,
    Statistics(
        hits=90, late=5, misses=4, direct_reads=1, origin_requests=11, origin_bytes=12, resident_objects=13,
        resident_bytes=14, transient_objects=15, transient_bytes=16, budget_bytes=17, errors={"entry-lost": 2},
        best_hit_ratio=0.5, sessions=SessionCounts(sessions=1, caches=2, memory_bytes=3, disk_bytes=4, audits=6, audits_failed=2),
        disk=DiskCounts(objects=21, bytes=22, budget_bytes=23, reads=24, corrupt=25, dropped=26),
        pool=PoolCounts(
            servers=4, left_out=1, hits=31, misses=32, read_bytes=33, written_bytes=34, corrupt=35, dropped=36,
            refused=37, failures=38, waits=39, expired_waits=40,
        ),
        origins=(
            OriginReads(origin="/mnt/a", in_place=True, why="quick", open_seconds=0.25, round_trip_seconds=0.5, samples=41, files=42, bytes=43),
            OriginReads(origin="/mnt/b", in_place=False),
        ),
    ),
    (PLAN,),
    (EpochTotals("Files", 1, EPOCH, 4, 40.0, 10.0),),
)  # fmt: skip
EMPTY = Observation(replace(STATUS, max_in_flight=0, plans=0), Statistics(), (), ())
