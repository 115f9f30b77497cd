"""A training script whose samples are slices of large files; with torch alone, and without a model.

Prints a line of JSON per epoch: slices, seconds, and a checksum of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader, Dataset

SLICE_BYTES = 4096


class Slices(Dataset[torch.Tensor]):
    """Sample i is a part of one of the files; which one is not announced."""

    def __init__(self, root: str, num_slices: int) -> None:
        self.root = root
        self.names = sorted(os.listdir(root))
        self.size = os.path.getsize(os.path.join(root, self.names[0]))
        self.num_slices = num_slices

    def __len__(self) -> int:
        return self.num_slices

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(os.path.join(self.root, self.names[index % len(self.names)]), "rb") as file:
            file.seek(index * 2_654_435_761 % (self.size - SLICE_BYTES))
            return torch.frombuffer(bytearray(file.read(SLICE_BYTES)), dtype=torch.uint8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the slices epoch by epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--slices", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    dataset = Slices(options.data, options.slices)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=options.workers)
    for _ in range(options.epochs):
        checksum = 0
        started = time.perf_counter()
        for batch in loader:
            checksum = zlib.crc32(batch.numpy().tobytes(), checksum)
        epoch = {"slices": len(dataset), "seconds": time.perf_counter() - started, "checksum": checksum}
        sys.stdout.write(json.dumps(epoch) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
