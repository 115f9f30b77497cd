"""Data sets for trials, at the top level of a module: started workers import them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Clock:
    """Stands in for ``time``: each look takes two milliseconds, on any machine."""

    def __init__(self) -> None:
        self.now = 0.0
        self.look_seconds = 0.002

    def perf_counter(self) -> float:
        self.now += self.look_seconds
        return self.now


class Instant(Dataset[torch.Tensor]):
    """Samples that cost nothing; each is its index."""

    def __init__(self, length: int = 64) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Files(Instant):
    """Samples that are files, all in one directory; their names are their numbers."""

    def __init__(self, root: Path, length: int, *, size: int = 100) -> None:
        super().__init__(length)
        self.root = root
        for number in range(length):
            (root / str(number)).write_bytes(bytes(size))

    def __getitem__(self, index: int) -> torch.Tensor:
        (self.root / str(index)).read_bytes()
        return super().__getitem__(index)


class Failing(Instant):
    """Fails in one of as many workers, or more: by an error, or by a signal."""

    def __init__(self, how: Any, *, from_workers: int) -> None:
        super().__init__()
        self.how = how
        self.from_workers = from_workers

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        if (info.num_workers if info is not None else 0) >= self.from_workers:
            if isinstance(self.how, signal.Signals):
                os.kill(os.getpid(), self.how)
            raise self.how
        return super().__getitem__(index)


class Unpicklable(Instant):
    def __init__(self) -> None:
        super().__init__()
        self.function = lambda: None


class Stream(IterableDataset[torch.Tensor]):
    """Numbers, one after the other; each worker has its part, or each has all of them."""

    def __init__(self, length: int = 200, *, is_split: bool = True) -> None:
        self.length = length
        self.is_split = is_split

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        start, by = (info.id, info.num_workers) if info is not None and self.is_split else (0, 1)
        for index in range(start, self.length, by):
            yield torch.full((4,), float(index))
