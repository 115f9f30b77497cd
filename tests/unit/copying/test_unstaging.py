from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.copying.copies import (
    COMPLETE,
    COPYING,
    GONE,
    INTERRUPTED,
    CopyRecord,
    copy_directory,
    create_and_lock,
    find_copies,
    list_copies,
    lock_copy,
    read_record,
    unstage,
    write_record,
)
from prefeed.copying.staging import StageRequest, stage
from prefeed.errors import CopyError, CopyInUseError, NotACopyError
from process.children import child_running
from sandbox import Sandbox
from slow_files import write_files

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = {"a/b": b"one", "c": b"three"}


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    return write_files(sandbox.root / "origin", FILES)


@pytest.fixture
def disk(sandbox: Sandbox) -> Path:
    (sandbox.root / "disk").mkdir()
    return sandbox.root / "disk"


@pytest.fixture
def copy(origin: Path, sandbox: Sandbox) -> CopyRecord:
    return stage(StageRequest(url=str(origin), place=sandbox.memory_dir), resolve()).record


def _hold(directory: Path, pipe: object) -> None:
    with lock_copy(directory):
        pipe.send("held")  # type: ignore[attr-defined]
        pipe.recv()  # type: ignore[attr-defined]


def test_names_are_those_of_the_origin() -> None:
    place = Path("/p")
    names = [
        copy_directory(place, url).name[:-9] for url in ("/mnt/my photos", "s3://bucket/train", "http://host:80", "/")
    ]

    assert names == ["my_photos", "train", "host_80", "data"]
    assert len({copy_directory(place, url) for url in ("/a/x", "/b/x", "s3://a/x")}) == 3


def test_copies_are_listed_wherever_they_lie(copy: CopyRecord, origin: Path, disk: Path) -> None:
    on_disk = stage(StageRequest(url=str(origin), place=disk), resolve()).record

    assert list_copies(resolve()) == [copy, on_disk]


def test_a_list_needs_no_home_for_what_is_in_memory(copy: CopyRecord, sandbox: Sandbox) -> None:
    shutil.rmtree(sandbox.home)

    assert list_copies(resolve()) == [copy]


def test_a_copy_that_went_with_a_restart_is_gone(copy: CopyRecord, origin: Path, sandbox: Sandbox) -> None:
    shutil.rmtree(copy.directory)

    assert [found.state for found in list_copies(resolve())] == [GONE]
    assert stage(StageRequest(url=str(origin), place=sandbox.memory_dir), resolve()).summary.num_copied == 2
    assert [found.state for found in list_copies(resolve())] == [COMPLETE]

    shutil.rmtree(copy.directory)
    unstage(find_copies(str(origin), resolve())[0], resolve())
    assert list_copies(resolve()) == []


def test_a_run_that_did_not_end_is_interrupted_unless_it_still_runs(copy: CopyRecord) -> None:
    write_record(replace(copy, state=COPYING), resolve())
    assert [found.state for found in list_copies(resolve())] == [INTERRUPTED]

    with child_running(_hold, Path(copy.directory)) as (_, pipe):
        assert pipe.recv() == "held"
        assert [found.state for found in list_copies(resolve())] == [COPYING]


@pytest.mark.parametrize("named_by", ["source", "data", "directory"])
def test_a_copy_is_removed_by_its_origin_or_its_path(
    copy: CopyRecord, origin: Path, sandbox: Sandbox, named_by: str
) -> None:
    names = {"source": str(origin), "data": str(copy.data), "directory": copy.directory}
    for found in find_copies(names[named_by], resolve()):
        unstage(found, resolve())

    assert list(sandbox.memory_dir.iterdir()) == []
    assert list_copies(resolve()) == []
    assert (origin / "a/b").read_bytes() == b"one"


def test_one_of_two_copies_can_be_removed(copy: CopyRecord, origin: Path, disk: Path) -> None:
    on_disk = stage(StageRequest(url=str(origin), place=disk), resolve()).record

    assert find_copies(str(origin), resolve()) == [copy, on_disk]
    unstage(*find_copies(str(on_disk.data), resolve()), resolve())
    assert list_copies(resolve()) == [copy]


