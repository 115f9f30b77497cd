"""The memory of a tier: files without a name, which the kernel frees with their last holder.

A memfd is not limited by the size of ``/dev/shm``, nobody can remove or replace it, and it needs no path on which two mount
namespaces agree. Readers get the descriptors over the server's socket. Readers that live longer than the server would keep its
memory, so the server truncates the files when it ends, and a child of it does when it is killed.
"""

from __future__ import annotations

import os
import select
import signal
import weakref
from collections.abc import Sequence
from typing import Final

from prefeed.store.log import LogReader

NUM_SEGMENTS: Final = 2
"""One of values that stay, and one of values that are freed after they were read."""

NUM_FILES: Final = 1 + NUM_SEGMENTS
_MOST_DESCRIPTORS: Final = 1 << 20


class MemoryFiles:
    """The index and the segments of a memory tier, as memfds.

    **Ownership.** ``close`` frees the memory, also under readers, closes the descriptors and ends the guard.
    """

    def __init__(self) -> None:
        self._guard = 0
        self.index: int = os.memfd_create("prefeed-index")
        self.segments: list[int] = [os.memfd_create(f"prefeed-segment-{number}") for number in range(NUM_SEGMENTS)]

    @property
    def descriptors(self) -> list[int]:
        """The index, then the segments."""
        return [self.index, *self.segments]

    def guard(self) -> None:
        """Fork a process that frees the memory as soon as this process is gone, however it ended."""
        process = os.pidfd_open(os.getpid())
        self._guard = os.fork()
        if self._guard:
            os.close(process)
            return
        try:
            _wait_and_truncate(process, self.descriptors)
        finally:
            os._exit(0)

    def close(self) -> None:
        """Free the memory: readers find nothing any more."""
        for descriptor in self.descriptors:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)
        if self._guard:
            os.kill(self._guard, signal.SIGKILL)
            os.waitpid(self._guard, 0)


class MemoryReader(LogReader):
    """Reads a memory tier of another process, or of this one, whose descriptors were handed over.

    **Ownership.** It owns the descriptors, and closes them when nothing refers to it any more.
    **Threads and processes.** Any number, and forked children.

    Args:
        descriptors: The index, then the segments.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        super().__init__(descriptors[0], descriptors[1:])
        weakref.finalize(self, _close_all, tuple(descriptors)).atexit = False


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _wait_and_truncate(process: int, descriptors: Sequence[int]) -> None:
    """Wait until a process has ended; hold nothing of it meanwhile but these descriptors."""
    os.setsid()  # a signal to the server's process group is not for it
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    kept = sorted({process, *descriptors})
    for first, last in zip([-1, *kept], [*kept, _MOST_DESCRIPTORS], strict=True):
        os.closerange(first + 1, last)
    ended = select.poll()
    ended.register(process, select.POLLIN)
    ended.poll()
    for descriptor in descriptors:
        os.ftruncate(descriptor, 0)
