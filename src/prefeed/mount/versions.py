"""Versions of objects whose versions were not listed: the first one of which a part was read is the one of the mount."""

from __future__ import annotations

import os
import struct
import threading
from typing import Final

_RECORD: Final = struct.Struct("<QQ")


class FirstVersions:
    """Keeps them in a file that outlives this process: the next daemon of a mount must know what open files were read of.

    **Threads and processes.** Any thread of the one process that uses the file.
    """

    def __init__(self, record: int) -> None:
        """Take over what the file behind this descriptor holds, nothing at first."""
        self._record = record
        self._lock = threading.Lock()
        data = os.pread(record, os.fstat(record).st_size, 0)
        self._hashes = dict(_RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]))

    def get_or_set(self, object_id: int, version_hash: int) -> int:
        """Return the hash of the version of an object that was seen first: this one, if none was; it is in the file then."""
        with self._lock:
            found = self._hashes.get(object_id)
            if found is None:
                os.pwrite(self._record, _RECORD.pack(object_id, version_hash), len(self._hashes) * _RECORD.size)
                found = self._hashes[object_id] = version_hash
            return found
