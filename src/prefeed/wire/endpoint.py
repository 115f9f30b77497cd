"""The socket's private directory, the check of who is at the other end, and files that a client hands to its server.

What is too much for a message lies in a file in that directory. A message names the file, and the server removes it once it has
read it. The next server removes what a killed client, or a killed server, has left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from prefeed.config import Config
from prefeed.errors import ServerError, UnsafeDirectoryError
from prefeed.system.removing import remove_tree
from prefeed.system.trust import beneath, open_own
from prefeed.types import Buffer

_UCRED = struct.Struct("3i")


SOCKET: Final = "server.sock"
LOCK: Final = "server.lock"
_MOST_NAME_BYTES: Final = 107
"""Of a socket, in ``sun_path``."""

_log = logging.getLogger("prefeed")
_said: set[Path] = set()


def ensure_private_dir(path: Path) -> None:
    """The directory exists, is a directory, belongs to this user and to no other user (0700), and so its parent.

    What both lie in may be shared, as /tmp is; it has to be there.

    Raises:
        UnsafeDirectoryError: Somebody else owns it or may write to it.
        ServerError: It cannot be made.
    """
    try:
        os.close(open_own(path, make=True))
    except UnsafeDirectoryError:
        raise
    except OSError as err:
        raise ServerError(
            f"cannot make the directory {path}: {err.strerror}; set XDG_RUNTIME_DIR to one you own"
        ) from err


def make_runtime_dir(directories: Sequence[Path]) -> Path:
    """Return the first of some runtime directories that is this user's alone, made if it was not there.

    One that is passed over because of its owner or mode is said, once a process.

    Args:
        directories: Of ``Config``; the last one lies in the home.

    Raises:
        UnsafeDirectoryError, ServerError: There is none, not even in the home.
    """
    *shared, in_home = directories
    for directory in shared:
        with contextlib.suppress(ServerError):
            ensure_private_dir(directory)
            say_passed_over(shared[: shared.index(directory)])
            return directory
    with contextlib.suppress(OSError):  # said by what follows
        in_home.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    ensure_private_dir(in_home)
    say_passed_over(shared)
    return in_home


def remove_runtime_dirs(config: Config) -> None:
    """Nothing is left of what a server of this home had in its runtime directory, and its clients; other users' stays."""
    for directory in config.runtime_dirs:
        with contextlib.suppress(OSError):
            os.close(open_own(directory))
            remove_tree(directory, ignore_errors=True)


def say_passed_over(directories: Iterable[Path]) -> None:
    """Say, once a process, which runtime directories are not used because of their owner or mode."""
    for directory in directories:
        try:
            os.close(open_own(directory))
        except UnsafeDirectoryError as err:
            if directory not in _said:
                _said.add(directory)
                _log.warning(
                    "prefeed: %s; the node server uses another directory until then; or set XDG_RUNTIME_DIR to one of "
                    "your own", str(err),
                )  # fmt: skip
        except OSError:
            continue  # it is not there


def find_server(directory: Path) -> Path:
    """Return in which directory the server listens that has this one too, as its lock says; this one if nothing says so."""
    if not os.path.lexists(directory / LOCK):
        return directory
    with contextlib.suppress(OSError):
        held = open_own(directory)
        try:
            with open(os.open(LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=held), "rb") as file:
                lines = file.read().splitlines()
        finally:
            os.close(held)
        if len(lines) > 1 and lines[1].startswith(b"/"):
            return Path(os.fsdecode(lines[1]))
    return directory


def connect_in(directory: Path, sock: socket.socket) -> None:
    """Connect to the server of this user that listens in a directory of this user's; nothing is sent to any other.

    Raises:
        UnsafeDirectoryError: The directory, or the process that listens there, is somebody else's.
        OSError: No process listens there.
    """
    held = open_own(directory)
    try:
        sock.connect(beneath(held, SOCKET))
    finally:
        os.close(held)
    if (user := peer_process(sock)[1]) != os.geteuid():
        raise UnsafeDirectoryError(f"{directory / SOCKET} is listened on by a process of user {user}. Remove it")


def listen_in(directory: Path) -> socket.socket:
    """Return a socket that listens in a directory; one left by a dead server is replaced."""
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=held)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        named = os.fspath(directory / SOCKET)
        listener.bind(named if len(os.fsencode(named)) <= _MOST_NAME_BYTES else beneath(held, SOCKET))
    finally:
        os.close(held)
    listener.listen(512)
    return listener


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


_PREFIX: Final = "transit-"


def put_in_transit(directory: Path, parts: Iterable[Buffer], *, suffix: str = "") -> str:
    """Return the path of a new file that holds these parts, one after the other.

    Args:
        directory: The server's runtime directory.
        parts: Bytes.
        suffix: Says what is in it, where the message does not.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=suffix, dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
    except BaseException:
        os.unlink(name)
        raise
    return name


def remove_in_transit(directory: Path) -> None:
    """Remove the files that no client asks for any more: no client of the server that begins has handed one over yet."""
    for path in directory.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)
