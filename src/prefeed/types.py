"""Values that every layer shares. No behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NewType

ObjectId = NewType("ObjectId", int)
"""Dense index of an object in its manifest, 0 <= id < num_objects."""

EntryKey = NewType("EntryKey", bytes)
"""16 bytes: xxh3-128 of (source url, path, version). Equal keys mean equal bytes."""

ENTRY_KEY_BYTES = 16

Buffer = bytes | bytearray | memoryview

ListingProgress = Callable[[int, int], None]
"""Called with (objects listed so far, bytes listed so far)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One line of a listing.

    Attributes:
        path: Relative to the source's root, ``/`` between parts, no leading ``/``.
        size_bytes: Size in bytes; -1 when the listing does not say.
        version: Changes whenever the bytes do: an etag, or ``mtime_ns-size``; ``""`` if unknown.
    """

    path: str
    size_bytes: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedObject:
    """One whole object as the origin gave it.

    Attributes:
        data: The bytes; anything with the buffer protocol.
        version: Version observed with these bytes, comparable to ``ObjectInfo.version``; ``""`` if unknown.
    """

    data: Buffer
    version: str
