"""Samples of the benchmarks of stage caches: rows of one size, made or ready, and a log of who made which sample."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from prefeed.stage_cache.making import is_checking

if TYPE_CHECKING:
    import torch

DType = Literal["float32", "uint8"]

SHAPE: Final = (3, 224, 224)
ROW_VALUES: Final = 3 * 224 * 224


def row_bytes(dtype: DType) -> int:
    """Return the size of a row in bytes."""
    return ROW_VALUES * (4 if dtype == "float32" else 1)


class MadeRows:
    """Tensors of 3 x 224 x 224, each another one, computed when asked for.

    Args:
        num_rows: How many.
        dtype: Name of torch's type.
    """

    def __init__(self, num_rows: int, dtype: DType) -> None:
        self.num_rows = num_rows
        self.dtype = dtype

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> torch.Tensor:
        import torch  # modules of benchmarks are imported by the command line, which must start without torch

        values = torch.arange(index, index + ROW_VALUES, dtype=torch.int32)
        return values.to(getattr(torch, self.dtype)).reshape(SHAPE)


class ReadyRows:
    """Rows of one tensor that lies in memory: no dataset is faster.

    Args:
        rows: Shape (num_rows, 3, 224, 224).
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    @classmethod
    def of(cls, made: MadeRows) -> ReadyRows:
        """Make all rows now."""
        import torch  # as above

        rows = torch.empty((len(made), *SHAPE), dtype=getattr(torch, made.dtype))
        for index, row in enumerate(rows):
            row.copy_(made[index])
        return cls(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class LoggedPictures:
    """The pictures of a data set, each with its number; a file of the process that makes one gets a line.

    Args:
        pictures: Gives (picture, label).
        num_samples: Use that many, spread evenly.
        log_dir: Where the files are, one a process.
    """

    def __init__(self, pictures: Any, num_samples: int, log_dir: str) -> None:
        self.pictures = pictures
        self.num_samples = num_samples
        self.log_dir = log_dir

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not is_checking():
            self._log(index)
        picture, _ = self.pictures[index * (len(self.pictures) // self.num_samples)]
        return picture, index

    def _log(self, index: int) -> None:
        # Not open(): a file that a sample opens with it is one that the sample is made of.
        path = os.path.join(self.log_dir, str(os.getpid()))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, b"%d\n" % index)
        finally:
            os.close(descriptor)


def times_made(log_dir: str) -> Counter[int]:
    """Return how often each sample was made, by all processes together."""
    return Counter(int(line) for file in Path(log_dir).iterdir() for line in file.read_text().split())
