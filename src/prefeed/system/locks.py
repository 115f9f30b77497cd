"""Locks of the kernel's, of files and directories: had at once, waited for with a limit, or taken in turns.

A lock goes with the process that has it, however that ends. One that is stopped keeps it, and so may a node that is gone, on
NFS: hence every wait has a limit. Where a file system has no locks, no process gets one, and none waits.
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
"""So long another process may keep a directory before it counts as stopped; what is done inside takes milliseconds."""

TURN_SECONDS: Final = 0.01
"""So long a turn is waited for where locks are held that others in this process want; then all of it is tried again."""

FORGIVING_SECONDS: Final = 5.0
"""A directory, or a turn, that was waited for in vain is not waited for again for so long."""

_POLL_SECONDS: Final = 0.001
_SHORTEST_POLL_SECONDS: Final = 0.00005
"""A turn to write is mostly over after some tenths of a millisecond."""

_SLOW_POLL_SECONDS: Final = 0.02

_no_wait_until: Final[dict[Path, float]] = {}

T = TypeVar("T")


def try_flock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether there is nothing to wait for: the lock is held, or there are no locks.

    Args:
        descriptor: Of the file.
        kind: ``LOCK_EX``, for one alone, or ``LOCK_SH``, for many.
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
    """Wait for a lock; return False when somebody else has kept it for so long.

    Args:
        descriptor: Of the file.
        seconds: How long.
        kind: As for ``try_flock``.
        life: Returns another value as long as the holder of the lock is alive: then the time begins again.
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
    """Return what a function returns once it raises BlockingIOError no more; that is raised when the time is over.

    Pauses double, to a millisecond: the kernel can be asked for a lock at once or for ever, and not for a time.
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
    """Hold a file, made if it is not there; one that is kept for longer is not waited for, and what is inside is still done."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        flock_within(descriptor, within_seconds)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has it open
        os.close(descriptor)


def is_named(descriptor: int, path: str | os.PathLike[str], *, within: int | None = None) -> bool:
    """Return whether an open file has this name, and no other file has it by now.

    Args:
        descriptor: Of the file.
        path: Its name.
        within: Descriptor of the directory that ``path`` is relative to; then a link is not followed.
    """
    try:
        now = os.stat(path, dir_fd=within, follow_symlinks=within is None)
        return os.path.samestat(os.fstat(descriptor), now)
    except FileNotFoundError:
        return False


def open_locked(open_file: Callable[[], int], is_current: Callable[[int], bool] = lambda _: True) -> int:
    """Return an open file that no other process has locked.

    Args:
        opened: Opens it.
        is_current: Whether the open file still has its name: the holder of the lock may have removed it. Else it is opened again.

    Raises:
        BlockingIOError: Somebody has it.
        OSError: It cannot be opened or locked.
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
    """Hold a directory of this user; no other process that asks is inside meanwhile.

    Yields a path that leads to this very directory, whatever comes to its name.

    The lock is on the directory itself: nothing has to be made for it, and a removed directory cannot be held.
    It goes with the process, however that ends, and not to its children. A process that is stopped inside keeps it:
    hence no process waits for it without end.

    Args:
        directory: What to hold.
        within_seconds: Give up after that time; 0: do not wait.

    Raises:
        BlockingIOError: Somebody else had it all the time.
        FileNotFoundError: There is no such directory, or it was removed while this waited.
        OSError: It cannot be opened, or others may write to it.
    """
    file = retry_while_locked(directory, lambda: _open_and_lock(directory), within_seconds=within_seconds)
    try:
        if not os.path.samestat(os.fstat(file), os.stat(directory)):
            raise FileNotFoundError(f"{directory} was replaced")
        yield Path(beneath(file))
    finally:
        _held.discard(file)
        with contextlib.suppress(OSError):  # closed already in a forked child
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def retry_while_locked(directory: Path, act: Callable[[], T], *, within_seconds: float = PATIENCE_SECONDS) -> T:
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
    deadline = start if _no_wait_until.get(directory, start) > start else start + within_seconds
    try:
        return _retry_until(lambda: time.monotonic() >= deadline, act)
    except BlockingIOError:
        if deadline > start:
            _no_wait_until[directory] = deadline + FORGIVING_SECONDS
        raise


class ProcessLock:
    """A file that one thread of one process at a time holds; each process makes its own, a forked one too.

    It is asked for again and again, and not waited for: the kernel cannot be told how long to wait, and a process that is
    stopped keeps it. What a process held is free as soon as that is killed, and no process has to be woken for it.

    Nothing is ever taken over: a process that is stopped inside and wakes again still has it, and ends what it began.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._file: int | None = None

    @contextlib.contextmanager
    def hold(self, *, within_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
        """Hold it.

        Args:
            within_seconds: Give up after that time; at once for a while after that was in vain.

        Raises:
            BlockingIOError: Somebody else had it all the time.
            OSError: There is no such file.
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
                with contextlib.suppress(OSError):  # closed already in a forked child
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            self._mutex.release()

    def has_timed_out(self) -> bool:
        """Return whether it was waited for in vain a short while ago: another process keeps it."""
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
        """Close what was opened. In a forked child: at once, as the copy would keep what a thread of the parent holds."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open_and_lock(directory: Path) -> int:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    _held.add(file)
    try:
        if why := why_unprotected(os.fstat(file)):
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
