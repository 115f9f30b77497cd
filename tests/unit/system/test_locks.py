"""A directory is one process's at a time, and nobody waits for ever for one that was stopped inside."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from cache_user import key_of
from prefeed.config import MIB
from prefeed.store.shared import SharedTier
from prefeed.system import locks
from prefeed.system.locks import call_when_free, directory_lock

LONG = 100.0


def test_one_at_a_time(tmp_path: Path) -> None:
    with directory_lock(tmp_path), pytest.raises(BlockingIOError), directory_lock(tmp_path, within_seconds=0):
        pass
    with directory_lock(tmp_path, within_seconds=0):
        pass


@pytest.mark.usefixtures("sandbox")
def test_who_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    waited = []

    def wait() -> None:
        with directory_lock(tmp_path, within_seconds=LONG):
            waited.append(True)

    thread = threading.Thread(target=wait)
    with directory_lock(tmp_path):
        thread.start()
        assert not waited
    thread.join()
    assert waited


def test_what_was_waited_for_in_vain_is_not_waited_for_again(tmp_path: Path) -> None:
    with directory_lock(tmp_path):
        calls = []
        for within_seconds in (0.02, LONG):
            with pytest.raises(BlockingIOError):
                call_when_free(
                    tmp_path, lambda: calls.append(locks._open_and_lock(tmp_path)), within_seconds=within_seconds
                )
        assert calls == []


def test_a_removed_directory_cannot_be_held(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with directory_lock(gone):
        gone.rmdir()
    with pytest.raises(FileNotFoundError), directory_lock(gone):
        pass


def test_a_process_stopped_while_it_writes_is_waited_for_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored is read all the while; nothing is stored, and nobody waits a second time, until it goes on."""
    with closing(SharedTier(tmp_path / "store", limit_bytes=4 * MIB)) as tier:
        (tmp_path / "store").mkdir(mode=0o700)
        assert tier.put_many([(key_of(0), b"stored")]) == 1
        with (tmp_path / "store" / "store" / "index").open("rb") as stopped:
            fcntl.flock(stopped, fcntl.LOCK_EX)
            assert tier.put_many([(key_of(1), b"more")]) == 0
            monkeypatch.setattr(locks, "PATIENCE_SECONDS", LONG)
            assert tier.put_many([(key_of(1), b"more")]) == 0
            assert tier.get(key_of(0)) == b"stored"
            with closing(SharedTier(tmp_path / "store", limit_bytes=4 * MIB)) as other:
                assert other.put_many([(key_of(1), b"more")]) == 0
        assert tier.put_many([(key_of(1), b"more")]) == 1
        assert tier.get(key_of(1)) == b"more"


# ---------------------------------------------------------------- files


def _flock(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(file, kind)
    return file


def test_a_file_that_is_kept_is_not_waited_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def pass_time(*_: object) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(locks.time, "monotonic", lambda: now)
    monkeypatch.setattr(locks.time, "sleep", pass_time)
    held, asking = _flock(tmp_path / "file"), os.open(tmp_path / "file", os.O_RDWR | os.O_CLOEXEC)
    try:
        assert not locks.try_flock(asking)
        assert not locks.flock_within(asking, 10.0)
        assert now == 10.0
        assert not locks.flock_within(asking, 10.0, life=lambda: min(now, 25.0))  # it says until then that it is there
        assert now == 35.0
        with locks.file_lock(tmp_path / "file", within_seconds=3.0):
            assert now == 38.0
        os.close(held)
        held = _flock(tmp_path / "file", fcntl.LOCK_SH)
        assert not locks.try_flock(asking)
        assert locks.try_flock(asking, fcntl.LOCK_SH)
    finally:
        os.close(held)
        os.close(asking)


def test_without_locks_there_is_no_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with locks.file_lock(tmp_path / "file", within_seconds=1000.0):
        pass
    with pytest.raises(OSError, match="No locks"):
        locks.open_locked(lambda: os.open(tmp_path / "file", os.O_RDWR | os.O_CLOEXEC))


@pytest.mark.usefixtures("sandbox")
def test_a_child_that_was_forked_meanwhile_does_not_keep_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ours, theirs = os.pipe()
    with locks.file_lock(path, within_seconds=0):
        child = os.fork()
        if not child:
            os.close(theirs)
            os.read(ours, 1)  # until the parent lets it end, or is gone
            os._exit(0)
    try:
        os.close(_flock(path))
    finally:
        os.close(theirs)
        os.close(ours)
        os.waitpid(child, 0)


def test_a_file_that_lost_its_name_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    opened: list[int] = []

    def open_one() -> int:
        opened.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
        if len(opened) < 3:
            path.unlink()
        return opened[-1]

    file = locks.open_locked(open_one, lambda held: locks.is_named(held, path))
    assert len(opened) == 3
    with pytest.raises(BlockingIOError):
        locks.open_locked(lambda: os.open(path, os.O_RDWR | os.O_CLOEXEC))
    os.close(file)
