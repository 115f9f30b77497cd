"""Parts of a stored value, without the rest: of one in a single run of pages, or of one that was split."""

from __future__ import annotations

from typing import Any

from prefeed.store.layout import piece_key
from prefeed.types import ENTRY_KEY_BYTES


def size_of_split(txn: Any, key: bytes, table: Any) -> int:
    """Return the size of a split value in bytes, told by its first piece and its last one."""
    with txn.cursor(db=table) as cursor:
        if not cursor.set_key(piece_key(key, 0)):
            return 0  # empty: not split at all
        step = len(cursor.value())
        after = (int.from_bytes(key, "big") + 1).to_bytes(ENTRY_KEY_BYTES + 1, "big")[1:]
        # The last piece lies right before the next value; of the greatest key there is none behind it.
        found = cursor.prev() if after > key and cursor.set_range(after) else cursor.last()
        last = bytes(cursor.key())
        assert found and last[:ENTRY_KEY_BYTES] == key
        return int.from_bytes(last[ENTRY_KEY_BYTES:], "big") * step + len(cursor.value())


def copy_split(txn: Any, key: bytes, table: Any, start: int, target: memoryview) -> int:
    """Copy a part of a split value; return how many bytes, fewer than the target has at the value's end.

    Args:
        txn: Transaction that gives buffers.
        key: Of the value.
        table: In which it was found.
        start: First byte.
        target: Bytes.
    """
    copied = 0
    with txn.cursor(db=table) as cursor:
        if not cursor.set_key(piece_key(key, 0)):
            return 0
        step = len(cursor.value())
        offset = start % step
        found = cursor.set_key(piece_key(key, start // step))
        while found and copied < len(target) and bytes(cursor.key()[:ENTRY_KEY_BYTES]) == key:
            piece = cursor.value()[offset : offset + len(target) - copied]
            target[copied : copied + len(piece)] = piece
            copied += len(piece)
            offset = 0
            found = cursor.next()
    return copied
