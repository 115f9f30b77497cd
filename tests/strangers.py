"""Another user of the machine: processes with another uid, which make and listen to what they like where they may."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from process.children import child_running

STRANGER = 23456

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def become_stranger() -> None:
    """This process is another user's from now on."""
    os.setgroups([])
    os.setresgid(STRANGER, STRANGER, STRANGER)
    os.setresuid(STRANGER, STRANGER, STRANGER)


def open_to_all(directory: Path, *, below: Path | None = None) -> None:
    """Make a directory like /tmp, and let all users come to it in the one that it is in."""
    directory.chmod(0o1777)
    if below is not None:
        below.chmod(0o755)


class Fake:
    """What another user's server was told."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def heard(self) -> tuple[int, int]:
        """Return how many connected, and how many bytes they sent."""
        self._pipe.send("heard")
        connections, received = self._pipe.recv()
        return int(connections), int(received)

    def go(self) -> None:
        """Its user removes all that it made."""
        self._pipe.send("go")
        assert self._pipe.recv() == "gone"


def make_directory(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)


def make_link(path: Path) -> None:
    """Lead to a directory of the stranger's instead of making one."""
    target = path.parents[1] / "of-stranger"
    (target / path.name).mkdir(parents=True)
    path.parent.symlink_to(target)


def make_inner_link(path: Path) -> None:
    target = path.parents[1] / "of-stranger"
    target.mkdir()
    path.parent.mkdir()
    path.symlink_to(target)


@contextmanager
def fake_server(directory: Path, make: Callable[[Path], None] = make_directory) -> Iterator[Fake]:
    """Listen, as another user, where this user's server would."""
    with child_running(_serve, directory, make) as (_, pipe):
        assert pipe.recv() == "listening"
        yield Fake(pipe)


@contextmanager
def listener_of_stranger(directory: Path) -> Iterator[Fake]:
    """Listen, as another user, in a directory of this user's: with a socket that was made before."""
    with child_running(_serve_here, directory) as (_, pipe):
        assert pipe.recv() == "listening"
        yield Fake(pipe)


def as_stranger(function: Callable[..., None], *args: Any) -> None:
    """Run a function as another user, and wait for it."""
    with child_running(_call, function, *args) as (process, pipe):
        assert pipe.recv() == "done"
        process.join()


def _call(function: Callable[..., None], *rest: Any) -> None:
    *args, pipe = rest
    become_stranger()
    function(*args)
    pipe.send("done")


def _serve(directory: Path, make: Callable[[Path], None], pipe: Connection) -> None:
    become_stranger()
    make(directory)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "server.sock"))
        (directory / "server.sock").chmod(0o777)
        _answer(listener, pipe, directory.parent)


def _serve_here(directory: Path, pipe: Connection) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "server.sock"))
        become_stranger()
        _answer(listener, pipe, directory)


def _answer(listener: socket.socket, pipe: Connection, made: Path) -> None:
    listener.listen()
    pipe.send("listening")
    clients: list[socket.socket] = []
    connections = received = 0
    while True:
        ready = wait([pipe, listener, *clients])
        if listener in ready:
            clients.append(listener.accept()[0])
            connections += 1
        for client in [client for client in clients if client in ready]:
            data = client.recv(1 << 16)
            received += len(data)
            if not data:
                clients.remove(client)
                client.close()
        if pipe in ready:
            if pipe.recv() == "go":
                shutil.rmtree(made)
                pipe.send("gone")
            else:
                pipe.send((connections, received))
