"""The leak check must fail when something leaks."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import warm
from leaks import SANDBOX_PREFIX, SHM, held, leaked_since, wait_until
from sandbox import Sandbox, end_all, processes_of

pytestmark = [
    pytest.mark.usefixtures("sandbox"),
    pytest.mark.xdist_group("names in /dev/shm"),  # what one of these leaves there for a moment, another would find
]


def leaked(before, tmp_path: Path) -> dict[str, list[str]]:
    return leaked_since(before, mounts_below=tmp_path, timeout_seconds=0.01)


def test_nothing_held_beyond_before_is_no_leak(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)

    assert leaked(before, tmp_path) == {}


def test_open_file_is_a_leak(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)
    with (tmp_path / "a").open("w"):
        assert leaked(before, tmp_path) == {"descriptors": [str(tmp_path / "a")]}


def test_thread_is_a_leak(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left", daemon=True)
    thread.start()
    try:
        assert leaked(before, tmp_path) == {"threads": ["left (daemon)"]}
    finally:
        stop.set()
        thread.join()


def test_child_is_a_leak_until_it_is_waited_for(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert str(child.pid) in leaked(before, tmp_path)["children"][0]
    finally:
        child.communicate(b"\n")
    assert leaked(before, tmp_path) == {}


DAEMON = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.read(0, 1)  # until the tests say so
    os._exit(0)
os.wait()
"""


