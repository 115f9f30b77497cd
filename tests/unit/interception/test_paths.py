from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.interception.asking import absolute_path, path_name

ABSOLUTE = ["/a/b.jpg", "/a/.hidden/b", "/a//b", "/a/./b", "/a///./b.c", "/a/b..c", "/x", "/a/b.", "/a/...", b"/a/b"]


@pytest.mark.parametrize("name", ABSOLUTE)
def test_an_absolute_path_is_made_normal(name: str | bytes) -> None:
    assert absolute_path(name) == os.path.abspath(os.fsdecode(name))


@pytest.mark.parametrize(
    "name", ["b.jpg", "a/b", "./b", "a//b", "a/./b", "../b", "../../b", ".././../b", "./../b", ".hidden", "..b", "a/.b"]
)
def test_a_relative_path_is_below_the_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_path(name) == os.path.abspath(name)


def test_a_relative_path_may_leave_by_more_steps_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert absolute_path("../../b") == absolute_path("b") == "/b"


def test_the_working_directory_is_physical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path / "link")
    assert absolute_path("../b") == f"{tmp_path}/b"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        ".",
        "..",
        "a/",
        "/a/",
        "/a/.",
        "/a/..",
        "/a/../b",
        "a/../b",
        "../a/../b",
        "//a/b",
        "a\0b",
        "a/.",
        "/proc/self/cwd/a",
        "/proc/7/root/a",
        "/dev/fd/3",
    ],
)
def test_what_only_the_kernel_knows_is_left_to_it(name: str) -> None:
    assert absolute_path(name) is None


def test_without_a_working_directory_a_relative_path_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert absolute_path("b") is None
    assert absolute_path("/b") == "/b"


@pytest.mark.parametrize("file", [3, None, 1.5, True, object()])
def test_what_is_no_path_has_no_name(file: object) -> None:
    assert path_name(file) is None


def test_the_name_is_as_a_file_has_it() -> None:
    assert (path_name("a"), path_name(b"a"), path_name(Path("a"))) == ("a", b"a", "a")
