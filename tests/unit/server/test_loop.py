"""Sockets, wake-ups, timers: one thread, whatever clients do."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes import FakeClock
from prefeed.server.loop import Connection, Loop
from prefeed.wire import messages as m
from prefeed.wire.endpoint import ensure_private_dir
from prefeed.wire.frames import FrameReader, encode
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")


class Owner:
    """Remembers what the loop hands on."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.messages: list[m.Message] = []
        self.closed: list[Connection] = []
        self.sockets: list[socket.socket] = []
        self.path = path
        self.loop = Loop(path.parent, clock=self.clock, on_message=self.on_message, on_closed=self.closed.append)

    def on_message(self, connection: Connection, message: m.AnyMessage) -> None:
        self.messages.append(message)
        if isinstance(message, m.Stop):
            self.loop.close_connection(connection)
        elif isinstance(message, m.GetStatus):
            self.loop.send(connection, m.Stopping())

    def connect(self) -> tuple[socket.socket, Connection]:
        before = set(self.loop.connections)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))
        self.sockets.append(sock)
        self.loop.run_once(1.0)
        (connection,) = self.loop.connections - before
        return sock, connection


@pytest.fixture
def owner(sandbox: Sandbox) -> Iterator[Owner]:
    directory = sandbox.runtime_dir / "server"
    ensure_private_dir(directory)
    owner = Owner(directory / "server.sock")
    yield owner
    for sock in owner.sockets:
        sock.close()
    owner.loop.close()


def test_no_other_user_can_reach_the_socket(owner: Owner) -> None:
    assert stat.S_ISSOCK(owner.path.stat().st_mode)
    for directory in (owner.path.parent, owner.path.parent.parent):
        assert (directory.stat().st_mode & 0o777, directory.stat().st_uid) == (0o700, os.getuid())


def test_another_user_is_sent_away(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.server.loop.peer_process", lambda sock: (1, os.getuid() + 1))
    sock = socket.socket(socket.AF_UNIX)
    owner.sockets.append(sock)
    sock.connect(str(owner.path))
    owner.loop.run_once(1.0)
    assert owner.loop.connections == set()
    assert sock.recv(1) == b""


def test_what_a_client_says_is_handed_on_in_order(owner: Owner) -> None:
    sock, _ = owner.connect()
    sock.sendall(encode(m.EndConsumer(1)) + encode(m.EndConsumer(2)))
    owner.loop.run_once(1.0)
    assert owner.messages == [m.EndConsumer(1), m.EndConsumer(2)]


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 100, b"\x05\x00\x00\x00\x91\xa3\x00\x00\x80", b"\x01\x00\x00\x00\xc1"],
    ids=["too long", "no text", "no message"],
)
def test_garbage_closes_its_connection_and_no_other(owner: Owner, garbage: bytes) -> None:
    bad, connection = owner.connect()
    good, _ = owner.connect()
    bad.sendall(garbage)
    owner.loop.run_once(1.0)
    assert owner.closed == [connection]
    assert bad.recv(1) == b""
    good.sendall(encode(m.EndConsumer(3)))
    owner.loop.run_once(1.0)
    assert owner.messages == [m.EndConsumer(3)]


def test_nothing_is_taken_from_a_client_after_its_end(owner: Owner) -> None:
    sock, connection = owner.connect()
    sock.sendall(encode(m.EndConsumer(1)) + encode(m.Stop()) + encode(m.EndConsumer(2)))
    owner.loop.run_once(1.0)
    assert owner.messages == [m.EndConsumer(1), m.Stop()]
    assert owner.closed == [connection]


def test_a_client_that_hangs_up_is_forgotten_once(owner: Owner) -> None:
    sock, connection = owner.connect()
    sock.close()
    owner.loop.run_once(1.0)
    owner.loop.send(connection, m.Stopping())
    owner.loop.close_connection(connection)
    assert owner.closed == [connection]


def test_a_client_that_hung_up_before_the_answer_is_forgotten(owner: Owner) -> None:
    sock, connection = owner.connect()
    sock.sendall(encode(m.GetStatus()) + encode(m.EndConsumer(1)))
    sock.close()
    owner.loop.run_once(1.0)
    assert owner.closed == [connection]
    assert owner.messages == [m.GetStatus()]


def test_an_answer_larger_than_the_socket_takes_arrives_whole(owner: Owner) -> None:
    sock, connection = owner.connect()
    sock.setblocking(False)
    answer = m.Answered(1, 2, data=os.urandom(4 << 20))
    owner.loop.send(connection, answer)
    assert connection.outgoing
    reader, received = FrameReader(), []
    while not received:
        owner.loop.run_once(0.0)
        received += reader.feed(sock.recv(1 << 16))
    assert received == [answer]
    assert not connection.outgoing


