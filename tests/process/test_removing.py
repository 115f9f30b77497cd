"""What prefeed removes of its own, in directories that a user named, ends at mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mounting import bind, needs_root, unmount, with_own_mounts
from prefeed.config import resolve
from prefeed.copying.copies import DATA, unstage
from prefeed.copying.staging import StageRequest, stage
from prefeed.errors import CopyError
from prefeed.system.removing import remove_tree
from sandbox import Sandbox
from unit.jobs.trees import make, tree

pytestmark = needs_root

FILES = {"a/b": b"one", "c": b"three"}


def _tree(tmp_path: Path) -> None:
    top = make(tmp_path / "top", {"x/y": b"1", "z": b"2"})
    outside = bind(make(tmp_path / "outside", FILES), top / "x/point")
    (top / "link").symlink_to(outside)
    with pytest.raises(OSError, match="is a mount") as raised:
        remove_tree(top)
    assert raised.value.filename == str(top / "x/point")
    remove_tree(top, ignore_errors=True)
    remove_tree(top / "x/point", ignore_errors=True)
    assert tree(outside) == FILES
    assert set(os.listdir(top)) == {"x"}
    unmount(top / "x/point")
    remove_tree(top)
    assert not top.exists()


def test_a_tree_is_removed_but_for_what_is_mounted_in_it(tmp_path: Path) -> None:
    with_own_mounts(_tree, tmp_path)


def test_neither_a_file_nor_a_link_is_a_tree(tmp_path: Path) -> None:
    outside = make(tmp_path / "outside", FILES)
    (tmp_path / "link").symlink_to(outside)
    for path in (tmp_path / "link", outside / "c", tmp_path / "nothing"):
        with pytest.raises(OSError, match=path.name):
            remove_tree(path)
        remove_tree(path, ignore_errors=True)
    assert tree(outside) == FILES


def _copy(tmp_path: Path, place: Path) -> None:
    origin = make(tmp_path / "origin", FILES)
    request = StageRequest(url=str(origin), place=place)
    record = stage(request, resolve()).record
    data = Path(record.directory) / DATA
    outside = bind(make(tmp_path / "outside", {"theirs": b"t"}), data / "point")
    with pytest.raises(CopyError, match=str(data / "point")):
        stage(request, resolve())
    with pytest.raises(CopyError, match=str(data / "point")):
        unstage(record, resolve())
    assert tree(outside) == {"theirs": b"t"}
    unmount(data / "point")
    unstage(record, resolve())
    assert not data.exists()


def test_a_copy_is_removed_but_for_what_is_mounted_in_it(tmp_path: Path, sandbox: Sandbox) -> None:
    with_own_mounts(_copy, tmp_path, sandbox.memory_dir)
