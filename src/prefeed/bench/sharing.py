"""Several processes that share stage caches: each reads samples when it is told to, and adds them up.

Run as ``python -m prefeed.bench.sharing JOB``, where ``JOB`` is a ``SharingJob`` as JSON: each line of its standard input
is a ``Phase``, each line of its output a ``PhaseOutcome``; it ends with its input.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
import xxhash

from prefeed.bench.loading import imagenet_transform, loader_class
from prefeed.bench.phases import PhasedProcess, serve_phases
from prefeed.bench.rows import LoggedPictures

Order = Literal["disjoint", "same_order", "shuffled"]

_SUMS: Final = 1 << 64


class SharingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has to read.

    Attributes:
        data: Directory of pictures, a folder a class.
        num_samples: Pictures that are used.
        rank: Of this process.
        world_size: Processes.
        num_workers: Worker processes of each.
        batch_size: Samples a batch.
    """

    data: str
    num_samples: int
    rank: int
    world_size: int
    num_workers: int = 2
    batch_size: int = 16


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch.

    Attributes:
        order: ``disjoint``: the rank's shard; ``same_order``: all, in one order; ``shuffled``: all, in the rank's own.
        log_dir: Where each process writes down what it makes.
        session: That of the stage cache; 0: samples are made each time.
    """

    order: Order
    log_dir: str
    session: int


class PhaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one process read in one epoch.

    Attributes:
        samples: How many.
        seconds: Start of the workers included.
        checksum: Sum of the hashes of (number, every pixel), modulo 2**64: equal samples in any order, equal sums.
    """

    samples: int
    seconds: float
    checksum: int


def sharing_process(job: SharingJob, env: Mapping[str, str]) -> PhasedProcess[PhaseOutcome]:
    """Return a process that reads in phases; ``env`` says which node cache."""
    return PhasedProcess("prefeed.bench.sharing", job, PhaseOutcome, name=f"rank {job.rank}", env=env)


def serve(job: SharingJob) -> None:
    """Read as standard input says, until it ends."""
    from torchvision.datasets import ImageFolder  # bench modules are imported by the command line, which starts without

    pictures = ImageFolder(job.data, transform=imagenet_transform())
    serve_phases(Phase, lambda phase: _read(job, phase, pictures))


def _read(job: SharingJob, phase: Phase, pictures: Any) -> PhaseOutcome:
    logged = LoggedPictures(pictures, job.num_samples, phase.log_dir)
    dataset: Any = _cached(logged, phase.session) if phase.session else logged
    loader = loader_class("prefeed" if phase.session else "torch")(
        dataset,
        batch_size=job.batch_size,
        sampler=_sampler(job, phase.order, dataset),
        num_workers=job.num_workers,
    )
    started = time.perf_counter()
    samples, checksum = _add_up(loader)
    return PhaseOutcome(samples=samples, seconds=time.perf_counter() - started, checksum=checksum)


def _add_up(loader: Iterable[Any]) -> tuple[int, int]:
    """Return how many samples there were, and the sum of their hashes."""
    samples = total = 0
    for pictures, numbers in loader:
        for picture, number in zip(pictures, numbers.tolist(), strict=True):
            total += xxhash.xxh3_64_intdigest(picture.numpy(), seed=number)
        samples += len(numbers)
    return samples, total % _SUMS


def _cached(dataset: Any, session: int) -> Any:
    from prefeed.stage_cache import CachedDataset, DatasetCache  # what makes samples without a cache does without it

    return CachedDataset(dataset, DatasetCache(session))


def _sampler(job: SharingJob, order: Order, dataset: Any) -> Any:
    import torch.utils.data  # as above
    from torch.utils.data.distributed import DistributedSampler

    if order == "disjoint":
        return DistributedSampler(dataset, num_replicas=job.world_size, rank=job.rank, seed=1)
    seed = job.rank if order == "shuffled" else 0
    return torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=SharingJob))
