"""A program that reads tar shards through WebDataset, or Parquet through Hugging Face's datasets; with no model.

Prints a line of JSON per epoch: samples, bytes, seconds, and a checksum that no order changes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader


def webdataset(urls: Sequence[str], cache_dir: str | None) -> Iterable[Any]:
    """Return the samples of tar shards, each its bytes."""
    import webdataset as wds

    pipeline: Any = wds.WebDataset(list(urls), shardshuffle=False, cache_dir=cache_dir, empty_check=False)
    samples: Iterable[Any] = pipeline.map(lambda sample: sample["bin"])
    return samples


def parquet(urls: Sequence[str], options: dict[str, Any]) -> Iterable[Any]:
    """Return the rows of Parquet files, each its bytes."""
    from datasets import load_dataset

    rows: Iterable[Any] = load_dataset(
        "parquet", data_files=list(urls), split="train", streaming=True, storage_options=options
    )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Read everything epoch by epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--storage-options", type=json.loads, default={})
    parser.add_argument("--cache-dir")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--together", nargs=2, metavar=("DIR", "NUMBER"), help="begin when that number of processes is there"
    )
    options = parser.parse_args(arguments)

    if options.parquet:
        dataset = parquet(options.urls, options.storage_options)
    else:
        dataset = webdataset(options.urls, options.cache_dir)
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=options.workers)  # type: ignore[arg-type]
    if options.together:
        directory, number = Path(options.together[0]), int(options.together[1])
        (directory / str(os.getpid())).touch()
        while len(os.listdir(directory)) < number:
            time.sleep(0.01)
    for _ in range(options.epochs):
        samples = size = checksum = 0
        started = time.perf_counter()
        for sample in loader:
            data = sample["data"] if options.parquet else sample
            samples, size, checksum = samples + 1, size + len(data), checksum ^ zlib.crc32(data)
        seconds = time.perf_counter() - started
        sys.stdout.write(
            json.dumps({"samples": samples, "bytes": size, "seconds": seconds, "checksum": checksum}) + "\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
