"""The directory of a store: made private, locked for one writer, emptied when what it holds cannot be used."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path

from prefeed.errors import StoreError, TierFullError
from prefeed.store.environment import attach_reader, is_written_here, release
from prefeed.store.foreign import make_readers_file, older_snapshots_are_read
from prefeed.store.layout import (
    LOCK_BYTES,
    PAGE_BYTES,
    data_path,
    lock_path,
    namespace_paths,
    readers_path,
    sums_path,
    writer_lock_path,
)
from prefeed.store.namespaces import is_foreign, namespace_of, record_namespace, try_take_table
from prefeed.store.tree import last_transaction
from prefeed.system.byte_locks import LocksUnsupportedError
from prefeed.system.locks import call_when_free, directory_lock
from prefeed.system.removing import remove_tree
from prefeed.system.trust import is_mine, why_not_private, why_unprotected


def prepare(directory: Path) -> int:
    """Make the directory private and lock it for this process; returns the locked file.

    The lock goes with the process, however it ends, and is not inherited over a fork.

    Raises:
        StoreError: The directory cannot be used, or another process writes the store.
    """
    if is_written_here(directory):
        # A second lock of the same file by the same process would succeed, and giving it back would drop the first.
        raise StoreError(f"this process already writes the store in {directory}; close the first writer")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(directory)
        remove_unless_file(writer_lock_path(directory))
        file = os.open(writer_lock_path(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as err:
        kind = TierFullError if err.errno == errno.ENOSPC else StoreError
        raise kind(
            f"cannot use {directory} for the memory tier: {err.strerror}; name a directory that this user may write "
            "with PREFEED_MEMORY_DIR",
            path=os.fspath(directory),
        ) from err
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        os.close(file)
        raise StoreError(
            f"another process writes the store in {directory}; stop it, or use another PREFEED_HOME",
            path=os.fspath(directory),
        ) from err
    return file


def choose_own_dir(parent: Path, name: str) -> tuple[Path, str | None]:
    """Return a directory of this user for a store, and, when its name was taken by somebody else, a sentence that says so.

    One that is there already is used, whatever its name: another server may have had to choose another one.

    Args:
        parent: A directory that may be open to all, but in which no other user can replace what is this user's.
        name: What it is called; another name begins with it.

    Raises:
        StoreError: It cannot be made.
    """
    preferred = parent / name
    try:
        mine = [path for path in (preferred, *sorted(parent.glob(f"{name}.*"))) if _is_kept(path)]
        if mine:
            return mine[0], None
        with contextlib.suppress(FileExistsError):
            preferred.mkdir(mode=0o700, parents=True)
            return preferred, None
        other = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=parent))
    except OSError as err:
        raise StoreError(
            f"cannot make {preferred} for the memory tier: {err.strerror}; name a directory that this user may write with "
            "PREFEED_MEMORY_DIR",
            path=os.fspath(preferred),
        ) from err
    return (
        other,
        f"{preferred} belongs to another user, is open to others, or is not a directory: the memory tier is in {other} instead",
    )


def _is_kept(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and is_mine(found) and not why_unprotected(found)


def require_private(directory: Path) -> None:
    """The directory is this user's alone from now on; what is in it may be of others if it was open to them.

    Raises:
        StoreError: It is somebody else's, or no directory.
        FileNotFoundError: It is not there.
    """
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or not is_mine(found):
        raise StoreError(
            f"{directory} is not a directory of this user; remove it, or name another with PREFEED_MEMORY_DIR or "
            "PREFEED_DISK=SIZE:DIRECTORY",
            path=os.fspath(directory),
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(directory, 0o700)


def require_trusted(directory: Path) -> None:
    """Return whether only this user and root can replace this user's part of a directory.

    Such are this user's own, which others may not write to from now on, and those where all may but as in /tmp.

    Raises:
        StoreError: It is of another kind, or no directory.
        FileNotFoundError: It is not there.
    """
    found = os.stat(directory)
    is_ours, mode = is_mine(found), stat.S_IMODE(found.st_mode)
    is_open = bool(mode & 0o022) and not mode & stat.S_ISVTX
    if not stat.S_ISDIR(found.st_mode) or not (is_ours or (found.st_uid == 0 and not is_open)):
        raise StoreError(
            f"{directory} belongs to user {found.st_uid} and has mode {mode:04o}: others could put entries into it, and entries may "
            "be code; name a directory of your own with PREFEED_MEMORY_DIR or PREFEED_DISK=SIZE:DIRECTORY",
            path=os.fspath(directory),
        )
    if is_open:
        os.chmod(directory, mode & ~0o022)


def is_private(directory: Path) -> bool:
    """Return whether only this user can have put anything into a directory."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return not why_not_private(found)


