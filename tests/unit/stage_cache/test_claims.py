"""One process at a time makes an entry, and a dead one makes none."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from prefeed.stage_cache.claims import Claims

pytestmark = pytest.mark.usefixtures("sandbox")

KEY, OTHER = b"a" * 16, b"b" * 16


def in_child(claims: Claims, key: bytes) -> bool:
    """Return whether a forked child gets the key."""
    pid = os.fork()
    if pid == 0:
        os._exit(10 if claims.try_claim(key) else 20)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10


def test_a_key_is_one_process_s_at_a_time(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    assert claims.try_claim(KEY)
    assert not in_child(claims, KEY)
    assert in_child(claims, OTHER)
    claims.release(KEY)
    assert in_child(claims, KEY)
    claims.close()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        claims = Claims(tmp_path)
        os.write(writer, b"1" if claims.try_claim(KEY) else b"0")
        signal.pause()
    assert os.read(reader, 1) == b"1"
    claims = Claims(tmp_path)
    assert not claims.try_claim(KEY)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert claims.try_claim(KEY)
    claims.close()
    os.close(reader)
    os.close(writer)


def test_a_pickled_copy_claims_for_itself(tmp_path: Path) -> None:
    claims, copy = Claims(tmp_path), pickle.loads(pickle.dumps(Claims(tmp_path)))
    assert claims.try_claim(KEY)
    assert not copy.try_claim(KEY)
    claims.close()
    assert copy.try_claim(KEY)
    copy.close()


def test_without_a_directory_everybody_may_make_it(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "dropped")
    assert claims.try_claim(KEY)
    claims.release(KEY)
    claims.close()


def test_a_child_keeps_no_claims_of_its_dead_parent(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        claims = Claims(tmp_path)
        claims.try_claim(KEY)
        if os.fork() == 0:
            os.write(writer, os.getpid().to_bytes(8, "little"))
        signal.pause()
    grandchild = int.from_bytes(os.read(reader, 8), "little")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    claims = Claims(tmp_path)
    try:
        assert claims.try_claim(KEY)
    finally:
        os.kill(grandchild, signal.SIGKILL)
        claims.close()
        os.close(reader)
        os.close(writer)


def test_a_file_is_not_closed_under_one_who_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another file's by then."""
    claims = Claims(tmp_path)
    assert claims.try_claim(OTHER)
    lock = fcntl.fcntl
    closers = []

    def lock_late(file: int, *arguments: Any) -> Any:
        closers.append(threading.Thread(target=claims.close))
        closers[-1].start()
        closers[-1].join(0.2)
        assert Path(f"/proc/self/fd/{file}").resolve() == tmp_path / "claims"
        return lock(file, *arguments)

    monkeypatch.setattr(fcntl, "fcntl", lock_late)
    assert claims.try_claim(KEY)
    closers[0].join()
    assert not claims._file.is_open