def test_a_daemon_that_came_to_this_process_is_none_once_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orphans come to it while a program is forked from a warm process."""
    monkeypatch.setattr(warm, "PROGRAMS", {f"-c {DAEMON}": ("json",)})
    subprocess.run([sys.executable, "-c", DAEMON], stdin=subprocess.DEVNULL, check=True)  # has the warm process started
    before = held(mounts_below=tmp_path)
    reading, writing = os.pipe()
    receive = warm._receive_exactly

    def late(sock: socket.socket, size: int) -> bytes:
        """Take orphans until the program, which is one of them, has left another."""
        assert wait_until(
            lambda: len(held(mounts_below=tmp_path).beyond(before).get("children", [])) == 2, timeout_seconds=60
        )
        return receive(sock, size)

    monkeypatch.setattr(warm, "_receive_exactly", late)
    try:
        subprocess.run([sys.executable, "-c", DAEMON], stdin=reading, check=True)
        assert len(leaked(before, tmp_path)["children"]) == 1
    finally:
        os.close(reading)
        os.close(writing)
    assert leaked_since(before, mounts_below=tmp_path, timeout_seconds=60) == {}


def test_a_child_is_known_by_its_number(tmp_path: Path) -> None:
    """What it runs may not have been there to see: between fork and exec, and once it has ended, there is no command line."""
    now = held(mounts_below=tmp_path, children=Counter({"7 python main.py": 1, "8 python other.py": 1}))
    before = replace(now, children=Counter({"7 (ended, never waited for)": 1}))
    assert now.beyond(before) == {"children": ["8 python other.py"]}


def test_name_in_shared_memory_is_a_leak(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)
    name = f"{SANDBOX_PREFIX}{os.getpid()}-leak"
    (SHM / name).touch()
    try:
        assert leaked(before, tmp_path) == {"shared_memory": [name]}
    finally:
        (SHM / name).unlink()


def test_another_runs_sandbox_is_not_ours(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)
    foreign = SHM / f"{SANDBOX_PREFIX}1-x"
    foreign.mkdir()
    try:
        assert leaked(before, tmp_path) == {}
    finally:
        foreign.rmdir()


@pytest.mark.leaks(reason="the other process may end a moment after the test")
def test_semaphore_of_another_process_is_not_ours(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)
    code = (
        "import multiprocessing as m, sys; s = m.get_context('spawn').Semaphore(); print('made', flush=True); input()"
    )
    # setsid --fork: the process that makes it is no descendant
    command = ["setsid", "--fork", sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"made\n"
        found = leaked(before, tmp_path)
        other.stdin.write(b"\n")

    assert "shared_memory" not in found


def test_own_semaphore_is_a_leak_until_it_is_gone(tmp_path: Path) -> None:
    before = held(mounts_below=tmp_path)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    found = leaked(before, tmp_path)
    del semaphore

    assert len(found["shared_memory"]) == 1


def test_every_test_has_a_home_of_its_own(sandbox: Sandbox) -> None:
    assert os.environ["PREFEED_HOME"] == str(sandbox.home)
    assert len(os.fsencode(sandbox.runtime_dir)) < 50


def test_process_started_under_the_sandbox_is_found_and_ended(sandbox: Sandbox) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    assert processes_of(sandbox) == [child.pid]
    end_all([child.pid])

    assert processes_of(sandbox) == []
    child.communicate()


@pytest.mark.leaks(reason="shows that the marker turns the check off; the descriptor is closed by a finalizer")
def test_marker_turns_the_check_off(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    file = (tmp_path / "a").open("w")
    request.addfinalizer(file.close)


def test_tests_that_leak_fail(tmp_path: Path) -> None:
    leaks = {
        "threads: left (daemon)": "threading.Thread(target=threading.Event().wait, name='left', daemon=True).start()",
        "descriptors: pipe": "os.pipe()",
        "children: ": "subprocess.Popen(['true'])",
    }
    said = failed(tmp_path, "e2e", *(f"global kept_{at}; kept_{at} = {leak}" for at, leak in enumerate(leaks.values())))
    assert f"{len(leaks)} errors" in said
    assert all(f"  {named}" in said for named in leaks)


def test_tests_without_a_sandbox_that_need_one_fail(tmp_path: Path) -> None:
    needs = {
        "_thread.start_new_thread": "threading.Thread(target=print).start()",
        "subprocess.Popen": "subprocess.run(['true'])",
        "os.posix_spawn": "multiprocessing.get_context('spawn').Process(target=print).start()",
        "os.fork": "os.fork()",
        "socket.__new__": "socket.socket()",
        "writes /dev/shm/a-name": "open('/dev/shm/a-name', 'w')",
    }
    lines = [f"with contextlib.suppress(RuntimeError): {line}" for line in needs.values()]
    leaves_open = "global kept; kept = open(tmp_path / 'left', 'w')"
    said = failed(tmp_path, "unit", *lines, leaves_open)
    assert f"{len(needs) + 1} errors" in said
    assert all(f"  {named}" in said for named in needs)
    assert re.search(r"the tests of this module left open\n  .*/left\n", said)


def failed(directory: Path, folder: str, *lines: str) -> str:
    """Run a test of each line in a folder, one of which must fail; return what pytest says."""
    here = Path(__file__).parents[1]
    conftest = (here / "conftest.py").read_text()
    patient = "LEAK_TIMEOUT_SECONDS = 90.0"
    assert patient in conftest
    (directory / "conftest.py").write_text(conftest.replace(patient, "LEAK_TIMEOUT_SECONDS = 0.1"))
    for name in ("leaks.py", "limits.py", "sandbox.py", "purity.py", "warm.py", "profiles.py"):
        shutil.copy(here / name, directory)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n  leaks\n  cold\npythonpath = .\n")
    (directory / folder).mkdir()
    tests = [f"def test_{at}(tmp_path):\n    {line}\n" for at, line in enumerate(lines)]
    modules = "import contextlib, multiprocessing, os, socket, subprocess, threading"
    (directory / folder / "test_inner.py").write_text("\n\n".join([modules, *tests]))
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)]
    ran = subprocess.run(line, cwd=directory, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout
    return ran.stdout.replace("E   ", "")


def test_tests_of_a_group_go_to_one_process(request: pytest.FixtureRequest) -> None:
    """By their ids: else each process would begin what the group shares, such as the runs of a program."""
    assert request.node.nodeid.endswith("@names in /dev/shm") == request.config.getoption("loadgroup", False)
