"""What a test takes of the machine, as Python's audit events tell it: processes, sockets, threads, files.

A *pure* test takes nothing but files below its ``tmp_path``; everything else has a sandbox, and is looked at for leaks.
"""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PROCESSES = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
_FORBIDDEN = _PROCESSES | {"socket.__new__", "_thread.start_new_thread"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ALLOWED_PARTS = ("/__pycache__/", "/.hypothesis/", "/.pytest_cache/", "/dev/null")


class _Watch:
    """Counts the processes that were started; while something is forbidden, says no."""

    def __init__(self) -> None:
        self.num_processes = 0
        self.allowed: tuple[str, ...] | None = None
        self.seen: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _PROCESSES:
            self.num_processes += 1
        if self.allowed is None:
            return
        if event in _FORBIDDEN:
            self._refuse(f"{event}{arguments!r:.120}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self._look_at_path(arguments[0])

    def _look_at_path(self, path: Any) -> None:
        if not isinstance(path, str | bytes):
            return  # a descriptor
        name = os.fsdecode(path)
        if not os.path.isabs(name):
            return  # relative to a directory that the event does not tell
        if name.startswith("/proc/self/fd/"):
            name = os.path.realpath(name)
        allowed = self.allowed or ()
        if not f"{name}/".startswith(allowed) and not any(part in name for part in _ALLOWED_PARTS):
            self._refuse(f"writes {name}")

    def _refuse(self, what: str) -> None:
        self.seen.append(what)
        raise RuntimeError(f"{what}: a test without the sandbox fixture must not do this; ask for it")


_watch = _Watch()
sys.addaudithook(_watch)


def _noting(event: str, start: Any) -> Any:
    def start_noted(*arguments: Any, **named: Any) -> Any:
        sys.audit(event, *arguments)
        return start(*arguments, **named)

    return start_noted


# Neither raises an event of its own. (Python 3.11, 2026-11)
multiprocessing.util.spawnv_passfds = _noting("os.posix_spawn", multiprocessing.util.spawnv_passfds)
for _start in {"_start_new_thread", "_start_joinable_thread"} & set(vars(threading)):  # the latter since Python 3.13
    setattr(threading, _start, _noting("_thread.start_new_thread", getattr(threading, _start)))


def num_processes_started() -> int:
    """Return how many processes this one has started."""
    return _watch.num_processes


@contextmanager
def only_files_below(*directories: Path) -> Iterator[list[str]]:
    """Refuse processes, sockets, threads and other files that are written; yield what was refused."""
    assert _watch.allowed is None
    _watch.allowed, _watch.seen = tuple(f"{directory}/" for directory in directories), []
    try:
        yield _watch.seen
    finally:
        _watch.allowed = None
