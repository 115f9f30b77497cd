"""Files that a sample opens, and in which version."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from prefeed.interception import current_reader, reads_from
from prefeed.stage_cache.files_seen import ABSENT, FilesSeen, Note, key_now
from prefeed.types import Buffer


class Cache:
    """Has one file, and may know its version."""

    def __init__(self, path: Path, key: bytes | None) -> None:
        self.path, self.key = str(path), key

    def may_have(self, path: str) -> bool:
        return path == self.path

    def read_file(self, path: str) -> Buffer | None:
        return b"cached" if path == self.path else None

    def served_key(self, path: str) -> bytes | None:
        return self.key


def keys(note: Note) -> dict[str, bytes]:
    return {os.fsdecode(path): key for path, key in note.files()}


def test_every_file_that_is_opened_is_noted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"0123")
    seen = FilesSeen(None)
    with reads_from(seen):
        (tmp_path / "a").read_bytes()
        with open("b", encoding="utf-8") as file:
            file.read()
        np.fromfile(tmp_path / "c", dtype=np.uint8)
        assert not os.path.exists(tmp_path / "never opened")
    assert keys(seen.note(b"")) == {str(tmp_path / name): key_now(str(tmp_path / name)) for name in ("a", "b", "c")}
    assert seen.is_complete


def test_nothing_is_kept_of_what_somebody_writes(tmp_path: Path) -> None:
    """Its time and size are those that it will have, perhaps, and its bytes are not."""
    with (tmp_path / "a").open("wb", buffering=0) as writer:
        writer.write(b"0123")
        seen = FilesSeen(None)
        with reads_from(seen):
            (tmp_path / "a").read_bytes()
        assert not seen.is_complete
    seen = FilesSeen(None)
    with reads_from(seen):
        (tmp_path / "a").read_bytes()
    assert seen.is_complete


def test_a_file_that_was_not_there_is_noted_as_absent(tmp_path: Path) -> None:
    seen = FilesSeen(None)
    with reads_from(seen):
        try:
            (tmp_path / "mask").read_bytes()
        except FileNotFoundError:
            pass
    assert keys(seen.note(b"")) == {str(tmp_path / "mask"): ABSENT}


def test_the_version_is_that_before_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    before = key_now(str(path))
    seen = FilesSeen(None)
    with reads_from(seen):
        path.read_bytes()
        os.utime(path, (1, 1))
        path.read_bytes()
    assert keys(seen.note(b"")) == {str(path): before} != {str(path): key_now(str(path))}


def test_a_file_from_the_cache_has_the_version_that_the_cache_knows(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"at the origin")
    for key, complete in ((b"k" * 16, True), (None, False)):
        seen = FilesSeen(Cache(path, key))
        with reads_from(seen):
            assert path.read_bytes() == b"cached"
        assert seen.is_complete is complete
        assert keys(seen.note(b"")) == ({str(path): key} if key else {})


def test_scopes_inside_tell_those_outside(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    outer = FilesSeen(None)
    with reads_from(outer):
        inner = FilesSeen(current_reader())
        with reads_from(inner):
            path.read_bytes()
        inner.add(Note(b"", [b"/of/an/entry/below"], b"e" * 16))
    assert (
        keys(outer.note(b""))
        == keys(inner.note(b""))
        == {str(path): key_now(str(path)), "/of/an/entry/below": b"e" * 16}
    )
