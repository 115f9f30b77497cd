"""The sum of a value under its key: 64 bits by which a store knows, later, what was put into it (ADR 21).

A fetch process makes it while the bytes are in its processor's cache (ADR 31).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:  # a fetch process starts sooner without it
    from prefeed.types import Buffer

_HALVES: Final = struct.Struct("<QQ")


def sum_of(key: bytes, value: Buffer) -> int:
    """Return the sum of a key and its value."""
    low, high = _HALVES.unpack(key)
    return int(xxh3_64_intdigest(value, low ^ high))
