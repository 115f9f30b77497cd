"""Places that lie in one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefeed.system.paths import is_in, is_in_resolved, path_below


@pytest.mark.parametrize(
    ("place", "root", "lies"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/a/b", "/a/", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
        ("/a", "/a/", False),
        ("s3://b/p/q", "s3://b/p", True),
        ("s3://b/pq", "s3://b/p", False),
        ("s3://b/p", "/s3", False),
    ],
)
def test_a_place_lies_in_another(place: str, root: str, lies: bool) -> None:
    assert is_in(place, root) == lies
    assert is_in_resolved(place, root) == (lies or place == root.rstrip("/"))


def test_links_lead_to_where_they_lead(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    inside, data = str(tmp_path / "link" / "new"), str(tmp_path / "data")
    assert not is_in(inside, data)
    assert is_in_resolved(inside, data)
    assert is_in_resolved(data, str(tmp_path / "link"))
    assert not is_in_resolved(data, inside)


@pytest.mark.parametrize(
    ("place", "root", "path"),
    [("/a/b", "/a", "b"), ("/a/b", "/", "a/b"), ("s3://b/p/q", "s3://b/p", "q"), ("s3://b//x", "s3://b", "/x")],
)
def test_the_path_of_a_place_below_a_root(place: str, root: str, path: str) -> None:
    assert path_below(place, root) == path
