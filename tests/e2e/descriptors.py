"""Keeps all batches of an epoch of 2 workers with few descriptors; prints, for torch and for prefeed, how many came and what ended it."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import prefeed


class Pairs(Dataset[Any]):
    """Two tensors each, of a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            file.read()
        return torch.full((200, 100), float(index)), torch.full((200, 100), float(index))


def keep_all(loader_class: Any, path: str) -> tuple[int, str]:
    """Return how many batches came, and the error that ended the epoch."""
    kept = []
    try:
        for batch in loader_class(Pairs(path), batch_size=2, num_workers=2, collate_fn=list):
            kept.append(batch)  # noqa: PERF402 - what came before an error counts
    except RuntimeError as err:
        return len(kept), str(err)
    return len(kept), ""


if __name__ == "__main__":
    path = sys.argv[1]
    Path(path).write_bytes(b"some bytes")
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    print(json.dumps([keep_all(DataLoader, path), keep_all(prefeed.DataLoader, path)]))
