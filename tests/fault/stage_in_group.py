"""Run by a test in a control group with little memory: asks for much more, prints how much it kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import prefeed
from e2e.parity import assert_same_rows, make_session

COUNT = 2000
"""Rows of 300 KB: 600 MB, more than half of what the group may have."""


class Rows:
    """Other bytes for each index, quickly made."""

    def __init__(self) -> None:
        self.bytes = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.from_numpy(np.roll(self.bytes, index).reshape(100, 1000, 3)), index


def main() -> None:
    plain = Rows()
    cached = prefeed.CachedDataset(plain, prefeed.DatasetCache(make_session(), size=4000))
    for _ in range(2):
        for index in range(COUNT):
            assert_same_rows([cached[index]], [plain[index]])
    print(cached.get_stat().num_mem_cached)


if __name__ == "__main__":
    main()
