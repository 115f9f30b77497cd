"""Whose a directory is: asked of the directory itself, held open, before anything in it is read, written or connected to.

A name in a place that others share, such as /tmp, proves nothing: the first one to come has it. What these functions return
is a descriptor, and ``beneath`` a path through it, so that what was checked is what is used, whatever becomes of the name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prefeed.errors import UnsafeDirectoryError

_OTHERS_WRITE: Final = 0o022
_OTHERS: Final = 0o077
_ALL_USERS: Final = ["0", "0", "4294967295"]

Check = Callable[[os.stat_result], str]
"""Returns why a directory is not to be trusted; empty when it is."""


def is_mine(status: os.stat_result) -> bool:
    """Return whether this user owns it, and no other user can be shown as its owner in the same way."""
    user = os.geteuid()
    return status.st_uid == user and not _is_overflow_user(user)


def why_not_private(status: os.stat_result) -> str:
    """Return why it is not a directory of this user that no other user may enter."""
    if not stat.S_ISDIR(status.st_mode) or not is_mine(status) or status.st_mode & _OTHERS:
        return (
            f"must be a directory of user {os.geteuid()} with mode 0700; it has owner {status.st_uid} and mode "
            f"{stat.S_IMODE(status.st_mode):04o}. Remove it or run chmod 700"
        )
    return ""


def why_unprotected(status: os.stat_result) -> str:
    """Return why others than this user and root may have put something into a directory, or may do so."""
    if not (is_mine(status) or status.st_uid == 0) or status.st_mode & _OTHERS_WRITE:
        return (
            f"must be a directory of user {os.geteuid()} that no other user may write to; it has owner {status.st_uid} and "
            f"mode {stat.S_IMODE(status.st_mode):04o}. Remove it or run chmod go-w"
        )
    return ""


def why_not_shared(status: os.stat_result) -> str:
    """Return why others could replace what this user has in a directory: /tmp is fine, its entries are their owners'."""
    if not (is_mine(status) or status.st_uid == 0 or _has_unknown_owner(status)):
        return f"belongs to user {status.st_uid}, who may replace its contents"
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        return (
            f"has mode {stat.S_IMODE(status.st_mode):04o}: others may replace its contents. Run chmod +t or name another "
            "directory"
        )
    return ""


def why_not_trusted_file(status: os.stat_result) -> str:
    """Return why others than this user and root may have written a file."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if not (is_mine(status) or status.st_uid == 0):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}, so that others may write to it. Run chmod go-w"
    return ""


def open_trusted(
    path: str | os.PathLike[str],
    check: Check = why_not_private,
    *,
    within: int | None = None,
    shown: Path | None = None,
    follow: bool = False,
) -> int:
    """Return a descriptor of a directory that passes the check; it holds the directory, and reads nothing.

    Args:
        path: The directory.
        check: Says what is wrong with it.
        within: Descriptor of the directory that ``path`` is relative to.
        shown: What messages call it.
        follow: It may be a link.

    Raises:
        UnsafeDirectoryError: It does not pass, or is a link.
        OSError: It cannot be opened; FileNotFoundError when it is not there.
    """
    shown = Path(path) if shown is None else shown
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        held = os.open(path, flags, dir_fd=within)
    except NotADirectoryError as err:
        raise UnsafeDirectoryError(f"{shown} must be a directory, and is a link or a file. Remove it") from err
    try:
        if why := check(os.fstat(held)):
            raise UnsafeDirectoryError(f"{shown} {why}")
    except BaseException:
        os.close(held)
        raise
    return held


def open_own(directory: Path, *, make: bool = False) -> int:
    """Return a descriptor of ``<base>/<name>/<name>`` when both are this user's alone and the base keeps them so.

    Args:
        directory: Its base is a directory that others may share.
        make: Make what is missing below the base.

    Raises:
        UnsafeDirectoryError: Somebody else owns a part of it, or may write to it.
        OSError: It cannot be opened; FileNotFoundError when it is not there.
    """
    own = directory.parent
    held = open_trusted(own.parent, why_not_shared, follow=True)
    for path in (own, directory):
        above = held
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path.name, 0o700, dir_fd=above)
            held = open_trusted(path.name, within=above, shown=path)
        finally:
            os.close(above)
    return held


def is_own_possible(directory: Path) -> bool:
    """Return whether ``open_own`` has the directory, or could make it."""
    try:
        os.close(open_own(directory))
    except FileNotFoundError:
        above = directory.parent if directory.parent.exists() else directory.parent.parent
        return os.access(above, os.W_OK | os.X_OK)
    except OSError:
        return False
    return True


def beneath(held: int, name: str = "") -> str:
    """Return a path that leads below a directory that is held open, short enough for a socket."""
    return f"/proc/self/fd/{held}/{name}" if name else f"/proc/self/fd/{held}"


def require_protected(directory: str | os.PathLike[str]) -> None:
    """Return whether only this user and root can have put anything into a directory, or it is not there.

    Raises:
        UnsafeDirectoryError: Somebody could, or it cannot be looked at.
    """
    try:
        os.close(open_protected(Path(directory)))
    except (FileNotFoundError, UnsafeDirectoryError) as err:
        if isinstance(err, UnsafeDirectoryError):
            raise
    except OSError as err:
        raise UnsafeDirectoryError(f"cannot look at {directory}: {err.strerror}") from err


def open_protected(directory: Path) -> int:
    """Return a descriptor of a directory that only this user and root can have written to.

    One whose mode lets others write still counts as theirs when they cannot come to it: a directory above is private.

    Raises:
        UnsafeDirectoryError: Somebody could.
        OSError: It cannot be opened; FileNotFoundError when it is not there.
    """

    def check(status: os.stat_result) -> str:
        return "" if is_mine(status) else why_unprotected(status)

    held = open_trusted(directory, check)
    # The directories that it lies in, not those of a link that led to it: by those others need not come.
    if (why := why_unprotected(os.fstat(held))) and not any(map(_is_private, Path(os.readlink(beneath(held))).parents)):
        os.close(held)
        raise UnsafeDirectoryError(f"{directory} {why}")
    return held


def open_in_protected(path: Path, flags: int) -> int:
    """Return a descriptor of a file, opened in a directory as ``open_protected`` wants it; made for this user alone.

    Raises:
        OSError: It cannot be opened, or others could have written to its directory.
    """
    held = open_protected(path.parent)
    try:
        return os.open(path.name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=held)
    finally:
        os.close(held)


def _is_private(directory: Path) -> bool:
    try:
        return not why_not_private(os.lstat(directory))
    except OSError:
        return False


def _has_unknown_owner(status: os.stat_result) -> bool:
    """Return whether its owner is none that this user namespace knows: in a container without root, root of the host."""
    return status.st_uid != os.geteuid() and _is_overflow_user(status.st_uid)


@functools.cache
def _is_overflow_user(user: int) -> bool:
    """Return whether the kernel shows all users by this number that this process's user namespace does not know."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
        return user == overflow and Path("/proc/self/uid_map").read_text("ascii").split() != _ALL_USERS
    except (OSError, ValueError):
        return False
