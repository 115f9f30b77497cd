"""A pipeline in a process of its own: ``python -m e2e.parity_job '{"root": ..., "session": ...}'``.

Writes a line of JSON when it is done: numbers of the rows in the order in which they came, a digest of each, and how
many samples this process made. With ``steps`` it writes a line a row, and waits for one on stdin.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

import prefeed
from e2e.parity import loaded
from e2e.parity_readers import RandomData, Records, as_bytes, decode, decode_and_resize, folder, rescale
from e2e.stages import Log

STEPS = {"decode": decode, "resize": decode_and_resize, "rescale": rescale}


class Logged:
    """Writes down each sample that is made, unless it is told not to."""

    def __init__(self, dataset: Any, log: Log) -> None:
        self.dataset = dataset
        self.log = log

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        self.log.add(str(index))
        return self.dataset[index]


def digest(sample: Any) -> str:
    """Return what tells a sample from others, the same in every process."""
    return hashlib.sha256(_bytes(sample)).hexdigest()[:16]


def _bytes(sample: Any) -> bytes:
    if isinstance(sample, tuple):
        return b"".join(map(_bytes, sample))
    return sample if isinstance(sample, bytes) else np.asarray(sample).tobytes()


def source(what: dict[str, Any]) -> Any:
    if what.get("kind") == "random":
        return RandomData(what["count"])
    if what.get("kind") == "records":
        size = what["record_bytes"]
        return Records(Path(what["root"]), [(size * at, size) for at in range(what["count"])], as_bytes)
    return folder(Path(what["root"]))


def pipeline(what: dict[str, Any]) -> tuple[Any, prefeed.DatasetCache]:
    """Return the pipeline, and the cache that is in it.

    Args:
        what: ``root``, ``session``; ``below`` and ``above``: names of steps; ``shard``: which of how many; ``size`` and
            ``spilling`` of the cache; ``repeat``.
    """
    cache = prefeed.DatasetCache(what["session"], what.get("size", 0), what.get("spilling", False))
    dataset = source(what)
    below = [STEPS[name] for name in what.get("below", [])]
    for step in below[:-1]:
        dataset = prefeed.mapped(dataset, step)
    if "log" in what:
        dataset = Logged(dataset, Log(Path(what["log"])))
    dataset = prefeed.mapped(dataset, below[-1], cache) if below else prefeed.CachedDataset(dataset, cache)
    for name in what.get("above", []):
        dataset = prefeed.mapped(dataset, STEPS[name])
    if "shard" in what:
        number, count = what["shard"]
        dataset = Subset(dataset, range(number, len(dataset), count))
    return ConcatDataset([dataset] * what.get("repeat", 1)), cache


def main(what: dict[str, Any]) -> None:
    dataset, cache = pipeline(what)
    if what.get("steps"):
        for index in range(len(dataset)):
            say({"row": index, "digest": digest(dataset[index])})
            sys.stdin.readline()
        return
    seen = [loaded(dataset, num_workers=what.get("workers", 0)) for _ in range(what.get("epochs", 1))]
    found = cache.get_stat()
    say({
        "rows": [[digest(sample) for sample in epoch] for epoch in seen],
        "held": found.num_mem_cached + found.num_disk_cached,
        "hits": found.hits,
        "misses": found.misses,
    })  # fmt: skip


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
