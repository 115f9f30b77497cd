"""Measures the parts of a batch in one thread: opening and reading files, decoding, collating, transfer."""

from __future__ import annotations

import copy
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.utils.data
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.diagnose.loader_clone import IndexBatch
from prefeed.diagnose.report import Costs
from prefeed.diagnose.trials import synchronize, threads
from prefeed.interception import reads_from
from prefeed.torch.nesting import tensors_in
from prefeed.types import Buffer

_OF_STREAM: Final = 8
_TRANSFERS: Final = 32
_MAX_FILE_BYTES: Final = 256 << 20
"""Maximum size of a file that is timed. Programs read larger files in parts, and these may not fit in memory."""


class TimedFiles:
    """``interception.FileReader`` that times the opens and reads of samples.

    Attributes:
        opening_seconds: Seconds in ``open``; ``reading_seconds`` those in ``read``.
        paths: Files that were opened, of ``file_bytes`` together; ``num_jpegs`` of them are JPEGs.
    """

    def __init__(self) -> None:
        self.opening_seconds = self.reading_seconds = 0.0
        self.file_bytes = self.num_jpegs = 0
        self.paths: list[str] = []

    def may_have(self, path: str) -> bool:
        """Return True, because all files are timed."""
        return True

    def read_file(self, path: str) -> Buffer | None:
        """Read and time a file; return None if it cannot be read, so that the sample raises the error itself."""
        started = time.perf_counter()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            opened = time.perf_counter()
            with open(descriptor, "rb", buffering=0) as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
                    return None
                data = file.readall()
        except OSError:
            return None
        self.opening_seconds += opened - started
        self.reading_seconds += time.perf_counter() - opened
        self.paths.append(path)
        self.file_bytes += len(data)
        self.num_jpegs += data[:3] == b"\xff\xd8\xff"  # a JPEG
        return data


def costs_of(
    loader: TorchDataLoader[Any],
    batches: Sequence[IndexBatch] | None,
    *,
    device: torch.device | None,
    files: TimedFiles,
) -> Costs:
    """Measure the costs of one batch, by computing several in this thread.

    The sources of a stream are unknown, so its ``reading`` is the time in which this process used no CPU.

    Args:
        loader: Loader of the user.
        batches: Batches that were not read before; the first one only warms up. None for a stream.
        device: Device that the step copies batches to, or None.
        files: Receives the files that are opened.
    """
    number = _OF_STREAM if batches is None else len(batches) - 1
    making = computed = collating = 0.0
    samples = _samples_of(loader, batches)
    with threads(1):
        with reads_from(TimedFiles()):
            collated = loader.collate_fn(next(samples))
        with reads_from(files):
            for _ in range(number):
                began, began_cpu = time.perf_counter(), time.process_time()
                batch = next(samples)
                made, made_cpu = time.perf_counter(), time.process_time()
                collated = loader.collate_fn(batch)
                making += made - began
                computed += made_cpu - began_cpu
                collating += time.perf_counter() - made
    opening, reading = files.opening_seconds, files.reading_seconds
    if batches is None:
        opening, reading = 0.0, max(0.0, making - computed)
    return Costs(
        opening=opening / number if files.paths and batches is not None else None,
        reading=reading / number if files.paths or batches is None else None,
        decoding=max(0.0, making - opening - reading) / number,
        collating=collating / number,
        transferring=_transfer_seconds(loader, collated) if loader.num_workers else 0.0,
        to_device=_to_device_seconds(collated, device),
        file_bytes=files.file_bytes // number,
        jpeg_share=files.num_jpegs / max(1, len(files.paths)),
    )


def _samples_of(loader: TorchDataLoader[Any], batches: Sequence[IndexBatch] | None) -> Iterator[Any]:
    """Yield the arguments of ``collate_fn``, as torch's fetcher computes them."""
    dataset: Any = loader.dataset
    if batches is None:
        dataset = copy.deepcopy(loader.dataset)
        stream = itertools.chain.from_iterable(itertools.repeat(dataset))
        while True:
            yield next(stream) if loader.batch_size is None else list(itertools.islice(stream, loader.batch_size))
    many: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    for batch in batches:
        if not isinstance(batch, list | tuple):
            yield dataset[batch]
        else:
            yield many(batch) if callable(many) else [dataset[index] for index in batch]


def _same(batch: Any) -> Any:
    return batch


def _transfer_seconds(loader: TorchDataLoader[Any], batch: Any) -> float:
    """Measure the seconds between two batches of a worker that only sends them."""
    ready: TorchDataLoader[Any] = torch.utils.data.DataLoader(
        [batch] * _TRANSFERS,  # type: ignore[arg-type]
        batch_size=None,
        num_workers=1,
        collate_fn=_same,
        pin_memory=loader.pin_memory,
        multiprocessing_context=loader.multiprocessing_context,
    )
    started = 0.0
    for number, _ in enumerate(ready, 1):
        if number == _TRANSFERS // 4:  # the first ones warm up
            started = time.perf_counter()
    return (time.perf_counter() - started) / (_TRANSFERS - _TRANSFERS // 4)


def _to_device_seconds(batch: Any, device: torch.device | None) -> float | None:
    """Measure the seconds of copying a batch to the device; return None without a device."""
    if device is None or device.type == "cpu":
        return None
    started = 0.0
    for _ in range(2):  # the first copy warms up
        synchronize(device)
        started = time.perf_counter()
        for tensor in tensors_in(batch):
            tensor.to(device)
        synchronize(device)
    return time.perf_counter() - started
