"""Directories as places of a sync, where data could be lost: links, mounts, names of ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.errors import JobError, JobSpecError
from prefeed.jobs import sync as sync_module
from prefeed.jobs.options import SyncOptions, SyncResult
from prefeed.jobs.sync import sync
from prefeed.sources.protocol import Source
from prefeed.transfer import directory as directory_module
from prefeed.transfer import engine
from prefeed.transfer.directory import DirectorySink
from prefeed.transfer.engine import Body
from prefeed.transfer.entries import Entry
from prefeed.transfer.patterns import WORK_NAME, Rule
from unit.jobs.trees import make, tree

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = {"a": b"1", "b/c": b"22"}


def run(source: object, target: object, **options: object) -> SyncResult:
    return sync(str(source), str(target), SyncOptions(**options), resolve())  # type: ignore[arg-type]


@pytest.fixture
def mounted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links stand for bind mounts: their real path is their own."""
    monkeypatch.setattr(sync_module, "refuse_overlap", lambda *_: None)


@pytest.mark.usefixtures("mounted_twice")
@pytest.mark.parametrize("dry", [False, True])
def test_one_directory_under_two_names_is_refused(tmp_path: Path, dry: bool) -> None:
    source = make(tmp_path / "source", FILES)
    (tmp_path / "mount").symlink_to(source)

    with pytest.raises(JobSpecError, match="the same directory"):
        run(source, tmp_path / "mount", delete_src=True, dry=dry)
    assert tree(source) == FILES


@pytest.mark.usefixtures("mounted_twice")
def test_a_source_mounted_from_within_the_target_is_not_deleted(tmp_path: Path) -> None:
    target = make(tmp_path / "target", {"data/a": b"1", "data/b/c": b"22", "old": b"o"})
    (tmp_path / "mount").symlink_to(target / "data")

    assert run(tmp_path / "mount", target, delete_dst=True).num_deleted_dst == 1
    assert tree(target) == {**FILES, "data/a": b"1", "data/b/c": b"22"}


def test_what_is_behind_a_link_that_leads_nowhere_is_not_deleted(tmp_path: Path) -> None:
    share = make(tmp_path / "share", FILES)
    source = make(tmp_path / "source", {"own": b"o"})
    (source / "shared").symlink_to(share)
    target = tmp_path / "target"
    run(source, target)
    share.rename(tmp_path / "not mounted")

    assert run(source, target).num_skipped == 1
    with pytest.raises(JobError, match="shared is a broken link: nothing was deleted"):
        run(source, target, delete_dst=True)
    rules = (Rule("shared", True), Rule("shared/", True))
    assert run(source, target, delete_dst=True, rules=rules).num_deleted_dst == 0
    assert tree(target) == {"own": b"o", "shared/a": b"1", "shared/b/c": b"22"}


def test_empty_directories_that_are_excluded_or_out_of_range_stay(tmp_path: Path) -> None:
    source = make(tmp_path / "source", {"a": b"1", "n/f": b"2"})
    (source / "zz").mkdir()
    target = tmp_path / "target"
    run(source, target, dirs=True)
    (target / "kept").mkdir()

    run(source, target, dirs=True, delete_dst=True, rules=(Rule("kept/", True),))
    run(source, target, dirs=True, delete_dst=True, end="b")

    assert (target / "kept").is_dir()
    assert (target / "zz").is_dir()


@pytest.mark.parametrize("step", ["mkdir", "utime"])
def test_a_target_that_takes_no_files_is_said_in_a_sentence(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make(tmp_path / "source", FILES), make(tmp_path / "target", {})

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    resolve().home.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(JobError, match="cannot be written to: Read-only file system"):
        run(source, target)


def test_what_a_killed_sync_left_is_no_data_wherever_it_came_to(tmp_path: Path) -> None:
    source = make(tmp_path / "source", {**FILES, f"b/{WORK_NAME}/0": b"half"})

    assert run(source, tmp_path / "target", delete_src=True).num_deleted_src == 2
    assert tree(tmp_path / "target") == FILES


# ---------------------------------------------------------------- file systems where A and a are one name


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the target is there under any spelling, and a new one takes the place of the old."""
    rename, is_there = os.rename, directory_module._exists

    def renamed(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        there = next((name for name in os.listdir(dst_dir_fd) if name.casefold() == new.casefold()), new)
        rename(old, there, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(directory_module, "_exists", lambda work, name: is_there(work, name.lower()))


@pytest.mark.usefixtures("folding")
@pytest.mark.parametrize("copied_before", [False, True])
def test_two_names_that_are_one_there_stop_the_sync_before_data_is_lost(tmp_path: Path, copied_before: bool) -> None:
    files = {"A.jpg": b"1", "a.jpg": b"22"}
    source, target = make(tmp_path / "source", {"A.jpg": b"1"}), tmp_path / "target"
    if copied_before:
        run(source, target)
    make(source, files)

    with pytest.raises(JobError, match=r"'A\.jpg' and 'a\.jpg' of .* are one name"):
        run(source, target, delete_src=True)
    assert tree(source) == files


@pytest.mark.usefixtures("folding")
def test_a_name_written_otherwise_there_is_not_deleted_there(tmp_path: Path) -> None:
    source, target = (
        make(tmp_path / "source", {"img.jpg": b"1"}),
        make(tmp_path / "target", {"IMG.JPG": b"1", "old": b"o"}),
    )
    os.utime(source / "img.jpg", (1_700_000_000, 1_700_000_000))
    os.utime(target / "IMG.JPG", (1_700_000_000, 1_700_000_000))

    result = run(source, target, delete_dst=True, delete_src=True)

    assert (result.num_deleted_dst, result.num_deleted_src) == (1, 1)
    assert tree(target) == {"IMG.JPG": b"1"}


def test_update_does_not_write_over_what_it_could_not_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make(tmp_path / "source", FILES), make(tmp_path / "target", {"b/c": b"newer", "extra": b"e"})
    scandir, broken = os.scandir, os.stat(target / "b").st_ino

    def fail(directory: int | str) -> object:
        if os.stat(directory).st_ino == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(directory)

    monkeypatch.setattr(os, "scandir", fail)
    result = run(source, target, update=True, delete_dst=True)

    assert [failure.path for failure in result.failures] == ["b"]
    monkeypatch.setattr(os, "scandir", scandir)
    assert tree(target) == {"a": b"1", "b/c": b"newer", "extra": b"e"}


# ---------------------------------------------------------------- what is deleted at the source stays at the target


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was done, in its order: ``fsync`` of which file, ``unlink`` of which name."""
    done: list[tuple[str, str]] = []
    fsync, unlink = os.fsync, os.unlink

    def syncing(descriptor: int) -> None:
        done.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def unlinking(name: str, *, dir_fd: int | None = None) -> None:
        directory = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}") + "/"
        done.append(("unlink", f"{directory}{name}"))
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "unlink", unlinking)
    return done


