"""What the parts of a batch cost when one thread makes it: opening and reading files, decoding, collating, transfer."""

from __future__ import annotations

import copy
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.utils.data
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.diagnose.loader_clones import Batch, num_samples_in, synchronize, threads
from prefeed.diagnose.measurement import Costs
from prefeed.interception import reads_from
from prefeed.torch.nesting import tensors_in
from prefeed.types import Buffer

_TRANSFERS: Final = 24
_WARM_TRANSFERS: Final = 8
_JPEG: Final = b"\xff\xd8\xff"
_JPEGS_LOOKED_AT: Final = 16
_LARGEST_FILE_BYTES: Final = 256 << 20
"""A larger one is read in parts by its users; all of it would not be what a sample costs, nor fit in memory."""


class TimedFiles:
    """Reads the files that samples open, and says how long that took: an ``interception.FileReader``.

    Attributes:
        opening_seconds: In ``open``.
        reading_seconds: In ``read``.
        file_bytes: Bytes read.
        paths: What was opened.
        jpegs: The bytes of a few JPEGs among them.
        num_jpegs: All of them.
    """

    opening_seconds: float
    reading_seconds: float
    file_bytes: int
    num_jpegs: int

    def __init__(self) -> None:
        self.opening_seconds = self.reading_seconds = 0.0
        self.file_bytes = self.num_jpegs = 0
        self.paths: list[str] = []
        self.jpegs: list[bytes] = []

    def may_have(self, path: str) -> bool:
        """Return True: all files are timed."""
        return True

    def read_file(self, path: str) -> Buffer | None:
        """Return the file's bytes; None when it cannot be read, and the sample meets the error by itself."""
        started = time.perf_counter()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        opened = time.perf_counter()
        try:
            with open(descriptor, "rb", buffering=0) as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE_BYTES:
                    return None
                data = file.readall()
        except OSError:
            return None
        self.opening_seconds += opened - started
        self.reading_seconds += time.perf_counter() - opened
        self._note(path, data)
        return data

    def _note(self, path: str, data: bytes) -> None:
        self.paths.append(path)
        self.file_bytes += len(data)
        if data[:3] == _JPEG:
            self.num_jpegs += 1
            if len(self.jpegs) < _JPEGS_LOOKED_AT:
                self.jpegs.append(data)


def costs_of(
    loader: TorchDataLoader[Any], batches: Sequence[Batch], device: torch.device | None, files: TimedFiles
) -> Costs:
    """Return the costs of one batch, from making these in this thread.

    Args:
        loader: The user's; a map-style one.
        batches: Indices to make them of, none of them read before; the first one only warms up.
        device: Where the user's step copies batches to; None: nowhere.
        files: Is told which are opened.
    """
    number = len(batches) - 1
    with threads(1), reads_from(TimedFiles()):
        loader.collate_fn(_fetch(loader.dataset, batches[0]))
    with threads(1), reads_from(files):
        started = time.perf_counter()
        samples = [_fetch(loader.dataset, batch) for batch in batches[1:]]
        making = time.perf_counter() - started - files.opening_seconds - files.reading_seconds
        started = time.perf_counter()
        collated = [loader.collate_fn(of_batch) for of_batch in samples]
        collating = time.perf_counter() - started
    is_file_based = bool(files.paths)
    return Costs(
        opening=files.opening_seconds / number if is_file_based else None,
        reading=files.reading_seconds / number if is_file_based else None,
        decoding=max(0.0, making) / number,
        collating=collating / number,
        transferring=_transfer_seconds(loader, collated[0]) if loader.num_workers else 0.0,
        to_device=_to_device_seconds(collated[0], device),
        file_bytes=files.file_bytes // number,
        jpeg_share=files.num_jpegs / len(files.paths) if files.paths else 0.0,
        jpeg_saved=_jpeg_saved(files, max(0.0, making) / number, num_samples_in(batches[1:]) / number),
    )


