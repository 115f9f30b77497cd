"""Reads beside the loop: a file is asked what it is before each read, and nothing is given that it is not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefeed.client.beside import ReadsBeside
from prefeed.config import resolve
from prefeed.errors import ServerUnavailableError
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.sources.mounts import Roots

LONG_AGO = 1_600_000_000
MOST = 1000


def key_of(path: Path) -> bytes:
    return entry_key("/", str(path), version_of(path.stat(), str(path)))


class Reader:
    """Stands for a reader and its server: entries by key; what is not there the server reads.

    Attributes:
        asked: Keys that were looked for.
        fetched: Files that the server was asked for, and whether it was told that it may be mistaken.
        held: What the server gives without looking, of what key.
    """

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.asked: list[bytes] = []
        self.fetched: list[tuple[str, bool]] = []
        self.held: tuple[bytes, bytes] | None = None
        self.is_gone = False
        self.last_key = b""

    def find(self, key: bytes, path: str) -> bytes | None:
        self.asked.append(key)
        if key in self.entries:
            self.last_key = key
        return self.entries.get(key)

    def try_read_file(self, path: str, *, in_doubt: bool = False) -> tuple[bytes | None, int | None]:
        self.fetched.append((path, in_doubt))
        if self.is_gone:
            raise ServerUnavailableError("gone")
        self.last_key, data = self.held or (key_of(Path(path)), Path(path).read_bytes())
        self.entries[self.last_key] = data
        return data, 0

    def sample_made(self) -> None:
        """As of a reader; nothing is lent here."""

    def count_reads(self) -> None:
        """As of a reader."""

    def close(self) -> None:
        """As of a reader."""


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def beside(tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> ReadsBeside:
    config = resolve({"roots": [str(tmp_path)]}, limits={"max_object_bytes": MOST})
    beside = ReadsBeside(config, Roots.of(config))
    monkeypatch.setattr(beside, "_opened", object)
    monkeypatch.setattr(beside, "_reader", lambda dataset: reader)
    return beside


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(data: bytes, *, seconds_ago: float | None = None) -> Path:
        path = tmp_path / "data.bin"
        path.write_bytes(data)
        now = time.time()
        written = LONG_AGO if seconds_ago is None else now - seconds_ago
        os.utime(path, (written, written))
        return path

    return write


def test_a_file_is_found_by_what_it_is_now(beside: ReadsBeside, reader: Reader, write: Callable[..., Path]) -> None:
    """Once at the origin for each version; no version is given in the place of another."""
    keys = []
    for data in (b"one", b"another", b"one more"):
        path = str(write(data))
        keys.append(key_of(Path(path)))
        for _ in range(3):
            assert beside.read_file(path) == data
            assert beside.served_key(path) == keys[-1]
    assert reader.asked == [key for key in keys for _ in range(3)]
    assert reader.fetched == [(path, True)] * 3
    assert beside.outcomes == {"fetched": 3, "hit": 6}


@pytest.mark.parametrize(
    ("seconds_ago", "outcome"), [(0.0, "origin"), (1.5, "origin"), (-60.0, "origin"), (600.0, "hit")]
)
def test_what_was_written_just_now_is_the_programs_own(
    beside: ReadsBeside, reader: Reader, write: Callable[..., Path], seconds_ago: float, outcome: str
) -> None:
    """Its time may stay as it is when it is written again: even what the tier has under that key may be something else."""
    path = write(b"data", seconds_ago=seconds_ago)
    reader.entries[key_of(path)] = b"data"
    assert (beside.read_file(str(path)) is None) == (outcome == "origin")
    assert beside.outcomes == {outcome: 1}
    assert len(reader.asked) == (outcome == "hit")
    assert reader.fetched == []


@pytest.mark.parametrize("size", [0, MOST + 1])
def test_empty_and_large_files_are_the_programs_own(
    beside: ReadsBeside, reader: Reader, write: Callable[..., Path], size: int
) -> None:
    path = write(bytes(size))
    (path.parent / "folder").mkdir()
    for name in (path, path.parent / "folder", f"{path}.gone"):
        assert beside.read_file(str(name)) is None
    assert (beside.outcomes, reader.asked, reader.fetched) == ({"origin": 3}, [], [])


def test_bytes_that_the_file_no_longer_has_are_not_given(
    beside: ReadsBeside, reader: Reader, write: Callable[..., Path]
) -> None:
    """The server has not noticed a change; if it was the file that changed meanwhile, its new bytes are right."""
    old = key_of(write(b"before"))
    path = write(b"changed")
    reader.held = old, b"before"
    assert beside.read_file(str(path)) is None
    assert beside.served_key(str(path)) is None
    reader.held = None
    own_fetch = reader.try_read_file

    def changes_meanwhile(path: str, **kwargs: Any) -> Any:
        write(b"changed again")
        return own_fetch(path, **kwargs)

    reader.try_read_file = changes_meanwhile  # type: ignore[method-assign]
    assert beside.read_file(str(path)) == b"changed again"
    assert beside.served_key(str(path)) == key_of(path)
    assert beside.outcomes == {"origin": 1, "fetched": 1}


def test_without_an_answer_the_program_reads(beside: ReadsBeside, reader: Reader, write: Callable[..., Path]) -> None:
    path = write(b"data")
    reader.is_gone = True
    assert beside.read_file(str(path)) is None
    beside.end()
    assert beside.read_file(str(path)) is None
    assert (beside.outcomes, len(reader.fetched)) == ({"origin": 1}, 1)
