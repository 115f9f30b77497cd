"""Locks of the kernel's: of a directory, in which one process at a time makes or removes a store, and of a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from prefeed.errors import UnsafeDirectoryError
from prefeed.trust import beneath, why_not_kept

_held: Final[set[int]] = set()

PATIENCE_SECONDS: Final = 1.0
"""So long another process may keep a directory before it counts as stopped; what is done inside takes milliseconds."""

_FORGIVING_SECONDS: Final = 5.0
"""A directory that was waited for in vain is not waited for again for so long."""

_POLL_SECONDS: Final = 0.001

TURN_SECONDS: Final = 10.0
"""So long another process may write: whoever takes longer is stopped."""

_SHORTEST_PAUSE_SECONDS: Final = 0.0001
_LONGEST_PAUSE_SECONDS: Final = 0.02
_stuck: Final[set[Path]] = set()
_vain_until: Final[dict[Path, float]] = {}

T = TypeVar("T")


@contextlib.contextmanager
def directory_lock(directory: Path, *, within_seconds: float = PATIENCE_SECONDS) -> Iterator[Path]:
    """Hold a directory of this user; nobody else of those who ask is inside meanwhile.

    Yields a path that leads to this very directory, whatever comes to its name.

    The lock is on the directory itself: nothing has to be made for it, and a removed directory cannot be held.
    It goes with the process, however that ends, and not to its children. A process that is stopped inside keeps it:
    hence nobody waits for it without end.

    Args:
        directory: What to hold.
        within_seconds: Give up after that time; 0: do not wait.

    Raises:
        BlockingIOError: Somebody else had it all the time.
        FileNotFoundError: There is no such directory, or it was removed while this waited.
        OSError: It cannot be opened, or others may write to it.
    """
    file = when_free(directory, lambda: _locked(directory), within_seconds=within_seconds)
    try:
        if not os.path.samestat(os.fstat(file), os.stat(directory)):
            raise FileNotFoundError(f"{directory} was replaced")
        yield Path(beneath(file))
    finally:
        _held.discard(file)
        with contextlib.suppress(OSError):  # closed already in a forked child
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def when_free(directory: Path, act: Callable[[], T], *, within_seconds: float = PATIENCE_SECONDS) -> T:
    """Return what a function returns that does not wait for the directory: it is called again while others have that.

    For those who need another lock inside: to wait for a process that may be stopped, with a lock held that others in
    this process want, or its forks, would stop them all.

    Args:
        directory: What the function locks.
        act: Raises BlockingIOError, with nothing held, while somebody else has the directory.
        within_seconds: Give up after that time; at once for a while after that was in vain.

    Raises:
        BlockingIOError: Somebody else had it all the time.
    """
    start = time.monotonic()
    deadline = start if _vain_until.get(directory, start) > start else start + within_seconds
    while True:
        try:
            return act()
        except BlockingIOError:
            if time.monotonic() >= deadline:
                if deadline > start:
                    _vain_until[directory] = deadline + _FORGIVING_SECONDS
                raise
        time.sleep(_POLL_SECONDS)


class Turn:
    """A file that one thread of one process at a time holds; made by each process anew, a forked one too.

    Whoever waits has it next, also when the one that held it, and others that waited, are killed at once: the kernel
    gives back what a process held. A process that is stopped keeps it: it is waited for ten seconds, and until it goes on
    nobody waits for it again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._file: int | None = None

    def __enter__(self) -> None:
        """Wait for it.

        Raises:
            BlockingIOError: Another process does not give it back.
            OSError: There is no such file.
        """
        self._mutex.acquire()
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._wait(self._file)
        except BaseException:
            self._mutex.release()
            raise

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._mutex.release()

    def _wait(self, file: int) -> None:
        begun, pause = time.monotonic(), _SHORTEST_PAUSE_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = time.monotonic() - begun
                if waited >= (0.0 if self._path in _stuck else TURN_SECONDS):
                    _stuck.add(self._path)
                    raise
            else:
                _stuck.discard(self._path)
                return
            time.sleep(pause)
            pause = min(max(pause, waited / 8), _LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Close what was opened. In a forked child: at once, as the copy would keep what a thread of the parent holds."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _locked(directory: Path) -> int:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    _held.add(file)
    try:
        if why := why_not_kept(os.fstat(file)):
            raise UnsafeDirectoryError(f"{directory} {why}")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # flock itself cannot be told how long to wait
    except BaseException:
        _held.discard(file)
        os.close(file)
        raise
    return file


def _close_after_fork() -> None:
    # What a thread of the parent holds: the copy here would keep it locked when the parent is killed.
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_after_fork)