def test_links_are_not_followed(origin: Path, sandbox: Sandbox) -> None:
    linked = stage(StageRequest(url=str(origin), place=sandbox.memory_dir, size_bytes=6000), resolve()).record
    assert (linked.num_files, linked.num_linked) == (1, 1)
    (linked.data / "to the origin").symlink_to(origin)

    unstage(linked, resolve())

    assert {path: (origin / path).read_bytes() for path in FILES} == FILES
    assert not Path(linked.directory).exists()


def test_a_copy_whose_files_were_replaced_by_a_link_is_not_followed(copy: CopyRecord, origin: Path) -> None:
    shutil.rmtree(copy.data)
    copy.data.symlink_to(origin)

    with pytest.raises(CopyError, match="cannot be removed"):
        unstage(copy, resolve())
    assert (origin / "c").read_bytes() == b"three"


@pytest.mark.parametrize("marker", [None, "{}", "no json", '{"format": 1, "state": "complete"}'])
def test_what_stage_did_not_make_is_refused(sandbox: Sandbox, marker: str | None) -> None:
    directory = sandbox.memory_dir / f"prefeed-staged-{os.geteuid()}" / "train-12345678"
    (directory / "data").mkdir(parents=True)
    directory.chmod(0o700)
    if marker is not None:
        (directory / "copy.json").write_text(marker)

    for path in (directory, directory / "data", sandbox.root, sandbox.root / "nowhere"):
        with pytest.raises(NotACopyError, match="neither a copy that prefeed made nor the origin of one"):
            find_copies(str(path), resolve())
    assert list_copies(resolve()) == []


def test_passwords_are_not_repeated() -> None:
    with pytest.raises(NotACopyError, match=r"^https://host/x is neither") as caught:
        find_copies("https://user:secret@host/x?sig=secret", resolve())
    assert "secret" not in str(caught.value.details)


def test_a_marker_elsewhere_makes_no_copy(copy: CopyRecord, sandbox: Sandbox) -> None:
    elsewhere = shutil.copytree(copy.directory, sandbox.root / "mine")

    with pytest.raises(NotACopyError):
        find_copies(str(elsewhere), resolve())


def test_files_that_prefeed_did_not_make_stay(copy: CopyRecord) -> None:
    notes = Path(copy.directory) / "notes.txt"
    notes.write_text("mine")

    unstage(copy, resolve())

    assert notes.read_text() == "mine"
    assert not copy.data.exists()


def test_a_copy_that_is_being_made_is_not_removed(copy: CopyRecord) -> None:
    with child_running(_hold, Path(copy.directory)) as (_, pipe):
        assert pipe.recv() == "held"
        with pytest.raises(CopyInUseError, match=rf"process {os.getpid()} is using"):
            unstage(copy, resolve())

    unstage(copy, resolve())


def test_who_waits_hears_for_whom_and_gets_it_next(copy: CopyRecord) -> None:
    heard: list[int] = []
    with child_running(_hold, Path(copy.directory)) as (_, pipe):
        assert pipe.recv() == "held"

        def on_wait(pid: int) -> None:
            heard.append(pid)
            pipe.send("go on")

        with create_and_lock(Path(copy.directory), on_wait=on_wait):
            pass
    assert heard == [os.getpid()]  # the record's, whoever holds it in this test


def test_records_of_copies_that_were_moved_say_where_they_are(copy: CopyRecord, sandbox: Sandbox) -> None:
    parent = sandbox.root / f"prefeed-staged-{os.geteuid()}"
    parent.mkdir(mode=0o700)
    moved = shutil.move(copy.directory, parent / "x")

    assert find_copies(str(moved), resolve()) == [replace(copy, directory=str(moved))]


def test_directories_open_to_others_are_no_copies(copy: CopyRecord) -> None:
    os.chmod(copy.directory, 0o755)

    assert read_record(Path(copy.directory)) is None


def test_without_proc_a_copy_is_neither_removed_nor_waited_for(
    copy: CopyRecord, origin: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the open directory cannot be found there does not mean that it is gone."""
    with monkeypatch.context() as without:
        without.setattr("prefeed.system.locks.beneath", lambda held: f"/nowhere/{held}")
        with pytest.raises(CopyError, match="/proc is not mounted"):
            unstage(copy, resolve())
        with pytest.raises(CopyError, match="/proc is not mounted"):
            stage(StageRequest(url=str(origin), place=sandbox.memory_dir), resolve())
    assert list_copies(resolve()) == [copy]
    assert (copy.data / "a/b").read_bytes() == b"one"
