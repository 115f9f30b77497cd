from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from prefeed.store.capacity import (
    MIN_STORE_BYTES,
    MemoryLimits,
    choose_store_dir,
    clamp_budget,
    default_budget_bytes,
    is_tmpfs,
    memory_limits,
    plan_budget,
    plan_store_dir,
)
from prefeed.system.memory import Memory, MemoryGroup
from sandbox import Sandbox

GIB = 1024**3
MIB = 1024**2
MACHINE = Memory(total_bytes=64 * GIB, available_bytes=60 * GIB)
GROUP = MemoryGroup(limit_bytes=16 * GIB, usage_bytes=GIB)
LIMITS = MemoryLimits(memory=replace(MACHINE, groups=(GROUP,)))


def limits(*, taken: int = 0, available: int = 60 * GIB, groups: tuple[MemoryGroup, ...] = ()) -> MemoryLimits:
    memory = Memory(total_bytes=64 * GIB, available_bytes=available, groups=groups)
    return MemoryLimits(memory=memory, taken_bytes=taken)


@pytest.mark.parametrize(
    ("memory", "budget"),
    [
        (LIMITS.memory, 8 * GIB),
        (MACHINE, 32 * GIB),
        (Memory(total_bytes=2 * GIB, available_bytes=GIB), GIB),
    ],
    ids=["cgroup", "ram", "little ram"],
)
def test_the_default_is_half_of_the_smallest(memory: Memory, budget: int) -> None:
    assert default_budget_bytes(memory) == budget


def test_a_budget_that_fits_is_left_alone() -> None:
    assert clamp_budget(10 * GIB, LIMITS) == (10 * GIB, None)


@pytest.mark.parametrize(
    ("limits", "most_bytes", "why"),
    [
        (LIMITS, 15 * GIB - int(1.6 * GIB), "control group has 16.00 GiB, and 1.60 GiB of it stay free"),
        (limits(available=20 * GIB), 20 * GIB - int(6.4 * GIB), "this machine has 64.00 GiB"),
        (limits(groups=(replace(GROUP, limit_bytes=64 * GIB, usage_bytes=50 * GIB),)), 14 * GIB - int(6.4 * GIB), "control group"),
        (limits(groups=(replace(GROUP, usage_bytes=16 * GIB),)), 0, "control group"),
        (limits(taken=3 * GIB, groups=(replace(GROUP, usage_bytes=16 * GIB),)), 3 * GIB - int(1.6 * GIB), "control group"),
    ],
    ids=["cgroup", "ram", "50 of 64 GiB in use", "full", "full of the tier itself"],
)  # fmt: skip
def test_what_is_in_use_is_not_granted_and_that_is_said(limits: MemoryLimits, most_bytes: int, why: str) -> None:
    budget, reason = clamp_budget(100 * GIB, limits)
    assert abs(budget - most_bytes) <= 2
    assert reason is not None
    assert "100.00 GiB" in reason
    assert f"{most_bytes / GIB:.2f} GiB" in reason
    assert why in reason


def test_a_grant_shrinks_when_the_reserve_is_touched_and_not_before() -> None:
    """The group has 16 GiB, of which 1.6 are the reserve; the tier has taken 6 of the 8 that it was granted."""

    def plan(usage: int) -> int:
        return plan_budget(8 * GIB, 8 * GIB, limits(taken=6 * GIB, groups=(replace(GROUP, usage_bytes=usage),)))[0]

    assert plan(8 * GIB) == 8 * GIB
    assert plan(12 * GIB) == 8 * GIB
    assert plan(13 * GIB) == 9 * GIB - int(1.6 * GIB)
    assert plan(16 * GIB) == 6 * GIB - int(1.6 * GIB)
    assert plan(30 * GIB) == 6 * GIB - int(1.6 * GIB)


