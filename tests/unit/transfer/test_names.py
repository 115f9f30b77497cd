from __future__ import annotations

import pytest

from prefeed.transfer.entries import why_unsafe


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "..", "../a", "a/../../b", "a/..", ".", "a/./b", "a//b", "a/", "a\0b", "é" * 128]
)  # fmt: skip
def test_paths_that_could_leave_the_directory_are_refused(path: str) -> None:
    assert why_unsafe(path)


@pytest.mark.parametrize("path", ["a", "a/b.jpg", "...", "..a/b..", ".hidden", "a b/ü\n", "\udcff\udc80", "é" * 127])
def test_odd_names_are_names(path: str) -> None:
    assert why_unsafe(path) is None
