"""Workers and trainers die: the server goes on, takes back what was theirs, and serves the next."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import prefeed
from leaks import parent_of
from process.conditions import (
    NUM_OBJECTS,
    Trainer,
    kill,
    make_objects,
    server_pid,
    status,
    trainer,
    wait_for,
)
from sandbox import Sandbox, processes_of, servers_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_objects(tmp_path / "objects")


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", "6MiB")


def processes_but_guards(sandbox: Sandbox) -> list[int]:
    """Return the processes of the sandbox without the children of servers that free their memory."""
    servers = servers_of(sandbox)
    return [pid for pid in processes_of(sandbox) if parent_of(pid) not in servers]


def everything(steps: list[Any]) -> bool:
    return sorted(number for step in steps for number in step["numbers"]) == list(range(NUM_OBJECTS))


# ------------------------------------------------------------ workers


def test_killed_worker(root: Path) -> None:
    """torch says what it always says; the server keeps its pid, and the next epoch is whole."""
    loader: Any = prefeed.DataLoader(
        prefeed.datasets.Objects(root), batch_size=8, shuffle=True, num_workers=2, collate_fn=list
    )
    server = server_pid()
    for _ in range(2):
        kill_worker(loader)
        assert server_pid() == server
        numbers = [int.from_bytes(data[:4], "little") for batch in loader for data in batch]
        assert sorted(numbers) == list(range(NUM_OBJECTS))
    assert prefeed.statistics().direct_reads == 0


def kill_worker(loader: Any) -> None:
    """Kill a worker after the second batch, and wait until torch has noticed."""
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    pid = int(iterator._workers[0].pid)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid(\(s\))? {pid}\) (exited unexpectedly|is killed)"):
        for _ in iterator:
            pass


# ------------------------------------------------------------ trainers


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_killed_trainer(root: Path, sandbox: Sandbox, workers: str) -> None:
    """Its plan ends, its transients are freed, its residents stay for the next, and no worker outlives it."""
    with trainer(root, "--gated", "--workers", workers) as first:
        first.step()
        wait_for(lambda: prefeed.statistics().transient_objects > 0, "transients to be fetched")
        server = server_pid()
        for _ in range(5):
            first.go_on()
            first.step()
        kill(first.pid)
        wait_for(lambda: (found := status()) is not None and found.plans == 0, "the plan to end")
        wait_for(lambda: prefeed.statistics().transient_objects == 0, "the transients to be freed")
        wait_for(lambda: processes_but_guards(sandbox) == [server], "workers that nobody reads from to end")
    before = prefeed.statistics()
    assert before.resident_objects > 0
    with trainer(root, "--workers", workers) as second:
        assert everything(second.rest())
    after = prefeed.statistics()
    assert server_pid() == server
    fetched = after.origin_requests - before.origin_requests
    assert fetched - (NUM_OBJECTS - before.resident_objects) <= 30, (
        "more than it had room for, for an epoch that did not come"
    )
    assert after.transient_objects <= 30


@pytest.mark.parametrize("workers", ["0", "2"])
def test_interrupted_trainer(root: Path, sandbox: Sandbox, workers: str) -> None:
    """Ctrl-C goes to the whole group: KeyboardInterrupt, no orphans, and the server is not of that group."""
    with trainer(root, "--gated", "--workers", workers, "--epochs", "2") as one:
        for _ in range(3):
            one.step()
            one.go_on()
        one.step()
        server = server_pid()
        os.killpg(one.pid, signal.SIGINT)
        one.process.wait(timeout=60)
        words = one.errors()
        assert "KeyboardInterrupt" in words
        assert "prefeed" not in words.replace("/prefeed/", "/").lower() or "Traceback" in words
        assert one.process.returncode in (-signal.SIGINT, 1, 130)
    wait_for(lambda: processes_but_guards(sandbox) == [server], "no orphans")
    assert server_pid() == server
    wait_for(lambda: (found := status()) is not None and found.plans == 0, "the plan to end")
    with trainer(root, "--workers", workers) as two:
        assert everything(two.rest())


def test_two_trainers_share(root: Path, sandbox: Sandbox) -> None:
    """Each object is fetched once for both, and each sees its own order."""
    with trainer(root, "--gated", "--workers", "1") as one, trainer(root, "--gated") as two:
        steps: dict[Trainer, list[Any]] = {one: [], two: []}
        for each in steps:
            steps[each].append(each.step())
        for _ in range(4):
            for each in steps:
                each.go_on()
                steps[each].append(each.step())
        for each in steps:
            steps[each] += each.rest()
            assert everything(steps[each])
    statistics = prefeed.statistics()
    assert statistics.origin_requests == NUM_OBJECTS
    assert len(servers_of(sandbox)) == 1


@pytest.mark.usefixtures("half")
def test_trainer_and_server_killed_together(root: Path, sandbox: Sandbox) -> None:
    """Nothing of either is left to hinder the next."""
    with trainer(root, "--gated", "--workers", "1") as first:
        first.step()
        kill(server_pid())
        kill(first.pid)
    with trainer(root, "--workers", "1", "--epochs", "2", "--persistent") as second:
        steps = second.rest()
        assert everything([step for step in steps if step["epoch"] == 0])
        assert everything([step for step in steps if step["epoch"] == 1])
    assert len(servers_of(sandbox)) == 1
    statistics = prefeed.statistics()
    assert statistics.resident_bytes + statistics.transient_bytes <= statistics.budget_bytes
