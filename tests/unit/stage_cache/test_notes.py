"""What an entry says of itself, and whether it is still so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.errors import EntryFormatError
from prefeed.stage_cache.files_seen import ABSENT, Note, decode_note, encode_note, key_now, keys_now


def test_round_trip() -> None:
    note = Note(b"7", [b"/a", b"/b\xff"], b"x" * 16 + b"y" * 16)
    assert decode_note(encode_note(note)) == note
    assert list(note.files()) == [(b"/a", b"x" * 16), (b"/b\xff", b"y" * 16)]


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", encode_note(Note(b"", [b"/a"], b"short")), encode_note(Note(b"1"))[:-1]],
    ids=["empty", "no msgpack", "keys too short", "cut off"],
)
def test_damaged(data: bytes) -> None:
    with pytest.raises(EntryFormatError):
        decode_note(data)


def test_a_key_changes_with_content_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    seen = [key_now(str(path))]
    for content, seconds in ((b"1", 1), (b"2", 2), (b"22", 2)):
        path.write_bytes(content)
        os.utime(path, (seconds, seconds))
        seen.append(key_now(str(path)))
    assert seen[0] == ABSENT
    assert len(set(seen)) == 4
    assert key_now(str(tmp_path)) == ABSENT  # no regular file
    assert key_now("/\0") == ABSENT


def test_many_are_asked_as_one_is(tmp_path: Path) -> None:
    paths = [os.fsencode(tmp_path / str(i)) for i in range(100)]
    for path in paths[::2]:
        Path(os.fsdecode(path)).write_bytes(path)
    assert keys_now(paths) == {path: key_now(os.fsdecode(path)) for path in paths}
