"""Files that a process has kept something of: what audits opened counts once samples are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.stage_cache.files_seen import ABSENT, FilesSeen, Note, Standing


def opened(*names: str, way: int = 1) -> FilesSeen:
    files = FilesSeen(None, lambda: way)
    for name in names:
        files.saw(name)
    return files


def note(*names: str) -> Note:
    return Note(b"", [os.fsencode(name) for name in names], ABSENT * len(names))


def made(standing: Standing, files: FilesSeen) -> list[str]:
    """Return the files that a sample made now is tied to."""
    standing.tie(files)
    return sorted(path for path in ("/kept", "/x", "/y", "/z") if files.has_seen(path))


def test_what_an_audit_opened_by_a_way_that_was_not_tried_counts_as_kept() -> None:
    standing = Standing()
    assert not standing.audited(opened("/x", "/kept", way=1), note("/x", "/kept"))
    assert not standing.audited(opened("/y", way=1), note("/y", "/kept"))  # it was seen before
    assert made(standing, opened("/z", way=2)) == ["/kept", "/x", "/y", "/z"]


def test_what_an_audit_opened_by_a_way_that_is_read_each_time_does_not_count() -> None:
    standing = Standing()
    standing.audited(opened("/x", way=1), note("/x"))
    standing.audited(opened("/kept", way=3), note("/kept"))
    standing.tried(opened("/y", way=1), opened("/y", way=1))
    assert made(standing, opened("/z", way=1)) == ["/kept", "/z"]
    standing.audited(opened("/x", way=1), note("/x"))
    assert made(standing, opened("/z", way=1)) == ["/kept", "/z"]


def test_a_file_of_the_note_that_was_not_seen_opened_counts_as_kept() -> None:
    standing = Standing()
    assert standing.audited(opened("/x", way=1), note("/x", "/kept"))  # by a function that was bound before, say
    assert not standing.audited(opened("/x", way=1), note("/x", "/kept"))
    standing.tried(opened("/x", way=1), opened("/x", way=1))
    assert made(standing, opened("/z", way=1)) == ["/kept", "/z"]


def test_audits_without_end_try_their_ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("prefeed.stage_cache.files_seen._MANY_UNTRIED", 3)
    standing = Standing()
    for name in ("/a", "/b", "/c"):
        assert not standing.wants_trial(opened(name, way=1))
        standing.audited(opened(name, way=1), note(name))
    assert standing.wants_trial(opened("/d", way=1))
    standing.tried(opened("/d", way=1), opened("/d", way=1))
    assert not standing.wants_trial(opened("/e", way=1))
    assert made(standing, opened("/z", way=1)) == ["/z"]
