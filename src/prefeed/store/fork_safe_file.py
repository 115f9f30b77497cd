"""A file beside a store that each process opens for itself, because the locks that it takes belong to the open file."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prefeed.system.trust import open_in_kept

_lock: Final = threading.RLock()
"""Over all of them in this process, so that none is closed under one who uses its number; a fork waits for it.

Nothing is waited for inside. One that can be taken twice: what is collected inside may close a file.
"""


class OwnFile:
    """Opened at first use, made if it is not there; in a forked child anew.

    **Threads and processes.** Any.
    **Blocking.** Never waits for another process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_opened = 0
        self._file: int | None = None
        _all.add(self)

    @property
    def is_open(self) -> bool:
        """Whether this process has it open."""
        return self._file is not None

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Inside it, the file stays open; what is done there must not wait.

        Raises:
            OSError: It cannot be opened, or others may write to its directory.
        """
        with _lock:
            if self._file is None:
                self._file = open_in_kept(self.path, os.O_RDWR | os.O_CREAT)
                self.num_opened += 1
            yield self._file

    def close(self) -> None:
        """Let go of it, and of all locks on it; in a forked child only of the child's copy."""
        with _lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)


_all: Final[weakref.WeakSet[OwnFile]] = weakref.WeakSet()


def _close_inherited() -> None:
    """A copy of the file in a child would keep the locks of a dead parent."""
    for file in list(_all):
        file.close()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_inherited)
