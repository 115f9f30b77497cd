"""One node of several that train together: reads its part of each epoch as raw bytes, when it is told to, and adds them up.

Run as ``python -m prefeed_bench.fleet JOB``, where ``JOB`` is a ``NodeJob`` as JSON; see ``phases``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import xxhash

from prefeed_bench.phases import PhasedProcess, serve_phases

_SUMS: Final = 1 << 64


class NodeJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one node has to read.

    Attributes:
        url: The origin.
        rank: Of this node.
        num_nodes: Nodes that train together; 1: this one reads everything, in an order of its rank's own.
        batch_size: Objects a batch.
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


def node_process(job: NodeJob, env: Mapping[str, str]) -> PhasedProcess[EpochOutcome]:
    """Return the process that trains on one node; ``env`` says which node cache."""
    return PhasedProcess("prefeed_bench.fleet", job, EpochOutcome, name=f"node {job.rank}", env=env)


def checksum(data: bytes) -> int:
    """Return what one object adds to ``EpochOutcome.checksum``."""
    return xxhash.xxh3_64_intdigest(data)


def serve(job: NodeJob) -> None:
    """Read as standard input says, until it ends."""
    from prefeed.datasets import Objects
    from prefeed.torch.loader import (
        DataLoader,
    )  # imports torch, and the command line, which imports this, starts without

    dataset = Objects(job.url, pattern="**/*.jpg")
    sampler = _sampler(job, dataset)
    loader: Any = DataLoader(dataset, batch_size=job.batch_size, sampler=sampler, collate_fn=list)
    serve_phases(Epoch, lambda epoch: _read(loader, sampler.set_epoch, epoch.number))


def _sampler(job: NodeJob, dataset: Any) -> Any:
    from torch.utils.data import DistributedSampler  # as above

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
        total += sum(map(checksum, batch))
        last = time.perf_counter()
    return EpochOutcome(objects=objects, seconds=last - started, longest_wait=longest, checksum=total % _SUMS)


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=NodeJob))
