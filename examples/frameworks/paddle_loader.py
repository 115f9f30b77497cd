"""A cached dataset behind Paddle's DataLoader.

python examples/frameworks/paddle_loader.py [DIRECTORY_OF_PICTURES]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from common import Sample, cached_pictures, make_pictures
from paddle.io import DataLoader, Dataset

import prefeed


class Cached(Dataset):  # type: ignore[misc]
    """Paddle asks that its datasets are of its own class."""

    def __init__(self, cached: prefeed.CachedDataset) -> None:
        super().__init__()
        self.cached = cached

    def __len__(self) -> int:
        return len(self.cached)

    def __getitem__(self, index: int) -> Sample:
        sample: Sample = self.cached[index]
        return sample


def create_loader(cached: prefeed.CachedDataset, *, batch_size: int = 4, num_workers: int = 2) -> Any:
    """Return a shuffled loader of Paddle over a cached dataset."""
    return DataLoader(Cached(cached), batch_size=batch_size, shuffle=True, num_workers=num_workers)


def main() -> None:
    """Read two epochs."""
    with tempfile.TemporaryDirectory() as scratch:
        cached = cached_pictures(sys.argv[1] if len(sys.argv) > 1 else make_pictures(Path(scratch, "pictures")))
        loader = create_loader(cached)
        for epoch in range(2):
            for images, labels in loader:
                print(epoch, images.shape, labels.numpy())
        print(cached.get_stat())


if __name__ == "__main__":
    main()
