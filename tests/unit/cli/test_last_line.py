"""The directory of a program, and the file for machines: made, written whole, and gone afterwards."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from prefeed.cli import recording
from prefeed.cli.last_line import ORDER, remove, say, write_whole
from prefeed.system.machine import Process
from prefeed.tally.program import claim

ORDERED: dict[str, Any] = {
    "program": ["x"], "began": 1.0, "began_monotonic": 0.0, "json": None, "is_quiet": False, "is_enabled": True,
    "roots": "/data", "has_roots": True, "has_named_roots": True,
}  # fmt: skip


def directory_of(first: Process, runtime: Path) -> Path:
    """Return the directory of a program with this first process."""
    made = runtime / f"run-{first.pid}-x"
    made.mkdir()
    (made / ORDER).write_text(json.dumps({"process": asdict(first)}))
    claim(str(made))
    return made


def test_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = directory_of(Process(), tmp_path)
    say(str(directory), ORDERED)
    assert (
        capfd.readouterr().err == "prefeed: nothing to do: torch was not imported, and no file below /data was opened\n"
    )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        say(str(directory), ORDERED)
    assert capfd.readouterr().err == ""


def test_file_for_machines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    (tmp_path / "link.json").symlink_to(out)
    order = ORDERED | {"json": str(tmp_path / "link.json"), "is_quiet": True}
    say(str(directory_of(Process(), tmp_path)), order)

    assert json.loads(out.read_text())["roots"] == "/data"
    assert capfd.readouterr().err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "out.json"]


def test_file_that_cannot_be_written_any_more_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gone" / "out.json"
    say(str(directory_of(Process(), tmp_path)), ORDERED | {"json": str(out), "is_quiet": True})
    assert capfd.readouterr().err == f"prefeed: cannot write {out}: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_whole(str(out), "after")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.json", "before")]


@pytest.mark.parametrize("make", ["directory", "pipe", "nowhere", "link to nowhere"])
def test_what_cannot_be_written_is_refused_before(tmp_path: Path, make: str) -> None:
    file = tmp_path / "out"
    if make == "directory":
        file.mkdir()
    elif make == "pipe":
        os.mkfifo(file)
    elif make == "nowhere":
        file = tmp_path / "a" / "b"
    else:
        file.symlink_to(tmp_path / "a" / "b")
    with pytest.raises(OSError):
        recording.require_writable(file)


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    for name in ("there", "new"):
        recording.require_writable(tmp_path / name)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there", "before")]


def test_what_a_killed_program_left_is_removed(tmp_path: Path) -> None:
    here = Process.of(os.getpid())
    dead = directory_of(replace(here, pid=here.pid + 1, started=1), tmp_path)
    half = directory_of(replace(here, pid=here.pid + 2, started=1), tmp_path)
    half = half.rename(f"{half}.gone")
    alive = directory_of(here, tmp_path)
    elsewhere = directory_of(replace(here, pid=here.pid + 3, boot="another"), tmp_path)
    new = tmp_path / "run-5-about-to-begin"
    new.mkdir()
    old = tmp_path / "run-6-never-begun"
    old.mkdir()
    os.utime(old, (0, 0))
    recording._sweep(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {alive.name, elsewhere.name, new.name}
    assert not dead.exists()
    assert not half.exists()


def test_a_process_that_continues_finds_no_directory(tmp_path: Path) -> None:
    directory = directory_of(Process(), tmp_path)
    counts = claim(str(directory))
    assert counts is not None
    remove(str(directory))
    counts.add(b"a", 1)
    assert claim(str(directory)) is None
    assert list(tmp_path.iterdir()) == []
