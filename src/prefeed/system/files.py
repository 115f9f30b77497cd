"""Writes files atomically and durably, and creates private files and directories.

A file is written under a temporary name next to its final one. The temporary name contains the writing process, so that the next writer can
remove the files of killed ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import Final

from prefeed.errors import CredentialsError
from prefeed.system.machine import has_ended, process_mark
from prefeed.types import Buffer

_PAGE_BYTES: Final = 4096
_PUNCH_HOLE: Final = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE."""

_libc: Final = ctypes.CDLL(None, use_errno=True)

_ABANDONED_SECONDS: Final = 24 * 3600

_TEMPORARY_SUFFIX: Final = re.compile(r"([0-9a-f]{12}-[0-9]*-[0-9]+)\.[0-9a-f]{8}")
"""Suffix of a temporary name: ``process_mark`` and random digits."""


@contextlib.contextmanager
def atomic_write(path: Path, *, private: bool, durable: bool = True) -> Iterator[BufferedWriter]:
    """Yield a file that replaces ``path`` when the block succeeds. If the block fails, ``path`` is unchanged.

    Args:
        path: File to replace or create. A link is replaced, not followed.
        private: True for mode 0600; otherwise the umask decides.
        durable: True if a power failure must leave the old or the new file. Otherwise it may leave an empty one.

    Raises:
        OSError: The file is not writable.
    """
    with _temporary_file(path, private=private, durable=durable) as file:
        yield file
        _flush(file, durable=durable)
        os.replace(file.name, path)


def is_being_written(name: str) -> bool:
    """Return whether this is a temporary name of ``atomic_write``."""
    return name.startswith(".") and _TEMPORARY_SUFFIX.fullmatch(".".join(name.rsplit(".", 2)[1:])) is not None


def read_private(path: Path) -> bytes | None:
    """Read a file that only this user may read. Return None if it does not exist.

    Raises:
        CredentialsError: Other users have access, or it is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        raise CredentialsError(f"cannot read {path}: {err.strerror}", path=str(path)) from err
    try:
        _require_private(os.fstat(descriptor), path)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _require_private(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise CredentialsError(
            f"{path} must be a file of user {os.geteuid()} that no other user can read; it "
            f"has owner {status.st_uid} and mode {stat.S_IMODE(status.st_mode):04o}. Run chmod 600 {path}",
            path=str(path),
        )


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably, readable by this user only."""
    with atomic_write(path, private=True) as file:
        file.write(data)


def write_durably(path: Path, parts: Iterable[Buffer]) -> None:
    """Replace a file atomically and durably with several parts, readable as the umask allows."""
    with atomic_write(path, private=False) as file:
        file.writelines(parts)


def publish_private(path: Path, data: bytes) -> bool:
    """Create a private file atomically and durably. Return False if it exists. Of concurrent callers one succeeds."""
    with _temporary_file(path, private=True, durable=True) as file:
        file.write(data)
        _flush(file, durable=True)
        try:
            os.link(file.name, path)
        except FileExistsError:
            return os.stat(file.name).st_nlink == 2  # the file server created the link, but its reply was lost
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            os.replace(file.name, path)
    return True


@contextlib.contextmanager
def _temporary_file(path: Path, *, private: bool, durable: bool) -> Iterator[BufferedWriter]:
    """Yield a temporary file next to ``path``, and remove its name afterwards."""
    _remove_leftovers(path)
    name = path.with_name(f".{path.name}.{process_mark()}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(name, "wb", opener=lambda opened, _: os.open(opened, flags, 0o600 if private else 0o666)) as file:
            yield file
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    if durable:
        sync(path.parent)


def _flush(file: BufferedWriter, *, durable: bool) -> None:
    file.flush()
    if durable:
        os.fsync(file.fileno())  # otherwise the name could survive a power failure without the content


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes; those of other nodes after a day."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.*"):
        ours = _TEMPORARY_SUFFIX.fullmatch(left.name.removeprefix(f".{path.name}."))
        with contextlib.suppress(OSError):  # another user's, or removed
            if ours and (has_ended(ours[1]) or time.time() - left.stat().st_mtime > _ABANDONED_SECONDS):
                left.unlink()


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents with mode 0700."""
    for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)


def open_in_private(path: Path) -> BufferedWriter:
    """Create a file that only this user can read, and open it for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def sync(path: Path) -> None:
    """Sync a file or directory to disk, so that it survives a power failure.

    Raises:
        OSError: Syncing failed, for example because the disk is full or broken.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def punch(descriptor: int, start: int, size_bytes: int) -> bool:
    """Give the whole pages of a part of a file back to its file system; reading them gives zeros then.

    Returns:
        False when the file system cannot do that: the part is as it was.
    """
    first, end = -(-start // _PAGE_BYTES) * _PAGE_BYTES, (start + size_bytes) // _PAGE_BYTES * _PAGE_BYTES
    if end <= first:
        return True
    return bool(_libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(first), ctypes.c_long(end - first)) == 0)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return the bytes that this user can still write to the file system of a path.

    Raises:
        OSError: The file system does not respond.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
