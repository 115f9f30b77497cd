"""Files that somebody writes to while they are read: never a mixture, whatever the times say."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prefeed.errors import TruncatedBodyError
from prefeed.sources import posix
from prefeed.sources.posix import PosixSource
from prefeed.sources.steadiness import (
    MOST_READS,
    REST_SECONDS,
    YOUNG_SECONDS,
    is_left_alone,
    is_open_for_writing,
    is_young,
    seconds_to_rest,
)

NOW = 1_700_000_000_500_000_000
OLD, NEW = b"o" * 4096, b"n" * 4096


def status(*, ino: int = 7, size: int = 10, mtime_ns: int = 5, ctime_ns: int = 5) -> os.stat_result:
    fields = [stat.S_IFREG | 0o644, ino, 1, 1, 0, 0, size, 0, 0, 0]
    times = {"st_mtime_ns": mtime_ns, "st_ctime_ns": ctime_ns}
    return os.stat_result(fields, times)


@pytest.mark.parametrize(
    ("age_ns", "seconds"),
    [
        (0, REST_SECONDS),
        (20_000_000, REST_SECONDS - 0.02),
        (50_000_000, 0.0),
        (3_000_000_000, 0.0),
        (-1_000_000, REST_SECONDS + 0.001),
        (-3600_000_000_000, 0.0),
    ],
    ids=["now", "just now", "rested", "old", "a clock a little ahead", "a clock an hour ahead"],
)
def test_how_long_a_file_has_to_rest(age_ns: int, seconds: float) -> None:
    assert seconds_to_rest(status(ctime_ns=NOW - age_ns), NOW) == pytest.approx(seconds)


def test_a_file_system_with_whole_seconds_needs_longer() -> None:
    assert seconds_to_rest(status(ctime_ns=1_700_000_000_000_000_000), NOW) == pytest.approx(YOUNG_SECONDS - 0.5)
    assert is_young(status(ctime_ns=NOW - 1_900_000_000), NOW)
    assert not is_young(status(ctime_ns=NOW - 2_100_000_000), NOW)


def test_what_counts_as_left_alone() -> None:
    before = status()
    assert is_left_alone(before, status())
    assert not is_left_alone(before, status(size=11))
    assert not is_left_alone(before, status(mtime_ns=6))
    assert not is_left_alone(before, status(ctime_ns=6))  # a time that was set back
    assert is_left_alone(before, status(ctime_ns=6), but_for_inode=True)
    assert is_left_alone(before, status(ino=8, ctime_ns=6))  # numbers that mean nothing
    assert not is_left_alone(before, status(ino=8, mtime_ns=6))  # another file


class Writing:
    """Stands between the source and the kernel: what happens at each read of the file, in order; then nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *events: Callable[[bytes], bytes]) -> None:
        self.reads = 0
        self.slept: list[float] = []
        self._events = list(events)
        self._read = os.read
        monkeypatch.setattr(posix.os, "read", self.read)
        monkeypatch.setattr(posix.time, "sleep", self.slept.append)

    def read(self, descriptor: int, size: int) -> bytes:
        self.reads += 1
        data = self._read(descriptor, size)
        return self._events.pop(0)(data) if self._events else data


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the source's clock on."""
    real = posix.time.time_ns

    def move(seconds: float) -> None:
        monkeypatch.setattr(posix.time, "time_ns", lambda: real() + int(seconds * 1e9))

    return move


def test_a_write_under_way_has_set_the_time_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    """Nothing changes between the two looks, and what was read is half old and half new: only its age says so."""
    (tmp_path / "a").write_bytes(NEW)
    with monkeypatch.context():
        writing = Writing(monkeypatch, lambda data: OLD[:2048] + data[2048:])
        monkeypatch.setattr(posix.time, "sleep", lambda seconds: (writing.slept.append(seconds), later(5)))
        data = PosixSource(str(tmp_path)).fetch("a").data
    assert data == NEW
    assert writing.reads == 2
    assert 0 < writing.slept[0] <= REST_SECONDS


def test_a_file_at_rest_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    (tmp_path / "a").write_bytes(OLD)
    later(60)
    writing = Writing(monkeypatch)
    assert PosixSource(str(tmp_path)).fetch("a").data == OLD
    assert (writing.reads, writing.slept) == (1, [])


