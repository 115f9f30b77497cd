from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from prefeed.store.capacity import (
    MIN_STORE_BYTES,
    CgroupMemory,
    MemoryLimits,
    cgroup_memory,
    choose_store_dir,
    clamp_budget,
    default_budget_bytes,
    is_tmpfs,
    memory_limits,
    parse_limit,
    plan_store_dir,
    smallest_cgroup,
)
from sandbox import Sandbox

GIB = 1024**3
LIMITS = MemoryLimits(ram_bytes=64 * GIB, cgroup_limit_bytes=16 * GIB, cgroup_usage_bytes=GIB, free_bytes=32 * GIB)
ROOT = Path("/sys/fs/cgroup")


@pytest.mark.parametrize(
    ("limits", "budget"),
    [
        (LIMITS, 8 * GIB),
        (replace(LIMITS, cgroup_limit_bytes=None), 16 * GIB),
        (replace(LIMITS, free_bytes=64 * 1024**2), 32 * 1024**2),
        (replace(LIMITS, ram_bytes=2 * GIB), GIB),
        (replace(LIMITS, free_bytes=0), 0),
    ],
    ids=["cgroup", "free space", "docker default", "ram", "nothing"],
)
def test_the_default_is_half_of_the_smallest(limits: MemoryLimits, budget: int) -> None:
    assert default_budget_bytes(limits) == budget


def test_a_budget_that_fits_is_left_alone() -> None:
    assert clamp_budget(10 * GIB, LIMITS) == (10 * GIB, None)


@pytest.mark.parametrize(
    ("limits", "most_bytes", "why"),
    [
        (LIMITS, int(14.4 * GIB), "control group"),
        (replace(LIMITS, free_bytes=GIB), GIB, "--shm-size"),
        (replace(LIMITS, ram_bytes=10 * GIB), 9 * GIB, "RAM"),
        (replace(LIMITS, cgroup_limit_bytes=None), 32 * GIB, "--shm-size"),
    ],
    ids=["cgroup", "free space", "ram", "no cgroup"],
)
def test_a_budget_larger_than_the_machine_is_cut_and_said(limits: MemoryLimits, most_bytes: int, why: str) -> None:
    budget, reason = clamp_budget(100 * GIB, limits)
    assert budget == most_bytes
    assert reason is not None
    assert "100.00 GiB" in reason
    assert f"{most_bytes / GIB:.2f} GiB" in reason
    assert why in reason


def _cgroups(own: str, files: dict[str, str]) -> list[CgroupMemory]:
    texts = {ROOT / path: text for path, text in files.items()}
    return list(cgroup_memory(own, ROOT, texts.get))


def test_version_2_takes_the_smallest_limit_on_the_way_up() -> None:
    files = {
        "pods/pod7/box/memory.max": "max\n",
        "pods/pod7/memory.max": f"{4 * GIB}\n",
        "pods/pod7/memory.current": "1000\n",
        "pods/memory.max": f"{8 * GIB}\n",
    }
    groups = _cgroups("0::/pods/pod7/box\n", files)
    assert smallest_cgroup(iter(groups)) == CgroupMemory(limit_bytes=4 * GIB, usage_bytes=1000)
    assert len(groups) == 2


def test_version_1_beside_an_empty_version_2() -> None:
    own = "9:name=systemd:/\n5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/\n"
    files = {
        "memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/docker/abc/memory.usage_in_bytes": "17\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert _cgroups(own, files) == [CgroupMemory(limit_bytes=2 * GIB, usage_bytes=17)]


def test_a_container_that_sees_its_own_group_as_the_root() -> None:
    assert _cgroups("0::/../../pod\n", {"memory.max": f"{GIB}\n"}) == [CgroupMemory(limit_bytes=GIB, usage_bytes=0)]


def test_no_control_group_is_no_limit() -> None:
    assert smallest_cgroup(iter(_cgroups("", {}))) is None
    assert smallest_cgroup(iter(_cgroups("0::/\n", {"memory.max": "max\n"}))) is None


@pytest.mark.parametrize("text", [None, "max\n", "", "9223372036854771712\n", "-1\n"])
def test_what_is_not_a_limit(text: str | None) -> None:
    assert parse_limit(text) is None


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
    limits = memory_limits(sandbox.memory_dir / "not" / "there")
    assert 0 < limits.smallest_bytes <= limits.ram_bytes
    directory, on_tmpfs, warning = choose_store_dir(sandbox.memory_dir, sandbox.home, 1)
    assert (directory, on_tmpfs, warning) == (sandbox.memory_dir, True, None)
    assert choose_store_dir(sandbox.memory_dir / "gone", sandbox.home, 1)[0] == sandbox.home


def test_what_the_store_takes_counts_as_free(sandbox: Sandbox) -> None:
    store = sandbox.memory_dir / "store"
    store.mkdir()
    file = os.open(store / "data.mdb", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 64 * 1024**2)
    os.close(file)
    free = os.statvfs(sandbox.memory_dir)
    limits = memory_limits(store)
    assert limits.free_bytes >= free.f_bavail * free.f_frsize + 32 * 1024**2
