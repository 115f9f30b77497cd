"""A server that says what a test tells it to."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from leaks import wait_until
from nodes import RecordingTier
from prefeed.config import Config
from prefeed.store.log import MIN_BUDGET_BYTES
from prefeed.store.memory import NUM_FILES
from prefeed.wire import messages as m
from prefeed.wire.endpoint import listen_in, make_runtime_dir
from prefeed.wire.frames import FrameReader, encode

Script = Callable[[m.AnyMessage], "list[m.Message] | None"]
"""Returns the answers to a message; None hangs up."""


@dataclass
class ScriptedServer:
    """Listens where the node server would.

    Attributes:
        tier: Memory tier, whose descriptors clients get with the welcome.
        num_descriptors: Number of descriptors that arrive; a client that may open no more files gets fewer.
        heard: What clients said, greetings left out; a plan's ids are in ``plans``, in order.
        script: Answers to what the defaults do not answer.
    """

    config: Config
    tier: RecordingTier = field(default_factory=lambda: RecordingTier(MIN_BUDGET_BYTES))
    num_descriptors: int = NUM_FILES
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    protocol: int = m.PROTOCOL
    home: tuple[int, int] = (0, 0)
    settings: dict[str, str] = field(default_factory=dict)
    ends_at_hello: bool = False
    script: Script = lambda message: []
    heard: list[m.AnyMessage] = field(default_factory=list)
    plans: list[list[int]] = field(default_factory=list)
    _clients: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = listen_in(make_runtime_dir(self.config.runtime_dirs))
        self._start(self._accept)

    def wait_heard(self, kind: type[m.Message], count: int = 1) -> list[m.AnyMessage]:
        """Return the messages of that kind once there are so many."""
        assert wait_until(lambda: len(self.of(kind)) >= count, timeout_seconds=60), self.heard
        return self.of(kind)

    def of(self, kind: type[m.Message]) -> list[m.AnyMessage]:
        """Return the messages of that kind so far."""
        return [message for message in self.heard if isinstance(message, kind)]

    def hang_up(self) -> None:
        """Close every connection, and accept new ones."""
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End as a killed server does: the socket file stays."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(60)

    def _start(self, function: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=function, args=args, name="scripted", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        reader = FrameReader()
        with client, contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                for message in reader.feed(data):
                    answers = self._answer(message)
                    if answers is None:
                        return
                    self._send(client, answers)

    def _send(self, client: socket.socket, answers: list[m.Message]) -> None:
        data = b"".join(map(encode, answers))
        if any(isinstance(answer, m.Welcome) for answer in answers):
            socket.send_fds(client, [data], self.tier.descriptors[: self.num_descriptors])
        else:
            client.sendall(data)

    def _answer(self, message: m.AnyMessage) -> list[m.Message] | None:
        if isinstance(message, m.Hello):
            if self.ends_at_hello:
                self._listener.shutdown(socket.SHUT_RDWR)
                return None
            if self.protocol != message.protocol:
                return [m.Refused("version-mismatch", "another protocol")]
            return [m.Welcome("0", os.getpid(), self.instance, settings=self.settings, home=self.home)]
        if isinstance(message, m.RegisterPlan) or (isinstance(message, m.ExtendPlan) and message.ids_file):
            dtype = np.uint32 if message.ids_file.endswith(".u32") else np.int64
            self.plans.append(np.fromfile(message.ids_file, dtype=dtype).tolist())
            Path(message.ids_file).unlink()
        self.heard.append(message)
        return self.script(message)


@contextmanager
def scripted(config: Config, **attributes: object) -> Iterator[ScriptedServer]:
    """Run a scripted server."""
    server = ScriptedServer(config, **attributes)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.stop()
