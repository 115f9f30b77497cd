"""What an entry of a stage cache looks like in bytes, without pickle.

```
 header (28 bytes) | note | schema | values | zeros | payload
                                                      ^ each block at a multiple of 64 bytes, in memory too
```

* header: magic, layout version, flags, and the length in bytes of each part.
* note: the caller's own bytes.
* schema: msgpack; the types of the sample as a tree of nodes. Shapes and numbers are not in it, so that the samples of a
  data set mostly have the same one, byte by byte, and it is compiled once.
* values: msgpack; one flat list of what varies: numbers, texts, shapes, in the order in which the tree is walked.
* payload: the bytes of arrays.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from prefeed.errors import EntryFormatError

MAGIC: Final = b"pfSE"
VERSION: Final = 1
FLAG_PICKLE: Final = 1
ALIGNMENT: Final = 64
MAX_DEPTH: Final = 100
"""Most containers around a value."""

MAX_PART_BYTES: Final = 2**32 - 1

_HEADER: Final = struct.Struct("<4sBBHIIIQ")
HEADER_BYTES: Final = _HEADER.size

Node = Any
"""A node of the schema: an ``Op`` alone, or a list that begins with one."""


class Op(IntEnum):
    """What a node of the schema stands for; the numbers are part of the layout."""

    PLAIN = 0  # one value: None, bool, int of 64 bits, float, str, bytes; and lists and dicts of these
    PLAIN_TUPLE = 1  # one value: the items, all of them plain
    TUPLE = 2
    LIST = 3
    DICT = 4  # keys, then a node for each value
    MAP = 5  # a node for each key and each value, in turn
    ORDERED_DICT = 6  # as MAP
    INT = 7
    COMPLEX = 8
    TEXT = 9  # with lone surrogates
    BYTES = 10  # in the payload
    BYTEARRAY = 11  # in the payload
    ARRAY = 12
    SCALAR = 13  # numpy's
    NUMPY_TEXT = 14
    NUMPY_BYTES = 15
    PATH = 16
    ENUM = 17
    FLAG = 18
    DATACLASS = 19
    NAMED_TUPLE = 20
    PLUG_IN = 21
    PICKLE = 22


class Header(NamedTuple):
    """Where the parts of an entry begin and end, in bytes from its start."""

    has_pickle: bool
    note_end: int
    schema_end: int
    values_end: int
    payload_start: int
    payload_end: int


def payload_start(end_bytes: int) -> int:
    """Return the first offset for a block behind ``end_bytes``."""
    return end_bytes + -end_bytes % ALIGNMENT


def pack_header(
    buffer: bytearray, *, has_pickle: bool, note_bytes: int, schema_bytes: int, values_bytes: int, payload_bytes: int
) -> None:
    """Write the header at the start of ``buffer``."""
    flags = FLAG_PICKLE if has_pickle else 0
    _HEADER.pack_into(buffer, 0, MAGIC, VERSION, flags, 0, note_bytes, schema_bytes, values_bytes, payload_bytes)


def unpack_header(view: memoryview) -> Header:
    """Return where the parts lie; all of them are within ``view``, and nothing is behind them.

    Raises:
        EntryFormatError: These bytes are no entry, or part of one, or of another layout version.
    """
    size = len(view)
    if size < HEADER_BYTES:
        raise EntryFormatError(f"{size} bytes are no stage entry: its header alone has {HEADER_BYTES}")
    header = _header_of(bytes(view[:HEADER_BYTES]))
    if header.payload_end != size:
        raise EntryFormatError(f"the entry is damaged: its header names {header.payload_end} bytes, there are {size}")
    return header


@lru_cache(maxsize=4096)
def _header_of(data: bytes) -> Header:
    """Samples of one shape have one header, byte by byte."""
    magic, version, flags, zero, note_bytes, schema_bytes, values_bytes, payload_bytes = _HEADER.unpack(data)
    if magic != MAGIC or zero or flags & ~FLAG_PICKLE:
        raise EntryFormatError(f"this is no stage entry: it begins with {data[:8].hex()}")
    if version != VERSION:
        raise EntryFormatError(f"the entry has layout version {version}; this prefeed reads {VERSION}")
    note_end = HEADER_BYTES + note_bytes
    schema_end = note_end + schema_bytes
    values_end = schema_end + values_bytes
    start = payload_start(values_end) if payload_bytes else values_end
    return Header(flags == FLAG_PICKLE, note_end, schema_end, values_end, start, start + payload_bytes)