def test_cached_files_are_no_reason_to_shrink_and_one_not_to_grow() -> None:
    """The kernel gives them up before it kills; and it is not for the tier to drive out those that somebody uses."""
    group = replace(GROUP, usage_bytes=15 * GIB, used_files_bytes=9 * GIB)
    assert plan_budget(4 * GIB, 8 * GIB, limits(taken=4 * GIB, groups=(group,)))[0] == 4 * GIB
    idle = replace(group, used_files_bytes=0, idle_files_bytes=9 * GIB)
    assert plan_budget(4 * GIB, 8 * GIB, limits(taken=4 * GIB, groups=(idle,)))[0] == 8 * GIB


def test_a_grant_grows_in_steps_up_to_what_was_asked_for() -> None:
    def plan(granted: int, usage: int) -> tuple[int, str | None]:
        return plan_budget(granted, 8 * GIB, limits(taken=2 * GIB, groups=(replace(GROUP, usage_bytes=usage),)))

    assert plan(2 * GIB, 3 * GIB) == (8 * GIB, None)
    assert plan(8 * GIB, 3 * GIB) == (8 * GIB, None)
    assert plan(8 * GIB - MIB, 3 * GIB) == (8 * GIB, None)
    budget, why = plan(2 * GIB, int(14.4 * GIB) - 100 * MIB)
    assert budget == 2 * GIB
    assert why is not None
    assert "2.00 GiB of 8.00 GiB" in why


def test_the_tightest_of_nested_groups_counts() -> None:
    outer = MemoryGroup(limit_bytes=32 * GIB, usage_bytes=31 * GIB)
    assert clamp_budget(10 * GIB, limits(groups=(GROUP, outer)))[0] == 0
    assert clamp_budget(10 * GIB, limits(groups=(GROUP, replace(outer, usage_bytes=8 * GIB))))[0] == 10 * GIB


def test_room_in_memory_is_used() -> None:
    assert plan_store_dir(Path("/m"), Path("/d"), on_tmpfs=True, free_bytes=GIB) == (Path("/m"), True, None)


@pytest.mark.parametrize(("free_bytes", "what"), [(64 * 1024**2, "64 MiB free"), (None, "cannot be written")])
def test_too_little_memory_falls_back_with_one_warning(free_bytes: int | None, what: str) -> None:
    directory, on_tmpfs, warning = plan_store_dir(Path("/m"), Path("/d"), on_tmpfs=True, free_bytes=free_bytes)
    assert (directory, on_tmpfs) == (Path("/d"), False)
    assert warning is not None
    for part in (what, "/m", "/d", f"{MIN_STORE_BYTES // 1024**2} MiB", "--shm-size", "PREFEED_MEMORY_DIR"):
        assert part in warning


def test_a_memory_directory_on_disk_is_used_and_said() -> None:
    directory, on_tmpfs, warning = plan_store_dir(Path("/m"), Path("/d"), on_tmpfs=False, free_bytes=GIB)
    assert (directory, on_tmpfs) == (Path("/m"), False)
    assert warning is not None
    assert "not a tmpfs" in warning


def test_this_machine(sandbox: Sandbox) -> None:
    assert is_tmpfs(sandbox.memory_dir / "not" / "there")
    memory = memory_limits(sandbox.memory_dir / "not" / "there").memory
    assert 0 < memory.limit_bytes <= memory.total_bytes
    directory, on_tmpfs, warning = choose_store_dir(sandbox.memory_dir, sandbox.home, 1)
    assert (directory, on_tmpfs, warning) == (sandbox.memory_dir, True, None)
    assert choose_store_dir(sandbox.memory_dir / "gone", sandbox.home, 1)[0] == sandbox.home


def test_what_the_store_takes_counts_as_free(sandbox: Sandbox) -> None:
    store = sandbox.memory_dir / "store"
    store.mkdir()
    file = os.open(store / "data.mdb", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 64 * 1024**2)
    os.close(file)
    assert memory_limits(store).taken_bytes >= 64 * 1024**2
