"""What of a shared directory belongs to one node server: a directory named after the boot of its kernel.

::

    <home>/nodes/, or the directory that PREFEED_DISK names
        <boot>-<number>/        of one server at a time; number 0, or the next while servers of other containers run
            lock                held by the server; says which process it is; touched every five minutes while that runs
            …                   what is the server's alone

Two kernels never have the same name, so nothing here depends on locks that reach over the network: on one kernel flock
excludes, whatever the file system. What an earlier boot left is taken over where that is certain to be safe: on a file
system of this machine's own, not held, and last touched before this kernel was booted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self

from prefeed.errors import ServerError
from prefeed.store.directory import is_private
from prefeed.system.locks import is_named, open_locked
from prefeed.system.machine import Process, boot_name, boot_time, is_on_own_disk
from prefeed.system.removing import remove_tree

BEAT_SECONDS: Final = 300.0
"""How often a server says that it has its directory, and listings, in use: half of what listings are kept for at least."""

IN_USE_MINUTES: Final = 15
"""A server that has not said so for longer does not run."""

UNUSED_SECONDS: Final = 30 * 24 * 3600
"""What no server has touched for so long is removed by the next one to start."""

NODES: Final = "nodes"
_LOCK: Final = "lock"
_NAME: Final = re.compile(r"[0-9a-f]{12}-([0-9a-f]+)")
_MOST: Final = 100


class NodeDirectory:
    """The directory of one server, held by this process until ``close``; the lock goes with the process.

    Attributes:
        path: Where it is.
        number: Which of this kernel's.
    """

    def __init__(self, path: Path, number: int, lock: int) -> None:
        """Hold a directory whose lock is open; use ``claim``."""
        self.path = path
        self.number = number
        self._lock = lock
        with contextlib.suppress(OSError):  # a full disk: it is still held
            os.pwrite(lock, json.dumps(asdict(Process.of(os.getpid()))).encode(), 0)

    @classmethod
    def claim(cls, parent: Path, numbers: Iterable[int] = range(_MOST)) -> Self:
        """Return a directory below ``parent`` that no other server has, with what its last one left.

        Args:
            parent: Made if it is not there.
            numbers: Which to try, in this order.

        Raises:
            ServerError: Other servers of this kernel have all of them.
            OSError: It cannot be made.
        """
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = 0
        for number in numbers:
            path = parent / name_of(number)
            if not path.exists():
                _take_over(parent, path, number)
            try:
                lock = _locked(path)
            except BlockingIOError:
                continue
            except OSError:  # a file system without locks: it cannot be told whether this one is another server's
                path = parent / f"{boot_name()}-{secrets.token_hex(6)}"
                path.mkdir(mode=0o700)
                lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            return cls(path, number, lock)
        raise ServerError(
            f"{parent / name_of(number)} belongs to another server, which runs: give each server its own directory"
        )

    def beat(self) -> None:
        """The server runs, and has it in use."""
        with contextlib.suppress(OSError):
            os.utime(self._lock)

    def close(self) -> None:
        """Another server may have it; one in which nothing is left is removed."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, 0)  # it ended in order: see ``servers_elsewhere``
            if os.listdir(self.path) == [_LOCK]:
                (self.path / _LOCK).unlink()
                self.path.rmdir()
                self.path.parent.rmdir()
        os.close(self._lock)


def name_of(number: int = 0) -> str:
    """Return what the directory of this kernel's server is called: of the first, or of one that runs beside it."""
    return f"{boot_name()}-{number:x}"


def of_this_kernel(parent: Path) -> list[Path]:
    """Return the directories of this kernel's servers, whether they run or not."""
    return sorted(parent.glob(f"{boot_name()}-*"))


def found_by_next_server(parent: Path) -> list[Path]:
    """Return the directories one of which a server that starts now would claim, with what is in it."""
    return of_this_kernel(parent) or (list(_directories(parent)) if is_on_own_disk(parent) else [])


def servers_elsewhere(home: Path) -> list[Process]:
    """Return the servers of a home that run on other nodes, or in other containers: what they touch tells."""
    found = []
    for path in _directories(home / NODES):
        with contextlib.suppress(OSError, ValueError, TypeError):
            process = Process(**json.loads((path / _LOCK).read_bytes()))
            if not process.is_here and time.time() - os.stat(path / _LOCK).st_mtime < 60 * IN_USE_MINUTES:
                found.append(process)
    return found


def remove_unused(parent: Path, *, keep: Path) -> None:
    """Remove the directories that no server has touched for 30 days."""
    for path in _directories(parent):
        if path != keep and _age_seconds(path) > UNUSED_SECONDS:
            with contextlib.suppress(OSError):
                lock = _locked(path)
                remove_tree(path, ignore_errors=True)
                os.close(lock)


def remove_from_killed(parent: Path, pattern: str, *, keep: Path) -> None:
    """Remove files of that name in directories of this kernel's servers that do not run any more."""
    for path in of_this_kernel(parent):
        if path != keep and any(path.glob(pattern)):
            with contextlib.suppress(OSError):
                lock = _locked(path)
                for left in path.glob(pattern):
                    remove_tree(left, ignore_errors=True)
                os.close(lock)


def remove_left(parent: Path, pattern: str, *, keep: Path) -> None:
    """Remove this user's directories of that name that no server has touched for 30 days: those of other boots."""
    for path in parent.glob(pattern):
        if path != keep and is_private(path) and _age_seconds(path) > UNUSED_SECONDS:
            remove_tree(path, ignore_errors=True)


def _take_over(parent: Path, path: Path, number: int) -> None:
    """Give what an earlier boot left the name of this one, if that is certain to be out of use."""
    if not is_on_own_disk(parent):
        return
    left = [other for other in _directories(parent) if other.name.endswith(f"-{number:x}")]
    for other in sorted(left, key=_age_seconds):
        if other.name.startswith(f"{boot_name()}-") or time.time() - _age_seconds(other) >= boot_time():
            continue
        with contextlib.suppress(OSError):
            lock = _locked(other)
            try:
                other.rename(path)  # one of all that try
                return
            finally:
                os.close(lock)


def _locked(path: Path) -> int:
    """Return the open lock of a directory, made if it is not there.

    Raises:
        BlockingIOError: Another process has it.
    """

    def opened() -> int:
        path.mkdir(mode=0o700, exist_ok=True)
        return os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    return open_locked(opened, lambda lock: is_named(lock, path / _LOCK))


def _directories(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in list(entries):
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _age_seconds(path: Path) -> float:
    """Return how long ago a server had the directory in use."""
    touched = time.time()
    with contextlib.suppress(OSError):
        touched = os.stat(path).st_mtime
        touched = max(touched, os.stat(path / _LOCK).st_mtime)
    return time.time() - touched
