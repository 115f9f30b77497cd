"""A training script of several processes: ``ddp_train OUT ROOT KIND LENGTH NUM_WORKERS [--auto]``."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed
from torch.utils.data import DataLoader, DistributedSampler

from e2e.jobs import make_dataset, save
from e2e.steps import digest

EPOCHS = 3
BATCH_SIZE = 4


def main(out: str, root: str, kind: str, length: str, num_workers: str) -> None:
    """Read the epochs, and save a name of each batch."""
    torch.distributed.init_process_group("gloo")
    dataset = make_dataset(root, kind, int(length))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler, num_workers=int(num_workers))
    seen = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        names = []
        for batch in loader:
            names.append(digest(batch))
            torch.distributed.all_reduce(torch.ones(1))  # steps are taken together
        seen.append(names)
    save(out, seen)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if "--auto" in sys.argv:
        import prefeed.auto  # noqa: F401

        sys.argv.remove("--auto")
    main(*sys.argv[1:])
