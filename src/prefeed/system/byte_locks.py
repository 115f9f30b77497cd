"""Locks bytes of a file on behalf of one open file. The kernel releases the locks when the process ends."""

from __future__ import annotations

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


_all: Final[weakref.WeakSet[PerProcessFile]] = weakref.WeakSet()


def _close_inherited() -> None:
    """Close inherited copies, which would keep the locks of a dead parent."""
    for file in list(_all):
        file.close()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_inherited)
