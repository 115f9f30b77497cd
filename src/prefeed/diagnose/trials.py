"""Timed runs of a training loop.

``Trials.run`` is a generator: it yields batches to a loop, and returns the ``Trial`` when enough steps were timed. The loop
may be an unchanged program (``program``), or a step that ``drive`` calls.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.diagnose.loader_clone import LoaderClone, LoaderFailed, are_alike, clone_loader
from prefeed.diagnose.search import Settings, Trial
from prefeed.system.machine import read_text
from prefeed.system.memory import read_memory
from prefeed.system.units import in_gib
from prefeed.torch.items import is_stream
from prefeed.torch.nesting import map_tensors, tensors_in

Step = Callable[[Any], Any]

NOT_SPLIT: Final = "each worker yields the same samples: the dataset does not call get_worker_info() for its share"

_MAX_OVERRUN: Final = 4.0
"""Factor of the requested seconds after which a run ends, even in the middle of a wave of batches."""

_MARGIN: Final = 1.2  # workers grow, and batches differ in size
_UNSEEN_WORKER_BYTES: Final = 1 << 29
_FIRST_COPIES: Final = 4  # more than a thread between the loader and the loop buffers

_SHM: Final = Path("/dev/shm")
_END: Final = object()


def drive(feed: Generator[Any, None, Any], step: Step) -> Any:
    """Call the step with each batch of a feed, and return the result of the feed."""
    with closing(feed):
        while True:
            try:
                batch = next(feed)
            except StopIteration as end:
                return end.value
            step(batch)


def require_loader(loader: Any, function: str, *, step: Any, needs_step: bool) -> None:
    """Raise ``TypeError`` for arguments of ``prefeed.doctor`` and ``prefeed.tune`` that are no loader or no step."""
    if not isinstance(loader, TorchDataLoader):
        raise TypeError(
            f"prefeed.{function} takes a torch.utils.data.DataLoader, not {type(loader).__name__}: make "
            "one of your dataset, DataLoader(dataset, batch_size=...)"
        )
    if not callable(step) and (needs_step or step is not None):
        raise TypeError(f"prefeed.{function} takes a step that is called with each batch, not {step!r}")


@dataclass(kw_only=True)
class Trials:
    """Runner of the loop with one loader after another.

    Attributes:
        loader: Loader of the user.
        batch_size: Samples per batch, or None for the size of the first batch.
        device: Device that the step copies batches to, or None.
        iterate: Function that iterates a loader.
        deadline: Time of ``perf_counter`` after which a run ends with the steps that it has.
        last_batch: Last batch that the loop received, or None.
        was_elsewhere: Set by the caller if the loop left its epoch: the time until its next batch belongs to no step.
    """

    loader: TorchDataLoader[Any]
    batch_size: float | None
    device: torch.device | None
    iterate: Callable[[TorchDataLoader[Any]], Iterator[Any]] = iter
    deadline: float = math.inf
    last_batch: Any = None
    was_elsewhere: bool = False
    _worker_bytes: int = 0
    _batch_bytes: int = 0
    _begins_alike: bool | None = None

    def is_over(self) -> bool:
        """Return True after the deadline."""
        return time.perf_counter() >= self.deadline

    @contextmanager
    def clone(self, settings: Settings | None, batches: Sequence[Any] | None, **changes: Any) -> Iterator[LoaderClone]:
        """Yield a clone of the loader, or without settings the loader itself. Close it at the end of the block.

        Raises:
            LoaderFailed: The workers of a stream yield the same samples.
        """
        with closing(self._open(settings, batches, **changes)) as clone:
            if is_stream(self.loader) and settings is not None and settings.num_workers > 1:
                if self._begins_alike is None:
                    with closing(self._open(settings.with_workers(0), None)) as alone:
                        self._begins_alike = are_alike(next(alone, None), next(alone, None))
                if not self._begins_alike and are_alike(next(clone, None), next(clone, None)):
                    raise LoaderFailed(NOT_SPLIT)
            yield clone

    def _open(self, settings: Settings | None, batches: Sequence[Any] | None, **changes: Any) -> LoaderClone:
        def make() -> TorchDataLoader[Any]:
            return self.loader if settings is None else clone_loader(self.loader, settings, batches, **changes)

        return LoaderClone(make=make, is_own=settings is None, is_endless=batches is None,
                           iterate=self.iterate, deadline=self.deadline)  # fmt: skip

    def run(
        self, name: str, source: Iterator[Any], settings: Settings, *, steps: int = 2, seconds: float = 0.0
    ) -> Generator[Any, None, Trial]:
        """Yield the batches of a clone, or of another iterator, to the loop and return the timing of the steps.

        Times at least ``steps`` steps and ``seconds`` seconds, in whole waves, as workers deliver them.

        Raises:
            LoaderFailed: The clone raised, or ended before a step was timed.
        """
        wave, clock = max(1, settings.num_workers), time.perf_counter
        called = began = clock()
        filled = 0
        waits: list[float] = []
        works: list[float | None] = []
        with threads(settings.threads):
            # Reach the steady state of the queues: batches made in advance are used up, or wait.
            for batch in itertools.islice(source, settings.batches_ahead + 2):
                began = began if filled else clock()
                filled += 1
                self.last_batch = batch
                yield batch
                if seconds and clock() - began > 2 * seconds:
                    break
            # Time the steps. Work during which the loop left its epoch is not counted.
            self.was_elsewhere = False
            synchronize(self.device)
            last = started = clock()
            while not _is_enough(len(works), steps, wave, last - started, seconds):
                if (batch := next(source, _END)) is _END:
                    break
                got = clock()
                waits.append(got - last)
                self.last_batch = batch
                yield batch
                last = clock()
                works.append(None if self.was_elsewhere else last - got)
                self.was_elsewhere = False
            synchronize(self.device)
            rest = clock() - last
        # Compute the trial.
        if not works and filled and self.is_over():  # only the batches that filled the queues were timed
            waits, works, rest = [(clock() - called) / filled] * filled, [0.0] * filled, 0.0
        if not works:
            ended = f"the data end after {filled} batches, before a step was timed"
            reason = "the budget ended before the first batch" if self.is_over() else ended
            raise LoaderFailed(reason)
        known = [work for work in works if work is not None]
        usual = statistics.mean(known or [(last - started - sum(waits)) / len(works)])
        each = [wait + (usual if work is None else work) for wait, work in zip(waits, works, strict=True)]
        total = sum(each) + rest
        self.batch_size = self.batch_size or next((len(t) for t in tensors_in(self.last_batch) if t.ndim), 1)
        return Trial(
            name=name, settings=settings, steps=len(each), step_seconds=total / len(each),
            samples_s=self.batch_size * len(each) / total, spread=_standard_error(each, wave),
            waited=min(1.0, sum(waits) / total), memory_bytes=self._memory_of(getattr(source, "workers", []), settings),
        )  # fmt: skip

    def refusal(self, settings: Settings) -> str | None:
        """Return the reason if memory does not suffice for these settings, or None if it does or is not known yet."""
        memory, shared = free_memory()
        in_shared = int(_MARGIN * settings.batches_ahead * self._batch_bytes)
        total = int(_MARGIN * settings.num_workers * (self._worker_bytes or _UNSEEN_WORKER_BYTES)) + in_shared
        if self.last_batch is not None and total > memory:
            return f"not tried: it needs {in_gib(total)} of memory, and {in_gib(memory)} are free"
        if self.last_batch is not None and in_shared > shared:
            return f"not tried: it needs {in_gib(in_shared)} of {_SHM}, and {in_gib(shared)} are free; raise --shm-size"
        return None

    def _memory_of(self, pids: Sequence[int], settings: Settings) -> int:
        each = [private_bytes(pid) for pid in pids]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(self.last_batch))
        self._worker_bytes = max([self._worker_bytes, *each])
        self._batch_bytes = max(self._batch_bytes, size)
        return sum(each) + settings.batches_ahead * self._batch_bytes


def repeat_batch(batch: Any) -> Iterator[Any]:
    """Yield the same batch repeatedly, or copies of it if the steps change it in place."""
    shared, first = _copy_of(batch), [_copy_of(batch) for _ in range(_FIRST_COPIES)]
    tensors = list(tensors_in([shared, *first]))
    versions = [tensor._version for tensor in tensors]
    yield from first
    while [tensor._version for tensor in tensors] == versions:
        yield map_tensors(shared, lambda tensor: tensor, copy.copy)  # a new container: some steps remove the labels
    while True:
        yield _copy_of(batch)


def _copy_of(batch: Any) -> Any:
    return map_tensors(batch, lambda t: t.clone().pin_memory() if t.is_pinned() else t.clone(), copy.deepcopy)


def free_memory() -> tuple[int, int]:
    """Read the free bytes of memory for this process and of ``/dev/shm``."""
    status = os.statvfs(_SHM) if _SHM.exists() else None
    return read_memory().left_bytes, status.f_bavail * status.f_frsize if status is not None else 0


def private_bytes(pid: int) -> int:
    """Read the private memory of a process in bytes. Return 0 if it has ended."""
    lines = (read_text(Path(f"/proc/{pid}/smaps_rollup")) or "").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def whole_waves(steps: int, num_workers: int) -> int:
    """Round a number of steps up to whole waves of batches, at least two."""
    wave = max(1, num_workers)
    return wave * max(2, -(-steps // wave))


def _is_enough(number: int, steps: int, wave: int, passed: float, seconds: float) -> bool:
    is_late = bool(seconds and number and passed > _MAX_OVERRUN * seconds)
    return is_late or (number >= steps and number % wave == 0 and passed >= seconds)


def _standard_error(each: Sequence[float], wave: int) -> float | None:
    """Return the standard error of the mean of waves, as a share of it. Return None for fewer than two waves."""
    sums = [sum(each[at : at + wave]) for at in range(0, len(each) - wave + 1, wave)]
    if len(sums) < 2 or not sum(sums):
        return None
    return float(statistics.stdev(sums) / len(sums) ** 0.5 / statistics.mean(sums))


def synchronize(device: torch.device | None) -> None:
    """Wait until a device has finished its work."""
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Set the number of torch's threads in the block. None leaves it unchanged."""
    before = torch.get_num_threads()
    if number not in (None, before):
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
