"""Records of jobs in a home that several nodes share: who runs, who waits, and who is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prefeed.errors import JobConflictError, JobError
from prefeed.jobs import records as records_module
from prefeed.jobs.records import FAILED, PENDING, RUNNING, SUCCEEDED, JobRecord, JobRecords
from prefeed.jobs.running import terminate
from prefeed.system import machine
from prefeed.system.machine import Process

OnNode = Callable[[str], None]


@pytest.fixture
def records(tmp_path: Path) -> JobRecords:
    return JobRecords(tmp_path / "jobs")


@pytest.fixture
def on_node(monkeypatch: pytest.MonkeyPatch) -> OnNode:
    """From then on this process is one of that node."""

    def become(name: str) -> None:
        monkeypatch.setattr(machine, "boot_name", lambda: name)
        monkeypatch.setattr(machine, "host_name", lambda: f"host-{name}")

    return become


def job(name: str, *, created: float, phase: str = PENDING) -> JobRecord:
    return JobRecord(id=name, type="sync", phase=phase, created=created, process=Process.of(os.getpid()))


def recorded(records: JobRecords, *jobs: JobRecord) -> None:
    with records.lock():
        for one in jobs:
            records.write(one)


def phase_of(records: JobRecords, name: str) -> str:
    found = records.read(name)
    assert found is not None
    return found.phase


def test_a_process_elsewhere_is_not_judged_by_its_number(records: JobRecords, on_node: OnNode) -> None:
    """It is under way while it says so; its number, which is another process's here, says nothing."""
    on_node("a")
    recorded(records, job("j", created=1, phase=RUNNING), replace(job("gone", created=2), process=Process()))
    own = records.read("j")
    assert own is not None
    recorded(records, replace(own, process=replace(own.process, pid=2**22 + 1)))
    assert phase_of(records, "gone") == FAILED
    assert phase_of(records, "j") == FAILED  # its node sees that it is gone
    on_node("b")
    assert phase_of(records, "j") == RUNNING
    long_ago = time.time() - 601
    os.utime(records.directory / "j.json", (long_ago, long_ago))
    found = records.read("j")
    assert found is not None
    assert found.phase == FAILED
    assert "on host-a has given no sign of life for 10 minutes: run it again" in found.message


def test_another_container_of_the_kernel_is_elsewhere(records: JobRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(records, replace(job("j", created=1), process=replace(Process.of(os.getpid()), pid=2**22 + 1)))
    monkeypatch.setattr(machine, "process_namespace", lambda: "pid:[1]")
    assert phase_of(records, "j") == PENDING


def test_a_job_of_another_node_is_not_ended_from_here(records: JobRecords, on_node: OnNode) -> None:
    on_node("a")
    recorded(records, job("j", created=1, phase=RUNNING))  # this very process
    on_node("b")
    found = records.read("j")
    assert found is not None
    assert "of host-a, which cannot be ended from here" in terminate(records, found)


def test_one_of_all_who_claim_a_job_has_it(
    records: JobRecords, on_node: OnNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that there is none, or that it is over; the one that is late writes nothing."""
    monkeypatch.setattr(records_module, "try_flock", lambda _: True)
    records.directory.mkdir()
    on_node("a")
    records.claim(job("j", created=1))
    rename = Path.rename

    def too_late(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        rename(path, target)
        on_node("b")
        records.claim(job("j", created=2))  # meanwhile
        on_node("a")
        return target

    recorded(records, job("j", created=1, phase=FAILED))
    monkeypatch.setattr(Path, "rename", too_late)
    monkeypatch.setattr(Path, "unlink", lambda path, **_: path.exists() and os.unlink(path))
    with pytest.raises(JobConflictError, match="begun by another process"):
        records.claim(job("j", created=3))
    found = records.read("j")
    assert found is not None
    assert found.process.boot == "b"
    with pytest.raises(JobError, match="of host-b now"):
        records.update("j", phase=RUNNING)


@contextmanager
def turn(records: JobRecords, name: str, waited: list[list[str]]) -> Iterator[None]:
    def wait(before: list[str]) -> None:
        waited.append(before)
        raise InterruptedError

    with records.wait_turn(name, wait=wait):
        yield


@pytest.mark.parametrize("clocks", ["as one", "apart"])
def test_two_nodes_do_not_run_at_once_without_locks(
    records: JobRecords, on_node: OnNode, monkeypatch: pytest.MonkeyPatch, clocks: str
) -> None:
    """Whoever came first runs, also when the clock of the other one says that it did."""
    monkeypatch.setattr(records_module, "try_flock", lambda _: True)
    waited: list[list[str]] = []
    on_node("a")
    recorded(records, job("first", created=10))
    with turn(records, "first", waited):
        assert phase_of(records, "first") == RUNNING
        on_node("b")
        recorded(records, job("second", created=11 if clocks == "as one" else 9))
        with pytest.raises(InterruptedError), turn(records, "second", waited):
            pass
        assert (waited, phase_of(records, "second")) == ([["first"]], PENDING)
        on_node("a")
        records.update("first", phase=SUCCEEDED)
    on_node("b")
    with turn(records, "second", waited):
        assert phase_of(records, "second") == RUNNING


def test_two_that_begin_at_once_see_each_other(
    records: JobRecords, on_node: OnNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "try_flock", lambda _: True)
    on_node("b")
    recorded(records, job("j", created=2))
    note = JobRecords.update

    def other_begins(self: JobRecords, name: str, **changes: object) -> JobRecord:
        monkeypatch.setattr(JobRecords, "update", note)
        done = note(self, name, **changes)
        on_node("a")
        recorded(records, job("other", created=1, phase=RUNNING))
        on_node("b")
        return done

    monkeypatch.setattr(JobRecords, "update", other_begins)
    waited: list[list[str]] = []
    with pytest.raises(InterruptedError), turn(records, "j", waited):
        pass
    assert (waited, phase_of(records, "j")) == ([["other"]], PENDING)
