"""A node whose part of the next epoch is known keeps what it will read again."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

import prefeed
from limits import set_limits

NUM_OBJECTS = 640
SIZE = 96 * 1024
NODES = 4
ROOM = 0.12
"""Of all objects, in the memory of this node."""


def origin(directory: Path) -> Path:
    directory.mkdir()
    for number in range(NUM_OBJECTS):
        (directory / f"{number:04d}.bin").write_bytes(number.to_bytes(4, "big") * (SIZE // 4))
    return directory


def requests_by_epoch(sampler: DistributedSampler[Any], dataset: Any, epochs: int) -> list[int]:
    loader = prefeed.DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=list)
    counts = [0]
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            assert all(len(data) == SIZE for data in batch)
        counts.append(prefeed.statistics().origin_requests)
    return [after - before for before, after in itertools.pairwise(counts)]


def test_what_is_read_in_the_next_epoch_too_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", str(int(ROOM * NUM_OBJECTS * SIZE)))
    set_limits(monkeypatch, lookahead_bytes=8 * SIZE)
    dataset = prefeed.datasets.Objects(origin(tmp_path / "data"))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=NODES, rank=0)
    parts = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        parts.append(set(sampler))
    common = [len(now & following) for now, following in itertools.pairwise(parts)]

    requests = requests_by_epoch(sampler, dataset, 4)

    assert requests[0] >= len(parts[0])  # the cache was there
    assert sum(common) > 3 * 0.18 * len(parts[0])  # about a quarter of a part
    assert sum(requests[1:]) <= sum(map(len, parts[1:])) - 0.6 * sum(common), (requests, common)
