"""Processes of a test that are process 1 of a PID namespace of their own, with its /proc, as a container's is."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from process.children import child_running

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_MS_PRIVATE_TREE = 0x40000 | 0x4000
_PR_SET_PDEATHSIG = 1


class Container:
    """A namespace, by its process 1 and the process outside that waits for that."""

    def __init__(self, process: Any, pid: int) -> None:
        self._process = process
        self._pid = pid

    def kill(self) -> None:
        """End all its processes by SIGKILL, and wait until they are gone, with all that they held."""
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._process.join()


@contextlib.contextmanager
def container_running(
    target: Callable[..., None], *args: Any, shm_bytes: int = 0
) -> Iterator[tuple[Container, Connection]]:
    """Run a function as process 1 of a namespace of its own, with one end of a pipe as its last argument.

    Args:
        target: Run in the container.
        args: Its first arguments.
        shm_bytes: Size of a /dev/shm of its own, in a user namespace of its own; 0 for those of the test.
    """
    with child_running(_start, target, args, shm_bytes) as (process, pipe):
        pid = pipe.recv()
        if pid == 0:
            pytest.skip("this machine allows no PID namespaces")
        container = Container(process, pid)
        try:
            yield container, pipe
        finally:
            container.kill()


def _start(target: Callable[..., None], args: tuple[Any, ...], shm_bytes: int, pipe: Connection) -> None:
    if not _try_unshare(users=shm_bytes > 0):
        pipe.send(0)
        return
    ready, is_ready = os.pipe()
    child = os.fork()
    if child:
        pipe.send(child)
        pipe.close()
        os.close(is_ready)
        os.waitpid(child, 0)
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(is_ready)
    os.read(ready, 1)
    os.close(ready)
    assert os.getpid() == 1
    if libc.mount(b"none", b"/", None, _MS_PRIVATE_TREE, None) == 0:
        libc.mount(b"proc", b"/proc", b"proc", 0, None)  # refused in some sandboxes: the one outside serves too
    if shm_bytes:
        assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={shm_bytes}".encode()) == 0
    target(*args, pipe)


def _try_unshare(*, users: bool) -> bool:
    """Let the next child be process 1 of a namespace; in a user namespace, which others than root need, with the same user."""
    user, group = os.geteuid(), os.getegid()
    users = users or user > 0
    if ctypes.CDLL(None).unshare(_CLONE_NEWPID | _CLONE_NEWNS | (_CLONE_NEWUSER if users else 0)):
        return False
    if users:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def enter_own_network() -> None:
    """This process is in a network namespace of its own, with a loopback address, as a container's is."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
