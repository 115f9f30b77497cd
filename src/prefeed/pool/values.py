"""What lies in the pool: a typed header, then bytes; a large object in parts. Pure.

    key  pf1:<32 hex>            header · bytes of part 0      or, for some seconds, a claim
         pf1:<32 hex>:1          header · bytes of part 1
         ...

Each header says to which entry its bytes belong, how large the whole is, in how many parts it is, and the sum of the whole.
A reader that finds two that do not agree, or bytes that do not give the sum, has found nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from prefeed.types import ENTRY_KEY_BYTES, Buffer

VERSION: Final = 1
"""Of keys and headers: nodes of two versions see nothing of each other's."""

_HEADER: Final = struct.Struct("<4sHHIIQ16s16s8x")
HEADER_BYTES: Final = _HEADER.size
_MAGIC: Final = b"PFVL"
_CLAIM: Final = b"PFCL"
_WHOLE: Final = 0

OVERHEAD_BYTES: Final = 1024
"""A part is so much smaller than what a server takes as an item: header, key, and what memcached adds."""

DEFAULT_ITEM_BYTES: Final = 1024**2
"""memcached's own limit."""

MOST_PARTS: Final = 65_536


class Header(NamedTuple):
    """What stands before the bytes of a part.

    Attributes:
        part: Its number, from 0.
        num_parts: Of the object.
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
        """Return it as it is stored."""
        return _HEADER.pack(_MAGIC, VERSION, 0, self.part, self.num_parts, self.total_bytes, self.key, self.digest)


def pool_key(key: bytes, part: int = _WHOLE) -> bytes:
    """Return the name in the pool of a part of the entry with this key."""
    name = b"pf%d:%s" % (VERSION, key.hex().encode())
    return name if part == _WHOLE else b"%s:%d" % (name, part)


def read_header(value: Buffer, key: bytes, part: int) -> Header | None:
    """Return the header of a value that was found as this part of this entry; None when it is nothing of the kind."""
    if memoryview(value).nbytes < HEADER_BYTES:
        return None
    magic, version, flags, at, num_parts, total_bytes, of, digest = _HEADER.unpack_from(value)
    is_right = magic == _MAGIC and version == VERSION and flags == 0 and at == part and of == key
    return Header(at, num_parts, total_bytes, of, digest) if is_right and part < num_parts <= MOST_PARTS else None


def split(key: bytes, data: Buffer, part_bytes: int) -> Iterator[tuple[Header, memoryview]]:
    """Yield the parts of an object, views of ``data``; the first one last, for by it the others are found.

    Args:
        key: Entry key, 16 bytes.
        data: The object.
        part_bytes: Most bytes of a part, without its header.
    """
    assert len(key) == ENTRY_KEY_BYTES
    view = memoryview(data).cast("B")
    digest = xxh3_128_digest(view)
    num_parts = max(1, -(-len(view) // part_bytes))
    for part in reversed(range(num_parts)):
        header = Header(part, num_parts, len(view), key, digest)
        yield header, view[part * part_bytes : (part + 1) * part_bytes]


def is_whole(data: Buffer, header: Header) -> bool:
    """Return whether these are the bytes that the header was written for."""
    return memoryview(data).nbytes == header.total_bytes and xxh3_128_digest(data) == header.digest


def claim(owner: bytes) -> bytes:
    """Return the value by which a node says that it is about to ask the origin for the entry."""
    return _CLAIM + owner


def claimed_by(value: Buffer) -> bytes | None:
    """Return who said so; None when the value is no claim."""
    return bytes(value[len(_CLAIM) :]) if bytes(value[: len(_CLAIM)]) == _CLAIM else None
