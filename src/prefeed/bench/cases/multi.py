"""Four processes that share one stage cache: how often each sample is made in the first epoch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, get_args

import msgspec

from prefeed.bench.cases._stages import read_once, stage_home
from prefeed.bench.harness import BenchResult, Options, Samples, alternate
from prefeed.bench.home import Home
from prefeed.bench.phases import PhasedProcess, run_phase
from prefeed.bench.requirements import BenchFailedError
from prefeed.bench.rows import row_bytes, times_made
from prefeed.bench.sharing import Order, Phase, PhaseOutcome, SharingJob, sharing_process
from prefeed.client.node import NodeClient

_PROCESSES: Final = 4
_QUICK_PROCESSES: Final = 2
_SAMPLES: Final = 1000
_ORDERS: Final[tuple[Order, ...]] = get_args(Order)


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
    read_once(photos)
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
        sums = [sum(sums) % (1 << 64)]
    if any(found != whole for found in sums):
        raise BenchFailedError(f"{order}: the processes read other samples than there are without a cache")


def _result(runs: Mapping[str, Sequence[_Epoch]], num_samples: int, processes: int) -> BenchResult:
    samples = Samples()
    for order, done in runs.items():
        for epoch in done:
            samples.add(**{f"{order}_computed_per_object": epoch.made / num_samples, f"{order}_epoch_s": epoch.seconds})
    detail: dict[str, list[Any]] = {
        order: [msgspec.to_builtins(epoch) for epoch in done] for order, done in runs.items()
    }
    worst = max(samples.median(f"{order}_computed_per_object") for order in runs)
    return BenchResult(
        name="multi",
        fields={"computed_per_object": worst, **samples.medians(), "objects": num_samples},
        spread=samples.spread(),
        runs=detail,
        notes=(
            f"{processes} processes with 2 workers each begin at the same time with an empty cache; one epoch",
            "disjoint: DistributedSampler; same_order: each reads all in one order; shuffled: each in an order of its own",
            "a sample that is made writes a line, but when it is made once more to be compared; every pixel that was read is compared with a run without a cache",
            "computed_per_object: the highest of the three",
        ),
    )
