"""Too little memory, too little disk, damaged entries, directories that go away: samples are right all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import prefeed
from control_groups import memory_group
from e2e.parity import TESTS, assert_same_rows, caches_of, make_session, rows, run_jobs, stop_server
from e2e.parity_job import digest
from e2e.parity_readers import RandomData
from prefeed.config import resolve
from process.conditions import status
from sandbox import end_all
from small_files import small_file_system

MIB = 1024**2
ROW_BYTES = 300_000
SHAPE = (100, 1000, 3)


def noise(count: int) -> Any:
    return prefeed.not_random(RandomData(count, SHAPE))


def taken_bytes(directory: Path) -> int:
    """Return what the files below a directory take of their file system."""
    files = (Path(folder, name) for folder, _, names in os.walk(directory) for name in names)
    return sum(os.stat(file, follow_symlinks=False).st_blocks * 512 for file in files)


# ---------------------------------------------------------------- memory


def test_quota_of_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """``size`` bounds the files of its cache, whatever else the node has."""
    cached = prefeed.CachedDataset(noise(40), prefeed.DatasetCache(make_session(), size=5))
    assert_same_rows(rows(cached), rows(cached.dataset))
    found = cached.get_stat()
    assert 10 <= found.num_mem_cached <= 5 * MIB // ROW_BYTES
    assert taken_bytes(sessions_dir()) <= 5 * MIB + 64 * 1024


def sessions_dir() -> Path:
    """Return where the sessions of this home lie in memory."""
    (found,) = Path(resolve().memory_dir).glob("**/sessions")
    return found


def test_more_than_the_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size beyond the node's memory is no error: the cache gets what there is."""
    monkeypatch.setenv("PREFEED_MEMORY", "32MiB")
    cached = prefeed.CachedDataset(noise(150), prefeed.DatasetCache(make_session(), size=4000))
    assert_same_rows(rows(cached), rows(cached.dataset))
    assert 30 < cached.get_stat().num_mem_cached < 110
    assert taken_bytes(resolve().memory_dir) <= 32 * MIB


