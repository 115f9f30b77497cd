"""Two epochs of Grain's ``DataLoader``, the second one from a restored state: python grain_epochs.py DIRECTORY NUM_WORKERS."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import grain.python as grain
import numpy as np


class Files:
    """Pixels and number of each file."""

    def __init__(self, root: str) -> None:
        self.paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        with open(self.paths[index], "rb") as file:
            return np.frombuffer(file.read(), np.uint8).astype(np.float32), np.array(index)

    def __repr__(self) -> str:
        return "Files()"


if __name__ == "__main__":
    source = Files(sys.argv[1])
    loader = grain.DataLoader(
        data_source=source,
        sampler=grain.IndexSampler(len(source), grain.NoSharding(), shuffle=True, num_epochs=1, seed=1),
        operations=[grain.Batch(4)],
        worker_count=int(sys.argv[2]),
    )
    digest = hashlib.sha256()
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = batches.get_state()
    del batches
    for loop in (iter(loader), iter(loader)):
        for images, numbers in loop:
            digest.update(images.tobytes() + numbers.tobytes())
    rest = iter(loader)
    rest.set_state(state)
    for images, numbers in rest:
        digest.update(images.tobytes() + numbers.tobytes())
    print(digest.hexdigest())
