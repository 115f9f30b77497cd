"""Processes die, come and go, and work at once on one cache of a stage: every row stays right, and nothing hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.parity import (
    assert_same_rows,
    caches_of,
    drop_session,
    keep,
    loaded,
    make_session,
    rows,
    run_jobs,
    stop_server,
)
from e2e.parity_job import Logged, digest
from e2e.parity_readers import RandomData, Records, as_bytes
from e2e.stages import Files, Log, values, write_file, write_files
from process.children import child_running
from process.conditions import kill, server_pid, wait_for
from sandbox import Sandbox, servers_of

NUM_ROWS = 60
ROW_BYTES = 150_000


@pytest.fixture
def session() -> int:
    return make_session()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of rows that tell their numbers."""
    path = tmp_path / "rows"
    path.write_bytes(b"".join(bytes([number]) * ROW_BYTES for number in range(NUM_ROWS)))
    return path


def what(data: Path, session: int, **more: Any) -> dict[str, Any]:
    """Return the job that reads the rows through a cache."""
    job = {"kind": "records", "root": str(data), "count": NUM_ROWS, "record_bytes": ROW_BYTES, "session": session}
    return {**job, **more}


def plain(data: Path) -> Records:
    return Records(data, [(ROW_BYTES * at, ROW_BYTES) for at in range(NUM_ROWS)], as_bytes)


def expected(data: Path) -> list[str]:
    return [digest(row) for row in rows(plain(data))]


def num_made(log: Path) -> int:
    return len(log.read_bytes().split()) if log.exists() else 0


def cache_of(data: Path, session: int, log: Path, **cache: Any) -> Any:
    """Return the cached rows, each of which is written down when it is made."""
    return prefeed.CachedDataset(Logged(plain(data), Log(log)), prefeed.DatasetCache(session, **cache))


def is_right(data: Path, found: list[bytes]) -> bool:
    return found == rows(plain(data))


def reads_all(data: Path, session: int, log: Path, **cache: Any) -> Callable[[Connection], None]:
    """Return what reads every row and says whether all are right."""
    return lambda there: there.send(is_right(data, rows(cache_of(data, session, log, **cache))))


def read_elsewhere(data: Path, session: int, log: Path, **cache: Any) -> None:
    """Read every row in a process of its own; all must be right."""
    with child_running(reads_all(data, session, log, **cache)) as (_, here):
        assert here.recv() is True


# ---------------------------------------------------------------- at once


def test_four_processes_of_two_workers(data: Path, session: int, tmp_path: Path) -> None:
    """All of them read everything at once, the first epoch writing: no row is made twice, none is wrong."""
    log = tmp_path / "made"
    job = what(data, session, workers=2, epochs=3, log=str(log))
    runs = run_jobs(*[job] * 4)
    assert all(run["rows"] == [expected(data)] * 3 for run in runs)
    made = log.read_text().split()
    assert sorted(made, key=int) == [str(number) for number in range(NUM_ROWS)]
    (found,) = caches_of(session)
    assert found.memory_entries == NUM_ROWS
    assert found.hits + found.misses == 4 * 3 * NUM_ROWS
    assert found.misses == NUM_ROWS  # a row that was waited for, while another process made it, was found


def test_four_processes_at_their_own_files(session: int) -> None:
    """Four datasets in one session at once: a cache each."""
    runs = run_jobs(*({"kind": "random", "count": 10 + number, "session": session, "workers": 2, "epochs": 2}
                      for number in range(4)))  # fmt: skip
    for number, run in enumerate(runs):
        noise = [digest(row) for row in rows(RandomData(10 + number))]
        assert run["rows"] == [noise] * 2
        assert (run["held"], run["hits"]) == (10 + number, 10 + number)


# ---------------------------------------------------------------- the server


def test_server_killed_in_an_epoch(data: Path, session: int, sandbox: Sandbox, tmp_path: Path) -> None:
    """Rows go on coming and going in without it; the next one finds the cache as it is."""
    log = tmp_path / "made"
    with child_running(reads_in_two_parts(data, session, log)) as (_, here):
        assert here.recv() == 10
        kill(server_pid())
        here.send("go on")
        assert here.recv() is True
    read_elsewhere(data, session, log)
    assert num_made(log) == NUM_ROWS  # each once, before the server died and after
    wait_for(lambda: len(servers_of(sandbox)) == 1, "one server")


def reads_in_two_parts(data: Path, session: int, log: Path) -> Callable[[Connection], None]:
    """Return what waits for a word after its tenth row."""

    def act(there: Connection) -> None:
        cached = cache_of(data, session, log)
        found = [cached[index] for index in range(10)]
        there.send(len(found))
        there.recv()
        there.send(is_right(data, found + [cached[index] for index in range(10, NUM_ROWS)]))

    return act


@pytest.mark.parametrize("num_workers", [0, 2])
def test_server_killed_between_batches(data: Path, session: int, num_workers: int) -> None:
    cached = prefeed.CachedDataset(plain(data), prefeed.DatasetCache(session))
    loader = prefeed.DataLoader(cached, batch_size=4, num_workers=num_workers, collate_fn=keep)
    found: list[Any] = []
    for number, batch in enumerate(loader):
        found += batch
        if number == 3:
            kill(server_pid())
    assert_same_rows(found, rows(plain(data)))
    assert_same_rows(loaded(cached, num_workers=num_workers), rows(plain(data)))


def test_session_outlives_its_server(data: Path, session: int, tmp_path: Path) -> None:
    """Killed again and again between runs: a session and what is in it stay."""
    log = tmp_path / "made"
    for _ in range(4):
        read_elsewhere(data, session, log)
        (found,) = caches_of(session)
        assert found.memory_entries == NUM_ROWS
        kill(server_pid())
    assert num_made(log) == NUM_ROWS


