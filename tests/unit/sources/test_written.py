"""Records of written files: what one process adds, every other sees; only the server drops them."""

from __future__ import annotations

import errno
import os
import pickle
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from prefeed.sources import written as module
from prefeed.sources.catalogue import Catalogue
from prefeed.sources.catalogue_writer import CatalogueWriter
from prefeed.sources.written import Change, WrittenFiles, open_for_writing, still_open
from process.children import child_running
from sandbox import Sandbox


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "written"


def test_what_one_adds_all_others_see(path: Path) -> None:
    ours, theirs = WrittenFiles(path), WrittenFiles(path)
    assert not theirs.any()
    ours.add("/link/ü\n", "/real/ü\n", 7)
    assert theirs.any()
    assert theirs.covers("/link/ü\n")
    assert theirs.covers("/real/ü\n")
    assert theirs.covers("/another name", 7)
    assert not theirs.covers("/real")
    assert not theirs.covers("/real/other", 0)
    ours.add("/b", "/b")
    copy = pickle.loads(pickle.dumps(theirs))
    for files in (ours, theirs, copy):
        assert files.any()
        assert files.covers("/b")
        files.close()
        assert files.any()  # opened again
        files.close()


def test_a_directory_means_what_is_below_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files = WrittenFiles(path)
    files.add(str(tmp_path / "real"), str(tmp_path / "real"), below=True)
    assert files.any()
    assert files.covers(str(tmp_path / "real" / "a" / "b"))
    assert files.covers(str(tmp_path / "link" / "a"))
    assert not files.covers(str(tmp_path / "really"))
    files.close()


def test_the_server_drops_what_it_has_seen(path: Path) -> None:
    writer, server, reader = WrittenFiles(path), WrittenFiles(path), WrittenFiles(path)
    begins = [writer.add(f"/{name}", f"/{name}", number) for number, name in enumerate("abc", 1)]
    assert reader.any()
    changes, end = server.changes()
    assert [change.path for change in changes] == ["/a", "/b", "/c"]
    writer.add("/late", "/late")
    assert all(map(writer.has_kept, begins))
    server.drop(end, [changes[1]])
    assert not any(map(writer.has_kept, begins))  # who has not changed the file yet adds it again
    assert reader.any()
    assert [reader.covers(f"/{name}") for name in ("a", "b", "c", "late")] == [False, True, False, True]
    assert [change.path for change in server.changes()[0]] == ["/late", "/b"]
    changes, end = server.changes()
    server.drop(end, [])
    assert not reader.any()
    for files in (writer, server, reader):
        files.close()


def test_room_of_dropped_records_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FROM_FIRST", 1)
    files = WrittenFiles(path)
    for number in range(5000):
        files.add(f"/{number:060}", f"/{number:060}")
    before = path.stat().st_blocks
    files.drop(files.changes()[1], [])
    assert not files.any()
    assert path.stat().st_blocks < before
    files.add("/a", "/a")
    assert files.any()
    assert files.covers("/a")
    assert not files.covers(f"/{1:060}")
    files.close()


def test_what_cannot_be_recorded_is_said_of_all_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, reader = WrittenFiles(path), WrittenFiles(path)
    assert not files.any()

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", no_room)
        files.add("/a", "/a")
    assert reader.any()
    assert reader.covers("/anything")
    files.drop(files.changes()[1], [])
    assert not reader.any()
    files.close()
    reader.close()


@pytest.mark.parametrize("num_bytes", [1, 7, 30, 40, 57])
def test_a_record_that_broke_off_hides_none_after_it(path: Path, num_bytes: int) -> None:
    """A full disk takes a part of a record, a kill may leave one."""
    files, reader = WrittenFiles(path), WrittenFiles(path)
    files.add("/data/first", "/data/first", 5)
    whole = path.read_bytes()[4096:]
    with path.open("ab") as file:
        file.write(whole[:num_bytes])
    files.drop(files.changes()[1], [])
    files.add("/data/second", "/data/second", 6)
    assert reader.any()
    assert reader.covers("/data/second")
    assert reader.covers("/another name", 6)
    assert "/data/second" in [change.path for change in files.changes()[0]]
    files.close()
    reader.close()


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def hold_as(user: int, path: str, pipe: Connection) -> None:
    """Become another user, without running another program, and have the file open for writing."""
    become(user)
    with open(path, "w"):
        pipe.send(os.getpid())
        pipe.recv()


def look_as(user: int, change: Change, pipe: Connection) -> None:
    become(user)
    pipe.send(still_open([change]))


@pytest.mark.skipif(os.geteuid() != 0, reason="users are changed")
def test_a_writer_that_may_not_be_looked_at_may_have_it_open(sandbox: Sandbox) -> None:
    """As an entry point of a container that gave up its rights, and then trains."""
    user, name = 4711, str(sandbox.root / "held")
    sandbox.root.chmod(0o701)
    (sandbox.root / "held").touch()
    os.chown(name, user, user)
    with child_running(hold_as, user, name) as (_, holder):
        pid = holder.recv()
        change = Change(name, name, 0, False, pid, os.stat("/proc/self/ns/pid").st_ino)
        with child_running(look_as, user, change) as (_, looker):
            assert looker.recv() == [change]


def test_where_there_are_no_records_all_files_count_as_written(tmp_path: Path) -> None:
    files = WrittenFiles(tmp_path / "missing" / "written")
    files.add("/a", "/a")
    assert files.any()
    assert files.covers("/b")
    (tmp_path / "missing").mkdir()
    assert not files.any()
    files.close()


def test_what_is_open_is_found(path: Path, tmp_path: Path) -> None:
    files = WrittenFiles(path)
    held, mapped, closed = (str(tmp_path / name) for name in ("held", "mapped", "closed"))
    mapping = np.memmap(mapped, np.uint8, mode="w+", shape=(10,))
    with open(held, "w"):
        for name in (held, mapped, closed):
            files.add(name, name)
        assert {held, mapped} <= set(open_for_writing())
        changes, _ = files.changes()
        assert [change.path for change in still_open(changes)] == [held, mapped]
    del mapping
    assert still_open(changes) == []
    files.close()


def test_a_catalogue_finds_files_by_path_and_by_identity(tmp_path: Path) -> None:
    writer = CatalogueWriter.open_or_create(tmp_path / "c", ["/a/1", "/a/2", "/b/3", "/4"])
    writer.observe(2, "v", 10, 99)
    assert writer.ids_of(["/a/2", "/x"], [99, 5]).tolist() == [1, 2]
    assert writer.ids_of([], []).tolist() == []
    reader = Catalogue.open(tmp_path / "c")
    assert [reader.inode(index) for index in range(4)] == [0, 0, 99, 0]
    assert reader.directories() == {"/a/", "/b/", "/"}
    writer.close()
