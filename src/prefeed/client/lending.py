"""Files that are read in parts, where the node's cache has them."""

from __future__ import annotations

import os

from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.store.reader import StoredValue


class Lent:
    """A file opened by path whose bytes the tier has: an ``interception.protocol.LentFile``.

    Args:
        value: Its bytes.
        path: Absolute, as it has its key.

    Attributes:
        path: As given.
        num_read: Bytes that were read so far.
        last_start: Where the part begins that was read last.
        last_size: Its size in bytes, as it was asked for.
    """

    __slots__ = ("_value", "last_size", "last_start", "num_read", "path")

    def __init__(self, value: StoredValue, path: str) -> None:
        self._value = value
        self.path = path
        self.num_read = self.last_start = self.last_size = 0

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at the end; None: the tier holds it no more."""
        part = self._value.read(start, size)
        if part:
            self.num_read += len(part)
            self.last_start, self.last_size = start, size
        return part

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at the end; None: the tier holds it no more."""
        num = self._value.read_into(start, target)
        if num:
            self.num_read += num
            self.last_start, self.last_size = start, len(target)
        return num

    def is_found_again(self) -> bool:
        """Look the part up that was read last, as if the file was opened for it, and copy it; return whether it was there."""
        opened = self._value.read(0, 1)
        return opened is not None and self._value.read(self.last_start, self.last_size) is not None

    def __len__(self) -> int:
        """Return the size in bytes."""
        return len(self._value)

    def are_of(self, descriptor: int) -> bool:
        """Return True when an open file has the very bytes."""
        return entry_key("/", self.path, version_of(os.fstat(descriptor), descriptor)) == self._value.key
