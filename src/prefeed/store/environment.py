"""The LMDB handles of this process: one a store, shared by its writer and all its readers, never used after a fork."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import lmdb

from prefeed.errors import StoreError
from prefeed.store.foreign import ForeignEnvironment
from prefeed.store.layout import (
    DATA_NAME,
    LAYOUT_KEY,
    LOCK_NAME,
    TIER_LAYOUT,
    Layout,
    data_path,
    lock_path,
    max_readers_of,
)
from prefeed.store.namespaces import is_foreign, namespace_of, say_in_use_elsewhere, try_take_table
from prefeed.store.reservation import Reservation
from prefeed.store.tree import require_whole
from prefeed.system.large_pages import align_next_mapping
from prefeed.system.locks import PATIENCE_SECONDS, TURN_SECONDS, ProcessLock, call_when_free, directory_lock

DAMAGE: Final = (
    lmdb.BadTxnError, lmdb.CorruptedError, lmdb.CursorFullError, lmdb.IncompatibleError, lmdb.InvalidError, lmdb.NotFoundError,
    lmdb.PageFullError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.VersionMismatchError,
)  # fmt: skip
"""What LMDB says of files that are not, or no longer, what they should be: the first time, or when it is asked again."""

MAX_TABLES: Final = 4
"""Named databases per environment, which LMDB has to be told."""


def open_to_read(directory: Path, layout: Layout, *, adopts: bool, shown: Path) -> lmdb.Environment | None:
    """Return a store's environment; None when processes of another PID namespace have it, and it takes no foreign readers.

    Call it with the directory locked, and not when this process has the store open.

    Args:
        directory: Where the store lies.
        layout: What it holds; only a memory tier takes foreign readers.
        adopts: A store that takes none, and that no process has open, becomes one of this process's namespace.
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
    # A map size of 0 means: as large as the writer said, which is the size of the file, as a rule. It is mapped where large pages can be used
    # as such. No transactions are kept (max_spare_txns): after a fork the child, closing its copy of the handle, would free their slots
    # under the parent.
    max_readers = max_readers_of(os.stat(lock_path(directory)).st_size)
    require_whole(directory)
    file_bytes = os.stat(data_path(directory)).st_size

    def open_env() -> lmdb.Environment:
        with align_next_mapping(file_bytes):
            return lmdb.open(
                os.fspath(directory), map_size=0 if layout is TIER_LAYOUT else file_bytes, readonly=True, create=False, max_dbs=MAX_TABLES,
                max_readers=max_readers, readahead=False, lock=in_table,
            )  # fmt: skip

    return open_env() if in_table else cast(lmdb.Environment, ForeignEnvironment.open(directory, open_env))


Identity = tuple[int, int, int, int]
"""Device and inode of the data file and of the lock file: another store at the same path differs in it."""


