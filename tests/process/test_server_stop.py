"""``prefeed server stop`` ends the server that owns the lock, whatever it does; ``status`` says when it does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import prefeed
from leaks import wait_until
from prefeed.cli.main import cli
from prefeed.client import ending
from prefeed.client.ending import end_server, silent_server
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import PrefeedError, ServerUnavailableError, VersionMismatchError
from prefeed.types import ServerEnd, SilentServer
from prefeed.wire.endpoint import make_runtime_dir
from prefeed.wire.messages import PROTOCOL
from process.conditions import make_objects, status

HANGS = """
import fcntl, os, signal, sys, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
directory = sys.argv[1]
lock = os.open(directory + "/server.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.write(lock, b"%d\\n%s\\n" % (os.getpid(), directory.encode()))
listener = socket.socket(socket.AF_UNIX)
listener.bind(directory + "/server.sock")
listener.listen(8)
print("up", flush=True)
signal.pause()
"""
"""A server that is busy for ever: it owns the lock, lets clients in, and neither answers nor ends when it is told to."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("prefeed.cli.server._ANSWER_SECONDS", 0.2)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    tell = ending.Owner.tell

    def tell_and_wait_for_the_end(owner: ending.Owner, number: signal.Signals) -> None:
        tell(owner, number)
        monkeypatch.setattr(ending, "_PATIENCE_SECONDS", 60.0 if number == signal.SIGKILL else 0.5)

    monkeypatch.setattr(ending.Owner, "tell", tell_and_wait_for_the_end)
    directory = make_runtime_dir(resolve({}).runtime_dirs)
    process = subprocess.Popen([sys.executable, "-c", HANGS, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.communicate()


def is_suspended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_server_that_answers_is_asked() -> None:
    pid = start_server(resolve({}))
    assert silent_server(resolve({})) == SilentServer(pid=pid, suspended=False)
    assert end_server(resolve({})) == ServerEnd(pid=pid)
    assert silent_server(resolve({})) is None
    with pytest.raises(ServerUnavailableError, match="no server runs"):
        end_server(resolve({}))
    assert run("server", "stop").stdout.endswith("there is nothing to stop\n")


@pytest.mark.parametrize("xdg", ["", "/nowhere"])
def test_a_suspended_server_is_named_resumed_and_ended(monkeypatch: pytest.MonkeyPatch, xdg: str) -> None:
    """Also by who has another XDG_RUNTIME_DIR. What it had in memory goes with it, as it ends in order."""
    pid = start_server(resolve({}))
    found = status()
    assert found is not None
    store = Path(found.store)
    assert store.exists()
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: is_suspended(pid), timeout_seconds=60)
    if xdg:
        monkeypatch.setenv("XDG_RUNTIME_DIR", xdg)
    named = run("server", "status")
    assert named.exit_code == 1
    assert f"server {pid} runs" in named.stderr
    assert "suspended" in named.stderr
    assert run("server", "status", "--json").stdout.count(f'"pid": {pid}') == 1
    assert run("server", "stop").stdout == f"server {pid} stopped\n"
    assert not store.exists()
    assert run("server", "status").exit_code == 3


def test_a_server_that_hangs_is_named_and_killed(hanging: subprocess.Popen[str]) -> None:
    named = run("server", "status")
    assert named.exit_code == 1
    assert f"server {hanging.pid} runs" in named.stderr
    assert "busy" in named.stderr
    ended = run("server", "stop", "--json")
    assert (ended.exit_code, '"killed": true' in ended.stdout) == (0, True)
    assert hanging.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("flags", ["rb", "none"])
def test_only_the_owner_of_the_lock_is_ended(flags: str) -> None:
    """The lock of a server that was killed names a number that another process has by now, which may even read it."""
    directory = make_runtime_dir(resolve({}).runtime_dirs)
    lock = directory / "server.lock"
    opened = f"open({str(lock)!r}, 'rb')" if flags == "rb" else "0"
    lock.write_bytes(b"0\n")
    other = subprocess.Popen(
        [sys.executable, "-c", f"import signal; held = {opened}; print('up', flush=True); signal.pause()"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        lock.write_bytes(b"%d\n%s\n" % (other.pid, os.fsencode(directory)))
        with pytest.raises(ServerUnavailableError):
            end_server(resolve({}))
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_waits_are_bounded(hanging: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that even SIGKILL does not end, as in a frozen control group, is said."""
    told: list[signal.Signals] = []
    tell: Callable[..., None] = lambda self, number: told.append(number)  # noqa: E731
    monkeypatch.setattr(ending.Owner, "tell", tell)
    monkeypatch.setattr(ending, "_PATIENCE_SECONDS", 0.05)
    failed = run("server", "stop")
    assert failed.exit_code == 1
    assert f"(pid {hanging.pid}) was killed" in failed.stderr
    assert told == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL]


def test_a_server_of_another_version_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade: it refuses what is said to it, and takes a signal."""
    pid = start_server(resolve({}))
    monkeypatch.setattr("prefeed.wire.messages.PROTOCOL", PROTOCOL + 1)
    with pytest.raises(VersionMismatchError, match=f"pid {pid}.*prefeed server stop"):
        NodeClient.connect(resolve({}), autostart=False)
    assert run("server", "stop").stdout == f"server {pid} stopped\n"


@pytest.mark.parametrize("descriptors", [22, 32])
def test_a_server_that_can_open_no_files_says_so_and_is_stopped(descriptors: int, tmp_path: Path) -> None:
    """With 22 it serves nobody; with 32 clients still get in when its datasets have taken the rest."""
    line = f'ulimit -n {descriptors}; exec "$0" -m prefeed server start'
    started = subprocess.run(["bash", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    assert f"may have {descriptors};" in started.stderr or f"only {descriptors} file descriptors" in started.stderr
    make_objects(tmp_path / "objects")
    config = resolve({})
    with ExitStack() as clients:
        refusals = []
        for _ in range(3):
            try:
                node = clients.enter_context(NodeClient.connect(config, autostart=False))
                node.open_dataset(os.fspath(tmp_path / "objects"))
            except PrefeedError as err:
                refusals.append(str(err))
        assert refusals
        assert all("ulimit -n" in text and "container" not in text for text in refusals), refusals
        if descriptors == 32:
            assert prefeed.statistics().hits == 0
        stopped = run("server", "stop")
        assert (stopped.exit_code, stopped.stdout.endswith(" stopped\n")) == (0, True), stopped.stderr
    assert silent_server(config) is None
