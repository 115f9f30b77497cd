from __future__ import annotations

from dataclasses import replace

import pytest

from prefeed.config import resolve
from prefeed.copying.space import SpaceBudget, SpaceLimits, compute_space, footprint, measure_space
from prefeed.errors import TargetFullError
from prefeed.system.memory import Memory, MemoryGroup
from sandbox import Sandbox

GIB = 1024**3
DISK = SpaceLimits(free_bytes=100 * GIB, floor_bytes=10 * GIB)
MEMORY = SpaceLimits(
    free_bytes=100 * GIB,
    floor_bytes=10 * GIB,
    memory=Memory(
        total_bytes=100 * GIB,
        available_bytes=80 * GIB,
        groups=(MemoryGroup(limit_bytes=70 * GIB, usage_bytes=3 * GIB),),
    ),
)


def test_files_take_whole_blocks_and_an_inode() -> None:
    assert [footprint(size) for size in (-1, 0, 1, 4096, 4097)] == [5120, 5120, 5120, 5120, 9216]


def test_a_disk_keeps_its_floor() -> None:
    assert compute_space(DISK) == (90 * GIB, "10.00 GiB of the file system stay free")
    assert compute_space(replace(DISK, free_bytes=GIB))[0] == 0


def test_memory_is_bounded_by_the_smallest() -> None:
    assert compute_space(MEMORY)[0] == 60 * GIB
    assert "control group" in compute_space(MEMORY)[1]
    bytes_, why = compute_space(replace(MEMORY, memory=Memory(total_bytes=100 * GIB, available_bytes=80 * GIB)))
    assert (round(bytes_ / GIB), "programs" in why) == (70, True)


def test_the_setting_is_the_floor_of_a_disk(sandbox: Sandbox) -> None:
    assert measure_space(sandbox.root, resolve(limits={"disk_free_bytes": 1 << 60}))[0] == 0
    assert measure_space(sandbox.root, resolve(limits={"disk_free_bytes": 0}))[0] > 0


def test_bytes_are_taken_before_they_are_written() -> None:
    ledger = SpaceBudget(footprint(100) * 2, lambda: (1 << 40, ""))
    first = ledger.take(100)
    ledger.take(100)

    with pytest.raises(TargetFullError, match="0 are left"):
        ledger.take(0)
    ledger.release(first)
    ledger.take(100)


def test_another_program_that_fills_the_place_is_seen() -> None:
    looks = iter([(1 << 40, ""), (0, "2 GiB stay free")])
    ledger = SpaceBudget(1 << 40, lambda: next(looks))
    ledger.take(64 * 1024**2)

    with pytest.raises(TargetFullError, match="another program has taken the space: 2 GiB stay free"):
        ledger.take(64 * 1024**2)
