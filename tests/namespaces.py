"""Processes of a test that are process 1 of a PID namespace of their own, as a container's is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from process.children import child_running

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_PR_SET_PDEATHSIG = 1
_REFUSED = "no namespaces"


@contextlib.contextmanager
def container_running(target: Callable[..., None], *args: Any) -> Iterator[tuple[Any, Connection]]:
    """Run a function as process 1 of a namespace of its own, with one end of a pipe as its last argument.

    The process that is yielded is its parent, outside: killed, it takes the whole namespace with it.
    """
    with child_running(_start, target, args) as (process, pipe):
        if pipe.recv() == _REFUSED:
            pytest.skip("this machine allows no PID namespaces")
        yield process, pipe


def kill(process: Any, pipe: Connection) -> None:
    """End a container's processes by SIGKILL, and wait until they are gone."""
    process.kill()
    process.join()
    with contextlib.suppress(EOFError, ConnectionResetError):
        while True:
            pipe.recv()


def _start(target: Callable[..., None], args: tuple[Any, ...], pipe: Connection) -> None:
    if not _enter_namespace():
        pipe.send(_REFUSED)
        return
    child = os.fork()
    if child:
        pipe.close()
        os.waitpid(child, 0)
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    assert os.getpid() == 1
    pipe.send("begun")
    target(*args, pipe)


def _enter_namespace() -> bool:
    """Let the next child be process 1 of a namespace; as another user than root with the same user in it."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None).unshare(_CLONE_NEWPID | (_CLONE_NEWUSER if user else 0)):
        return False
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True