def test_no_more_descriptors_end_nothing(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    good, _ = owner.connect()

    listener = owner.loop._listener

    class Exhausted:
        fileno = listener.fileno

        def accept(self) -> None:
            raise OSError(24, "too many open files")

    monkeypatch.setattr(owner.loop, "_listener", Exhausted())
    owner.loop._accept()
    monkeypatch.setattr(owner.loop, "_listener", listener)
    good.sendall(encode(m.EndConsumer(3)))
    owner.loop.run_once(1.0)
    assert owner.messages == [m.EndConsumer(3)]


def test_another_thread_ends_the_wait(owner: Owner) -> None:
    called = []
    thread = threading.Thread(target=lambda: owner.loop.call_soon(lambda: called.append(threading.get_ident())))
    thread.start()
    while not called:
        owner.loop.run_once(60.0)
    thread.join()
    assert called == [threading.get_ident()]


def test_a_wake_up_that_came_before_the_wait_is_not_lost(owner: Owner) -> None:
    owner.loop.wake()
    owner.loop.run_once(60.0)


def test_calls_made_before_the_wait_are_not_kept_waiting(owner: Owner) -> None:
    called = []
    owner.loop.call_soon(lambda: called.append(1))
    owner.loop.call_soon(lambda: owner.loop.call_soon(lambda: called.append(3)))
    owner.loop.call_soon(lambda: called.append(2))
    owner.loop.run_once(60.0)
    assert called == [1, 2, 3]


def test_after_reading_is_after_what_others_had_sent(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both connections have something when one is looked at; what the other sent comes first all the same."""
    asking, _ = owner.connect()
    telling, _ = owner.connect()

    def on_message(connection: Connection, message: m.AnyMessage) -> None:
        owner.messages.append(message)
        if message == m.EndConsumer(1):
            telling.sendall(encode(m.EndConsumer(2)))  # sent before the other was read, and seen after
            unaccepted = socket.socket(socket.AF_UNIX)
            owner.sockets.append(unaccepted)
            unaccepted.connect(str(owner.path))
            unaccepted.sendall(encode(m.EndConsumer(3)))
            owner.loop.call_after_reading(lambda: owner.messages.append(m.Stopping()))

    monkeypatch.setattr(owner.loop, "_on_message", on_message)
    asking.sendall(encode(m.EndConsumer(1)))
    while m.Stopping() not in owner.messages:
        owner.loop.run_once(60.0)
    assert [str(message) for message in owner.messages[-1:]] == [str(m.Stopping())]
    assert set(owner.messages[1:3]) == {m.EndConsumer(2), m.EndConsumer(3)}


def test_after_reading_comes_however_much_is_sent(owner: Owner) -> None:
    called: list[int] = []
    owner.loop.call_after_reading(lambda: called.append(1))
    for _ in range(100):
        owner.loop.wake()
        owner.loop.run_once(60.0)
    assert called == [1]


def test_timers_run_when_they_are_due_in_order(owner: Owner) -> None:
    called: list[str] = []
    owner.loop.call_later(3.0, lambda: called.append("third"))
    owner.loop.call_later(1.0, lambda: called.append("first"))
    owner.loop.call_later(1.0, lambda: called.append("second"))
    owner.loop.wake()
    owner.loop.run_once(60.0)
    assert called == []
    owner.clock.now += 1.0
    owner.loop.run_once(60.0)
    assert called == ["first", "second"]
    owner.clock.now += 5.0
    owner.loop.run_once(None)
    assert called == ["first", "second", "third"]


def test_a_socket_that_a_dead_server_left_is_replaced(owner: Owner) -> None:
    other = Owner(owner.path)
    assert other.loop.owns_socket()
    assert not owner.loop.owns_socket()
    owner.loop.close()
    assert owner.path.exists(), "only its own is removed"
    other.loop.close()
    assert not owner.path.exists()
    owner.loop = Loop(owner.path.parent, clock=owner.clock, on_message=owner.on_message, on_closed=owner.closed.append)


def test_the_end_tells_every_client(owner: Owner) -> None:
    socks = [owner.connect()[0] for _ in range(3)]
    owner.loop.close()
    assert [sock.recv(1) for sock in socks] == [b""] * 3
    assert len(owner.closed) == 3
    assert not owner.path.exists()
    owner.loop = Loop(owner.path.parent, clock=owner.clock, on_message=owner.on_message, on_closed=owner.closed.append)
