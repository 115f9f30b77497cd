"""The files of a store that many processes write: made, opened, grown, emptied, under the lock of their directory.

LMDB cuts a file that it writes to the size of its map, under other processes that have it mapped. Hence the file is always as
large as the store may become (most of it is a hole), no process opens it with a smaller map, and it only grows.
"""

from __future__ import annotations

import contextlib
import errno
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import lmdb

from prefeed.store import directory as store_directory
from prefeed.store.environment import DAMAGE, MAX_TABLES, Identity, SharedEnvironment, identity_of
from prefeed.store.layout import (
    LAYOUT_KEY,
    PAGE_BYTES,
    SHARED_LAYOUT,
    data_path,
    lock_bytes_for,
    lock_path,
    max_readers_of,
)
from prefeed.store.namespaces import is_open_elsewhere, record_namespace, say_in_use_elsewhere, try_take_table
from prefeed.store.reservation import Reservation
from prefeed.store.tree import Walk, require_whole
from prefeed.system.large_pages import align_next_mapping
from prefeed.system.locks import TURN_SECONDS, directory_lock

_CHUNK_BYTES: Final = 64 * 1024
"""What is backed beyond a value is mostly taken by another process: its pages would be mapped here for nothing."""

_FIRST_BYTES: Final = 64 * 1024

_QUICK_PAGES: Final = 10_000
"""Of trees: looked through in a second."""


def open_to_write(directory: Path, held: Path, limit_bytes: int, *, on_disk: bool) -> SharedEnvironment:
    """Return an open store, made if there was none; one that is damaged or of another layout is emptied first.

    Call it with the directory locked: ``held`` leads to what is locked, ``directory`` is what it is called.

    Raises:
        BlockingIOError: Another process has the turn to write.
        FileNotFoundError: There is no such directory, or somebody removed it meanwhile.
        OSError: The directory or its file system cannot be used, or has no room for an empty store.
        lmdb.Error: LMDB cannot open it.
    """
    try:
        return _open(directory, held, limit_bytes, on_disk=on_disk)
    except DAMAGE:
        store_directory.remove_files(held)
        return _open(directory, held, limit_bytes, on_disk=on_disk)


def try_grow(directory: Path, limit_bytes: int) -> bool:
    """Let a store become larger, if there is one; those who have it open notice when they write the next time.

    Returns:
        False when another process does not let go of the directory, and nothing was done.
    """
    try:
        with directory_lock(directory):
            map_bytes = _map_bytes(directory, limit_bytes)
            if os.stat(data_path(directory)).st_size < map_bytes:
                os.truncate(data_path(directory), map_bytes)
    except BlockingIOError:
        return False
    except OSError:
        pass  # there is none: it will be made that large
    return True


def shrink(shared: SharedEnvironment, limit_bytes: int) -> None:
    """Let a store that no other process has open take less, down to what its data take; call when no batch is open."""
    directory = Path(shared.path)
    with contextlib.suppress(OSError, lmdb.Error), directory_lock(directory, within_seconds=0):
        map_bytes = max(_map_bytes(directory, limit_bytes), end_of_data(shared))
        if identity_of(directory) == shared.identity and map_bytes < os.stat(data_path(directory)).st_size:
            with align_next_mapping(map_bytes):
                shared.env.set_mapsize(map_bytes)
            os.truncate(data_path(directory), map_bytes)
            if shared.reservation is not None:
                shared.reservation.remapped(map_bytes)


def limit_of(directory: Path) -> int:
    """Return the most that the files of a store may take together, as it was made or grown; 0 when there is none."""
    with contextlib.suppress(OSError):
        return os.stat(data_path(directory)).st_size + os.stat(lock_path(directory)).st_size
    return 0


def used_bytes(shared: SharedEnvironment) -> int:
    """Return up to where the files of a store are in use, together."""
    return end_of_data(shared) + os.stat(lock_path(Path(shared.path))).st_size


def empty(directory: Path, identity: Identity) -> None:
    """Unlink a store's files if they are still these; processes that have them open use them until they look."""
    with contextlib.suppress(OSError), directory_lock(directory):
        if identity_of(directory) == identity:
            store_directory.remove_files(directory)


def empty_if_damaged(directory: Path, *, on_disk: bool, is_suspect: bool = True) -> str:
    """Empty a store whose trees are not as LMDB leaves them; returns what was wrong, or nothing.

    LMDB would end the process that walks into such a page. A store that some process has open is not looked at.

    Args:
        directory: Where the store lies.
        on_disk: Its values have sums beside them.
        is_suspect: Who had it last did not end in order. Else a large one is believed: to read its trees takes seconds.
    """
    try:
        with directory_lock(directory, within_seconds=0):
            if is_open_elsewhere(directory):
                return ""
            store_directory.remove_unusable(directory)
            try:
                _look_through(data_path(directory), on_disk=on_disk, is_suspect=is_suspect)
            except FileNotFoundError:
                return ""
            except (OSError, lmdb.Error) as err:
                store_directory.remove_files(directory)
                return str(err)
    except OSError:
        pass  # somebody is opening it: it is in use
    return ""


