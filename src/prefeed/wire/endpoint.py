"""The socket's private directory, and the check of who is at the other end."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

from prefeed.errors import ServerError, UnsafeDirectoryError

_UCRED = struct.Struct("3i")


def ensure_private_dir(path: Path) -> None:
    """The directory exists, is a directory, belongs to this user and to nobody else (0700), and so its parent.

    Raises:
        UnsafeDirectoryError: Somebody else owns it or may write to it.
        ServerError: It cannot be made.
    """
    for directory, parents in ((path.parent, True), (path, False)):
        try:
            directory.mkdir(mode=0o700, exist_ok=True, parents=parents)
            status = os.lstat(directory)
        except OSError as err:
            raise ServerError(
                f"cannot make the directory {directory}: {err.strerror}; set XDG_RUNTIME_DIR to one you own"
            ) from err
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise UnsafeDirectoryError(
                f"{directory} must be a directory of user {os.getuid()} with mode 0700; it has owner "
                f"{status.st_uid} and mode {stat.S_IMODE(status.st_mode):04o}. Remove it or run chmod 700"
            )


def place_of(path: Path) -> tuple[int, int]:
    """Return device and inode of a directory, by which processes that see the same path know that they see one place."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def peer_process(connection: socket.socket) -> tuple[int, int]:
    """Return (process id, user id) of who connected to this socket, or listens on it, as the kernel says."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    return int(pid), int(uid)
