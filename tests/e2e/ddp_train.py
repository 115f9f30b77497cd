"""A training script of several processes: ``ddp_train OUT DATASETS NUM_WORKERS [--auto]``.

``DATASETS`` is JSON: a list of root, kind and length; one is trained after the other.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch.distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from e2e.jobs import make_dataset, save
from e2e.steps import digest

EPOCHS = 3
BATCH_SIZE = 4


def main(out: str, datasets: str, num_workers: str) -> None:
    """Read the epochs, and save a name of each batch."""
    torch.distributed.init_process_group("gloo")
    save(out, [train(make_dataset(*dataset), int(num_workers)) for dataset in json.loads(datasets)])
    torch.distributed.destroy_process_group()


def train(dataset: Dataset[Any], num_workers: int) -> list[list[str]]:
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler, num_workers=num_workers)
    seen = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        names = []
        for batch in loader:
            names.append(digest(batch))
            torch.distributed.all_reduce(torch.ones(1))  # steps are taken together
        seen.append(names)
    return seen


if __name__ == "__main__":
    if "--auto" in sys.argv:
        import prefeed.auto  # noqa: F401

        sys.argv.remove("--auto")
    main(*sys.argv[1:])
