"""Who is making which entry: locks of single bytes of a file, which the kernel lets go of when a process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from prefeed.system.byte_locks import PerProcessFile, lock_bytes

_NAME: Final = "claims"
_OFFSETS: Final = (1 << 62) - 1


class Claims:
    """Lets one process at a time make an entry, so that none is made twice.

    A claim is a lock of one byte at an offset taken from the key. Two keys that meet at one offset wait for each other,
    which is harmless.

    **Threads and processes.** Any; each process opens the file for itself. Locks belong to the open file, so threads of one
    process do not exclude each other.
    **Blocking.** Never waits.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._file = PerProcessFile(Path(directory) / _NAME)

    def __reduce__(self) -> tuple[object, ...]:
        return (Claims, (self._file.path.parent,))

    def try_claim(self, key: bytes) -> bool:
        """Return False when another process has the key; True, and it is ours, otherwise, or when it cannot be told."""
        return self._set(fcntl.F_WRLCK, key)

    def release(self, key: bytes) -> None:
        """Let others make the entry."""
        if self._file.is_open:  # else it was closed meanwhile, and nothing is held
            self._set(fcntl.F_UNLCK, key)

    def close(self) -> None:
        """Let go of everything; a later claim opens the file again."""
        self._file.close()

    def _set(self, kind: int, key: bytes) -> bool:
        start = int.from_bytes(key[:8], "little") & _OFFSETS
        try:
            with self._file.open() as file:
                return lock_bytes(file, kind, start)
        except OSError:  # the cache was dropped, or there are no locks left: better made twice than not at all
            return True
