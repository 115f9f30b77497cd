"""A server is started once, whoever comes first, and says why when it cannot be."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from prefeed.client import launch
from prefeed.client.launch import launch_and_connect, server_environment, start_server, try_connect
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import PrefeedError, ServerAlreadyRunningError, ServerUnavailableError
from prefeed.wire.endpoint import ensure_private_dir
from sandbox import Sandbox, servers_of

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def config() -> Config:
    return resolve({})


def test_a_server_that_was_started_answers(config: Config) -> None:
    assert try_connect(config) is None
    pid = start_server(config)
    with NodeClient.connect(config, autostart=False) as node:
        status = node.status()
    assert (status.pid, status.home) == (pid, str(config.home))


def test_it_does_not_belong_to_the_terminal_of_who_started_it(config: Config) -> None:
    assert os.getsid(start_server(config)) != os.getsid(0)


def test_a_second_start_says_who_runs(config: Config) -> None:
    pid = start_server(config)
    with pytest.raises(ServerAlreadyRunningError, match=f"pid {pid}"):
        start_server(config)


def test_a_server_that_was_started_ahead_is_the_one_that_is_waited_for(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    begin = launch._begin

    def count(*args: Any) -> Any:
        started.append(1)
        return begin(*args)

    monkeypatch.setattr(launch, "_begin", count)
    assert launch.start_ahead(config)
    assert not launch.start_ahead(config)
    with NodeClient.connect(config) as node:
        assert node.status().home == str(config.home)
    assert len(started) == 1
    assert not launch.start_ahead(config)  # it listens


def test_a_server_that_ended_before_it_was_needed_is_started_again(config: Config) -> None:
    assert launch.start_ahead(config)
    process, _ = launch._ahead[config.home_id]
    process.kill()
    process.wait()
    with NodeClient.connect(config) as node:
        assert node.status().pid != process.pid


def test_none_is_started_ahead_where_none_may_be(config: Config) -> None:
    assert not launch.start_ahead(replace(config, autostart=False))
    assert try_connect(config) is None


def test_no_finalizer_runs_while_forks_wait_for_the_start(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a loader in garbage waits for a lock that whoever forks has by then."""
    finalized: list[int] = []

    class Node:
        def __init__(self) -> None:
            self.itself = self

    def start(*_: Any, **__: Any) -> NoReturn:
        weakref.finalize(Node(), finalized.append, 1)
        kept: list[list[int]] = [[] for _ in range(100_000)]
        del kept
        raise OSError(f"{len(finalized)} were collected")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(ServerUnavailableError, match="0 were collected"):
        launch_and_connect(config)
    gc.collect()
    assert finalized


def test_clients_that_come_at_once_share_one_server(config: Config, sandbox: Sandbox) -> None:
    pids: list[int] = []
    failures: list[Exception] = []

    def connect() -> None:
        try:
            pid, reached = launch_and_connect(config)
        except (PrefeedError, OSError) as err:
            failures.append(err)
        else:
            pids.append(pid)
            reached.sock.close()

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(pids)) == 1
    with NodeClient.connect(config, autostart=False) as node:
        assert node.status().pid == pids[0]


def test_a_server_that_cannot_start_is_quoted(sandbox: Sandbox) -> None:
    config = resolve({"memory": 1000})
    with pytest.raises(ServerUnavailableError, match="at least") as caught:
        start_server(config)
    assert "PREFEED_MEMORY" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_this_start_is_quoted(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_private_dir(config.runtime_dir)
    (config.runtime_dir / "server.log").write_text("prefeed: words of an earlier server\n")
    monkeypatch.setattr("prefeed.client.launch.sys.executable", "/bin/false")  # it says nothing
    with pytest.raises(ServerUnavailableError, match=r"status 1: see .*server\.log"):
        start_server(config)


def test_a_server_that_takes_too_long_is_not_waited_for(sandbox: Sandbox) -> None:
    config = resolve(limits={"start_seconds": 0.001})
    with pytest.raises(ServerUnavailableError, match=r"did not answer in .* 0\.001 s"):
        start_server(config)
    assert len(servers_of(sandbox)) <= 1


def test_nothing_is_started_where_others_may_write(
    config: Config, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    own = config.runtime_dir.parent
    own.mkdir()
    own.chmod(0o777)
    pid = start_server(config)
    assert list(own.iterdir()) == []
    assert [record.message.count("chmod 700") for record in caplog.records] == [1]
    with NodeClient.connect(config, autostart=False) as node:
        assert node.status().pid == pid
        assert node.connection.runtime_dir == config.runtime_dir


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"memory": None, "enabled": False, "trust_samplers": True, "idle_timeout": 0.5},
        {"memory": 12345678, "disk": "5MiB:/a b:c", "fetch_processes": 7},
        {"roots": "/a:sampleset://photos/train:/b c", "pool": "h:1,g:2"},
    ],
)
def test_the_server_s_settings_are_the_client_s(settings: dict[str, object], sandbox: Sandbox) -> None:
    config = resolve(
        settings, environ={"PREFEED_HOME": str(sandbox.home)}, limits={"lookahead_bytes": 7, "start_ahead": False}
    )
    noise = {"PREFEED_LIMITS": "lookahead_bytes=3", "PREFEED_MEMORY": "5GiB", "PATH": "/bin"}
    environment = server_environment(config, noise)
    assert resolve(environ=environment) == config
    assert environment["PATH"] == "/bin"


def test_a_setting_of_the_client_s_file_is_not_overruled(sandbox: Sandbox) -> None:
    """The server reads the same file, if any; what was said in code goes through the environment."""
    config = resolve({"fetch_processes": 3}, environ={"PREFEED_HOME": str(sandbox.home)})
    assert server_environment(config, {})["PREFEED_FETCH_PROCESSES"] == "3"


def test_no_file_gives_the_server_what_the_client_left_to_it(sandbox: Sandbox) -> None:
    """``auto``, said in code, counts more than what the user's own file says."""
    own = sandbox.root / "config" / "prefeed" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('memory = "1GiB"\ndisk = "1GiB:/somewhere"\nroots = ["/a"]\nmetrics = 0\n')
    auto = dict.fromkeys(("memory", "disk", "roots", "metrics"), "auto")
    config = resolve(auto, environ={"PREFEED_HOME": str(sandbox.home)})
    assert resolve(environ=server_environment(config, {})) == config


def test_the_log_lies_beside_the_socket(config: Config) -> None:
    start_server(config)
    log = Path(config.runtime_dir) / "server.log"
    assert log.exists()
    assert log.stat().st_mode & 0o077 == 0 or config.runtime_dir.stat().st_mode & 0o077 == 0
