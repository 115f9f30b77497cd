"""Epochs of a ``GeneratorDataset``, or of a reader of MindSpore's: python mindspore_epochs.py DIRECTORY NUM_WORKERS|cpp."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import mindspore.dataset as ds
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


if __name__ == "__main__":
    if sys.argv[2] == "cpp":
        print(ds.TextFileDataset(f"{sys.argv[1]}/*", shuffle=False).get_dataset_size())  # counts the lines
        sys.exit()
    num_workers = int(sys.argv[2])
    ds.config.set_seed(7)
    pipeline = ds.GeneratorDataset(
        Files(sys.argv[1]), ["image", "number"], shuffle=True, num_parallel_workers=max(1, num_workers),
        python_multiprocessing=num_workers > 1,
    ).batch(4)  # fmt: skip
    digest = hashlib.sha256()
    for batch in pipeline.create_dict_iterator(num_epochs=2, output_numpy=True):
        digest.update(batch["image"].tobytes() + batch["number"].tobytes())
    for batch in pipeline.create_dict_iterator(num_epochs=1, output_numpy=True):
        digest.update(batch["image"].tobytes() + batch["number"].tobytes())
    print(digest.hexdigest())
