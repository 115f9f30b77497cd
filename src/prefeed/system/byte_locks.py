"""Locks of bytes of a file that belong to one open file: the kernel ends them with the process, however that ends."""

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
    """Lock bytes for this open file, or let go of them; return False when others have them locked.

    Args:
        file: Its descriptor.
        kind: ``F_RDLCK``, ``F_WRLCK`` or ``F_UNLCK``.
        start: First byte; the file may be shorter.
        length: How many; 0: to the end of all bytes.

    Raises:
        OSError: There are no such locks, or none are left.
    """
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except BlockingIOError:
        return False
    return True


def are_locked(file: int, start: int, length: int = 1, *, by_processes: bool = False) -> bool:
    """Return whether others have one of these bytes locked.

    Args:
        file: Its descriptor.
        start: First byte.
        length: How many.
        by_processes: Others are other processes, as LMDB locks; else all other open files.
    """
    command = fcntl.F_GETLK if by_processes else fcntl.F_OFD_GETLK
    told = fcntl.fcntl(file, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    return bool(_FLOCK.unpack(told)[0] != fcntl.F_UNLCK)


class LocksUnsupportedError(OSError):
    """There are no locks of open files here."""


class ByteLocks:
    """The locks that this object has on a file. Those of another object count as another's, in this process too.

    They are seen in every container that has the file, whatever namespaces it has.

    **Ownership.** Its maker closes it, and with it gives all its locks back. A forked child has none: its copy
    of the file is closed, which takes nothing from the parent.
    **Threads and processes.** Any thread. Each call takes the kernel's lock over all locks of the file: what one did
    before it, another sees after it.
    **Blocking.** Never waits.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Open the file.

        Raises:
            LocksUnsupportedError: The system, or the file's file system, has no such locks.
            OSError: It is not there, or cannot be opened.
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
        """Lock a byte that others may share; False when one of them has it to himself."""
        return lock_bytes(self._file, fcntl.F_RDLCK, start)

    def try_own(self, start: int) -> bool:
        """Lock a byte against all others; False when one of them has locked it."""
        return lock_bytes(self._file, fcntl.F_WRLCK, start)

    def unlock(self, start: int, length: int = 1) -> None:
        """Give locks of these bytes back; length 0: to the end of all bytes."""
        lock_bytes(self._file, fcntl.F_UNLCK, start, length)

    def are_locked_elsewhere(self, start: int, length: int) -> bool:
        """Return True while others have a lock of one of these bytes."""
        return are_locked(self._file, start, length)

    def close(self) -> None:
        """Give all locks back. A second call does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_lock: Final = threading.RLock()
"""Over all own files of this process, so that none is closed while its number is used; a fork waits for it.

Nothing is waited for inside. One that can be taken twice: what is collected inside may close a file.
"""


class PerProcessFile:
    """A file that each process opens for itself: at first use, made if it is not there; in a forked child again.

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
        """Whether this process has it open."""
        return self._file is not None

    @contextmanager
    def open(self) -> Iterator[int]:
        """Inside it, the file stays open; what is done there must not wait.

        Raises:
            OSError: It cannot be opened, or others may write to its directory.
        """
        with _lock:
            if self._file is None:
                self._file = open_in_protected(self.path, os.O_RDWR | os.O_CREAT)
                self.num_opened += 1
            yield self._file

    def close(self) -> None:
        """Let go of it, and of all locks on it; in a forked child only of the child's copy."""
        with _lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)


_all: Final[weakref.WeakSet[ByteLocks | PerProcessFile]] = weakref.WeakSet()


def _close_inherited() -> None:
    """A copy of the file in a child would keep the locks of a dead parent."""
    for file in list(_all):
        file.close()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_inherited)
