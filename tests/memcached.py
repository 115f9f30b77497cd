"""Real memcached servers for tests: start, pause (SIGSTOP), kill, start again at the same address; and false ones.

``with memcached() as server``, ``with memcached_ring(3) as ring``; ``server.address`` is what ``PREFEED_POOL`` wants.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from prefeed_bench.memcached import Memcached, memcached, memcached_ring

__all__ = ["Impostor", "Memcached", "impostor", "memcached", "memcached_ring", "proxy"]

Conversation = Callable[[socket.socket], None]


class Impostor:
    """Listens on a port of loopback and does to each connection what it was told.

    Attributes:
        connections: How many there were.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.connections = 0
        self._conversation = conversation
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept, name="impostor")
        self._accepting.start()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Break every connection and wait for their threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._talk, args=(connection,), name="impostor-connection")
            self._threads.append(thread)
            thread.start()

    def _talk(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._conversation(connection)


@contextlib.contextmanager
def impostor(answer: bytes) -> Iterator[Impostor]:
    """Run a server that answers this to whatever it is asked; nothing at all if it is empty."""

    def talk(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(answer)

    server = Impostor(talk)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def proxy(target: Memcached, change: Callable[[bytes], bytes]) -> Iterator[Impostor]:
    """Run a proxy of a memcached that gives every piece of an answer through ``change``."""
    host, port = target.address.split(":")

    def talk(connection: socket.socket) -> None:
        with socket.create_connection((host, int(port))) as upstream:
            asking = threading.Thread(target=_pass_on, args=(connection, upstream))
            asking.start()
            while answer := upstream.recv(65536):
                connection.sendall(change(answer))
            asking.join()

    server = Impostor(talk)
    try:
        yield server
    finally:
        server.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # a client that closes with an answer unread resets the connection
        while asked := source.recv(65536):
            target.sendall(asked)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
