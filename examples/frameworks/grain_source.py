"""A cached dataset as a random-access source of Grain, the loader of JAX programs.

python examples/frameworks/grain_source.py [DIRECTORY_OF_PICTURES]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, SupportsIndex

import grain.python as grain
from common import Sample, cached_pictures, make_pictures

import prefeed


class Cached:
    """Grain's RandomAccessDataSource: a length, an item for an index, and a name that checkpoints know it by."""

    def __init__(self, cached: prefeed.CachedDataset) -> None:
        self.cached = cached

    def __len__(self) -> int:
        return len(self.cached)

    def __getitem__(self, record_key: SupportsIndex) -> Sample:
        sample: Sample = self.cached[record_key]
        return sample

    def __repr__(self) -> str:
        return f"Cached({self.cached.fingerprint.hex()})"


def create_loader(cached: prefeed.CachedDataset, *, batch_size: int = 4, num_workers: int = 0) -> Any:
    """Return a shuffled loader of Grain over a cached dataset, for one epoch."""
    source = Cached(cached)
    return grain.DataLoader(
        data_source=source,
        sampler=grain.IndexSampler(len(source), grain.NoSharding(), shuffle=True, num_epochs=1, seed=1),
        operations=[grain.Batch(batch_size)],
        worker_count=num_workers,
    )


def main() -> None:
    """Read two epochs."""
    with tempfile.TemporaryDirectory() as scratch:
        cached = cached_pictures(sys.argv[1] if len(sys.argv) > 1 else make_pictures(Path(scratch, "pictures")))
        for epoch in range(2):
            for images, labels in create_loader(cached):
                print(epoch, images.shape, labels)
        print(cached.get_stat())


if __name__ == "__main__":
    main()