class SharedEnvironment:
    """One open LMDB environment and its tables.

    **Ownership.** Made by ``attach``; closed when the last holder has called ``release``.

    **Threads and processes.** Belongs to the process that opened it; a child made by fork closes its copy and opens
    the store again. A child forked while a batch is open, in any thread, cannot do so: to it the store is empty.
    """

    def __init__(
        self,
        path: str,
        identity: Identity,
        env: lmdb.Environment,
        *,
        readonly: bool,
        layout: Layout = TIER_LAYOUT,
    ) -> None:
        self.path = path
        self.identity = identity
        self.env = env
        self.layout = layout
        self.tables: tuple[Any, Any] = (None, None)
        self.reservation: Reservation | None = None
        self.turn: ProcessLock = ProcessLock(data_path(Path(path)))
        self._data_file: int | None = None
        self.written: bool = not readonly
        self.reopening = 0
        self.holders = 1
        self.open_batches = 0
        self.batches_by_thread: dict[int, int] = {}

    @property
    def resident(self) -> Any:
        """Table of the values kept for the next epoch."""
        return self.tables[0]

    @property
    def transient(self) -> Any:
        """Table of the values that are freed once consumed."""
        return self.tables[1]

    def open_tables(self, *, create: bool) -> None:
        """Open the two tables of values.

        Raises:
            lmdb.Error: They do not exist and are not to be created.
        """
        first, second = self.layout.tables
        self.tables = (self.env.open_db(first, create=create), self.env.open_db(second, create=create))

    def layout_version(self) -> bytes | None:
        """Return the layout version that the store was written with; None for an LMDB file of somebody else."""
        with self.env.begin() as txn:
            return txn.get(LAYOUT_KEY)

    def adopt_size(self) -> None:
        """Remap the file as large as another process has made it.

        Raises:
            BlockingIOError: Another process is at it.
            OSError: The file is no longer the one at its path.
        """
        directory = Path(self.path)
        with directory_lock(directory, within_seconds=0):
            if identity_of(directory) != self.identity:
                raise FileNotFoundError(f"the store in {directory} was replaced")
            # Not 0, which is what the last commit said, as for readers of a tier: LMDB cuts a file that it writes to the size of its map.
            file_bytes = os.stat(data_path(directory)).st_size
            with align_next_mapping(file_bytes):
                self.env.set_mapsize(0 if self.layout is TIER_LAYOUT and not self.written else file_bytes)
            if self.reservation is not None:
                self.reservation.remapped(file_bytes)

    def data_file(self) -> int:
        """Return a descriptor of the data file, opened when it is first asked for; it belongs to this.

        Raises:
            OSError: It is no longer at its path.
        """
        with lock:
            if self._data_file is None:
                self._data_file = os.open(data_path(Path(self.path)), os.O_RDONLY | os.O_CLOEXEC)
            return self._data_file

    def close(self) -> None:
        """Close the handle and what belongs to it."""
        if self._data_file is not None:
            os.close(self._data_file)
            self._data_file = None
        self.turn.close()
        if self.reservation is not None:
            self.reservation.close()
        self.env.close()


lock = threading.RLock()
"""Over all handles of this process; a fork waits for it. Taken twice where the garbage collector lets go of a store."""

batch_left = threading.Condition(lock)
"""Told when somebody waits for the batches of a handle to end, and when he waits no more."""

_open: dict[Identity, SharedEnvironment] = {}
_inherited: list[object] = []
_process_id = os.getpid()


def process_id() -> int:
    """Return this process's id without a system call."""
    return _process_id


def keep_inherited(handle: object) -> None:
    """Keep an LMDB object that belongs to the parent process from ever being closed here."""
    _inherited.append(handle)


def _hold_for_fork() -> None:
    lock.acquire()


def _release_after_fork() -> None:
    lock.release()


def _forget_after_fork() -> None:
    """Close what was inherited, without which LMDB opens none of these files here again.

    Closing touches neither the parent's locks nor its reader slots, as long as no transaction is inherited: one that
    is open would free the slot that it has in the parent. Such a handle is kept, and this process finds nothing in
    that store.
    """
    global _process_id
    _process_id = os.getpid()
    for shared in _open.values():
        shared.turn.close()
        if shared.open_batches:
            _inherited.append(shared)
        else:
            shared.close()
    _open.clear()
    lock.release()


os.register_at_fork(
    before=_hold_for_fork, after_in_parent=_release_after_fork, after_in_child=_forget_after_fork
)  # fmt: skip


def identity_of(directory: Path) -> Identity | None:
    """Return which store lies in a directory; None when none does."""
    return identity_and_size(directory)[0]


def identity_and_size(directory: Path) -> tuple[Identity | None, int]:
    """Return which store lies in a directory, and the size of its data file in bytes; None and 0 when none does."""
    path = os.fspath(directory)  # joined as text: this is asked for each value that is written
    try:
        data, lock = os.stat(f"{path}/{DATA_NAME}"), os.stat(f"{path}/{LOCK_NAME}")
    except OSError:
        return None, 0
    return (data.st_dev, data.st_ino, lock.st_dev, lock.st_ino), data.st_size


