"""Runs of a training loop with other settings of its loader: each is timed, and none harms what comes after it."""

from __future__ import annotations

import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.config import GIB, KIB, Config
from prefeed.diagnose.loader_clones import (
    NOT_SPLIT,
    Batch,
    LoaderFailed,
    are_alike,
    read_through,
    reason_of,
    served_by,
    stream_twin_of,
    synchronize,
    threads,
    twin_of,
    without_advice,
)
from prefeed.diagnose.tune.search import LONGEST, Ask, Run, Settings, with_workers
from prefeed.system.machine import read_text
from prefeed.system.memory import read_memory
from prefeed.system.units import in_gib
from prefeed.torch.items import is_stream
from prefeed.torch.nesting import tensors_in

_MARGIN: Final = 1.2
"""Workers grow, and batches are not all as large as the one that was looked at."""

_SHM: Final = Path("/dev/shm")


class Free(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that may still be taken.

    Attributes:
        memory_bytes: The least of what the machine and every control group above this process have left.
        shared_bytes: What ``/dev/shm`` has left, where workers put their batches.
    """

    memory_bytes: int
    shared_bytes: int


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen so far.

    Attributes:
        worker_bytes: What one worker has for itself.
        batch_bytes: What is in one batch.
    """

    worker_bytes: int
    batch_bytes: int

    def of(self, settings: Settings) -> tuple[int, int]:
        """Return what these settings would take, all of it and the part in shared memory, in bytes."""
        shared = int(_MARGIN * settings.batches_ahead * self.batch_bytes) + settings.cache_bytes
        return int(_MARGIN * settings.num_workers * self.worker_bytes) + shared, shared


def refusal(settings: Settings, needs: Needs, free: Free) -> str | None:
    """Return why there is no room for these settings; None: there is. Pure."""
    total, shared = needs.of(settings)
    if total > free.memory_bytes:
        return f"not tried: it would take {in_gib(total)} of memory, and {in_gib(free.memory_bytes)} are free"
    if shared > free.shared_bytes:
        return (
            f"not tried: it would take {in_gib(shared)} of {_SHM}, and {in_gib(free.shared_bytes)} are free; "
            "in a container, raise --shm-size"
        )
    return None


def free_memory() -> Free:
    """Read what this process may still take."""
    status = os.statvfs(_SHM) if _SHM.exists() else None
    shared = status.f_bavail * status.f_frsize if status is not None else 0
    return Free(memory_bytes=read_memory().left_bytes, shared_bytes=shared)


def private_bytes(pids: Iterable[int]) -> list[int]:
    """Read what each process has for itself alone; those that are gone are left out."""
    found = (parse_private(_text(Path(f"/proc/{pid}/smaps_rollup"))) for pid in pids)
    return [size for size in found if size]


def batch_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Read the processor time that processes have used, together."""
    ticks = sum(parse_cpu_ticks(_text(Path(f"/proc/{pid}/stat"))) for pid in pids)
    return ticks / os.sysconf("SC_CLK_TCK")


def read_bytes(pids: Iterable[int]) -> int:
    """Read how many bytes processes have got from files: by reading, or, of mapped ones, from the disk."""
    return sum(parse_read(_text(Path(f"/proc/{pid}/io"))) for pid in pids)


# ---------------------------------------------------------------- what the kernel's texts mean


def parse_private(smaps_rollup: str) -> int:
    """Return the private bytes in ``/proc/<pid>/smaps_rollup``."""
    return KIB * sum(_number_after(smaps_rollup, name) for name in ("Private_Clean:", "Private_Dirty:"))


def parse_read(io: str) -> int:
    """Return the bytes that ``/proc/<pid>/io`` says were read, or came from a disk, if those are more."""
    return max(_number_after(io, "rchar:"), _number_after(io, "read_bytes:"))


def parse_cpu_ticks(stat: str) -> int:
    """Return user and system time in ``/proc/<pid>/stat``; 0 of a process that is gone."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


def _number_after(text: str, name: str) -> int:
    """Return the number that follows a name at the beginning of a line; 0 when there is none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return 0


def _text(path: Path) -> str:
    return read_text(path) or ""


_UNSEEN_WORKER_BYTES: Final = GIB // 2
"""What a worker is thought to take until one was seen."""

_LEAST_BATCHES: Final = 2
_FEW_BATCHES: Final = 500
_MORE_THAN_ENOUGH: Final = 4
_MOST_BATCHES: Final = 20_000

Step = Callable[[Any], Any]


_OUT_OF_TIME: Final = "the budget was spent before it gave a batch"


class Supply:
    """Batches of indices for trials, each given once.

    Args:
        batches: Where they come from.
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._left = iter(batches)

    def take(self, number: int) -> list[Batch]:
        """Return that many; fewer where there are no more."""
        return list(itertools.islice(self._left, number))

    def give_back(self, batches: list[Batch]) -> None:
        """These were not read: they are the next."""
        self._left = itertools.chain(batches, self._left)


class Trials:
    """Runs the loop ``for batch in loader: step(batch)`` with one setting after another.

    Args:
        loader: The user's; it is not iterated.
        step: What is done with a batch.
        supply: Batches that were not read; of no use for a stream.
        device: Where the step copies batches to; None: nowhere.
        free: Reads what memory is left.

    Attributes:
        supply: Batches that the next runs read; the same at first.
        last_batch: The last that the step was given; None: there was none.
        last_read: What the last run had read, batches that were made ahead included.
        batch_file_bytes: Bytes that were read from files for a batch, as far as can be seen.
        deadline: Time of ``perf_counter`` at which a run ends with the batches that it has. A batch that is being made in this process is
            made to its end.

    **Threads and processes**: one thread; workers of a run have ended when it returns.
    """

    def __init__(
        self,
        loader: TorchDataLoader[Any],
        step: Step,
        supply: Supply,
        *,
        device: torch.device | None = None,
        free: Callable[[], Free] = free_memory,
    ) -> None:
        self.supply = self._unread = supply
        self.last_batch: Any = None
        self.last_read: list[Batch] = []
        self.batch_file_bytes: float = 0.0
        self.deadline: float = math.inf
        self._loader = loader
        self._step = step
        self._device = device
        self._free = free
        self._worker_bytes = 0
        self._batch_bytes = 0
        self._most_batches_s = 0.0
        self._begins_alike: bool | None = None

    def run(self, ask: Ask) -> Run:
        """Return how the loop went with these settings; a loader that fails is a run with a reason.

        Raises:
            Exception: What the step raised.
        """
        began = time.perf_counter()
        needs = Needs(worker_bytes=self._worker_bytes or _UNSEEN_WORKER_BYTES, batch_bytes=self._batch_bytes)
        reason = refusal(ask.settings, needs, self._free()) if self.last_batch is not None else None
        if reason is not None:
            return Run(settings=ask.settings, cost_seconds=time.perf_counter() - began, reason=reason)
        try:
            with self._fed(ask) as fed:
                run = self._timed(fed, ask)
        except LoaderFailed as err:
            run = Run(settings=ask.settings, cost_seconds=0.0, reason=str(err))
        if run.reason is not None:
            gc.collect()  # what the frames of a traceback held
        return msgspec.structs.replace(run, cost_seconds=time.perf_counter() - began)

    def is_over(self) -> bool:
        """True when there is no time for another run."""
        return time.perf_counter() >= self.deadline

    def step_alone(self, seconds: float) -> float:
        """Return what the step takes with the last batch, again and again, in seconds."""
        batch = self.last_batch
        self._step(batch)
        synchronize(self._device)
        began, number = time.perf_counter(), 0
        while number < _LEAST_BATCHES or time.perf_counter() - began < seconds:
            self._step(batch)
            number += 1
        synchronize(self._device)
        return (time.perf_counter() - began) / number

    def look_at_stream(self, present: Settings) -> None:
        """Note whether a stream begins with the same batch twice: else workers whose first batches are equal repeat it."""
        settings = with_workers(present, 0)
        with suppress(LoaderFailed), self._fed(Ask(settings=settings, seconds=0.0)) as fed:
            self._begins_alike = are_alike(next(fed, None), next(fed, None))

    # ------------------------------------------------------------ one run

    @contextmanager
    def _fed(self, ask: Ask) -> Iterator[_Fed]:
        """Give the batches of a loader with these settings; its workers have ended afterwards."""
        with ExitStack() as stack:
            stack.enter_context(threads(ask.settings.threads))
            stack.enter_context(without_advice())
            config = stack.enter_context(served_by(self._loader, ask.settings))
            supply = self.supply if ask.settings.lookahead is None else self._unread
            batches = [] if is_stream(self._loader) else supply.take(self._enough(ask))
            fed = _Fed(lambda: self._twin(ask.settings, batches, config), deadline=self.deadline)
            stack.callback(fed.end)
            yield fed
            read = fed.number + ask.settings.batches_ahead
            self.last_read = batches[:read]
            supply.give_back(batches[read:])

    def _twin(self, settings: Settings, batches: list[Batch], config: Config | None) -> TorchDataLoader[Any]:
        changes = {
            "num_workers": settings.num_workers,
            "prefetch_factor": settings.prefetch_factor or None,
            "pin_memory": settings.pin_memory,
        }
        if is_stream(self._loader):
            return stream_twin_of(self._loader, **changes)
        dataset = read_through(self._loader.dataset, config)
        return twin_of(self._loader, batches, dataset=dataset, served_by=config, **changes)

    def _enough(self, ask: Ask) -> int:
        """Return how many batches a run cannot come to the end of, as far as is known."""
        rate = _MORE_THAN_ENOUGH * self._most_batches_s * max(1, ask.settings.num_workers)
        ahead = 2 * ask.settings.num_workers + ask.settings.batches_ahead
        return ahead + min(_MOST_BATCHES, max(_FEW_BATCHES, int(rate * ask.seconds)))

    def _timed(self, fed: _Fed, ask: Ask) -> Run:
        wave = max(1, ask.settings.num_workers)  # workers deliver in bursts: whole ones are timed
        started = time.perf_counter()
        self._fill(fed, ask, wave)
        filled = time.perf_counter()
        pids = fed.workers or [os.getpid()]
        cpus, file_bytes = cpu_seconds(fed.workers), read_bytes(pids)
        synchronize(self._device)
        number, waited = 0, 0.0
        began = now = time.perf_counter()
        while not _is_enough(number, wave, (now - began) / ask.seconds):
            if (batch := next(fed, None)) is None:
                break
            waited += time.perf_counter() - now
            self._take(batch)
            number += 1
            now = time.perf_counter()
        synchronize(self._device)
        seconds = time.perf_counter() - began
        if (
            not number and fed.number and self.is_over()
        ):  # those with which the queues were filled are all that there is
            number, seconds = fed.number, filled - started
            waited = seconds
        if not number and self.is_over():
            raise LoaderFailed(_OUT_OF_TIME)
        if not number:
            raise LoaderFailed(f"the data end after {fed.number} batches, before anything could be timed")
        self._most_batches_s = max(self._most_batches_s, number / seconds / wave)
        self.batch_file_bytes = (read_bytes(pids) - file_bytes) / number
        return Run(
            settings=ask.settings,
            cost_seconds=0.0,
            batches=number,
            seconds=seconds,
            waited_seconds=waited,
            memory_bytes=self._memory_of(fed, ask.settings),
            cpus=(cpu_seconds(fed.workers) - cpus) / seconds,
        )

    def _fill(self, fed: _Fed, ask: Ask, wave: int) -> None:
        """Take what workers made while others were still being started, and let the queues become what they stay."""
        first = next(fed, None)
        second = next(fed, None) if wave > 1 else None
        if wave > 1 and self._begins_alike is False and are_alike(first, second):
            raise LoaderFailed(NOT_SPLIT)
        began = time.perf_counter()
        for batch in itertools.chain([one for one in (first, second) if one is not None], fed):
            self._take(batch)
            passed = time.perf_counter() - began
            is_full = fed.number > (2 * wave if ask.settings.num_workers else 0)
            if (is_full and self._is_past_the_start(ask, passed)) or passed > 2 * ask.seconds:
                return

    def _is_past_the_start(self, ask: Ask, passed_seconds: float) -> bool:
        """Return False while prefeed still lives on what it fetched as the workers were started."""
        return ask.settings.lookahead is None or passed_seconds >= ask.seconds / 2

    def _take(self, batch: Any) -> None:
        self.last_batch = batch
        self._step(batch)

    def _memory_of(self, fed: _Fed, settings: Settings) -> int:
        each = private_bytes(fed.workers)
        self._worker_bytes = max([self._worker_bytes, *each])
        self._batch_bytes = max(self._batch_bytes, batch_bytes(self.last_batch))
        return sum(each) + settings.batches_ahead * self._batch_bytes


class _Fed:
    """Batches of a loader that may fail.

    Args:
        make: Makes the loader.
        deadline: Time of ``perf_counter`` after which there are no more batches.

    Attributes:
        number: Batches so far.
        workers: Process ids.

    **Ownership**: its maker calls ``end``, which ends the workers.
    """

    def __init__(self, make: Callable[[], TorchDataLoader[Any]], *, deadline: float) -> None:
        self.number = 0
        self._deadline = deadline
        try:
            self._iterator: Any = iter(make())
        except Exception as err:
            raise LoaderFailed(reason_of(err)) from err
        self.workers: list[int] = [worker.pid for worker in getattr(self._iterator, "_workers", ())]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        left = self._deadline - time.perf_counter()
        if left <= 0:
            raise StopIteration
        if self.workers and math.isfinite(left):
            self._iterator._timeout = left  # torch waits no longer for a batch of its workers
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except Exception as err:
            if time.perf_counter() >= self._deadline:
                raise StopIteration from err
            raise LoaderFailed(reason_of(err)) from err
        self.number += 1
        return batch

    def end(self) -> None:
        """End the workers now: those of the next run must not share the machine with them."""
        shut_down = getattr(self._iterator, "_shutdown_workers", None)
        if time.perf_counter() >= self._deadline:
            for worker in getattr(self._iterator, "_workers", ()):
                worker.terminate()  # torch would wait for the batch that it makes
        self._iterator = None
        if shut_down is not None:
            shut_down()


def _is_enough(number: int, wave: int, passed: float) -> bool:
    """Return whether a run is over: whole waves of batches in the time that it was given, or much more time than that."""
    if number and passed > LONGEST:
        return True
    return number >= _LEAST_BATCHES and number % wave == 0 and passed >= 1
