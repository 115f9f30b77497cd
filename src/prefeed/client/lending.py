"""Files that are read in parts, where the node's cache has them."""

from __future__ import annotations

import os

from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.store.tier import StoredValue


class Lent:
    """A file opened by path whose bytes the tier has: an ``interception.protocol.LentFile``.

    Args:
        value: Its bytes.
        path: Absolute, as it has its key.
    """

    __slots__ = ("_path", "_value", "read", "read_into")

    def __init__(self, value: StoredValue, path: str) -> None:
        self._value = value
        self._path = path
        self.read = value.read
        self.read_into = value.read_into

    def __len__(self) -> int:
        """Return the size in bytes."""
        return len(self._value)

    def are_of(self, descriptor: int) -> bool:
        """Return True when an open file has the very bytes."""
        return entry_key("/", self._path, version_of(os.fstat(descriptor), descriptor)) == self._value.key
