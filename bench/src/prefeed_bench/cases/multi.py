"""Processes that share one stage cache: how often each sample is made in the first epoch.

``python -m prefeed_bench.cases.multi JOB`` is one of them, in phases: ``JOB`` is a ``SharingJob`` as JSON. It reads samples and adds
them up.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Literal, get_args

import msgspec
import xxhash

from prefeed.client.node import NodeClient
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import Home, stage_home
from prefeed_bench.loading import imagenet_transform, loader_class
from prefeed_bench.processes import PhasedProcess, job_of_child, run_phase, serve_phases
from prefeed_bench.rows import LoggedPictures, row_bytes, times_made

Order = Literal["disjoint", "same_order", "shuffled"]

_PROCESSES: Final = 4
_QUICK_PROCESSES: Final = 2
_SAMPLES: Final = 1000
_ORDERS: Final[tuple[Order, ...]] = get_args(Order)
_SUMS: Final = 1 << 64


class _Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of all processes.

    Attributes:
        made: Samples that were made, all processes together, each as often as it was made.
        outcomes: By rank.
    """

    made: int
    outcomes: Sequence[PhaseOutcome]

    @property
    def seconds(self) -> float:
        """Until the last process was done."""
        return max(outcome.seconds for outcome in self.outcomes)


def run(options: Options) -> BenchResult:
    """Count how often samples are made: shards that are disjoint, all in one order, all in an order of each."""
    photos = options.photos()
    photos.read_once()
    num_processes = _QUICK_PROCESSES if options.quick else _PROCESSES
    num_samples = min(_SAMPLES, photos.num_photos) // num_processes * num_processes
    jobs = [
        SharingJob(data=str(photos.root), num_samples=num_samples, rank=rank, world_size=num_processes)
        for rank in range(num_processes)
    ]
    with ExitStack() as stack:
        home = stack.enter_context(stage_home(num_samples, row_bytes("float32")))
        processes = [stack.enter_context(sharing_process(job, home.env)) for job in jobs]
        for process in processes:
            process.wait_ready()
        with _log_directory(home) as log_dir:
            phase = Phase(order="same_order", log_dir=log_dir, session=0)
            whole = run_phase(processes[:1], phase)[0].checksum
        variants: dict[str, Callable[[], _Epoch]] = {
            order: partial(_epoch, home, processes, order) for order in _ORDERS
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    for order, done in runs.items():
        for epoch in done:
            _check_samples(order, epoch.outcomes, whole)
    return _result(runs, num_samples, num_processes)


def _epoch(home: Home, processes: Sequence[PhasedProcess[PhaseOutcome]], order: Order) -> _Epoch:
    """Let the processes read one epoch, from an empty cache that is dropped afterwards."""
    with _log_directory(home) as log_dir, NodeClient.connect(home.config) as client:
        session = client.new_session()
        outcomes = run_phase(processes, Phase(order=order, log_dir=log_dir, session=session))
        client.drop_sessions([session])
        return _Epoch(made=times_made(log_dir).total(), outcomes=outcomes)


def _log_directory(home: Home) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="prefeed-bench-log-", dir=home.config.memory_dir)


def _check_samples(order: str, outcomes: Sequence[PhaseOutcome], whole: int) -> None:
    """Raise unless each process read what it should have: every sample, or together every sample.

    Raises:
        BenchFailedError: A sample was wrong, missing, or read twice.
    """
    sums = [outcome.checksum for outcome in outcomes]
    if order == "disjoint":
        sums = [sum(sums) % _SUMS]
    if any(found != whole for found in sums):
        raise BenchFailedError(f"{order}: the processes read other samples than there are without a cache")


def _result(runs: Mapping[str, Sequence[_Epoch]], num_samples: int, processes: int) -> BenchResult:
    samples = Samples()
    for order, done in runs.items():
        for epoch in done:
            samples.add(**{f"{order}_computed_per_object": epoch.made / num_samples, f"{order}_epoch_s": epoch.seconds})
    worst = max(samples.median(f"{order}_computed_per_object") for order in runs)
    return BenchResult(
        name="multi",
        fields={"computed_per_object": worst, **samples.medians(), "objects": num_samples},
        spread=samples.spread(),
        runs=msgspec.to_builtins(runs),
        notes=(
            f"{processes} processes with 2 workers each begin at the same time with an empty cache; one epoch",
            "disjoint: DistributedSampler; same_order: each reads all in one order; shuffled: each in an order of its own",
            "a sample that is made writes a line, except when it is recomputed to be compared; every pixel that was read is compared with a run without a cache",
            "computed_per_object: the highest of the three",
        ),
    )


# ---------------------------------------------------------------- one of the processes


class SharingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has to read.

    Attributes:
        data: Directory of pictures, a folder per class.
        num_samples: Pictures that are used.
        rank: Of this process.
        world_size: Processes.
        num_workers: Worker processes of each.
        batch_size: Samples per batch.
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
    return PhasedProcess("prefeed_bench.cases.multi", job, PhaseOutcome, name=f"rank {job.rank}", env=env)


def serve(job: SharingJob) -> None:
    """Read as standard input says, until it ends."""
    from torchvision.datasets import ImageFolder  # with torch, and only this process needs it

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
    from prefeed import CachedDataset, DatasetCache  # what makes samples without a cache does without it

    return CachedDataset(dataset, DatasetCache(session))


def _sampler(job: SharingJob, order: Order, dataset: Any) -> Any:
    import torch.utils.data  # as above
    from torch.utils.data.distributed import DistributedSampler

    if order == "disjoint":
        return DistributedSampler(dataset, num_replicas=job.world_size, rank=job.rank, seed=1)
    seed = job.rank if order == "shuffled" else 0
    return torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))


if __name__ == "__main__":
    serve(job_of_child(SharingJob))
