from __future__ import annotations

from dataclasses import replace

import pytest

from prefeed.config import resolve
from prefeed.copying.room import Ledger, MachineRoom, look_at, plan_room, room_of
from prefeed.errors import TargetFullError
from prefeed.system.memory import Memory, MemoryGroup
from sandbox import Sandbox

GIB = 1024**3
DISK = MachineRoom(free_bytes=100 * GIB, floor_bytes=10 * GIB)
MEMORY = MachineRoom(
    free_bytes=100 * GIB,
    floor_bytes=10 * GIB,
    memory=Memory(
        total_bytes=100 * GIB,
        available_bytes=80 * GIB,
        groups=(MemoryGroup(limit_bytes=70 * GIB, usage_bytes=3 * GIB),),
    ),
)


def test_files_take_whole_blocks_and_an_inode() -> None:
    assert [room_of(size) for size in (-1, 0, 1, 4096, 4097)] == [5120, 5120, 5120, 5120, 9216]


def test_a_disk_keeps_its_floor() -> None:
    assert plan_room(DISK) == (90 * GIB, "10.00 GiB of the file system stay free")
    assert plan_room(replace(DISK, free_bytes=GIB))[0] == 0


def test_memory_is_bounded_by_the_smallest() -> None:
    assert plan_room(MEMORY)[0] == 60 * GIB
    assert "control group" in plan_room(MEMORY)[1]
    bytes_, why = plan_room(replace(MEMORY, memory=Memory(total_bytes=100 * GIB, available_bytes=80 * GIB)))
    assert (round(bytes_ / GIB), "programs" in why) == (70, True)


def test_the_setting_is_the_floor_of_a_disk(sandbox: Sandbox) -> None:
    assert look_at(sandbox.root, resolve(limits={"disk_free_bytes": 1 << 60}))[0] == 0
    assert look_at(sandbox.root, resolve(limits={"disk_free_bytes": 0}))[0] > 0


def test_bytes_are_taken_before_they_are_written() -> None:
    ledger = Ledger(room_of(100) * 2, lambda: (1 << 40, ""))
    first = ledger.take(100)
    ledger.take(100)

    with pytest.raises(TargetFullError, match="0 are left"):
        ledger.take(0)
    ledger.give_back(first)
    ledger.take(100)


def test_another_program_that_fills_the_place_is_seen() -> None:
    looks = iter([(1 << 40, ""), (0, "2 GiB stay free")])
    ledger = Ledger(1 << 40, lambda: next(looks))
    ledger.take(64 * 1024**2)

    with pytest.raises(TargetFullError, match="another program has taken the space: 2 GiB stay free"):
        ledger.take(64 * 1024**2)
