"""Provides a lock for threads that is free in a forked child."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ThreadLock:
    """Reentrant lock for the threads of this process. Use it as a context manager.

    **Threads and processes.** A forked child gets a new lock, because a thread of the parent that holds the lock does not exist there.
    """

    def __init__(self) -> None:
        self._pid, self._lock = os.getpid(), threading.RLock()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.RLock()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # forked in the block; the child has a new lock
