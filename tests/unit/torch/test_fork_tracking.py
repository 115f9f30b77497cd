"""Forked children that live, and that have ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from leaks import wait_until
from prefeed.torch import ring
from prefeed.torch.ring import Child, before_each_fork

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def forked() -> Iterator[list[Child]]:
    """The children that were forked during the test."""
    found: list[Child] = []

    def note(child: Callable[[], Child]) -> None:
        found.append(child())
        assert child() is found[-1], "there is one"

    before_each_fork(note)
    yield found
    ring._asked.remove(note)
    found.clear()


def fork(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return pid


def sleep() -> None:
    signal.alarm(60)
    signal.pause()


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_child_lives_until_it_ends(forked: list[Child]) -> None:
    pid = fork(sleep)
    assert not forked[0].has_ended()
    end(pid)
    assert forked[0].has_ended()
    assert forked[0].has_ended()


def test_another_program_has_no_memory_of_ours(forked: list[Child]) -> None:
    told, tell = os.pipe()
    os.set_inheritable(told, True)
    code = f"import os; os.read({told}, 1)"
    pid = fork(lambda: os.execv(sys.executable, [sys.executable, "-c", code]))
    assert wait_until(forked[0].has_ended, timeout_seconds=60)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it runs"
    for descriptor in (tell, told):
        os.close(descriptor)
    os.waitpid(pid, 0)


def test_each_child_for_itself(forked: list[Child]) -> None:
    pids = [fork(sleep), fork(sleep)]
    end(pids[1])
    assert [child.has_ended() for child in forked] == [False, True]
    end(pids[0])
    assert [child.has_ended() for child in forked] == [True, True]


def test_a_program_that_is_started_is_no_fork(forked: list[Child]) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert not forked


def test_without_a_descriptor_it_never_ends(forked: list[Child]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = os.open("/dev/null", os.O_RDONLY)
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))
    try:
        os.waitpid(fork(lambda: None), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not forked[0].has_ended()
