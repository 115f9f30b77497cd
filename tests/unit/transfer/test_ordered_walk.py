from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from prefeed.errors import TransientSourceError
from prefeed.transfer import ordered_walk
from prefeed.transfer.ordered_walk import OrderedWalk, Problem, WalkEvents
from unit.jobs.trees import make


@pytest.mark.usefixtures("sandbox")
def test_links_that_lead_nowhere_are_left_out_and_told(tmp_path: Path) -> None:
    root = make(tmp_path / "root", {"a": b"1", "z/b": b"2"})
    (root / "gone").symlink_to(tmp_path / "gone")
    (root / "itself").symlink_to("itself")
    (root / "z/through a file").symlink_to("../a/b")
    told: list[str] = []

    assert [one.path for one in OrderedWalk(str(root), follow=True, events=WalkEvents(broken=told.append))] == [
        "a",
        "z/b",
    ]
    assert sorted(told) == ["gone", "itself", "z/through a file"]
    assert len(list(OrderedWalk(str(root), follow=False, events=WalkEvents(broken=told.append)))) == 5
    assert len(told) == 3


@pytest.mark.usefixtures("sandbox")
def test_a_root_that_is_another_in_the_end_is_an_error(tmp_path: Path) -> None:
    """Unmounted meanwhile: what is not found any more may be there still."""
    root = make(tmp_path / "root", {"a": b"1", "b": b"2"})
    listing = iter(OrderedWalk(str(root), follow=True))
    assert next(listing).path == "a"
    root.rename(tmp_path / "mounted before")
    os.mkdir(root)

    with pytest.raises(TransientSourceError, match="unmounted or replaced"):
        list(listing)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EACCES, errno.EINTR, errno.ENOMEM])
@pytest.mark.parametrize("step", ["open", "fstat", "scandir", "stat"])
def test_what_cannot_be_looked_at_is_told_and_the_rest_is_listed(
    step: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that answers with an error at one place, at each step of looking at it."""
    root = make(tmp_path / "root", {"a": b"1", "b/c/d": b"2", "b/e": b"3", "f": b"4"})
    bad = str(root / "b/e") if step == "stat" else str(root / "b/c")
    real, descriptors = {name: getattr(os, name) for name in ("open", "fstat", "scandir", "stat")}, set()

    def opened(path: str, *arguments: int, **named: int) -> int:
        descriptor = real["open"](path, *arguments, **named)
        (descriptors.add if path == bad else descriptors.discard)(descriptor)
        return descriptor

    def answered(path: object, *arguments: object, **named: object) -> object:
        if path == bad or path in descriptors:
            raise OSError(number, os.strerror(number), bad)
        return real[step](path, *arguments, **named)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, step, answered)
    told: list[Problem] = []
    found = [one.path for one in OrderedWalk(str(root), follow=True, events=WalkEvents(problem=told.append))]

    assert found == (["a", "b/c/d", "f"] if step == "stat" else ["a", "b/e", "f"])
    assert [f"{root}/{problem.path}" for problem in told] == [bad]
    assert bad in str(told[0].error)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("what", ["file", "directory", "both", "name only", "replaced"])
def test_what_vanishes_is_gone_only_if_its_directory_says_so(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "root", {"a": b"1", "b/c/d": b"2", "b/c/e": b"3"})
    real = os.stat

    def remove_then_ask(path: object, **named: bool) -> os.stat_result:
        if path == f"{root}/b/c/d":
            if what == "file":
                os.unlink(path)
            elif what in ("directory", "both"):
                shutil.rmtree(root / ("b/c" if what == "directory" else "b"))
            elif what == "replaced":
                os.rename(root / "b/c", tmp_path / "moved")
                os.mkdir(root / "b/c")
            else:  # listed, and not found
                raise FileNotFoundError(errno.ENOENT, "", path)
        return real(path, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ordered_walk.os, "stat", remove_then_ask)
    told: list[Problem] = []
    found = [one.path for one in OrderedWalk(str(root), follow=True, events=WalkEvents(problem=told.append))]

    assert found[0] == "a"
    assert "b/c/d" not in found
    assert bool(told) == (what in ("name only", "replaced"))