@pytest.mark.parametrize("change", ["dropped", "stopped"])
def test_four_processes_lose_their_cache(data: Path, session: int, tmp_path: Path, change: str) -> None:
    """The session is dropped, or the server stopped, while all of them are at it."""
    act = reads_in_two_parts(data, session, tmp_path / "made")
    with ExitStack() as stack:
        ends = [stack.enter_context(child_running(act))[1] for _ in range(4)]
        assert [here.recv() for here in ends] == [10] * 4
        drop_session(session) if change == "dropped" else stop_server()
        for here in ends:
            here.send("go on")
        assert [here.recv() for here in ends] == [True] * 4


# ---------------------------------------------------------------- writers


def test_writer_killed(data: Path, tmp_path: Path) -> None:
    """Killed while rows are made and written: others go on, none is torn, and what was kept is not made again."""
    for number in range(12):
        session, log = make_session(), tmp_path / f"made{number}"
        act = reads_all(data, session, log)
        with child_running(act) as (first, _), child_running(act) as (_, here):
            wait_for(lambda log=log, number=number: num_made(log) > 1 + 4 * number, "rows to be made")
            os.kill(first.pid, signal.SIGKILL)
            assert here.recv() is True
        assert num_made(log) <= NUM_ROWS + 1  # the one that was being made
        read_elsewhere(data, session, log)
        assert num_made(log) <= NUM_ROWS + 1
        drop_session(session)


def test_writer_stopped_in_a_row(tmp_path: Path, session: int) -> None:
    """One that is held up while it makes a row holds nobody else up for long; when it is killed, for no time."""
    root = write_files(tmp_path / "data", 4)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = os.fork()
    if child == 0:
        prefeed.CachedDataset(Gated(root, gate), prefeed.DatasetCache(session), version="1")[2]
        os._exit(0)
    entered = os.open(gate, os.O_WRONLY)  # open on the other side too: the row is being made
    try:
        here = prefeed.CachedDataset(Gated(root, Path(os.devnull)), prefeed.DatasetCache(session), version="1")
        assert here[2] == (root / "2.bin").read_bytes()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(entered)
    assert rows(here) == [(root / f"{index}.bin").read_bytes() for index in range(4)]
    assert here.get_stat().num_mem_cached == 4


class Gated:
    """Reads a pipe to its end before it reads a file."""

    def __init__(self, root: Path, gate: Path) -> None:
        self.root = root
        self.gate = gate

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bytes:
        gate = os.open(self.gate, os.O_RDONLY)
        os.read(gate, 1)
        os.close(gate)
        return (self.root / f"{index}.bin").read_bytes()


@pytest.mark.parametrize("kept", [False, True], ids=["", "persistent"])
def test_worker_killed(data: Path, session: int, kept: bool) -> None:
    """torch says so, as ever; the next epoch is whole."""
    cached = prefeed.CachedDataset(plain(data), prefeed.DatasetCache(session))
    loader = prefeed.DataLoader(cached, batch_size=2, num_workers=2, collate_fn=keep, persistent_workers=kept)
    iterator = iter(loader)
    next(iterator)
    victim = workers_of(iterator)[0]
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        for _ in iterator:
            pass
    del iterator, loader
    assert_same_rows(loaded(cached, num_workers=2), rows(plain(data)))
    assert cached.get_stat().num_mem_cached == NUM_ROWS


def workers_of(iterator: Any) -> list[int]:
    found = [worker.pid for worker in iterator._workers]
    assert all(found)
    return found


# ---------------------------------------------------------------- files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(write_files(tmp_path / "data", 10), 10, Log(tmp_path / "log"))


def test_file_changed_between_processes(files: Files, session: int) -> None:
    """What one process has cached and another changes is served new to all of them, in the same epoch too."""
    cached = prefeed.CachedDataset(files, prefeed.DatasetCache(session))
    assert values(rows(cached)) == [(index, index) for index in range(10)]
    write_file(files.root, 4, 99, seconds=5)
    child = os.fork()
    if child == 0:
        right = values([cached[4]]) == [(99, 4)] and values([cached[5]]) == [(5, 5)]
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    files.log.take()
    assert values([cached[4]]) == [(99, 4)]
    assert files.log.take() == []  # the child has made it, and this process takes that
    assert cached.get_stat().num_mem_cached == 10


def test_file_replaced_while_a_row_is_made(files: Files, session: int) -> None:
    """A file that changes under its reader leaves no entry that looks right."""

    def meddle(sample: Any) -> Any:
        if not (files.root / "done").exists():
            (files.root / "done").touch()
            write_file(files.root, 3, 77, seconds=9)
        return sample

    cached = prefeed.mapped(files, prefeed.not_random(meddle), prefeed.DatasetCache(session), version="1")
    assert values([cached[3]]) == [(3, 3)]  # read before the change
    assert values([cached[3]]) == [(77, 3)]


# ---------------------------------------------------------------- restart


def test_restart_with_a_warm_disk(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on disk is there after a stop and after a kill, and no row of it is made again."""
    monkeypatch.setenv("PREFEED_DISK", "256MiB")
    session, log = make_session(), tmp_path / "made"
    read_elsewhere(data, session, log, size=1, spilling=True)
    (before,) = caches_of(session)
    assert before.disk_entries > NUM_ROWS - 10
    in_memory = NUM_ROWS - before.disk_entries
    for end in (stop_server, lambda: kill(server_pid())):
        log.unlink()
        log.touch()
        end()
        read_elsewhere(data, session, log, size=1, spilling=True)
        assert num_made(log) <= in_memory
        in_memory = 0  # of what was in memory alone when the server was stopped, all has been made again by now
