"""How a store is opened for reading: with a place in LMDB's table of readers, or as a reader of another PID namespace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, cast

import lmdb

from prefeed.store.foreign import ForeignEnvironment
from prefeed.store.layout import TIER_LAYOUT, Layout, lock_path, max_readers_of
from prefeed.store.meta_pages import require_whole
from prefeed.store.namespaces import is_foreign, namespace_of, say_in_use_elsewhere, try_take_table

MAX_TABLES: Final = 4
"""So many an environment may have; LMDB wants to know."""


def open_to_read(directory: Path, layout: Layout, *, adopts: bool, shown: Path) -> lmdb.Environment | None:
    """Return a store's environment; None when processes of another PID namespace have it, and it takes no foreign readers.

    Call it with the directory locked, and not when this process has the store open.

    Args:
        directory: Where the store lies.
        layout: What it holds; only a memory tier takes foreign readers.
        adopts: A store that takes none, and that nobody has open, becomes one of this process's namespace.
        shown: What messages call it.

    Raises:
        OSError: There is no store, or its writer lets no foreign readers in.
        lmdb.Error: LMDB cannot open it.
    """
    in_table = not is_foreign(namespace_of(directory))
    if layout is not TIER_LAYOUT and not in_table:
        if not adopts:
            return None
        if not try_take_table(directory):
            say_in_use_elsewhere(shown)
            return None
        in_table = True
    # A map size of 0 means: as large as the writer said. No transactions are kept (max_spare_txns): after a fork the
    # child, closing its copy of the handle, would free their slots under the parent.
    max_readers = max_readers_of(os.stat(lock_path(directory)).st_size)
    require_whole(directory)

    def open_env() -> lmdb.Environment:
        return lmdb.open(
            os.fspath(directory), map_size=0, readonly=True, create=False, max_dbs=MAX_TABLES, max_readers=max_readers,
            readahead=False, lock=in_table,
        )  # fmt: skip

    return open_env() if in_table else cast(lmdb.Environment, ForeignEnvironment.open(directory, open_env))