@pytest.mark.parametrize("sets_time_back", [False, True])
def test_a_file_that_is_written_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None], sets_time_back: bool
) -> None:
    """Also where the writer gives it back the size and the time that it had."""
    file = tmp_path / "a"
    file.write_bytes(OLD)
    before = file.stat()
    later(60)

    def overwrite(data: bytes) -> bytes:
        file.write_bytes(NEW)
        if sets_time_back:
            os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))
        return data[:2048] + NEW[2048:]

    writing = Writing(monkeypatch, overwrite)
    assert PosixSource(str(tmp_path)).fetch("a").data == NEW
    assert writing.reads == 2


def test_a_file_that_another_one_replaces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    file = tmp_path / "a"
    file.write_bytes(OLD)
    later(60)

    def replace(data: bytes) -> bytes:
        (tmp_path / "b").write_bytes(NEW)
        os.replace(tmp_path / "b", file)
        return data

    Writing(monkeypatch, replace)
    assert PosixSource(str(tmp_path)).fetch("a").data in (OLD, NEW)


def test_a_file_that_is_removed_meanwhile_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    (tmp_path / "a").write_bytes(OLD)
    later(60)

    def remove(data: bytes) -> bytes:
        (tmp_path / "a").unlink()
        return data

    Writing(monkeypatch, remove)
    assert PosixSource(str(tmp_path)).fetch("a").data == OLD


@pytest.mark.parametrize("part", [False, True])
def test_a_file_that_is_always_being_written_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: bool
) -> None:
    file = tmp_path / "a"
    file.write_bytes(OLD)
    reads = 0

    def pread(descriptor: int, size: int, offset: int = 0) -> bytes:
        nonlocal reads
        reads += 1
        file.write_bytes(NEW)
        return OLD[:size]

    monkeypatch.setattr(posix.os, "read", pread)
    monkeypatch.setattr(posix.os, "pread", pread)
    monkeypatch.setattr(posix.time, "sleep", lambda _: None)
    source = PosixSource(str(tmp_path))
    with pytest.raises(TruncatedBodyError, match=f"changed while it was read, {MOST_READS} times") as caught:
        source.fetch_range("a", 0, 100) if part else source.fetch("a")
    assert caught.value.retryable
    assert reads == MOST_READS


def test_a_writer_that_is_held_up_still_has_the_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    """Half of the file is new, and has been for longer than a file has to rest: the writer was not given a core."""
    file = tmp_path / "a"
    file.write_bytes(OLD)
    with file.open("r+b", buffering=0) as writer:
        writer.write(NEW[:2048])
        later(1)

        def go_on(_: float) -> None:
            if not writer.closed:
                writer.write(NEW[2048:])
                writer.close()

        monkeypatch.setattr(posix.time, "sleep", go_on)
        assert PosixSource(str(tmp_path)).fetch("a").data == NEW


def test_who_has_a_file_open_for_writing(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(OLD)
    with file.open("rb", buffering=0) as reader:
        assert not is_open_for_writing(reader.fileno())
        with file.open("ab"):
            assert is_open_for_writing(reader.fileno())
        assert not is_open_for_writing(reader.fileno())
        assert not is_open_for_writing(10**6)


@pytest.mark.usefixtures("sandbox")
def test_no_mixture_of_a_file_that_is_overwritten_in_place(tmp_path: Path) -> None:
    """One thread writes another byte all over the file, in one write, again and again."""
    file = tmp_path / "a"
    file.write_bytes(bytes(1 << 20))
    done = threading.Event()

    def overwrite() -> None:
        number = 0
        while not done.is_set():
            number = (number + 1) % 251
            with file.open("r+b", buffering=0) as writer:
                writer.write(bytes([number]) * (1 << 20))
            done.wait(0.002)

    writer = threading.Thread(target=overwrite)
    writer.start()
    source, mixed = PosixSource(str(tmp_path)), 0
    try:
        for _ in range(10):
            try:
                data = source.fetch("a").data
            except TruncatedBodyError:
                continue
            mixed += data.count(data[:1]) != len(data)
    finally:
        done.set()
        writer.join()
    assert mixed == 0
