"""A lock of the threads of one process, which a forked child finds free."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ThreadLock:
    """A reentrant lock for threads of this process. Use it as a context manager.

    **Threads and processes.** A thread of the parent that held it does not exist in a forked child: the child has a lock of its
    own.
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
            pass  # the process was forked inside, and the child has entered it again
