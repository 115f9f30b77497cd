"""Open files whose bytes are in the tier: each read copies the part that it asks for."""

from __future__ import annotations

import os

from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.store.log import StoredValue


class Lent:
    """A file opened by path whose bytes the tier has: an ``interception.asking.CachedFileView``.

    Args:
        value: Its bytes.
        path: Absolute, as it has its key.

    Attributes:
        path: As given.
        is_hit: The tier had it when it was asked for.
        num_read: Bytes that were read so far.
    """

    __slots__ = ("_value", "is_hit", "num_read", "path")

    def __init__(self, value: StoredValue, path: str) -> None:
        self._value = value
        self.path: str = path
        self.is_hit: bool = False
        self.num_read: int = 0

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at the end; None: the tier holds it no more."""
        part = self._value.read(start, size)
        if part:
            self.num_read += len(part)
        return part

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at the end; None: the tier holds it no more."""
        num = self._value.read_into(start, target)
        if num:
            self.num_read += num
        return num

    def __len__(self) -> int:
        """Return the size in bytes."""
        return len(self._value)

    def close(self) -> None:
        """Do nothing: the bytes stay lent until the sample is made."""

    def are_of(self, descriptor: int) -> bool:
        """Return True when an open file has the very bytes."""
        return entry_key("/", self.path, version_of(os.fstat(descriptor), descriptor)) == self._value.key