def stream_costs_of(loader: TorchDataLoader[Any], number: int, device: torch.device | None) -> Costs:
    """Return the costs of one batch of a stream, from making some in this thread from its beginning; one more only warms up.

    Files, pipes and connections are not told apart: ``reading`` is the time in which this process waited and did not compute.

    Args:
        loader: The user's; its dataset is copied.
        number: Batches to make.
        device: Where the user's step copies batches to; None: nowhere.

    Raises:
        ValueError: The stream has no samples.
    """
    samples = _endless(copy.deepcopy(loader.dataset))
    with threads(1):
        collated = loader.collate_fn(_next_of_stream(samples, loader.batch_size))
        waited = computed = collating = 0.0
        for _ in range(number):
            began, began_cpu, began_queue = time.perf_counter(), time.process_time(), _queued_seconds()
            batch = _next_of_stream(samples, loader.batch_size)
            cpu = time.process_time() - began_cpu
            waited += max(0.0, time.perf_counter() - began - cpu - (_queued_seconds() - began_queue))
            computed += cpu
            began = time.perf_counter()
            collated = loader.collate_fn(batch)
            collating += time.perf_counter() - began
    return Costs(
        reading=waited / number,
        decoding=computed / number,
        collating=collating / number,
        transferring=_transfer_seconds(loader, collated) if loader.num_workers else 0.0,
        to_device=_to_device_seconds(collated, device),
    )


def _next_of_stream(samples: Iterator[Any], batch_size: int | None) -> Any:
    """Return what torch's fetcher hands to ``collate_fn``: a list of samples, or one where the stream makes batches itself."""
    return next(samples) if batch_size is None else list(itertools.islice(samples, batch_size))


def _endless(stream: Any) -> Iterator[Any]:
    """Yield the samples of a stream, from its beginning again after its end."""
    while True:
        is_empty = True
        for sample in stream:
            is_empty = False
            yield sample
        if is_empty:
            raise ValueError("the stream has no samples")


def _queued_seconds() -> float:
    """Return how long this thread has waited for a processor that others had; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _fetch(dataset: Any, batch: Batch) -> Any:
    """Return what torch's fetcher hands to ``collate_fn``."""
    if not isinstance(batch, list | tuple):
        return dataset[batch]
    many: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    return many(batch) if callable(many) else [dataset[index] for index in batch]


class _Ready(torch.utils.data.Dataset[Any]):
    """Gives the same batch again and again."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return _TRANSFERS + _WARM_TRANSFERS

    def __getitem__(self, index: int) -> Any:
        return self.batch


def _same(batch: Any) -> Any:
    return batch


def _transfer_seconds(loader: TorchDataLoader[Any], batch: Any) -> float:
    """Return the seconds between two batches of one worker that has nothing to do but send them."""
    ready: TorchDataLoader[Any] = torch.utils.data.DataLoader(
        _Ready(batch),
        batch_size=None,
        num_workers=1,
        collate_fn=_same,
        pin_memory=loader.pin_memory,
        multiprocessing_context=loader.multiprocessing_context,
    )
    started = 0.0
    for number, _ in enumerate(ready, 1):
        if number == _WARM_TRANSFERS:
            started = time.perf_counter()
    return (time.perf_counter() - started) / _TRANSFERS


def _to_device_seconds(batch: Any, device: torch.device | None) -> float | None:
    """Return the seconds of copying the tensors of a batch to the device and waiting for it; None without one."""
    if device is None or device.type == "cpu":
        return None
    tensors = list(tensors_in(batch))
    for tensor in tensors:  # once to warm up
        tensor.to(device)
    synchronize(device)
    started = time.perf_counter()
    for tensor in tensors:
        tensor.to(device)
    synchronize(device)
    return time.perf_counter() - started


def _jpeg_saved(files: TimedFiles, decoding: float, samples: float) -> float | None:
    """Return the seconds of a batch that leaner preprocessing would save; None when there is nothing to decode, or it is not installed.

    Args:
        files: What the samples opened.
        decoding: Seconds that a batch's samples take but for their files.
        samples: In a batch.
    """
    if not files.jpegs:
        return None
    try:
        from prefeed.diagnose.doctor.jpegs import saved_seconds  # noqa: PLC0415 - its libraries are an extra
    except ImportError:
        return None
    jpegs = samples * files.num_jpegs / len(files.paths)
    with threads(1):
        return saved_seconds(files.jpegs, decoding / samples) * jpegs