IN_A_GROUP = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "fault.stage_in_group"])
"""


def test_control_group_below_the_asked_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GB are asked for in a group of 1 GiB: the cache gets what the node gives, nobody is killed, rows are right."""
    monkeypatch.delenv("PREFEED_MEMORY")  # half of the smallest limit
    with memory_group(1024 * MIB) as procs:
        ran = subprocess.run(
            [sys.executable, "-c", IN_A_GROUP, str(procs)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        end_all(servers_of_this_home())
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr}"
    assert 900 < int(ran.stdout) < 512 * MIB // ROW_BYTES


def servers_of_this_home() -> list[int]:
    found = status()
    return [] if found is None else [found.pid]


def test_memory_fills_up_by_others(sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes the rest of the tmpfs while entries are written: no crash, no wrong row."""
    with small_file_system(sandbox.memory_dir / "small", "300m") as small:
        monkeypatch.setenv("PREFEED_MEMORY_DIR", str(small))
        monkeypatch.setenv("PREFEED_MEMORY", "200MiB")
        cached = prefeed.CachedDataset(noise(300), prefeed.DatasetCache(make_session()))
        expected = rows(cached.dataset)
        for index in range(50):
            cached[index]
        fill(small / "others")
        for _ in range(2):
            assert_same_rows(rows(cached), expected)
        (small / "others").unlink()
        assert_same_rows(rows(cached), expected)
        cached.close()
        stop_server()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MIB))
        except OSError:
            return


# ---------------------------------------------------------------- disk


def spilling(monkeypatch: pytest.MonkeyPatch, directory: Path, *, disk: str, count: int) -> Any:
    """Return a cache of 1 MB in memory that spills into a directory."""
    monkeypatch.setenv("PREFEED_DISK", f"{disk}:{directory}")
    return prefeed.CachedDataset(noise(count), prefeed.DatasetCache(make_session(), size=1, spilling=True))


@pytest.mark.parametrize("disk", ["1GiB", "auto"])
def test_disk_full_during_a_spill(sandbox: Any, monkeypatch: pytest.MonkeyPatch, disk: str) -> None:
    """The file system is smaller than what is asked for: what fits is kept, the rest is made."""
    with small_file_system(sandbox.root / "disk", "80m") as small:
        cached = spilling(monkeypatch, small, disk=disk, count=300)
        for _ in range(2):
            assert_same_rows(rows(cached), rows(cached.dataset))
        found = cached.get_stat()
        assert 50 < found.num_disk_cached < 280
        assert found.hits >= found.num_disk_cached
        cached.close()
        stop_server()


def test_disk_filled_by_others(sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes the rest of the disk in the middle of it."""
    with small_file_system(sandbox.root / "disk", "60m") as small:
        cached = spilling(monkeypatch, small, disk="1GiB", count=100)
        expected = rows(cached.dataset)
        for index in range(20):
            cached[index]
        fill(small / "others")
        for _ in range(2):
            assert_same_rows(rows(cached), expected)
        cached.close()
        stop_server()


def test_disk_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk tier's bytes are bounded like memory's."""
    cached = spilling(monkeypatch, tmp_path / "disk", disk="64MiB", count=300)
    assert_same_rows(rows(cached), rows(cached.dataset))
    assert 50 < cached.get_stat().num_disk_cached < 224
    assert taken_bytes(tmp_path / "disk") <= 64 * MIB


@pytest.mark.parametrize(
    ("name", "damage"),
    [("segment", "bytes"), ("segment", "cut"), ("segment", "garbage"), ("index", "cut"), ("index", "garbage")],
)
def test_damaged_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str) -> None:
    """What is wrong on disk is made again, not served."""
    cached = spilling(monkeypatch, tmp_path / "disk", disk="64MiB", count=30)
    expected = rows(cached)
    session = cached.cache.session_id
    assert cached.get_stat().num_disk_cached > 20
    cached.close()
    stop_server()
    (store,) = (tmp_path / "disk").glob(f"**/sessions/{session}/**/store/{name}")
    spoil(store, damage)
    again = prefeed.CachedDataset(noise(30), prefeed.DatasetCache(session, size=1, spilling=True))
    for _ in range(2):
        assert_same_rows(rows(again), expected)
    assert again.get_stat().misses > 5


def spoil(path: Path, damage: str) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        if damage == "cut":
            file.truncate(min(2 * MIB, size // 2))
        elif damage == "garbage":
            file.write(os.urandom(size))
        else:
            for offset in range(20_000, size, 100_000):
                file.seek(offset)
                file.write(b"\x00spoilt\xff")


# ---------------------------------------------------------------- directories


def test_directories_removed_under_a_run(tmp_path: Path) -> None:
    """Somebody clears /dev/shm in the middle of an epoch."""
    cached = prefeed.CachedDataset(noise(30), prefeed.DatasetCache(make_session()))
    expected = rows(cached.dataset)
    for index in range(15):
        cached[index]
    shutil.rmtree(sessions_dir())
    for _ in range(2):
        assert_same_rows(rows(cached), expected)


def test_cache_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No server may be started: samples are made each time, and the log says why."""
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    cached = prefeed.CachedDataset(noise(5))
    for _ in range(2):
        assert_same_rows(rows(cached), rows(noise(5)))
    assert "samples are not cached" in caplog.text


def test_a_second_process_finds_a_full_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that found no room are made by whoever wants them; what is held is shared."""
    session = make_session()
    what = {"kind": "random", "count": 400, "session": session, "size": 1}  # rows of 6 KB
    first, second = run_jobs(what, what)
    assert first["rows"] == second["rows"] == [[digest(row) for row in rows(RandomData(400))]]
    (found,) = caches_of(session)
    assert 50 < found.memory_entries < 175
