"""Files that are whole or not there, and what is left of one whose writer was killed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefeed.system.files import atomic_write, is_being_written, publish_private, write_durably, write_private
from prefeed.system.machine import process_mark


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_in_one_step(home: Path, private: bool, durable: bool) -> None:
    file = home / "record[1].json"
    file.write_bytes(b"before")
    umask = os.umask(0o022)
    try:
        with atomic_write(file, private=private, durable=durable) as opened:
            opened.write(b"after")
            assert file.read_bytes() == b"before"
    finally:
        os.umask(umask)
    assert file.read_bytes() == b"after"
    assert stat.S_IMODE(file.stat().st_mode) == (0o600 if private else 0o644)
    assert list(home.iterdir()) == [file]


@pytest.mark.parametrize("fails", ["write", "flush", "replace"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    file = home / "record.json"
    file.write_bytes(b"before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def parts() -> Iterator[bytes]:
        yield b"after"
        if fails == "write":
            fail()

    if fails != "write":
        monkeypatch.setattr(os, "fsync" if fails == "flush" else "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_durably(file, parts())
    assert file.read_bytes() == b"before"
    assert list(home.iterdir()) == [file]


def test_what_it_holds_is_on_the_disk_before_it_has_its_name_and_the_name_after(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace = os.replace

    def sync(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")

    def rename(old: str, new: str) -> None:
        assert Path(old).read_bytes() == b"all of it"
        done.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    write_private(home / "file", b"all of it")
    assert done == ["content", "name", "directory"]


def test_what_a_killed_writer_left_goes_with_the_next_one(home: Path) -> None:
    own = process_mark().rpartition("-")[0]
    dead, running, other = f"{own}-{2**22 + 1}", process_mark(), f"{'0' * 12}-1-1"
    young, old = "0" * 8, "f" * 8
    for mark in (dead, running, other):
        (home / f".file*.{mark}.{young}").touch()
        (home / f".file*.{mark}.{old}").touch()
        os.utime(home / f".file*.{mark}.{old}", (0, time.time() - 25 * 3600))
    somebody_elses = {f".filex.{dead}.{young}", ".file*.2024.bak", f".file*.{dead}.bak", f".file*.{dead}.{young}.bak"}
    for name in somebody_elses:
        (home / name).touch()
        os.utime(home / name, (0, 0))
    (home / f".file*.{dead}.{'1' * 8}").mkdir()  # cannot be removed so, which is no matter
    write_private(home / "file*", b"")
    left = {path.name for path in home.iterdir() if path.name.startswith(".")}
    assert left == {f".file*.{running}.{young}", f".file*.{other}.{young}", f".file*.{dead}.{'1' * 8}"} | somebody_elses
    assert {name for name in left if is_being_written(name)} == left - somebody_elses | {f".filex.{dead}.{young}"}


@pytest.mark.parametrize("links", [True, False])
def test_of_all_who_publish_a_file_one_succeeds(home: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    file = home / "record.json"
    assert publish_private(file, b"one")
    assert not publish_private(file, b"two")
    assert (file.read_bytes(), file.stat().st_nlink, len(list(home.glob(".record*")))) == (b"one", 1, 0)


def test_an_answer_that_was_lost_is_no_refusal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)  # as a client of NFS does that got no answer

    monkeypatch.setattr(os, "link", twice)
    assert publish_private(home / "record.json", b"one")
