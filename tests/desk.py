"""A server without a process: its loop runs when the test waits for an answer."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nodes import RecordingTier
from prefeed.config import Config, resolve
from prefeed.server.handlers import Handlers
from prefeed.server.loop import Loop
from prefeed.server.node import Node
from prefeed.server.sessions import Sessions
from prefeed.server.tier_budget import Room
from prefeed.sources.views import open_own_root
from prefeed.wire import messages as m
from prefeed.wire.endpoint import ensure_private_dir
from prefeed.wire.frames import FrameReader, encode

Kind = TypeVar("Kind", bound=m.Message)


@dataclass
class Desk:
    """Loop, handlers and node, as ``prefeed.server.main`` joins them."""

    config: Config
    tier: RecordingTier
    loop: Loop
    handlers: Handlers
    node: Node
    clients: list[Client] = field(default_factory=list)

    def turn(self) -> None:
        """Do what is to be done; wait a moment if there is nothing."""
        self.loop.run_once(0.01)
        self.node.pump()
        self.handlers.after_pump()

    def turn_until(self, condition: Callable[[], bool], *, timeout_seconds: float = 60.0) -> None:
        """Go on until the condition holds."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come true"
            self.turn()

    def connect(self, *, greet: bool = True, root: Path | None = None) -> Client:
        """Return a client, greeted unless told otherwise; with a root directory of its own, if one is given."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.config.socket_path))
        sock.setblocking(False)
        client = Client(self, sock, root)
        self.clients.append(client)
        if greet:
            client.ask(m.Hello(m.PROTOCOL, "0", 0), m.Welcome)
        return client


@dataclass
class Client:
    """One end of a connection, in the thread of the loop."""

    desk: Desk
    sock: socket.socket
    root: Path | None = None
    frames: FrameReader = field(default_factory=FrameReader)
    heard: list[m.Message] = field(default_factory=list)
    is_closed: bool = False

    def say(self, *messages: m.Message) -> None:
        """Send; with a greeting, what this process sees of file systems."""
        for message in messages:
            say(self.sock, message, self.root)

    def ask(self, message: m.Message, kind: type[Kind]) -> Kind:
        """Send, and return the answer, which must be of that kind."""
        self.say(message)
        return self.hear(kind)

    def hear(self, kind: type[Kind]) -> Kind:
        """Return the next message, which must be of that kind."""
        self.desk.turn_until(lambda: self._listen() or self.is_closed)
        assert self.heard, "the server closed the connection"
        message = self.heard.pop(0)
        assert isinstance(message, kind), message
        return message

    def wait_closed(self) -> None:
        """Wait until the server has closed the connection."""
        self.desk.turn_until(lambda: self._listen() or self.is_closed)
        assert self.is_closed
        assert not self.heard

    def _listen(self) -> bool:
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return bool(self.heard)
        except ConnectionResetError:
            data = b""
        self.is_closed = not data
        self.heard += self.frames.feed(data)
        return bool(self.heard)


def say(sock: socket.socket, message: m.Message, root_directory: Path | None = None) -> None:
    """Send a message as clients do: with a greeting comes the root directory."""
    if not isinstance(message, m.Hello):
        sock.sendall(encode(message))
        return
    root = open_own_root() if root_directory is None else os.open(root_directory, os.O_PATH)
    socket.send_fds(sock, [encode(message)], [root])
    os.close(root)


@contextmanager
def desk(*, capacity: int = 1 << 30, clock: Callable[[], float] = time.monotonic, **settings: object) -> Iterator[Desk]:
    """Open a server of the sandbox's home with a tier of its own."""
    config = resolve(settings)
    ensure_private_dir(config.runtime_dir)
    before = set(threading.enumerate())
    tier = RecordingTier(capacity)
    handlers = Handlers(
        config, clock=clock, runtime_dir=config.runtime_dir, own_dir=config.home / "own", store_dir=config.home,
        on_tmpfs=True, notices=(),
    )  # fmt: skip
    loop = Loop(config.runtime_dir, clock=clock, on_message=handlers.on_message, on_closed=handlers.on_closed)
    node = Node(config, tier, clock=clock, wake=loop.wake, call_later=loop.call_later)  # type: ignore[arg-type]
    sessions = Sessions(Room(config.memory_dir / "desk", capacity), None)
    sessions.share_memory_with(node)
    handlers.bind(loop, node, sessions, tier.descriptors)
    made = Desk(config, tier, loop, handlers, node)
    try:
        yield made
    finally:
        for client in made.clients:
            client.sock.close()
        made.turn_until(lambda: node.scheduler.num_in_flight == 0)
        node.close()
        for thread in set(threading.enumerate()) - before:  # a listing's last step holds what it listed
            thread.join(60)
        loop.close()
        sessions.close()
        tier.close()
        vars(made).clear()
