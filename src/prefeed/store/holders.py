"""Which stores other processes have open: LMDB holds a lock for as long as they do, and the kernel ends it with them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from prefeed.store.layout import PAGE_BYTES, data_path, lock_path
from prefeed.store.meta_pages import end_of_data
from prefeed.system.byte_locks import are_locked
from prefeed.system.locks import directory_lock


class Holders:
    """Those who have a store open, wherever its files are by now.

    LMDB keeps a shared lock of the first byte of lock.mdb while an environment is open (0.9.x, 2026-11).

    **Ownership**: made by ``of``; ``close`` lets go of the file. This process must not have the store open at that
    moment: closing any descriptor of a file ends all locks that the process has on it.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def of(cls, directory: Path) -> Holders | None:
        """Return the holders of the store in a directory; None when there is no store."""
        try:
            return cls(os.open(lock_path(directory), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            return None

    def are_there(self) -> bool:
        """Return True while a process other than this one has the store open."""
        return are_locked(self._file, 0, by_processes=True)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def is_open_elsewhere(directory: Path) -> bool:
    """Return True while another process has the store in a directory open; this one must not have."""
    holders = Holders.of(directory)
    if holders is None:
        return False
    try:
        return holders.are_there()
    finally:
        holders.close()


def try_trim(directory: Path) -> bool:
    """Cut a store to what its values take, so that who opens it next may write no more than he is told.

    Does not wait: another process that has the directory, or the store, may be stopped.

    Returns:
        False, and nothing was done, while another process has either, or when it cannot be looked into.
    """
    with contextlib.suppress(OSError), directory_lock(directory, within_seconds=0):
        return not is_open_elsewhere(directory) and _trim(data_path(directory))
    return not directory.exists()


def _trim(data: Path) -> bool:
    """Cut a data file that nobody has open, which holds still: its meta pages can be read without LMDB."""
    try:
        with data.open("rb+") as file:
            end = end_of_data(file.read(2 * PAGE_BYTES))
            size = os.fstat(file.fileno()).st_size
            if 0 < end < size:
                os.ftruncate(file.fileno(), end)
    except FileNotFoundError:
        return True
    return end > 0 or size == 0
