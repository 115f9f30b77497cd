"""Future for the server's consumer of a plan, which is unknown until the server has started.

Plan ─thread: connects, starts the server─→ ConsumerFuture ←get before each read─ readers, also in forked children
"""

from __future__ import annotations

import mmap
import os
import pickle
import threading
from typing import Final

from xxhash import xxh3_64_intdigest

from prefeed.client.dataset import NodeDataset

ConsumerRef = tuple[NodeDataset, int]
"""Dataset on the node, and number of the plan's consumer."""

_MEMORY_BYTES: Final = 64 * 1024
_HEAD_BYTES: Final = 16


class ConsumerFuture:
    """Future of a plan's consumer. The result is None if no server can be reached.

    **Threads and processes**: resolved once, in any thread of the process that created it. Read in any thread and in forked
    processes, which share its memory. **Blocking**: only ``wait``.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._resolved = threading.Event()
        self._found: ConsumerRef | None = None
        self._memory: mmap.mmap | None = mmap.mmap(-1, _MEMORY_BYTES)

    @classmethod
    def resolved(cls, found: ConsumerRef | None) -> ConsumerFuture:
        """Return a resolved future, without shared memory."""
        future = cls.__new__(cls)
        future._pid, future._resolved = os.getpid(), threading.Event()
        future._found, future._memory = found, None
        future._resolved.set()
        return future

    def resolve(self, found: ConsumerRef | None) -> None:
        """Set the consumer, or None if no server follows the plan. A second call has no effect."""
        if self._resolved.is_set():
            return
        memory = self._memory
        assert memory is not None
        note = pickle.dumps(found)
        if len(note) <= _MEMORY_BYTES - _HEAD_BYTES:  # Otherwise, forked children read the origin.
            memory[_HEAD_BYTES : _HEAD_BYTES + len(note)] = note
            memory[8:_HEAD_BYTES] = xxh3_64_intdigest(note).to_bytes(8, "little")
            memory[:8] = len(note).to_bytes(8, "little")
        self._found = found
        self._resolved.set()

    def get(self) -> ConsumerRef | None:
        """Return the consumer; None if unresolved, or if no server follows the plan."""
        if self._found is None and self._memory is not None and self._pid != os.getpid():
            self._read_memory(self._memory)
        return self._found

    @property
    def is_resolved(self) -> bool:
        """True if the future was resolved in this process."""
        return self._resolved.is_set()

    def wait(self) -> None:
        """Wait until the future is resolved. A forked child returns at once, because the resolving thread is in its parent."""
        if self._pid == os.getpid():
            self._resolved.wait()

    def _read_memory(self, memory: mmap.mmap) -> None:
        length = int.from_bytes(memory[:8], "little")
        note = memory[_HEAD_BYTES : _HEAD_BYTES + length]
        if (
            length and xxh3_64_intdigest(note).to_bytes(8, "little") == memory[8:_HEAD_BYTES]
        ):  # else not all of it is seen yet
            self._found = pickle.loads(note)  # noqa: S301 - of the process that forked this one, in memory of both
            self._memory = None
