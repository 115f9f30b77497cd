"""A cached dataset as the source of MindSpore's GeneratorDataset, which MindSpore's own cache refuses to keep.

    python examples/frameworks/mindspore_generator.py [DIRECTORY_OF_PICTURES]

Several processes of MindSpore, and its epochs, read one copy of what was prepared, in shared memory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
from common import cached_pictures, make_pictures

import prefeed


def create_dataset(cached: prefeed.CachedDataset, *, batch_size: int = 4, num_workers: int = 1) -> Any:
    """Return a shuffled pipeline of MindSpore over a cached dataset."""
    source = ds.GeneratorDataset(
        cached,
        ["image", "label"],
        shuffle=True,
        num_parallel_workers=num_workers,
        python_multiprocessing=num_workers > 1,
    )
    return source.batch(batch_size)


def main() -> None:
    """Read two epochs."""
    with tempfile.TemporaryDirectory() as scratch:
        cached = cached_pictures(sys.argv[1] if len(sys.argv) > 1 else make_pictures(Path(scratch, "pictures")))
        pipeline = create_dataset(cached)
        for epoch in range(2):
            for batch in pipeline.create_dict_iterator(num_epochs=1, output_numpy=True):
                print(epoch, batch["image"].shape, batch["label"])
        print(cached.get_stat())


if __name__ == "__main__":
    main()
