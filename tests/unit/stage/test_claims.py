"""One process at a time makes an entry, and a dead one makes none."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

from prefeed.stage.claims import Claims

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
