"""Locks files and directories with flock, without waiting or with a limited wait.

The kernel releases a lock when its process ends. A suspended process keeps its lock, and on NFS a lost node may, so every wait has a limit. If a
file system does not support locks, functions behave as if no other process had one.
"""

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
from prefeed.system.trust import beneath, why_unprotected

_held: Final[set[int]] = set()

PATIENCE_SECONDS: Final = 1.0
"""Maximum wait for a lock before its holder counts as suspended. Holders need milliseconds."""

FORGIVING_SECONDS: Final = 5.0
"""Time after a failed wait during which the same directory or file is not waited for again."""

_POLL_SECONDS: Final = 0.001
_SHORTEST_POLL_SECONDS: Final = 0.00005
"""First pause between two tries for a ``ProcessLock``, which is usually held for some tenths of a millisecond."""

_SLOW_POLL_SECONDS: Final = 0.02

_no_wait_until: Final[dict[Path, float]] = {}

T = TypeVar("T")


def try_flock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Try to lock a file. Return True if it is locked, or if the file system does not support locks.

    Args:
        descriptor: Descriptor of the file.
        kind: ``LOCK_EX`` (exclusive) or ``LOCK_SH`` (shared).
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def flock_within(
    descriptor: int, seconds: float, kind: int = fcntl.LOCK_EX, *, life: Callable[[], object] | None = None
) -> bool:
    """Wait for a lock for a limited time. Return False if another process keeps it.

    Args:
        descriptor: Descriptor of the file.
        seconds: Maximum wait in seconds.
        kind: As for ``try_flock``.
        life: Returns a value that changes while the holder is alive. Each change restarts the wait.
    """
    seen, since = life and life(), time.monotonic()

    def is_over() -> bool:
        nonlocal seen, since
        if life is not None and (now := life()) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= seconds

    def lock() -> None:
        if not try_flock(descriptor, kind):
            raise BlockingIOError

    try:
        _retry_until(is_over, lock, pause_seconds=_SLOW_POLL_SECONDS)
    except BlockingIOError:
        return False
    return True


def _retry_until(is_over: Callable[[], bool], act: Callable[[], T], *, pause_seconds: float = _POLL_SECONDS) -> T:
    """Retry a function until it no longer raises BlockingIOError. Raise that error when the time is over.

    Pauses double up to a millisecond, because flock has no timeout.
    """
    while True:
        try:
            return act()
        except BlockingIOError:
            if is_over():
                raise
        time.sleep(pause_seconds)
        pause_seconds = max(pause_seconds, min(2 * pause_seconds, _POLL_SECONDS))


