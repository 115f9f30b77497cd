from __future__ import annotations

import pytest

from prefeed.transfer.entries import Entry, directories_of, split_storable, why_unsafe


def info(path: str, size: int = 1) -> Entry:
    return Entry(path, size, None, "v")


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "..", "../a", "a/../../b", "a/..", ".", "a/./b", "a//b", "a/", "a\0b", "é" * 128]
)  # fmt: skip
def test_paths_that_could_leave_the_directory_are_refused(path: str) -> None:
    assert why_unsafe(path)


@pytest.mark.parametrize("path", ["a", "a/b.jpg", "...", "..a/b..", ".hidden", "a b/ü\n", "\udcff\udc80", "é" * 127])
def test_odd_names_are_names(path: str) -> None:
    assert why_unsafe(path) is None


def test_directories_are_those_above() -> None:
    assert directories_of(["a/b/c", "a/d", "e"]) == {"a", "a/b"}


def test_a_file_that_is_also_a_directory_is_refused() -> None:
    kept, refused = split_storable([info("a"), info("a/b"), info("c")], folds_case=False)

    assert [item.path for item in kept] == ["a/b", "c"]
    assert "directory" in refused["a"]


def test_of_a_path_listed_twice_the_last_counts() -> None:
    kept, _ = split_storable([info("a", 1), info("a", 2)], folds_case=False)

    assert [item.size_bytes for item in kept] == [2]


def test_names_that_differ_in_case_only_clash_where_case_is_folded() -> None:
    items = [info("a/X.jpg"), info("a/x.jpg"), info("A")]

    assert len(split_storable(items, folds_case=False)[0]) == 3
    kept, refused = split_storable(items, folds_case=True)
    assert [item.path for item in kept] == ["a/X.jpg"]
    assert set(refused) == {"a/x.jpg", "A"}
