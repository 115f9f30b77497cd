"""Children of a test, which the test ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any


@contextlib.contextmanager
def child_running(target: Callable[..., None], *args: Any, method: str = "fork") -> Iterator[tuple[Any, Connection]]:
    """Run a function in a process of its own, with one end of a pipe as its last argument."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context(method).Process(target=target, args=(*args, there))
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()
        process.close()
        here.close()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Inside it, a process is suspended."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
