from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefeed.config import resolve
from prefeed.errors import JobError, JobSpecError, ObjectNotFoundError
from prefeed.jobs.rmr import relative_paths, remove, survey
from profiles import examples
from unit.jobs.trees import make, tree

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = {"train/a/1": b"1", "train/a/2": b"22", "train/b/3": b"333", "val/4": b"4444"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "root", FILES)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return make(tmp_path / "outside", {"x/y": b"y", "z": b"z"})


def rmr(root: Path, *paths: str) -> tuple[int, list[str]]:
    named = relative_paths(str(root), paths)
    survey(str(root), named, resolve())
    result = remove(str(root), named, resolve())
    return result.num_removed, result.failures


def test_what_is_named_goes_with_all_below_it(root: Path) -> None:
    [doomed] = survey(str(root), ["train/a"], resolve())

    assert (doomed.num_files, doomed.bytes) == (2, 3)
    assert rmr(root, "train/a") == (2, [])
    assert tree(root) == {"train/b/3": b"333", "val/4": b"4444"}
    assert not (root / "train/a").exists()


def test_what_cannot_be_counted_is_not_said_to_be_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.transfer.ordered_walk.beneath", lambda held: f"/nowhere/{held}")
    with pytest.raises(JobError, match="/proc is not mounted"):
        rmr(root, "train/a")
    assert len(tree(root)) == 4


def test_absolute_paths_below_the_root_are_taken(root: Path) -> None:
    assert rmr(root, f"{root}/val/", "train/b/3") == (2, [])
    assert set(tree(root)) == {"train/a/1", "train/a/2"}


@pytest.mark.parametrize(
    "path", ["", "/", " ", ".", "..", "a/../b", "../outside", "/etc", "/etc/passwd", "a//b", "./a", "a\0b", "train/.."]
)
def test_paths_that_could_lead_out_are_refused(root: Path, path: str) -> None:
    with pytest.raises(JobSpecError):
        rmr(root, path)
    assert tree(root) == FILES


def test_the_root_is_not_removed_by_its_name(root: Path) -> None:
    for path in (str(root), f"{root}/"):
        with pytest.raises(JobSpecError, match="the root itself"):
            rmr(root, path)
    with pytest.raises(JobSpecError, match="at least one path"):
        rmr(root)


def test_links_are_removed_and_never_followed(root: Path, outside: Path) -> None:
    os.symlink(outside, root / "train/a/out")
    os.symlink(outside / "z", root / "train/a/file")
    os.symlink("b", root / "train/inside")

    assert rmr(root, "train/a", "train/inside") == (5, [])
    assert tree(outside) == {"x/y": b"y", "z": b"z"}
    assert (root / "train/b/3").exists()


def test_a_path_through_a_link_or_out_by_one_is_refused(root: Path, outside: Path) -> None:
    os.symlink(outside, root / "out")
    os.symlink("train", root / "alias")

    for path, said in (("out", "leaves"), ("out/z", "is a link"), ("alias/a", "is a link")):
        with pytest.raises(JobSpecError, match=said):
            rmr(root, path)
    assert len(tree(outside)) == 2
    assert len(tree(root / "train")) == 3


def test_what_is_not_there_is_an_error_before_anything_goes(root: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="nothing"):
        rmr(root, "train", "nothing")
    assert tree(root) == FILES


def test_web_servers_and_packs_are_refused() -> None:
    for url in ("http://host/x", "pack+s3://bucket"):
        with pytest.raises(JobSpecError):
            survey(url, ["a"], resolve())


def test_a_link_swapped_in_on_the_way_leads_nowhere(root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a directory and its opening somebody puts a link in its place."""
    real_open = os.open

    def swap_then_open(path: object, flags: int, *more: object, **named: object) -> int:
        if path == "a" and named.get("dir_fd") is not None and not (root / "train/a").is_symlink():
            os.rename(root / "train/a", root / "moved")
            os.symlink(outside, root / "train/a")
        return real_open(path, flags, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swap_then_open)
    result = remove(str(root), ["train"], resolve())

    assert tree(outside) == {"x/y": b"y", "z": b"z"}
    assert any("train/a" in failure for failure in result.failures)


PARTS = st.sampled_from(["a", "b", "..", ".", "", "link", "up", "/", "a\0", "outside", " ", "-rf", "*", "~"])


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(PARTS, max_size=5).map("/".join), max_size=3), st.booleans())
def test_no_path_leaves_the_root(tmp_path: Path, paths: list[str], absolute: bool) -> None:
    root, outside = tmp_path / "root", make(tmp_path / "outside", {"a": b"a", "b/a": b"a"})
    make(root, {"a/a": b"1", "b/b/a": b"2", "-rf/a": b"3", "*": b"4", "~/a": b"5"})
    for name, leads_to in (("link", "../outside"), ("up", "..")):
        if not (root / name).is_symlink():
            os.symlink(leads_to, root / name)
    try:
        rmr(root, *(f"{root}/{path}" if absolute else path for path in paths))
    except (JobSpecError, ObjectNotFoundError):
        pass

    assert tree(outside) == {"a": b"a", "b/a": b"a"}
    assert root.is_dir()
    assert set(os.listdir(tmp_path)) == {"root", "outside"}