def attach_reader(
    directory: Path, layout: Layout = TIER_LAYOUT, *, within_seconds: float = PATIENCE_SECONDS, adopts: bool = True
) -> SharedEnvironment | None:
    """Return this process's handle of a store, opened for reading if it was not open; None when there is no store.

    A store that is being replaced, has another layout or cannot be opened counts as none, such as one of another PID
    namespace; so does one whose directory another process does not let go of in time.

    Args:
        directory: Where the store lies.
        layout: What it holds.
        within_seconds: Give up after that time.
        adopts: As for ``open_to_read``.
    """
    with contextlib.suppress(lmdb.Error, OSError):
        return attach_reader_or_raise(directory, layout, within_seconds=within_seconds, adopts=adopts)
    return None


def attach_reader_or_raise(
    directory: Path, layout: Layout = TIER_LAYOUT, *, within_seconds: float = PATIENCE_SECONDS, adopts: bool = True
) -> SharedEnvironment | None:
    """Attach as ``attach_reader`` does, and raise the reason if that fails; None without a store, or while it is replaced.

    Raises:
        BlockingIOError: Another process does not let go of the directory.
        OSError, lmdb.Error: The store cannot be opened.
    """
    return call_when_free(directory, lambda: _attach_reader(directory, layout, adopts), within_seconds=within_seconds)


def _attach_reader(directory: Path, layout: Layout, adopts: bool) -> SharedEnvironment | None:
    with lock:
        identity = identity_of(directory)
        if identity is None:
            return None
        shared = _open.get(identity)
        if shared is not None:
            if shared.layout is not layout:
                return None
            shared.holders += 1
            return shared
        with directory_lock(directory, within_seconds=0) as held:
            shared = _open_readonly(directory, held, identity, layout, adopts)
        if shared is not None:
            _open[identity] = shared
        return shared


def _open_readonly(
    directory: Path, held: Path, identity: Identity, layout: Layout, adopts: bool
) -> SharedEnvironment | None:
    env = open_to_read(held, layout, adopts=adopts, shown=directory)
    if env is None:
        return None
    shared = SharedEnvironment(os.fspath(directory), identity, env, readonly=True, layout=layout)
    try:
        # Between the look and the opening the files may have been replaced one by one: a reader registered in the
        # lock file of one store that reads the data of another would be invisible to its writer.
        if identity_of(held) != identity or shared.layout_version() != layout.version:
            env.close()
            return None
        shared.open_tables(create=False)
    except BaseException:
        env.close()
        raise
    return shared


def attach_writer(directory: Path, open_env: Callable[[], lmdb.Environment]) -> SharedEnvironment:
    """Return this process's handle of a store, opened for writing; readers of this process share it from then on.

    Args:
        directory: Where the store lies, or will lie.
        open_env: Opens it for writing.

    Raises:
        StoreError: A reader of this process is inside a batch.
    """
    with lock:
        identity = identity_of(directory)
        shared = None if identity is None else _open.get(identity)
        if shared is None:
            env = open_env()
            created = identity_of(directory)
            assert created is not None
            shared = _open[created] = SharedEnvironment(os.fspath(directory), created, env, readonly=False)
            return shared
        if shared.open_batches:
            raise StoreError(f"a reader of this process is inside a batch of {directory}; open the writer before it")
        shared.env.close()
        shared.env = open_env()
        shared.written = True
        shared.holders += 1
        return shared


def attach_to_write(directory: Path, open_writing: Callable[[Path], SharedEnvironment]) -> SharedEnvironment | None:
    """Return this process's handle of a store that many write, opened for writing; None: this thread is in a batch of it.

    A handle that was opened for reading is reopened, once all threads have left their batches; new ones wait.

    Args:
        directory: Where the store lies, or will lie.
        open_writing: Opens it, with the directory locked, through the path that it is given; its errors are raised here.

    Raises:
        BlockingIOError: Another process does not let go of the directory.
    """
    return call_when_free(directory, lambda: _attach_to_write(directory, open_writing))