def _look_through(path: Path, *, on_disk: bool, is_suspect: bool) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(file).st_size:
            walk = Walk(file, visits_values=not on_disk)
            if is_suspect or walk.num_pages <= _QUICK_PAGES:
                for name in walk.tables:
                    for _ in walk.leaves(name):
                        pass
    finally:
        os.close(file)


def remove_store(directory: Path) -> None:
    """Remove a store and its directory; open handles and views keep working, and what they hold is freed with them.

    The store cannot be made again once this has returned, unless a process makes the directory. Files that are not the
    store's are left, and the directory with them.
    """
    with contextlib.suppress(OSError), directory_lock(directory):
        store_directory.remove_files(directory)
        directory.rmdir()


def _open(directory: Path, held: Path, limit_bytes: int, *, on_disk: bool) -> SharedEnvironment:
    if identity_of(held) is None:
        _make_files(held, limit_bytes)
    elif not try_take_table(held):
        say_in_use_elsewhere(directory)
        raise OSError(errno.EBUSY, f"processes of another PID namespace have the store in {directory} open")
    data = data_path(held)
    map_bytes = max(_map_bytes(held, limit_bytes), os.stat(data).st_size)
    if os.stat(data).st_size:
        require_whole(held)
        os.truncate(data, map_bytes)
    identity = identity_of(held)
    # On disk LMDB writes with pwrite, so that a full disk is an error; measured, it is also twice as fast there as
    # writing into the map and syncing that (2026-11, docs/adr/0007-stage-caches.md).
    with nullcontext() if on_disk else align_next_mapping(map_bytes):
        env = lmdb.open(
            os.fspath(held), map_size=map_bytes, writemap=not on_disk, sync=on_disk, metasync=False, readahead=False,
            meminit=False, mode=0o600, create=False, max_dbs=MAX_TABLES,
            max_readers=max_readers_of(os.stat(lock_path(held)).st_size),
        )  # fmt: skip
    try:
        os.truncate(data, map_bytes)
        if identity is None or identity_of(directory) != identity:  # the lock does not prevent dropping the cache
            raise FileNotFoundError(f"the store in {directory} was removed while it was opened")
        shared = SharedEnvironment(os.fspath(directory), identity, env, readonly=False, layout=SHARED_LAYOUT)
    except BaseException:
        env.close()
        raise
    try:
        _prepare(shared, held, on_disk=on_disk)
    except BaseException:
        shared.close()
        raise
    return shared


def _make_files(directory: Path, limit_bytes: int) -> None:
    """Make an empty data file and a lock file that has all its pages, so that a full file system is an error here."""
    store_directory.remove_files(directory)
    lock_bytes = lock_bytes_for(limit_bytes)
    if limit_bytes < lock_bytes + _FIRST_BYTES:
        raise OSError(errno.ENOSPC, f"{limit_bytes} bytes are too few for a store")
    try:
        store_directory.reserve_lock_file(directory, lock_bytes)
        record_namespace(directory)
        os.close(os.open(data_path(directory), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        store_directory.remove_files(directory)
        raise


def _map_bytes(directory: Path, limit_bytes: int) -> int:
    lock_bytes = os.stat(lock_path(directory)).st_size
    return max(0, limit_bytes - lock_bytes) // PAGE_BYTES * PAGE_BYTES


def _prepare(shared: SharedEnvironment, held: Path, *, on_disk: bool) -> None:
    info, end = shared.env.info(), end_of_data(shared)
    if not on_disk:
        shared.reservation = Reservation(
            data_path(held), reserved_bytes=end, map_bytes=info["map_size"], chunk_bytes=_CHUNK_BYTES, large=True
        )
    version = shared.layout_version()
    if version is None and info["last_pgno"] > 1:
        version = b"unknown"
    if version not in (None, SHARED_LAYOUT.version):
        raise lmdb.VersionMismatchError(f"the store has layout {version!r}")
    if version is None and shared.reservation is not None and not shared.reservation.try_reserve(end + _FIRST_BYTES):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # Opening a table is a write transaction to LMDB. Locks are held here: no one waits long, ``call_when_free`` asks again.
    with shared.turn.hold(within_seconds=TURN_SECONDS):
        shared.open_tables(create=version is None)
        if version is None:
            with shared.env.begin(write=True) as txn:
                txn.put(LAYOUT_KEY, SHARED_LAYOUT.version)


def end_of_data(shared: SharedEnvironment) -> int:
    """Return up to where the data file is in use."""
    return int(shared.env.info()["last_pgno"] + 1) * PAGE_BYTES
