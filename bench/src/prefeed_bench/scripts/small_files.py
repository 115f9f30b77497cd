"""Reads many small files per epoch, with torch alone: numbered files, whose list the dataset keeps, or computes.

Prints a line of JSON per epoch: files, seconds, processor seconds of all processes, seconds until the first file was asked for,
and a checksum.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

from torch import manual_seed
from torch.utils.data import DataLoader, Dataset


class Numbered(Dataset[int]):
    """Checksums of files whose paths are computed, and stand in no list.

    Attributes:
        first_at: When the first sample of the epoch was asked for, in any process; 0: none was yet.
    """

    def __init__(self, root: str, num_files: int) -> None:
        self.root = root
        self.num_files = num_files
        self.first_at = multiprocessing.Value("d", 0.0)

    def __len__(self) -> int:
        return self.num_files

    def path_of(self, index: int) -> str:
        """Return the path of a file."""
        return f"{self.root}/{index:06d}.bin"

    def __getitem__(self, index: int) -> int:
        if not self.first_at.value:
            self.first_at.value = time.monotonic()
        with open(self.path_of(index), "rb") as file:
            return zlib.crc32(file.read(64))


class Declared(Numbered):
    """The same, and it says which files they are."""

    def train_data_list(self) -> list[str]:
        """Return the paths of all samples."""
        return [self.path_of(index) for index in range(len(self))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the files epoch by epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--declared", action="store_true", help="the dataset says which files it reads")
    parser.add_argument("--touch", type=pathlib.Path, help="touch the files of this directory before each later epoch")
    options = parser.parse_args(arguments)

    manual_seed(0)
    dataset = (Declared if options.declared else Numbered)(options.data, options.files)
    loader = DataLoader(dataset, batch_size=options.batch_size, shuffle=True, num_workers=options.workers)
    for epoch in range(options.epochs):
        for file in options.touch.iterdir() if options.touch and epoch else ():
            file.touch()
        sys.stdout.write(json.dumps(read_epoch(loader, dataset)) + "\n")
        sys.stdout.flush()


def read_epoch(loader: DataLoader[int], dataset: Numbered) -> dict[str, Any]:
    """Return what was seen in one epoch, and how long it took from its start on."""
    dataset.first_at.value = 0.0
    checksum = num_files = 0
    began, started, cpu_before = time.monotonic(), time.perf_counter(), sum(os.times()[:4])
    for batch in loader:
        checksum = zlib.crc32(batch.numpy().tobytes(), checksum)
        num_files += len(batch)
    seconds = time.perf_counter() - started
    return {
        "files": num_files,
        "seconds": seconds,
        "cpu_seconds": sum(os.times()[:4]) - cpu_before,
        "first_request_seconds": dataset.first_at.value - began,
        "checksum": checksum,
    }


if __name__ == "__main__":
    main()
