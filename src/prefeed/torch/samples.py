"""Samples of a batch in the process that makes them: what everything that stands in for a dataset in torch's fetcher has.

Workers that are spawned import this before their first batch, and nothing that talks to a server (docs/adr/0032-epochs-that-begin-in-place.md).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from multiprocessing import util
from queue import Empty
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import StackDataset, Subset

from prefeed.loaders.stages import has_cached_stage, is_cached, is_mapped
from prefeed.torch.order import can_be_read_again

if TYPE_CHECKING:
    from prefeed.stage_cache.auditing import Waiting

_IDLE_SECONDS: Final = 0.002
"""A loop that takes a batch at once asks for the next one sooner than that."""


def audit_when_idle(worker: FrameType, scope: Callable[[], AbstractContextManager[Any]]) -> None:
    """Make audits from now on whenever this worker has nothing to do: its batches are made, and the loop is busy.

    torch's worker asks its queue for the next batch then. So that is where audits are made that can wait: in the worker's
    own thread, as any other sample. A loop that is always waiting for its workers leaves no such moment: then they are made
    when the worker is told to end.

    Args:
        worker: torch's loop, which reads from ``index_queue``; one of another torch, without that, is left alone.
        scope: Opens what samples are made in.
    """
    queue: Any = worker.f_locals.get("index_queue")
    if callable(getattr(queue, "get", None)):
        waiting = importlib.import_module("prefeed.stage_cache.auditing").waiting  # as the stage has done before
        queue.get = _Asking(queue.get, scope, waiting).get
        waiting.is_attended = True


class _Asking:
    """In place of the ``get`` of a worker's queue."""

    def __init__(
        self, original: Callable[..., Any], scope: Callable[[], AbstractContextManager[Any]], waiting: Waiting
    ) -> None:
        self._original = original
        self._scope = scope
        self._waiting = waiting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while self._waiting and block:
            try:
                return self._ended(self._original(timeout=_IDLE_SECONDS))
            except Empty:
                with self._scope():
                    self._waiting.make_one()
        return self._ended(self._original(block, timeout))

    def _ended(self, asked: Any) -> Any:
        if asked is None and self._waiting:
            with self._scope():
                self._waiting.make_rest()
        return asked


_COUNT_ROWS: Final = 64
_NUM_COLUMNS: Final = 5
"""Of a row: hits, other reads, large files opened, their bytes, and the bytes read of them."""

_LEAST_PARTS: Final = 64
_LEAST_UNREAD: Final = 8
"""Files are read in parts when this many times as much was opened as was read."""

_BEFORE_QUEUES_ARE_JOINED: Final = -4
"""``multiprocessing.Queue`` joins its thread at -5."""


class StandIn:
    """Stands in for the user's dataset in torch's fetcher.

    Attributes:
        inner: The user's dataset.
    """

    inner: Any

    def begin_process(self) -> None:
        """This is a process of the loader from now on: it has nothing to tell anybody."""

    def between_batches(self) -> AbstractContextManager[None]:
        """Inside it, samples are made that no batch has asked for: an audit."""
        return nullcontext()


def shared_tensor(length: int, dtype: torch.dtype, *, is_shared: bool = True) -> torch.Tensor:
    """Return zeros, shape (length,), in memory that workers share however they are started; ``is_shared=False``: there are none."""
    with torch.inference_mode(False):  # whatever the loop is in now
        zeros = np.zeros(length * dtype.itemsize, np.uint8)  # torch's would start the threads of OpenMP: 14 ms
        memory = torch.from_numpy(zeros).view(dtype)
    if not is_shared:
        return memory
    with contextlib.suppress(RuntimeError, OSError):  # no shared memory: there can be no workers
        memory.share_memory_()
    return memory


