"""What ``open`` costs inside a sample, for a file that is not cached; with torch alone.

Each sample reads one of the first files below a directory, and then opens and closes another file many times. Prints
one line of JSON per epoch: the median time of one open and close in microseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

NUM_OPENS = 200
"""Opens timed together."""


class Files(Dataset[torch.Tensor]):
    """Reads a file, then times the opening of another one."""

    def __init__(self, data: str, local: str, num_files: int) -> None:
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(data) for name in names]
        self.paths = sorted(paths)[:num_files]
        self.local = local

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index], "rb") as file:
            file.read()
        local = self.local
        times = []
        for _ in range(20):
            started = time.perf_counter_ns()
            for _ in range(NUM_OPENS):
                open(local, "rb").close()
            times.append((time.perf_counter_ns() - started) / NUM_OPENS / 1000)
        return torch.tensor(times)


def main() -> None:
    """Read three epochs in this process."""
    data, local, num_files = sys.argv[1:]
    loader = DataLoader(Files(data, local, int(num_files)), batch_size=int(num_files))
    for _ in range(3):
        (times,) = loader
        sys.stdout.write(json.dumps({"open_us": statistics.median(times.flatten().tolist())}) + "\n")


if __name__ == "__main__":
    main()
