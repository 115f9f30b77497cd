"""Who follows a plan: known when the plan is made, or later, where the server has to start first.

Plan ─thread: connects, the server starts─→ ConsumerFuture ←looks, before each read─ readers, also in forked children
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
"""The dataset on the node, and the number of the plan's consumer."""

_MEMORY_BYTES: Final = 64 * 1024
_HEAD_BYTES: Final = 16


class ConsumerFuture:
    """Who follows a plan, once that is known; nobody, where no server can be reached.

    **Threads and processes**: decided once, in any thread of the process that made it; read in any thread, and in processes forked
    from it, before or after: they see the same memory. **Blocking**: only ``wait``.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._resolved = threading.Event()
        self._found: ConsumerRef | None = None
        self._memory: mmap.mmap | None = mmap.mmap(-1, _MEMORY_BYTES)

    @classmethod
    def resolved(cls, found: ConsumerRef | None) -> ConsumerFuture:
        """Return one that is decided, without memory."""
        future = cls.__new__(cls)
        future._pid, future._resolved = os.getpid(), threading.Event()
        future._found, future._memory = found, None
        future._resolved.set()
        return future

    def resolve(self, found: ConsumerRef | None) -> None:
        """From now on this one follows; None: nobody does. Does nothing when it was decided before."""
        if self._resolved.is_set():
            return
        memory = self._memory
        assert memory is not None
        note = pickle.dumps(found)
        if len(note) <= _MEMORY_BYTES - _HEAD_BYTES:  # else forked children read the origin
            memory[_HEAD_BYTES : _HEAD_BYTES + len(note)] = note
            memory[8:_HEAD_BYTES] = xxh3_64_intdigest(note).to_bytes(8, "little")
            memory[:8] = len(note).to_bytes(8, "little")
        self._found = found
        self._resolved.set()

    def get(self) -> ConsumerRef | None:
        """Return who follows; None: nobody does, or not yet."""
        if self._found is None and self._memory is not None and self._pid != os.getpid():
            self._read_memory(self._memory)
        return self._found

    @property
    def is_resolved(self) -> bool:
        """True when it will not change any more, as far as this process knows."""
        return self._resolved.is_set()

    def wait(self) -> None:
        """Wait until it is decided; a forked child does not wait, it has no thread that decides."""
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
