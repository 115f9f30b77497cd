"""The life of a server process: one a home, ended in every way that it can end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes import content
from prefeed.client.connection import Connection
from prefeed.client.launch import try_connect
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import ServerAlreadyRunningError, ServerError, ServerUnavailableError, VersionMismatchError
from prefeed.server.main import run_foreground
from prefeed.sources.manifest import Manifest
from prefeed.store.reader import TierReader
from prefeed.wire import messages as m
from prefeed.wire.frames import FrameReader, encode
from sandbox import Sandbox

pytestmark = [pytest.mark.usefixtures("sandbox"), pytest.mark.cold]

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


def hear(sock: socket.socket) -> m.AnyMessage:
    reader = FrameReader()
    while True:
        data = sock.recv(1 << 16)
        assert data, "the server closed the connection"
        for message in reader.feed(data):
            return message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_is_left(servers: list[Server], number: int) -> None:
    server = start(servers)
    with NodeClient.connect(server.config, autostart=False) as node:
        assert Path(node.status().store) == server.store
        assert server.store.is_dir()
        server.process.send_signal(number)
        assert server.wait_ended() == (0, "")
    assert not server.store.exists()
    assert not server.config.socket_path.exists()


def test_stop_ends_it_while_others_are_connected(servers: list[Server]) -> None:
    server = start(servers)
    with NodeClient.connect(server.config, autostart=False), NodeClient.connect(server.config) as node:
        node.stop()
        assert server.wait_ended() == (0, "")
    assert not server.store.exists()


def test_a_second_server_of_the_home_is_refused(servers: list[Server]) -> None:
    server = start(servers)
    with pytest.raises(ServerAlreadyRunningError, match=f"pid {server.process.pid}") as caught:
        run_foreground(server.config)
    assert "prefeed server stop" in str(caught.value)
    assert "PREFEED_HOME" in str(caught.value)
    second = Server()
    servers.append(second)
    status, said = second.wait_ended()
    assert status == 4
    assert f"pid {server.process.pid}" in said
    with NodeClient.connect(server.config, autostart=False) as node:
        assert node.status().pid == server.process.pid


def test_two_homes_have_two_servers(servers: list[Server], sandbox: Sandbox) -> None:
    first, second = start(servers), start(servers, home=sandbox.root / "other")
    assert first.config.socket_path != second.config.socket_path
    for server in (first, second):
        with NodeClient.connect(server.config, autostart=False) as node:
            assert node.status().pid == server.process.pid


def test_it_ends_when_it_is_idle(servers: list[Server]) -> None:
    server = Server(idle_timeout=0.2)
    servers.append(server)
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


def test_another_protocol_is_refused_with_what_to_do(servers: list[Server]) -> None:
    server = start(servers)
    with raw_client(server.config) as sock:
        sock.sendall(encode(m.Hello(m.PROTOCOL + 1, "9.9", os.getpid())))
        refused = hear(sock)
    assert isinstance(refused, m.Refused)
    assert refused.code == VersionMismatchError.code
    assert "prefeed server stop" in refused.text


def test_garbage_ends_its_connection_and_not_the_server(servers: list[Server]) -> None:
    server = start(servers)
    for garbage in (b"\xff" * 64, b"\x05\x00\x00\x00\x91\xa3\x00\x00\x80", b"\x02\x00\x00\x00\x91\x91"):
        with raw_client(server.config) as sock:
            sock.sendall(garbage)
            assert sock.recv(1) == b""
    with NodeClient.connect(server.config, autostart=False) as node:
        assert node.status().pid == server.process.pid


def test_what_a_killed_server_left_is_found_by_the_next(servers: list[Server], sandbox: Sandbox) -> None:
    origin = sandbox.root / "origin"
    origin.mkdir()
    for index in range(5):
        (origin / f"{index}.bin").write_bytes(content(index))
    first = start(servers)
    with NodeClient.connect(first.config, autostart=False) as node:
        assert node.warm(str(origin)).resident == 5
        opened = node.open_dataset(str(origin))
    first.process.kill()
    first.wait_ended()
    assert first.store.is_dir()
    second = start(servers)
    with NodeClient.connect(second.config, autostart=False) as node:
        assert node.statistics().resident_objects == 5
        result = node.warm(str(origin))
        assert (result.resident, result.fetched) == (5, 0)
        assert node.open_dataset(str(origin)).manifest_dir == opened.manifest_dir
    reader = TierReader(second.store)
    assert reader.get(_key(opened.manifest_dir, 3)) == content(3)
    reader.close()


def _key(manifest_dir: str, object_id: int) -> bytes:
    return Manifest.open(manifest_dir).key(object_id)


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
