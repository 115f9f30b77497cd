"""What the kernel says of memory, and what it means. The machine is a table of texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefeed.system.memory import (
    Memory,
    MemoryGroup,
    fits_in_memory,
    memory_groups,
    parse_limit,
    parse_meminfo,
    read_memory,
)

GIB = 1024**3
ROOT = Path("/sys/fs/cgroup")


def groups_of(own: str, files: dict[str, str]) -> list[MemoryGroup]:
    texts = {ROOT / path: text for path, text in files.items()}
    return list(memory_groups(own, ROOT, texts.get))


def test_version_2_has_limits_all_the_way_up() -> None:
    files = {
        "pods/pod7/box/memory.max": "max\n",
        "pods/pod7/memory.max": f"{4 * GIB}\n",
        "pods/pod7/memory.current": "1000\n",
        "pods/pod7/memory.stat": "anon 10\nfile 990\nshmem 300\ninactive_file 500\nactive_file 190\n",
        "pods/memory.max": f"{8 * GIB}\n",
    }
    assert groups_of("0::/pods/pod7/box\n", files) == [
        MemoryGroup(limit_bytes=4 * GIB, usage_bytes=1000, idle_files_bytes=500, used_files_bytes=190),
        MemoryGroup(limit_bytes=8 * GIB),
    ]


def test_of_two_limits_of_a_group_the_smaller_counts() -> None:
    files = {"a/memory.max": f"{4 * GIB}\n", "a/memory.high": f"{3 * GIB}\n", "memory.high": f"{9 * GIB}\n"}
    assert [group.limit_bytes for group in groups_of("0::/a\n", files)] == [3 * GIB, 9 * GIB]
    assert [
        group.limit_bytes for group in groups_of("0::/a\n", {"a/memory.high": "5000\n", "a/memory.max": "max"})
    ] == [5000]


def test_version_1_beside_an_empty_version_2() -> None:
    own = "9:name=systemd:/\n5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/\n"
    files = {
        "memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/docker/abc/memory.usage_in_bytes": "1700\n",
        "memory/docker/abc/memory.stat": "inactive_file 1\ntotal_inactive_file 600\ntotal_active_file 100\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert groups_of(own, files) == [
        MemoryGroup(limit_bytes=2 * GIB, usage_bytes=1700, idle_files_bytes=600, used_files_bytes=100)
    ]


def test_a_container_that_sees_its_own_group_as_the_root() -> None:
    assert groups_of("0::/../../pod\n", {"memory.max": f"{GIB}\n"}) == [MemoryGroup(limit_bytes=GIB)]


@pytest.mark.parametrize("own", ["", "0::/\n", "nonsense", "1:cpu:/\n"])
def test_no_control_group_is_no_limit(own: str) -> None:
    assert groups_of(own, {"memory.max": "max\n"}) == []


@pytest.mark.parametrize("text", [None, "max\n", "", "9223372036854771712\n", "-1\n"])
def test_what_is_not_a_limit(text: str | None) -> None:
    assert parse_limit(text) is None


def test_cached_files_are_left_and_pages_of_a_tmpfs_are_not() -> None:
    """Of 1000 in use 300 are of a tmpfs, which only their owner gives back."""
    group = MemoryGroup(limit_bytes=1200, usage_bytes=1000, idle_files_bytes=500, used_files_bytes=190)
    assert group.left_bytes == 700
    assert group.reclaimable_left_bytes == 890
    assert MemoryGroup(limit_bytes=5, usage_bytes=9).left_bytes == 0


def test_what_is_left_is_the_least_of_all() -> None:
    memory = Memory(total_bytes=1000, available_bytes=800)
    assert (memory.limit_bytes, memory.left_bytes) == (1000, 800)
    inner, outer = MemoryGroup(limit_bytes=500, usage_bytes=100), MemoryGroup(limit_bytes=900, usage_bytes=850)
    memory = Memory(total_bytes=1000, available_bytes=800, groups=(inner, outer))
    assert (memory.limit_bytes, memory.left_bytes) == (500, 50)
    spare, why = memory.spare_bytes()
    assert spare == 50 - 90
    assert "the control group" in why


def test_a_tenth_stays_free() -> None:
    spare, why = Memory(total_bytes=64 * GIB, available_bytes=20 * GIB).spare_bytes()
    assert spare == 20 * GIB - int(6.4 * GIB)
    assert why == "this machine has 64.00 GiB, and 6.40 GiB of it stay free for programs"


def test_a_machine_of_texts() -> None:
    texts = {
        "/proc/meminfo": "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:   80 kB\nHugePages_Total: 0\n",
        "/proc/self/cgroup": "0::/a\n",
        "/sys/fs/cgroup/a/memory.max": "50000\n",
        "/sys/fs/cgroup/a/memory.current": "10000\n",
    }
    found = read_memory(lambda path: texts.get(str(path)))
    assert found == Memory(
        total_bytes=102400, available_bytes=81920, groups=(MemoryGroup(limit_bytes=50000, usage_bytes=10000),)
    )
    assert parse_meminfo("nothing") == {}


def test_a_machine_that_says_nothing_has_its_ram() -> None:
    found = read_memory(lambda _: None)
    assert found.total_bytes == found.available_bytes > 0
    assert found.groups == ()


def test_who_takes_at_once_leaves_half_of_the_reserve() -> None:
    texts = {"/proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 50 kB\n"}

    def read(path: Path) -> str | None:
        return texts.get(str(path))

    assert fits_in_memory(45 * 1024, read)
    assert not fits_in_memory(45 * 1024 + 1, read)


def test_this_machine() -> None:
    found = read_memory()
    assert 0 < found.available_bytes <= found.total_bytes
    assert 0 < found.left_bytes <= found.total_bytes