@pytest.mark.parametrize("copied_before", [False, True])
def test_an_original_goes_when_its_copy_is_on_the_disk_with_all_directories_above(
    tmp_path: Path, synced: list[tuple[str, str]], copied_before: bool
) -> None:
    source, target = make(tmp_path / "source", FILES), tmp_path / "x/y/target"
    if copied_before:
        run(source, target)
        assert not [path for step, path in synced if step == "fsync" and path.startswith(str(target))]

    assert run(source, target, delete_src=True).num_deleted_src == 2

    first = next(at for at, step in enumerate(synced) if step[0] == "unlink" and step[1].startswith(f"{source}/"))
    before = [path for step, path in synced[:first] if step == "fsync"]
    assert {str(target / "b"), str(target), str(target.parent)} <= set(before)
    if copied_before:
        assert {str(target / path) for path in FILES} <= set(before)
    else:
        assert {str(tmp_path / "x"), str(tmp_path)} <= set(before)
        assert len([path for path in before if f"/{WORK_NAME}/" in path]) == len(FILES)
    assert before.index(str(target / "b")) < before.index(str(target)) < before.index(str(target.parent))


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_no_original_goes_whose_copy_does_not_come_to_the_disk(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make(tmp_path / "source", FILES), tmp_path / "target"
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        where = os.readlink(f"/proc/self/fd/{descriptor}")
        if where.startswith(str(target)) and os.path.isdir(where) == (kind == "directory"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(JobError, match="Input/output error"):
        run(source, target, delete_src=True)
    assert tree(source) == FILES


def test_a_file_system_that_syncs_no_single_directory_is_synced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make(tmp_path / "source", FILES), tmp_path / "target"
    fsync, whole = os.fsync, []

    def refuse(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "sync", lambda: whole.append(set(tree(source))))
    monkeypatch.setattr(directory_module.os, "fsync", refuse)
    monkeypatch.setattr("prefeed.transfer.mounted.write_private", lambda *_: None)
    assert run(source, target, delete_src=True).num_deleted_src == 2
    assert whole[0] == set(FILES)


def test_a_copy_that_goes_meanwhile_keeps_its_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make(tmp_path / "source", FILES), tmp_path / "target"
    durable = DirectorySink.make_durable

    def then_remove(self: DirectorySink) -> None:
        durable(self)
        (target / "a").unlink()

    monkeypatch.setattr(DirectorySink, "make_durable", then_remove)
    result = run(source, target, delete_src=True)

    assert (result.num_deleted_src, result.num_failed) == (1, 1)
    assert "its copy is gone" in result.failures[0].message
    assert tree(source) == {"a": b"1"}


@pytest.mark.parametrize("what", ["file", "directory", "comes back"])
def test_a_file_that_is_removed_before_it_is_copied_is_no_failure(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make(tmp_path / "source", FILES), make(tmp_path / "target", {"b/c": b"old", "extra": b"e"})
    open_body = engine.open_body

    def remove_then(origin: Source, listed: Entry) -> Body:
        if listed.path == "b/c" and (source / "b/c").is_file():
            (source / "b/c").unlink()
            if what == "directory":
                (source / "b").rmdir()
            elif what == "comes back":  # as something that cannot be opened
                (source / "b/c").symlink_to("nowhere")
        return open_body(origin, listed)

    monkeypatch.setattr(engine, "open_body", remove_then)
    result = run(source, target, delete_dst=True)

    assert result.is_complete == (what != "comes back")
    assert (target / "b/c").read_bytes() == b"old"  # the next sync knows
    assert (target / "extra").exists() == (what == "comes back")