def empty_unless_usable(directory: Path, map_bytes: int) -> None:
    """Remove the store's files when their layout is another one or their data do not fit the map."""
    shared = attach_reader(directory)
    if shared is not None:
        fits = (shared.env.info()["last_pgno"] + 1) * PAGE_BYTES <= map_bytes
        release(shared)
        if fits:
            return
    remove_files(directory)


def take_over(directory: Path) -> None:
    """LMDB's table of readers is of this process's PID namespace from now on, and no reader is in a snapshot before the last.

    A store in which readers would not be seen any more is emptied: one that processes of another namespace have open with a
    place in the table, and one in which a foreign reader does not leave a batch that it began under an earlier writer. They
    keep what they have open. Call it as the one writer, before the store is opened.

    Raises:
        OSError: The directory cannot be used.
    """
    try:
        call_when_free(directory, lambda: _try_take_over(directory))
    except BlockingIOError:
        remove_files(directory)
        _prepare_for_readers(directory)


def _try_take_over(directory: Path) -> None:
    with directory_lock(directory, within_seconds=0):
        if data_path(directory).exists() and not _sees_its_readers(directory):
            remove_files(directory)
        _prepare_for_readers(directory)


def _sees_its_readers(directory: Path) -> bool:
    if not try_take_table(directory):
        return False
    try:
        with data_path(directory).open("rb") as file:
            last = last_transaction(file.read(2 * PAGE_BYTES))
        if older_snapshots_are_read(directory, last):
            raise BlockingIOError(errno.EAGAIN, f"a reader is in an earlier snapshot of the store in {directory}")
    except FileNotFoundError:  # who locked the file that was there is not to be known
        return False
    except LocksUnsupportedError:
        pass  # no process has locked it
    return True


def _prepare_for_readers(directory: Path) -> None:
    if is_foreign(namespace_of(directory)):
        record_namespace(directory)
    make_readers_file(directory)


def reserve_lock_file(directory: Path, lock_bytes: int = LOCK_BYTES) -> None:
    """Give lock.mdb all its pages before LMDB maps it, so that a full file system is an error here."""
    file = os.open(lock_path(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(file, 0, lock_bytes)
    finally:
        os.close(file)


def allocated_bytes(directory: Path) -> int:
    """Return what a directory takes of its file system with all that lies below it; 0 when there is none."""
    total = 0
    for parent, _, names in os.walk(directory):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            with contextlib.suppress(OSError):
                total += os.lstat(path).st_blocks * 512
    return total


def remove_files(directory: Path) -> None:
    """Unlink the store's data; open handles and views keep working."""
    own = (data_path(directory), lock_path(directory), readers_path(directory), sums_path(directory))
    for path in (*own, *namespace_paths(directory)):
        remove_unless_file(path)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def remove_unusable(directory: Path) -> list[str]:
    """Remove things that are no files but have the name of one of the store's files; return their names."""
    own = (data_path(directory), lock_path(directory), readers_path(directory), sums_path(directory))
    return [path.name for path in own if remove_unless_file(path)]


def remove_unless_file(path: Path) -> bool:
    """Make room for a file of the store in its own directory, whatever damage has put there; a link is removed, not followed.

    Returns:
        True when something was removed. A file that this user may not open is made one that they may.
    """
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=path.parent))
            path.rename(aside)  # refused where something is mounted there
            remove_tree(aside)
            return True
        if not stat.S_ISREG(found.st_mode):
            path.unlink()
            return True
        if found.st_mode & 0o600 != 0o600 and is_mine(found):
            os.chmod(path, 0o600)
    return False


def remove(directory: Path) -> None:
    """Remove what is left of a store, and its directory if nothing else is in it."""
    with contextlib.suppress(FileNotFoundError):
        writer_lock_path(directory).unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()
