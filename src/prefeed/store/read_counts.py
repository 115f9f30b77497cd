"""How the reads of a cache went, in all processes together: a file beside its store, to which each adds by itself.

::

    reads    256 slots of 16 bytes: hits, misses
             a process has one while it lives, by a lock of its bytes, and adds to what those before it have left there
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.system.byte_locks import PerProcessFile, lock_bytes
from prefeed.system.trust import open_in_protected

_NAME: Final = "reads"
_SLOT: Final = struct.Struct("<QQ")
_NUM_SLOTS: Final = 256


@dataclass(slots=True)
class _Slot:
    opened: int
    offset: int
    hits: int
    misses: int


class ReadCounts:
    """Adds reads to those of all other processes; costs a system call, and does not wait.

    Nothing that was added is lost, however the process ends.

    **Threads and processes.** Any; each process has a slot of its own.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._file = PerProcessFile(Path(directory) / _NAME)
        self._slot: _Slot | None = None

    def try_add(self, hits: int, misses: int) -> bool:
        """Add reads; False when that cannot be: the cache was dropped, the file system is full, or all slots are taken."""
        try:
            with self._file.open() as file:
                slot = self._slot_of(file)
                if slot is None:
                    return False
                added = (slot.hits + hits, slot.misses + misses)
                os.pwrite(file, _SLOT.pack(*added), slot.offset)
                slot.hits, slot.misses = added
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let go of the slot; a later use takes one again."""
        self._file.close()

    def _slot_of(self, file: int) -> _Slot | None:
        if self._slot is None or self._slot.opened != self._file.num_opened:
            self._slot = self._take_slot(file)
        return self._slot

    def _take_slot(self, file: int) -> _Slot | None:
        first = os.getpid()
        for number in range(first, first + _NUM_SLOTS):
            offset = number % _NUM_SLOTS * _SLOT.size
            if lock_bytes(file, fcntl.F_WRLCK, offset, _SLOT.size):
                found = os.pread(file, _SLOT.size, offset)
                hits, misses = _SLOT.unpack(found) if len(found) == _SLOT.size else (0, 0)
                return _Slot(self._file.num_opened, offset, hits, misses)
        return None


def counted_reads(directory: Path) -> tuple[int, int]:
    """Return hits and misses of all processes since the store's directory was made."""
    try:
        with open(open_in_protected(directory / _NAME, os.O_RDONLY), "rb") as file:
            data = file.read()
    except OSError:
        return 0, 0
    slots = list(_SLOT.iter_unpack(data[: len(data) // _SLOT.size * _SLOT.size]))
    return sum(hits for hits, _ in slots), sum(misses for _, misses in slots)
