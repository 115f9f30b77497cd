from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.errors import TransientSourceError
from prefeed.jobs.trees import Tree, TreeEvents
from unit.jobs.trees import make


@pytest.mark.usefixtures("sandbox")
def test_links_that_lead_nowhere_are_left_out_and_told(tmp_path: Path) -> None:
    root = make(tmp_path / "root", {"a": b"1", "z/b": b"2"})
    (root / "gone").symlink_to(tmp_path / "gone")
    (root / "itself").symlink_to("itself")
    (root / "z/through a file").symlink_to("../a/b")
    told: list[str] = []

    assert [one.path for one in Tree(str(root), follow=True, events=TreeEvents(broken=told.append))] == ["a", "z/b"]
    assert sorted(told) == ["gone", "itself", "z/through a file"]
    assert len(list(Tree(str(root), follow=False, events=TreeEvents(broken=told.append)))) == 5
    assert len(told) == 3


@pytest.mark.usefixtures("sandbox")
def test_a_root_that_is_another_in_the_end_is_an_error(tmp_path: Path) -> None:
    """Unmounted meanwhile: what is not found any more may be there still."""
    root = make(tmp_path / "root", {"a": b"1", "b": b"2"})
    listing = iter(Tree(str(root), follow=True))
    assert next(listing).path == "a"
    root.rename(tmp_path / "mounted before")
    os.mkdir(root)

    with pytest.raises(TransientSourceError, match="unmounted or replaced"):
        list(listing)