class SharedState:
    """Number of the epoch and counts of reads, shared by the processes of a loader.

    **Threads and processes**: goes to workers however they are started, where it is the same memory. Each worker has a row of its own.
    """

    def __init__(self, *, is_shared: bool = True) -> None:
        self._memory = shared_tensor((_COUNT_ROWS + 1) * _NUM_COLUMNS, torch.int64, is_shared=is_shared).reshape(
            -1, _NUM_COLUMNS
        )

    @property
    def epoch(self) -> int:
        """Number of epochs that began."""
        return int(self._rows[_COUNT_ROWS, 0])

    def epoch_begins(self) -> None:
        """Another one."""
        self._rows[_COUNT_ROWS, 0] += 1

    @property
    def reads_directly(self) -> bool:
        """Whether workers that were kept read as without prefeed from now on."""
        return bool(self._rows[_COUNT_ROWS, 1])

    @reads_directly.setter
    def reads_directly(self, value: bool) -> None:
        self._rows[_COUNT_ROWS, 1] = value

    def count_reads(self, hits: int, others: int) -> None:
        """Count reads of this process; the server also counts them, until it is killed."""
        if hits or others:
            self._row[:2] += hits, others

    def num_reads(self) -> tuple[int, int]:
        """Return how many reads of all processes were hits, and how many were not."""
        hits, others = self._rows[:_COUNT_ROWS, :2].sum(axis=0).tolist()
        return hits, others

    def count_parts(self, part_reads: npt.NDArray[np.int64]) -> None:
        """Count reads of large files, ``SampleFiles.part_reads``, and reset them."""
        if part_reads[0]:
            self._row[2:] += part_reads
            part_reads[:] = 0

    def are_read_in_parts(self) -> bool:
        """Return whether samples read small parts of large files; reset these counts."""
        rows = self._rows[:_COUNT_ROWS, 2:]
        opens, opened_bytes, read_bytes = rows.sum(axis=0).tolist()
        rows[:] = 0
        return bool(opens >= _LEAST_PARTS and opened_bytes >= _LEAST_UNREAD * read_bytes)

    @property
    def _row(self) -> npt.NDArray[np.int64]:
        """The row of this process, shape (_NUM_COLUMNS,)."""
        info = torch_worker._worker_info
        row: npt.NDArray[np.int64] = self._rows[0 if info is None else info.id % _COUNT_ROWS]
        return row

    @property
    def _rows(self) -> npt.NDArray[np.int64]:
        """The memory, shape (_COUNT_ROWS + 1, _NUM_COLUMNS); numpy's arrays know of no device and no mode of torch's."""
        rows: npt.NDArray[np.int64] = self._memory.numpy()
        return rows


