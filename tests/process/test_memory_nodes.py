"""A server that a bound process has started is not bound to its memory node."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from prefeed.client.launch import start_server
from prefeed.config import resolve
from prefeed.system import memory_nodes
from prefeed.system.memory_nodes import spread_new_pages

pytestmark = pytest.mark.skipif(
    not spread_new_pages(), reason="this kernel knows no memory nodes, or lets no process choose between them"
)

_BIND = 2

T = TypeVar("T")


def bound(function: Callable[[], T]) -> T:
    """Return what a function returns in a thread that is bound to node 0; policies are a thread's own."""
    found: list[T] = []

    def bind_and_call() -> None:
        number = memory_nodes._CALLS[memory_nodes.platform.machine()][0]
        most = ctypes.c_ulong(memory_nodes._MAX_NODES + 1)
        assert not ctypes.CDLL(None).syscall(number, _BIND, memory_nodes._Nodes(1), most)
        assert policy_of(threading.get_native_id()) == "bind"
        found.append(function())

    thread = threading.Thread(target=bind_and_call)
    thread.start()
    thread.join()
    assert found, "it has failed, see above"
    return found[0]


def policy_of(task: int, of: str = "") -> str:
    """Return the policy of the first part of a process's memory of which the kernel says this, as the kernel names it."""
    maps = Path(f"/proc/{task}/numa_maps").read_text().splitlines()
    return next(line for line in maps if of in line).split()[1].partition(":")[0]


def test_thread_that_was_bound() -> None:
    nodes, policy = bound(lambda: (spread_new_pages(), policy_of(threading.get_native_id())))

    assert 0 in nodes
    assert policy == ("interleave" if len(nodes) > 1 else "default")


def test_server_of_a_bound_rank() -> None:
    pid = bound(lambda: start_server(resolve()))

    assert policy_of(pid, "/data.mdb") in ("default", "interleave")
