"""The life of a server process: one a home, ended in every way that it can end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefeed.client.connection import Connection
from prefeed.client.launch import try_connect
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import ServerError, ServerUnavailableError
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

ENDS_SECONDS = 60.0


class Server:
    """A server in the foreground of a child process."""

    def __init__(self, **settings: object) -> None:
        environment = {f"PREFEED_{name.upper()}": str(value) for name, value in settings.items()}
        self.config = resolve(settings)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prefeed.server"],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> Server:
        """Return once it listens."""
        pidfd = os.pidfd_open(self.process.pid)
        try:
            while (reached := try_connect(self.config)) is None:
                assert not select.select([pidfd], [], [], 0.01)[0], self.process.communicate()[1]
            reached.sock.close()
        finally:
            os.close(pidfd)
        return self

    def wait_ended(self) -> tuple[int, str]:
        """Return its exit status and what it said."""
        _, said = self.process.communicate(timeout=ENDS_SECONDS)
        return self.process.returncode, said

    @property
    def store(self) -> Path:
        return Path(self.config.memory_dir) / f"prefeed-{os.getuid()}-{self.config.node_id}"


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def start(servers: list[Server], **settings: object) -> Server:
    server = Server(**settings)
    servers.append(server)
    return server.wait_ready()


def start_and_connect(servers: list[Server], **settings: object) -> tuple[Server, NodeClient]:
    """Start servers that end soon when they are idle, until a client has come to one in time."""
    while True:
        server = Server(**settings)
        servers.append(server)
        while server.process.poll() is None:
            with contextlib.suppress(ServerError):
                return server, NodeClient.connect(server.config, autostart=False)


def raw_client(config: Config) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(config.socket_path))
    sock.settimeout(ENDS_SECONDS)
    return sock


def test_stop_ends_it_while_others_are_connected(servers: list[Server]) -> None:
    server = start(servers)
    with NodeClient.connect(server.config, autostart=False), NodeClient.connect(server.config) as node:
        node.stop()
        assert server.wait_ended() == (0, "")
    assert not server.store.exists()


def test_it_does_not_end_while_a_client_is_there(servers: list[Server]) -> None:
    server, node = start_and_connect(servers, idle_timeout=0.2)
    with node:
        while node.status().uptime_seconds < 0.6:
            select.select([], [], [], 0.05)
    assert server.wait_ended() == (0, "")


def test_it_ends_when_it_can_no_longer_be_reached(servers: list[Server]) -> None:
    server, node = start_and_connect(servers, idle_timeout=0.3)
    with node:
        server.config.socket_path.unlink()
        assert server.wait_ended() == (0, "")
    assert not server.store.exists()


def test_garbage_ends_its_connection_and_not_the_server(servers: list[Server]) -> None:
    server = start(servers)
    for garbage in (b"\xff" * 64, b"\x05\x00\x00\x00\x91\xa3\x00\x00\x80", b"\x02\x00\x00\x00\x91\x91"):
        with raw_client(server.config) as sock:
            sock.sendall(garbage)
            assert sock.recv(1) == b""
    with NodeClient.connect(server.config, autostart=False) as node:
        assert node.status().pid == server.process.pid


def test_a_server_that_was_told_to_stop_is_not_reached(servers: list[Server]) -> None:
    server = start(servers)
    with NodeClient.connect(server.config, autostart=False) as node:
        node.stop()
    with pytest.raises(ServerUnavailableError, match="prefeed server start"):
        Connection.open(server.config, autostart=False)


def test_a_budget_that_is_too_small_is_said_and_leaves_nothing(servers: list[Server]) -> None:
    server = Server(memory="1MiB")
    servers.append(server)
    status, said = server.wait_ended()
    assert status != 0
    assert "needs at least 4194304 bytes" in said
    assert not server.store.exists()


def test_a_home_that_cannot_be_made_is_said(servers: list[Server], sandbox: Sandbox) -> None:
    blocker = sandbox.root / "file"
    blocker.write_text("")
    server = Server(home=blocker / "home")
    servers.append(server)
    status, said = server.wait_ended()
    assert status == 1
    assert said.startswith("prefeed: cannot make")
    assert "PREFEED_HOME" in said
