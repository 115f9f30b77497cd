"""Format of the pool's values: a header, then the bytes of an object or of a part of one. Pure.

    key  pf1:<32 hex>            header · bytes of part 0      or, for some seconds, a claim
         pf1:<32 hex>:1          header · bytes of part 1
         ...

A header has the entry key, the size and number of parts of the object, and the checksum of the whole object. A reader treats headers that
differ, or bytes that do not match the checksum, as a miss.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from prefeed.types import ENTRY_KEY_BYTES, Buffer

VERSION: Final = 1
"""Version of keys and headers. Nodes with different versions do not see each other's values."""

_HEADER: Final = struct.Struct("<4sHHIIQ16s16s8x")
HEADER_BYTES: Final = _HEADER.size
_MAGIC: Final = b"PFVL"
_CLAIM: Final = b"PFCL"
_WHOLE: Final = 0

OVERHEAD_BYTES: Final = 1024
"""Space of an item that a part cannot use: header, key, and overhead of memcached."""

DEFAULT_ITEM_BYTES: Final = 1024**2
"""Default of memcached."""

MOST_PARTS: Final = 65_536


class PartHeader(NamedTuple):
    """Header before the bytes of a part.

    Attributes:
        part: Number of the part, from 0.
        num_parts: Number of parts of the object.
        total_bytes: Size of the object.
        key: Entry key of the object.
        digest: xxh3-128 of the object.
    """

    part: int
    num_parts: int
    total_bytes: int
    key: bytes
    digest: bytes

    def to_bytes(self) -> bytes:
        """Encode the header."""
        return _HEADER.pack(_MAGIC, VERSION, 0, self.part, self.num_parts, self.total_bytes, self.key, self.digest)


def pool_key(key: bytes, part: int = _WHOLE) -> bytes:
    """Return the pool's key of a part of an entry."""
    name = b"pf%d:%s" % (VERSION, key.hex().encode())
    return name if part == _WHOLE else b"%s:%d" % (name, part)


def read_header(value: Buffer, key: bytes, part: int) -> PartHeader | None:
    """Decode the header of a value. Return None unless it is this part of this entry."""
    if memoryview(value).nbytes < HEADER_BYTES:
        return None
    magic, version, flags, at, num_parts, total_bytes, of, digest = _HEADER.unpack_from(value)
    is_right = magic == _MAGIC and version == VERSION and flags == 0 and at == part and of == key
    return PartHeader(at, num_parts, total_bytes, of, digest) if is_right and part < num_parts <= MOST_PARTS else None


def split(key: bytes, data: Buffer, part_bytes: int) -> Iterator[tuple[PartHeader, memoryview]]:
    """Yield the parts of an object as views of ``data``. The first part is last, because readers start with it.

    Args:
        key: Entry key, 16 bytes.
        data: Bytes of the object.
        part_bytes: Maximum size of a part without its header.
    """
    assert len(key) == ENTRY_KEY_BYTES
    view = memoryview(data).cast("B")
    digest = xxh3_128_digest(view)
    num_parts = max(1, -(-len(view) // part_bytes))
    for part in reversed(range(num_parts)):
        header = PartHeader(part, num_parts, len(view), key, digest)
        yield header, view[part * part_bytes : (part + 1) * part_bytes]


def is_whole(data: Buffer, header: PartHeader) -> bool:
    """Return whether size and checksum of the bytes match the header."""
    return memoryview(data).nbytes == header.total_bytes and xxh3_128_digest(data) == header.digest


def claim(owner: bytes) -> bytes:
    """Encode a claim: the announcement of a node that it fetches the entry from the origin."""
    return _CLAIM + owner


def claimed_by(value: Buffer) -> bytes | None:
    """Return the owner of a claim; None if the value is not a claim."""
    return bytes(value[len(_CLAIM) :]) if bytes(value[: len(_CLAIM)]) == _CLAIM else None
