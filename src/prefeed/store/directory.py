"""The directory of a store: made private, locked for one writer, emptied when what it holds cannot be used."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from prefeed.errors import StoreError
from prefeed.system.removing import remove_tree
from prefeed.system.trust import is_mine, why_not_private, why_unprotected


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


def allocated_bytes(directory: Path) -> int:
    """Return what a directory takes of its file system with all that lies below it; 0 when there is none."""
    total = 0
    for parent, _, names in os.walk(directory):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            with contextlib.suppress(OSError):
                total += os.lstat(path).st_blocks * 512
    return total


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
