"""Two epochs of a ``paddle.io.DataLoader``: python paddle_epochs.py DIRECTORY NUM_WORKERS."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import numpy as np
from paddle.io import DataLoader, Dataset, DistributedBatchSampler


class Files(Dataset):  # type: ignore[misc]
    """Pixels and number of each file."""

    def __init__(self, root: str) -> None:
        self.paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            return np.frombuffer(file.read(), np.uint8).astype(np.float32), np.array(index)


if __name__ == "__main__":
    num_workers = int(sys.argv[2])
    np.random.seed(3)
    dataset = Files(sys.argv[1])
    sampler = DistributedBatchSampler(dataset, batch_size=4, num_replicas=1, rank=0, shuffle=True)
    digest = hashlib.sha256()
    for loader in (
        DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers),
        DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers),
    ):
        for images, numbers in loader:
            digest.update(images.numpy().tobytes() + numbers.numpy().tobytes())
    print(digest.hexdigest(), np.random.randint(1 << 30))
