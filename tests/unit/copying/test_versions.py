from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.copying.versions import FoundFile, is_copy_of, time_of
from prefeed.sources.file_versions import version_of
from prefeed.types import ObjectInfo


def copy_at(path: Path, data: bytes, time_ns: int) -> FoundFile:
    path.write_bytes(data)
    os.utime(path, ns=(time_ns, time_ns))
    return FoundFile.of(path.lstat())


def test_a_file_keeps_its_time(tmp_path: Path) -> None:
    for time_ns in (0, 5, 1700000000123456789):
        copy_at(tmp_path / "a", b"abc", time_ns)
        assert time_of(version_of(os.stat(tmp_path / "a"), str(tmp_path / "a"))) == time_ns
    assert time_of(b"file".hex() + "g" * 64) == time_of(b"file".hex() + "g" * 64)  # no file's, whatever it looks like
    assert time_of("1700000000123456789-42") == 1700000000123456789
    assert time_of("1700000000-42") == 1700000000 * 10**9  # a store without etags tells seconds


def test_etags_become_different_times_that_are_past() -> None:
    times = {time_of(f'"{number:032x}"') for number in range(1000)}

    assert len(times) == 1000
    assert max(times) < 10**18
    assert time_of('"abc"') == time_of('"abc"')


@pytest.mark.parametrize(
    ("size", "version", "same"), [(3, "e1", True), (4, "e1", False), (3, "e2", False), (-1, "e1", True)]
)
def test_size_and_version_tell_a_copy(tmp_path: Path, size: int, version: str, same: bool) -> None:
    found = copy_at(tmp_path / "a", b"abc", time_of("e1"))

    assert is_copy_of(ObjectInfo(path="a", size_bytes=size, version=version), found, step_ns=1) is same


def test_without_a_version_the_size_has_to_do(tmp_path: Path) -> None:
    found = copy_at(tmp_path / "a", b"abc", 5)

    assert is_copy_of(ObjectInfo(path="a", size_bytes=3, version=""), found, step_ns=1)
    assert not is_copy_of(ObjectInfo(path="a", size_bytes=2, version=""), found, step_ns=1)


def test_times_are_compared_as_finely_as_the_file_system_keeps_them(tmp_path: Path) -> None:
    info = ObjectInfo(path="a", size_bytes=3, version="1700000000123456789-3")
    found = copy_at(tmp_path / "a", b"abc", 1700000000 * 10**9)

    assert is_copy_of(info, found, step_ns=10**9)
    assert not is_copy_of(info, found, step_ns=1)
