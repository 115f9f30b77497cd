"""A training script, run by tests: one line of JSON a step, going on when it is told to.

trainer.py URL --epochs 2 --workers 1 [--persistent] [--gated]
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
import torch.utils.data._utils.worker

import prefeed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--gated", action="store_true", help="wait for a line on stdin after each step")
    options = parser.parse_args()
    for module in (
        torch.utils.data._utils,
        torch.utils.data._utils.worker,
    ):  # a worker looks for its parent, and the reverse
        module.MP_STATUS_CHECK_INTERVAL = 0.2  # type: ignore[attr-defined]
    torch.manual_seed(5)
    loader = prefeed.DataLoader(
        prefeed.datasets.Objects(options.url),
        batch_size=8,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.persistent,
        collate_fn=list,
    )
    for epoch in range(options.epochs):
        for step, batch in enumerate(loader):
            # Each object begins with its own number.
            numbers = [int.from_bytes(data[:4], "little") for data in batch]
            assert all(data[4:] == data[4:5] * (len(data) - 4) for data in batch)
            print(json.dumps({"epoch": epoch, "step": step, "numbers": numbers}), flush=True)
            if options.gated:
                sys.stdin.readline()


if __name__ == "__main__":
    main()
