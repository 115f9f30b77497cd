"""Checks the owner and mode of an open directory before its content is used.

A name in a shared directory such as /tmp proves nothing, because any user may have created it first. These functions therefore check an open
descriptor, and ``beneath`` builds paths through it, so that the checked directory is used even if its name changes.
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
"""Returns why a directory is not trusted; empty if it is."""


def is_mine(status: os.stat_result) -> bool:
    """Return whether this user owns a file, and the owner's number does not stand for unknown users."""
    user = os.geteuid()
    return status.st_uid == user and not _is_overflow_user(user)


def why_not_private(status: os.stat_result) -> str:
    """Return why a directory is not private to this user; empty if it is."""
    if not stat.S_ISDIR(status.st_mode) or not is_mine(status) or status.st_mode & _OTHERS:
        return (
            f"must be a directory of user {os.geteuid()} with mode 0700; it has owner {status.st_uid} and mode "
            f"{stat.S_IMODE(status.st_mode):04o}. Remove it or run chmod 700"
        )
    return ""


def why_unprotected(status: os.stat_result) -> str:
    """Return why users other than this one and root could write to a directory; empty if they cannot."""
    if not (is_mine(status) or status.st_uid == 0) or status.st_mode & _OTHERS_WRITE:
        return (
            f"must be a directory of user {os.geteuid()} that no other user may write to; it has owner {status.st_uid} and "
            f"mode {stat.S_IMODE(status.st_mode):04o}. Remove it or run chmod go-w"
        )
    return ""


def why_not_shared(status: os.stat_result) -> str:
    """Return why others could replace this user's entries in a shared directory; empty for directories like /tmp."""
    if not (is_mine(status) or status.st_uid == 0 or _has_unknown_owner(status)):
        return f"belongs to user {status.st_uid}, who may replace its contents"
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        return (
            f"has mode {stat.S_IMODE(status.st_mode):04o}: others may replace its contents. Run chmod +t or name another "
            "directory"
        )
    return ""


def why_not_trusted_file(status: os.stat_result) -> str:
    """Return why users other than this one and root may have written a file; empty if they cannot."""
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
    """Open a directory that passes a check. The descriptor (``O_PATH``) does not allow reading.

    Args:
        path: Directory.
        check: Returns the reason for not trusting the directory.
        within: Descriptor of the directory for a relative ``path``.
        shown: Name of the directory for messages.
        follow: True to allow a link.

    Raises:
        UnsafeDirectoryError: The check failed, or the path is a link or a file.
        OSError: The directory cannot be opened; FileNotFoundError if it does not exist.
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
    """Open ``<base>/<name>/<name>``, if both are private and the base does not let others replace them.

    Args:
        directory: Its base may be shared with other users.
        make: True to create missing directories below the base.

    Raises:
        UnsafeDirectoryError: Another user owns a part of the path, or may write to it.
        OSError: The directory cannot be opened; FileNotFoundError if it does not exist.
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
    """Return whether ``open_own`` can open or create a directory."""
    try:
        os.close(open_own(directory))
    except FileNotFoundError:
        above = directory.parent if directory.parent.exists() else directory.parent.parent
        return os.access(above, os.W_OK | os.X_OK)
    except OSError:
        return False
    return True


def beneath(held: int, name: str = "") -> str:
    """Return a path below an open directory, which is short enough for a socket."""
    return f"/proc/self/fd/{held}/{name}" if name else f"/proc/self/fd/{held}"


def require_protected(directory: str | os.PathLike[str]) -> None:
    """Check that a directory is missing, or that only this user and root can write to it.

    Raises:
        UnsafeDirectoryError: Others can write to it, or it is not readable.
    """
    try:
        os.close(open_protected(Path(directory)))
    except (FileNotFoundError, UnsafeDirectoryError) as err:
        if isinstance(err, UnsafeDirectoryError):
            raise
    except OSError as err:
        raise UnsafeDirectoryError(f"cannot look at {directory}: {err.strerror}") from err


def open_protected(directory: Path) -> int:
    """Open a directory that only this user and root can write to.

    A mode that allows others to write is accepted if a directory above is private.

    Raises:
        UnsafeDirectoryError: Others can write to the directory.
        OSError: The directory cannot be opened; FileNotFoundError if it does not exist.
    """

    def check(status: os.stat_result) -> str:
        return "" if is_mine(status) else why_unprotected(status)

    held = open_trusted(directory, check)
    # Check the real directories above. A link to the directory does not protect it.
    if (why := why_unprotected(os.fstat(held))) and not any(map(_is_private, Path(os.readlink(beneath(held))).parents)):
        os.close(held)
        raise UnsafeDirectoryError(f"{directory} {why}")
    return held


def open_in_protected(path: Path, flags: int) -> int:
    """Open a file in a protected directory. A new file is private.

    Raises:
        OSError: The file cannot be opened, or others can write to its directory.
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
    """Return whether the owner is unknown in this user namespace, as the host's root in a rootless container is."""
    return status.st_uid != os.geteuid() and _is_overflow_user(status.st_uid)


@functools.cache
def _is_overflow_user(user: int) -> bool:
    """Return whether a user number is the one that the kernel shows for users unknown in this namespace."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
        return user == overflow and Path("/proc/self/uid_map").read_text("ascii").split() != _ALL_USERS
    except (OSError, ValueError):
        return False