def _attach_to_write(directory: Path, open_writing: Callable[[Path], SharedEnvironment]) -> SharedEnvironment | None:
    with lock:
        identity = identity_of(directory)
        shared = None if identity is None else _open.get(identity)
        if shared is None:
            with directory_lock(directory, within_seconds=0) as held:
                shared = open_writing(held)
            _open[shared.identity] = shared
            return shared
        if not shared.written and not _reopen(shared, open_writing):
            return None
        shared.holders += 1
        return shared


def remap_when_idle(shared: SharedEnvironment, remap: Callable[[], None]) -> bool:
    """Let a function remap the file once all threads have left their batches; False: this one is inside one."""
    with lock:
        return _when_idle(shared, remap)


def _reopen(shared: SharedEnvironment, open_writing: Callable[[Path], SharedEnvironment]) -> bool:
    """Give a handle, which its holders keep, an environment that can write; call with the lock held."""
    return _when_idle(shared, lambda: None if shared.written else _replace_environment(shared, open_writing))


def _when_idle(shared: SharedEnvironment, act: Callable[[], None]) -> bool:
    if is_inside(shared):
        return False
    shared.holders += 1
    shared.reopening += 1
    try:
        while shared.open_batches:
            batch_left.wait()
        act()
    finally:
        shared.holders -= 1
        shared.reopening -= 1
        batch_left.notify_all()
    return True


def _replace_environment(shared: SharedEnvironment, open_writing: Callable[[Path], SharedEnvironment]) -> None:
    # Should opening fail, the holders are left with a closed environment: to them the store is empty, and they let go.
    # So nothing is closed while another process keeps the turn, which opening would need.
    with directory_lock(Path(shared.path), within_seconds=0) as held:
        with shared.turn.hold(within_seconds=TURN_SECONDS):
            pass
        _forget(shared)
        shared.close()
        fresh = open_writing(held)
    shared.identity, shared.env, shared.tables = fresh.identity, fresh.env, fresh.tables
    shared.turn, shared.reservation, shared.written = fresh.turn, fresh.reservation, True
    _open[shared.identity] = shared


def is_inside(shared: SharedEnvironment) -> bool:
    """Return whether this thread is inside a batch of a store; call with the lock held."""
    return shared.batches_by_thread.get(threading.get_ident(), 0) > 0


def _forget(shared: SharedEnvironment) -> None:
    if _open.get(shared.identity) is shared:
        del _open[shared.identity]


def is_open_here(directory: Path) -> bool:
    """Return whether this process has the store open; call with the lock held."""
    return identity_of(directory) in _open


def is_written_here(directory: Path) -> bool:
    """Return whether a writer of this process has the store open."""
    with lock:
        return any(shared.written and shared.path == os.fspath(directory) for shared in list(_open.values()))


def release_writer(shared: SharedEnvironment) -> None:
    """Give the writer's hold back; readers of this process keep the environment."""
    shared.written = False
    release(shared)


def try_remap(shared: SharedEnvironment, remap: Callable[[], None]) -> bool:
    """Let a function remap the file; False while a reader of this process is inside a batch, whose views it holds."""
    with lock:
        if shared.open_batches:
            return False
        remap()
        return True


def try_adopt_size(shared: SharedEnvironment) -> bool:
    """Remap the file as large as another process has made it; False: a reader of this process is inside a batch.

    Raises:
        BlockingIOError: Another process does not let go of the directory.
        OSError: The file is no longer the one at its path.
    """
    return call_when_free(Path(shared.path), lambda: try_remap(shared, shared.adopt_size))


def try_resize(shared: SharedEnvironment, map_bytes: int) -> bool:
    """Remap the file with another size; False while a reader of this process is inside a batch."""
    with align_next_mapping(map_bytes):
        return try_remap(shared, lambda: shared.env.set_mapsize(map_bytes))


def release(shared: SharedEnvironment) -> None:
    """Give one hold back; the last one closes the environment."""
    with lock:
        release_locked(shared)


def release_locked(shared: SharedEnvironment) -> None:
    """Do what ``release`` does, with the lock held already."""
    shared.holders -= 1
    if shared.holders == 0:
        _forget(shared)
        shared.close()
