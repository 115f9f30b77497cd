from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from prefeed.config import EVERYTHING, MIB, DiskBudget, resolve
from prefeed.errors import SpecError
from prefeed.limits import Limits
from prefeed.sampleset.status import explain
from prefeed.sampleset.tiers import nearest_directory
from sandbox import Sandbox
from unit.sampleset.documents import applied, apply, sample_set


def settings_of(options: dict[str, Any] | None = None, *levels: dict[str, Any], **base: Any) -> Any:
    spec: dict[str, Any] = {"source": {"uri": "/data"}, "csi": {"juiceFSMountOptions": options or {}}}
    if levels:
        spec["cache"] = {"levels": list(levels)}
    return applied(sample_set(**spec)).settings(resolve(base))


def level(medium: str, path: str | Path = "", **size: int) -> dict[str, Any]:
    return {"mediumType": medium, **({"path": str(path)} if path else {}), **size}


def test_levels_are_tiers(sandbox: Sandbox) -> None:
    disk = sandbox.root / "disk"
    found = settings_of(
        {}, level("MEM", sandbox.memory_dir, cacheSize=64), level("SSD", disk, cacheSize=200), idle_timeout=9
    )
    assert (found.memory, found.memory_dir) == (64 * MIB, sandbox.memory_dir)
    assert found.disk.size_bytes == 200 * MIB
    assert found.disk.directory == disk / f"prefeed-{os.getuid()}-{found.home_id}"
    assert found.idle_timeout == 0.0


def test_two_sets_with_one_path_have_two_directories(sandbox: Sandbox) -> None:
    cache = {"levels": [level("HDD", sandbox.root, cacheSize=10)]}
    sets = [applied(sample_set(name, source={"uri": "/data"}, cache=cache), name=name) for name in ("a", "b")]
    first, second = (found.settings(resolve()) for found in sets)
    assert first.disk_path != second.disk_path
    assert first.home_id != second.home_id


def test_levels_without_a_size_or_a_path(sandbox: Sandbox) -> None:
    found = settings_of({}, level("MEM"), level("SSD"), memory="8MiB")
    assert (found.memory, found.memory_dir) == (8 * MIB, sandbox.memory_dir)  # as set, for nothing was said
    assert found.disk == DiskBudget(EVERYTHING)


def test_levels_in_memory_alone_have_no_disk() -> None:
    assert settings_of({}, level("MEM", cacheSize=8), disk="1GiB").disk == DiskBudget()


def test_without_levels_prefeeds_own(sandbox: Sandbox) -> None:
    found = settings_of({}, disk=f"1GiB:{sandbox.root / 'tier'}", memory="8MiB")
    assert (found.memory, found.disk.size_bytes) == (8 * MIB, 1024 * MIB)
    assert found.disk.directory.parent == sandbox.root / "tier"  # not that directory itself: it is another server's


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cache-size": 16}, {"memory": 16 * MIB, "disk": DiskBudget()}),
        ({"cache-dir": "memory", "cache-size": 16}, {"memory": 16 * MIB, "disk": DiskBudget()}),
        (
            {"cache-dir": "/dev/shm/x", "cache-size": 16},
            {"memory": 16 * MIB, "memory_dir": Path("/dev/shm"), "disk": DiskBudget()},
        ),
        ({"metrics": "127.0.0.1:9567"}, {"metrics": "127.0.0.1:9567"}),
        (
            {"get-timeout": 7, "buffer-size": 300},
            {"limits": Limits(request_seconds=7.0, lookahead_bytes=300 * MIB)},
        ),
    ],
)
def test_options_are_settings(options: dict[str, Any], expected: dict[str, Any]) -> None:
    found = settings_of(options)
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_directory_on_disk_is_a_disk_tier() -> None:
    assert settings_of({"cache-dir": "/tmp/x", "cache-size": 16}).disk.size_bytes == 16 * MIB


def test_levels_win_over_the_options_that_say_the_same(sandbox: Sandbox) -> None:
    found = settings_of({"cache-dir": "/tmp/x", "cache-size": 1}, level("MEM", sandbox.memory_dir, cacheSize=8))
    assert (found.memory, found.disk) == (8 * MIB, DiskBudget())


def test_the_free_space_of_the_disk(sandbox: Sandbox) -> None:
    system = os.statvfs(sandbox.root)
    found = settings_of({"free-space-ratio": "0.25"}, level("SSD", sandbox.root / "not" / "there", cacheSize=8))
    assert found.limits.disk_free_bytes == int(0.25 * system.f_blocks * system.f_frsize)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([level("SSD", "/a:b")], "'b' must be an absolute path"),
        ([level("SSD", "a/b")], "must be an absolute path"),
        ([level("SSD", "/a/../b")], r"without \.\."),
        ([level("MEM", "/tmp/a")], "is on a disk, and mediumType MEM asks for a tmpfs"),
    ],
)
def test_what_no_tier_is_for(levels: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        apply(sample_set(source={"uri": "/data"}, cache={"levels": levels}))


@pytest.mark.parametrize(
    ("levels", "disk", "path"),
    [
        ([{"cacheSize": 8}, {"cacheSize": 4}], 12 * MIB, "/a"),
        ([{"cacheSize": 8}, {}], EVERYTHING, "/a"),
        ([{"path": "/a:/b", "cacheSize": 8}], 8 * MIB, "/a"),
    ],
)
def test_several_levels_of_a_kind_are_one_in_the_first_directory(
    levels: list[dict[str, Any]], disk: int, path: str
) -> None:
    """As in the original, sizes are added; here a tier lies in one directory."""
    given = [
        {"mediumType": medium, "path": f"/{name}", **each}
        for medium, name, each in zip(("SSD", "HDD"), "ab", levels, strict=False)
    ]
    found = settings_of({}, *given)

    assert found.disk.size_bytes == disk
    assert found.disk.directory.parent == Path(path)


def test_the_user_is_told_that_levels_are_joined() -> None:
    levels = [level("SSD", "/a:/b"), level("MEM", "", cacheSize=256)]
    found = applied(sample_set(source={"uri": "/data"}, cache={"levels": levels}))
    told = [each.meaning for each in explain(found, resolve()) if "levels" in each.field]

    assert ["the first directory is used" in each for each in told] == [True, False]


def test_a_directory_that_is_there(tmp_path: Path) -> None:
    assert nearest_directory(tmp_path / "a" / "b") == tmp_path
