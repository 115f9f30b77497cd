"""Run by a test in a control group with little memory: asks for much more, prints how much it kept."""

from __future__ import annotations

import prefeed
from e2e.parity import assert_same_rows, make_session
from e2e.parity_readers import RandomData

COUNT = 2000
"""Rows of 300 KB: 600 MB, more than half of what the group may have."""


def main() -> None:
    plain = prefeed.not_random(RandomData(COUNT, (100, 1000, 3)))
    cached = prefeed.CachedDataset(plain, prefeed.DatasetCache(make_session(), size=4000))
    for _ in range(2):
        for index in range(COUNT):
            assert_same_rows([cached[index]], [plain[index]])
    print(cached.get_stat().num_mem_cached)


if __name__ == "__main__":
    main()
