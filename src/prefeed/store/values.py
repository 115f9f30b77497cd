"""Values inside a transaction: put whole or in pieces, deleted, sized. The layout is in ``layout.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prefeed.store.layout import piece_bytes, piece_key, stored_bytes
from prefeed.types import ENTRY_KEY_BYTES, Buffer

_SPARE_PAGES: Final = 32
"""A commit of puts leaves so many pages free: a delete rewrites a few pages before it frees any."""


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