class Lent:
    """Entries of a cache whose bytes a batch is collated from: views, valid until they are given back.

    **Threads and processes**: one thread at a time; picklable while nothing is lent.

    Attributes:
        is_allowed: The caller copies the samples, and says when that is done.
    """

    def __init__(self) -> None:
        self.is_allowed = False
        self._stack: ExitStack | None = None

    def borrow(self) -> ExitStack | None:
        """Return what to lend with until ``give_back``; None when samples must own what they hold."""
        self.give_back()
        if self.is_allowed:
            self._stack = ExitStack()
        return self._stack

    def give_back(self) -> None:
        """The batch has its copy."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()


class Staged(StandIn):
    """A dataset over the cache of a stage, where no plan is served: its batches are collated from the cache itself."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.lent: Lent = Lent()

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        return self.inner[index]

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the samples of a batch, as torch makes them."""
        batch = own_batch_method(self.inner, indices)
        if batch is not None:
            return batch(indices)
        return samples_of(self.inner, rows_of(indices)[0], lambda _: nullcontext(), self.lent)


def rows_of(indices: Any) -> tuple[Iterable[Any], Sequence[Any]]:
    """Return the indices of a batch of any type, and a sequence in which each is found once it was drawn.

    What can be read only once is drawn as torch draws it: one index, one sample, the next index.
    """
    if can_be_read_again(indices):
        rows = indices if isinstance(indices, list) else list(indices)
        return rows, rows
    drawn: list[Any] = []
    return _noted(indices, drawn), drawn


def _noted(indices: Iterable[Any], drawn: list[Any]) -> Iterator[Any]:
    for index in indices:
        drawn.append(index)
        yield index


def own_batch_method(dataset: Any, indices: Any) -> Callable[[Any], list[Any]] | None:
    """Return the method that makes a batch in one go; None when there is none, or ``_samples`` does what it does.

    Args:
        dataset: The user's.
        indices: Of the batch.
    """
    method = getattr(dataset, "__getitems__", None)
    if not callable(method) or is_cached(dataset) or is_mapped(dataset):
        return None
    if type(dataset) is Subset and own_batch_method(dataset.dataset, []) is None:
        return None
    if (
        type(dataset) is StackDataset
        and can_be_read_again(indices)  # each part reads them: torch's method has its own error for others
        and all(own_batch_method(part, indices) is None for part in _parts_of(dataset).values())
    ):
        return None
    found: Callable[[Any], list[Any]] = method
    return found


def _parts_of(stack: StackDataset[Any]) -> dict[Any, Any]:
    parts: Any = stack.datasets
    return parts if isinstance(parts, dict) else dict(enumerate(parts))


def is_stacked(dataset: Any) -> bool:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is StackDataset


def samples_of(
    dataset: Any,
    indices: Iterable[Any],
    making: Callable[[int], AbstractContextManager[None]],
    lent: Lent | None = None,
) -> list[Any]:
    """Return the samples of a batch, each made inside its scope, in the order in which torch makes them.

    Stacked datasets are asked one after the other for the whole batch: any other order would draw other random numbers.

    Args:
        dataset: Without a method of its own that makes a batch.
        indices: Of the batch.
        making: Opens the scope of a sample, by its position in the batch.
        lent: The receiver of the samples may be lent what a cache holds; None: functions of the user's get them.
    """
    if type(dataset) is Subset and callable(getattr(dataset.dataset, "__getitems__", None)):
        return samples_of(dataset.dataset, [dataset.indices[index] for index in indices], making, lent)
    if type(dataset) is StackDataset:
        parts = _parts_of(dataset)
        rows = zip(*(samples_of(part, indices, making) for part in parts.values()), strict=True)
        return (
            [dict(zip(parts, row, strict=True)) for row in rows] if isinstance(dataset.datasets, dict) else list(rows)
        )
    if is_cached(dataset):
        return dataset.samples(indices, making=making, borrow=None if lent is None else lent.borrow())
    if is_mapped(dataset) and has_cached_stage(dataset):
        return [dataset.fn(sample) for sample in samples_of(dataset.dataset, indices, making)]
    samples = []
    for position, index in enumerate(indices):
        with making(position):
            samples.append(dataset[index])
    return samples


class WorkerStart:
    """The worker's first act: show the user's dataset to ``get_worker_info``, then run the user's own function."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then
        self._made_by = os.getpid()

    def __call__(self, worker_id: int) -> None:
        info: Any = torch_worker._worker_info
        served = info.dataset if info is not None else None
        if isinstance(served, StandIn):
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=served.inner
            )
        if isinstance(served, StandIn) and os.getpid() != self._made_by:  # else a thread, of the loader's process
            self._begin_process(served)
        if self._then is not None:
            self._then(worker_id)

    def _begin_process(self, served: StandIn) -> None:
        util.Finalize(None, _end_orphan, args=(os.getppid(),), exitpriority=_BEFORE_QUEUES_ARE_JOINED)
        served.begin_process()
        if has_cached_stage(served.inner):
            audit_when_idle(sys._getframe(2), served.between_batches)


def _end_orphan(loader: int) -> None:
    """End a worker whose loader was killed: torch's own would wait for ever, for somebody to read its last batches.

    What it has open, the tier and its connection, would count as in use for as long.
    """
    if os.getppid() != loader:
        os._exit(1)
