from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.sources.file_versions import version_of
from prefeed.transfer.entries import Entry, is_copy, stamp_of
from prefeed.types import ObjectInfo

SECOND = 10**9


def of(version: str, size: int = 3, modified: int = 0) -> Entry:
    return Entry.of(ObjectInfo(path="a", size_bytes=size, version=version, modified_seconds=modified))


def copy_at(path: Path, data: bytes, time_ns: int | None) -> Entry:
    path.write_bytes(data)
    if time_ns is not None:
        os.utime(path, ns=(time_ns, time_ns))
    status = path.lstat()
    return Entry("a", status.st_size, status.st_mtime_ns)


def test_a_file_keeps_its_time(tmp_path: Path) -> None:
    for time_ns in (0, 5, 1700000000123456789):
        found = copy_at(tmp_path / "a", b"abc", time_ns)
        version = version_of(os.stat(tmp_path / "a"), str(tmp_path / "a"))
        assert stamp_of(of(version)) == stamp_of(found) == stamp_of(of("e"), version) == time_ns
    odd = of(b"file".hex() + "g" * 64)  # no file's, whatever it looks like
    assert stamp_of(odd) == stamp_of(odd)
    assert stamp_of(of("1700000000123456789-42")) == 1700000000123456789
    assert stamp_of(of("1700000000-42")) == 1700000000 * SECOND  # a store without etags tells seconds


def test_etags_become_different_times_that_are_past() -> None:
    times = {stamp_of(of(f'"{number:032x}"')) for number in range(1000)}

    assert len(times) == 1000
    assert max(time or 0 for time in times) < 10**18
    assert stamp_of(of('"abc"')) == stamp_of(of('"abc"'))


def test_of_an_object_the_time_of_its_store_is_kept_to_the_second() -> None:
    stamps = [stamp_of(of(etag, modified=1_700_000_000)) or 0 for etag in ('"one"', '"two"')]

    assert [stamp // SECOND for stamp in stamps] == [1_700_000_000] * 2
    assert stamps[0] != stamps[1]


@pytest.mark.parametrize(
    ("size", "version", "same"), [(3, "e1", True), (4, "e1", False), (3, "e2", False), (-1, "e1", True)]
)
def test_size_and_version_tell_a_copy(tmp_path: Path, size: int, version: str, same: bool) -> None:
    found = copy_at(tmp_path / "a", b"abc", stamp_of(of("e1")))

    assert is_copy(of(version, size), found, step_ns=1) is same


def test_without_a_version_the_size_has_to_do(tmp_path: Path) -> None:
    found = copy_at(tmp_path / "a", b"abc", 5)

    assert is_copy(of("", 3), found, step_ns=1)
    assert not is_copy(of("", 2), found, step_ns=1)
    assert not is_copy(of("", -1), found, step_ns=1)


def test_times_are_compared_as_finely_as_the_file_system_keeps_them(tmp_path: Path) -> None:
    entry = of("1700000000123456789-3")
    found = copy_at(tmp_path / "a", b"abc", 1700000000 * SECOND)

    assert is_copy(entry, found, step_ns=SECOND)
    assert not is_copy(entry, found, step_ns=1)


def test_the_time_0_is_a_time(tmp_path: Path) -> None:
    """Files in images of containers often have it: another file of the same size is no copy of one."""
    source = copy_at(tmp_path / "a", b"abc", 0)

    assert is_copy(source, source._replace(mtime_ns=0), step_ns=1)
    assert not is_copy(source, copy_at(tmp_path / "b", b"xyz", None), step_ns=1)
