"""Values inside a transaction: put whole or in pieces, read in parts, deleted, sized. The layout is in ``layout.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prefeed.store.layout import piece_bytes, piece_key, stored_bytes
from prefeed.types import ENTRY_KEY_BYTES, Buffer

_SPARE_PAGES: Final = 32
"""Pages that a commit of puts leaves free: a delete rewrites a few pages before it frees any."""


def require_spare_pages(txn: Any, num_pages: int = _SPARE_PAGES) -> None:
    """Take some single pages and give them back.

    Raises:
        lmdb.MapFullError: There are fewer.
    """
    page = bytes(piece_bytes(1))
    for index in range(num_pages):
        txn.put(b"spare%d" % index, page)
    for index in range(num_pages):
        txn.delete(b"spare%d" % index)


def value_size(value: Buffer) -> int:
    """Return the size of a value in bytes."""
    return value.nbytes if isinstance(value, memoryview) else len(value)


def put_pieces(txn: Any, key: bytes, value: Buffer, table: Any, step: int) -> None:
    """Store a value that does not exist yet as an empty one and, behind it, its bytes in pieces of ``step``."""
    flat = memoryview(value).cast("B")
    txn.put(key, b"", db=table)
    for index in range(-(-len(flat) // step)):
        txn.put(piece_key(key, index), flat[index * step : (index + 1) * step], db=table)


def delete_value(txn: Any, key: bytes, tables: tuple[Any, Any]) -> int:
    """Delete a value and its pieces from both tables; returns what it cost."""
    cost = 0
    for table in tables:
        found = txn.get(key, None, table)
        if found is None:
            continue
        size = len(found)
        del found
        txn.delete(key, db=table)
        if size == 0:
            size = _delete_pieces(txn, key, table)
        cost += stored_bytes(size)
    return cost


def _delete_pieces(txn: Any, key: bytes, table: Any) -> int:
    size = 0
    with txn.cursor(db=table) as cursor:
        found = cursor.set_range(key)
        while found and bytes(cursor.key()[:ENTRY_KEY_BYTES]) == key:
            size += len(cursor.value())
            found = cursor.delete()
    return size


def value_sizes(txn: Any, table: Any) -> Iterator[tuple[bytes, int]]:
    """Yield key and size of each value of a table, the pieces of split values added up."""
    last, size = b"", 0
    for key, value in txn.cursor(db=table):
        if len(key) == ENTRY_KEY_BYTES:
            if last:
                yield last, size
            last, size = bytes(key), 0
        size += len(value)
    if last:
        yield last, size


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