@contextlib.contextmanager
def file_lock(path: Path, *, within_seconds: float) -> Iterator[None]:
    """Lock a file during the block, creating it if needed. After the time limit, run the block without the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        flock_within(descriptor, within_seconds)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked in the block has the file open
        os.close(descriptor)


def is_named(descriptor: int, path: str | os.PathLike[str], *, within: int | None = None) -> bool:
    """Return whether an open file is the one that currently has this name.

    Args:
        descriptor: Descriptor of the file.
        path: Its name.
        within: Descriptor of the directory for a relative ``path``, of which a link is then not followed.
    """
    try:
        now = os.stat(path, dir_fd=within, follow_symlinks=within is None)
        return os.path.samestat(os.fstat(descriptor), now)
    except FileNotFoundError:
        return False


def open_locked(open_file: Callable[[], int], is_current: Callable[[int], bool] = lambda _: True) -> int:
    """Open and lock a file without waiting. Return its descriptor.

    Args:
        open_file: Opens the file.
        is_current: Returns whether the open file still has its name. If not, because the last holder removed it, the file is opened
            again.

    Raises:
        BlockingIOError: Another process has the lock.
        OSError: The file cannot be opened or locked.
    """
    while True:
        descriptor = open_file()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_current(descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextlib.contextmanager
def directory_lock(directory: Path, *, within_seconds: float = PATIENCE_SECONDS) -> Iterator[Path]:
    """Lock a directory of this user. Yield a path to the locked directory that does not depend on its name.

    The lock is on the directory itself, so that no lock file is needed and a removed directory cannot be locked. The lock ends with the
    process and is not inherited by children. A suspended process keeps it, so waiting is limited.

    Args:
        directory: Directory to lock.
        within_seconds: Maximum wait; 0 for none.

    Raises:
        BlockingIOError: Another process has the lock.
        FileNotFoundError: The directory does not exist, or was removed or replaced during the wait.
        OSError: The directory cannot be opened, or others may write to it.
    """
    file = call_when_free(directory, lambda: _open_and_lock(directory), within_seconds=within_seconds)
    try:
        if not os.path.samestat(os.fstat(file), os.stat(directory)):
            raise FileNotFoundError(f"{directory} was replaced")
        yield Path(beneath(file))
    finally:
        _held.discard(file)
        with contextlib.suppress(OSError):  # a forked child has closed it already
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def call_when_free(directory: Path, act: Callable[[], T], *, within_seconds: float = PATIENCE_SECONDS) -> T:
    """Call a function again while it raises BlockingIOError because a directory is locked.

    Use it if the function needs another lock. Waiting inside that lock for a process that may be suspended would block all threads and forks
    of this process that need the other lock.

    Args:
        directory: Directory that the function locks.
        act: Raises BlockingIOError, holding no lock, while another process has the directory.
        within_seconds: Maximum wait. It is 0 for a while after a failed wait.

    Raises:
        BlockingIOError: Another process has the directory.
    """
    start = time.monotonic()
    deadline = start if _no_wait_until.get(directory, start) > start else start + within_seconds
    try:
        return _retry_until(lambda: time.monotonic() >= deadline, act)
    except BlockingIOError:
        if deadline > start:
            _no_wait_until[directory] = deadline + FORGIVING_SECONDS
        raise


class ProcessLock:
    """Lock of a file for one thread of one process at a time. Each process, also a forked one, creates its own object.

    The lock is polled, because flock has no timeout and a suspended process keeps its lock. The kernel releases the lock of a killed process.
    A lock is never taken from its holder: a process that is suspended and resumed still has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._file: int | None = None

    @contextlib.contextmanager
    def hold(self, *, within_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
        """Hold the lock during the block.

        Args:
            within_seconds: Maximum wait. It is 0 for a while after a failed wait.

        Raises:
            BlockingIOError: Another thread or process has the lock.
            OSError: The file does not exist.
        """
        start = time.monotonic()
        deadline = start if self.has_timed_out() else start + within_seconds
        if not self._mutex.acquire(timeout=max(0.0, deadline - start)):
            raise BlockingIOError(f"another thread has the turn of {self._path}")
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._lock(self._file, deadline, is_patient=deadline >= start + PATIENCE_SECONDS)
            yield
        finally:
            if self._file is not None:
                with contextlib.suppress(OSError):  # a forked child has closed it already
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            self._mutex.release()

    def has_timed_out(self) -> bool:
        """Return whether a recent wait for the lock failed."""
        return _no_wait_until.get(self._path, 0.0) > time.monotonic()

    def _lock(self, file: int, deadline: float, *, is_patient: bool) -> None:
        def lock() -> None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

        try:
            _retry_until(lambda: time.monotonic() >= deadline, lock, pause_seconds=_SHORTEST_POLL_SECONDS)
            _no_wait_until.pop(self._path, None)
        except BlockingIOError:
            if is_patient:
                _no_wait_until[self._path] = deadline + FORGIVING_SECONDS
            raise

    def close(self) -> None:
        """Close the file. Call it first in a forked child, because an inherited copy keeps the parent's lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open_and_lock(directory: Path) -> int:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    _held.add(file)
    try:
        if why := why_unprotected(os.fstat(file)):
            raise UnsafeDirectoryError(f"{directory} {why}")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # flock has no timeout
    except BaseException:
        _held.discard(file)
        os.close(file)
        raise
    return file


def _close_after_fork() -> None:
    # An inherited copy would keep the lock of the parent after the parent was killed.
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_after_fork)
