"""Stores the versions of unversioned objects: the version of the first read applies to the whole mount."""

from __future__ import annotations

import os
import struct
import threading
from typing import Final

_RECORD: Final = struct.Struct("<QQ")


class FirstVersions:
    """Hashes of first versions, in a file that outlives this process, because open files must keep their version in the next daemon.

    **Threads and processes.** Any thread of the one process that uses the file.
    """

    def __init__(self, record: int) -> None:
        """Load the record of this descriptor, which is empty for a new mount."""
        self._record = record
        self._lock = threading.Lock()
        data = os.pread(record, os.fstat(record).st_size, 0)
        self._hashes = dict(_RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]))

    def get_or_set(self, object_id: int, version_hash: int) -> int:
        """Return the hash of the first version of an object. If there is none, store this hash first."""
        with self._lock:
            found = self._hashes.get(object_id)
            if found is None:
                os.pwrite(self._record, _RECORD.pack(object_id, version_hash), len(self._hashes) * _RECORD.size)
                found = self._hashes[object_id] = version_hash
            return found
