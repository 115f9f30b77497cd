"""Locks bytes of a file on behalf of one open file. The kernel releases the locks when the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prefeed.system.trust import open_in_protected

_FLOCK: Final = struct.Struct("hhxxxxqqixxxx")  # struct flock of 64-bit Linux: type, whence, start, length, pid

_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def lock_bytes(file: int, kind: int, start: int, length: int = 1) -> bool:
    """Lock or unlock bytes for this open file. Return False if another open file has a conflicting lock.

    Args:
        file: Descriptor.
        kind: ``F_RDLCK``, ``F_WRLCK`` or ``F_UNLCK``.
        start: First byte, which may be beyond the end of the file.
        length: Number of bytes; 0 for all up to the largest offset.

    Raises:
        OSError: The kernel does not support such locks, or has none left.
    """
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except BlockingIOError:
        return False
    return True


def are_locked(file: int, start: int, length: int = 1, *, by_processes: bool = False) -> bool:
    """Return whether another lock conflicts with a write lock of these bytes.

    Args:
        file: Descriptor.
        start: First byte.
        length: Number of bytes.
        by_processes: True to check the locks of other processes, as LMDB uses; False for locks of other open files.
    """
    command = fcntl.F_GETLK if by_processes else fcntl.F_OFD_GETLK
    told = fcntl.fcntl(file, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    return bool(_FLOCK.unpack(told)[0] != fcntl.F_UNLCK)


class LocksUnsupportedError(OSError):
    """The kernel or file system does not support locks of open files."""


class ByteLocks:
    """Locks that one object holds on a file. Another object conflicts with them, even in this process.

    All containers that share the file see the locks, whatever their namespaces are.

    **Ownership.** The creator closes the object, which releases its locks. A forked child has no locks: its copy of the file is
    closed, which does not affect the parent.
    **Threads and processes.** Any thread. The kernel serializes all locks of a file: a call sees all changes made before it.
    **Blocking.** Never waits.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Open the file.

        Raises:
            LocksUnsupportedError: The kernel or file system has no such locks.
            OSError: The file does not exist or cannot be opened.
        """
        kind = os.O_RDWR if writable else os.O_RDONLY
        self._file = os.open(path, kind | os.O_CLOEXEC | os.O_NOFOLLOW)
        _all.add(self)
        try:
            self.are_locked_elsewhere(0, 1)
        except OSError as err:
            self.close()
            if err.errno in _UNSUPPORTED:
                raise LocksUnsupportedError(err.errno, f"{err.strerror}: no locks of open files", str(path)) from err
            raise

    def try_share(self, start: int) -> bool:
        """Take a shared lock of a byte. Return False if another object owns the byte."""
        return lock_bytes(self._file, fcntl.F_RDLCK, start)

    def try_own(self, start: int) -> bool:
        """Take an exclusive lock of a byte. Return False if another object has a lock."""
        return lock_bytes(self._file, fcntl.F_WRLCK, start)

    def unlock(self, start: int, length: int = 1) -> None:
        """Release the locks of these bytes. A length of 0 means up to the largest offset."""
        lock_bytes(self._file, fcntl.F_UNLCK, start, length)

    def are_locked_elsewhere(self, start: int, length: int) -> bool:
        """Return whether other objects have a lock of these bytes."""
        return are_locked(self._file, start, length)

    def close(self) -> None:
        """Release all locks. A second call does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_lock: Final = threading.RLock()
"""Guards all files of this process, so that none is closed while its number is used. A fork waits for it.

No thread waits for anything else while it holds the lock. It is reentrant, because a garbage collection inside may close a file.
"""


class PerProcessFile:
    """A file that each process opens for itself at the first use, creating it if needed. A forked child opens it again.

    **Threads and processes.** Any.
    **Blocking.** Never waits for another process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_opened: int = 0
        self._file: int | None = None
        _all.add(self)

    @property
    def is_open(self) -> bool:
        """True if this process has opened the file."""
        return self._file is not None

    @contextmanager
    def open(self) -> Iterator[int]:
        """Yield the descriptor and keep it open. The block must not wait.

        Raises:
            OSError: The file cannot be opened, or others may write to its directory.
        """
        with _lock:
            if self._file is None:
                self._file = open_in_protected(self.path, os.O_RDWR | os.O_CREAT)
                self.num_opened += 1
            yield self._file

    def close(self) -> None:
        """Close the file and release all locks on it. In a forked child, close only the child's copy."""
        with _lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)


_all: Final[weakref.WeakSet[ByteLocks | PerProcessFile]] = weakref.WeakSet()


def _close_inherited() -> None:
    """Close inherited copies, which would keep the locks of a dead parent."""
    for file in list(_all):
        file.close()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_inherited)
