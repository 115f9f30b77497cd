"""Files that are whole or not there, also after a power failure, and directories and files for this user alone.

What is being written lies beside the file that it will be, under a name that says which process writes it: the next one that
writes the same file removes what killed ones have left.
"""

from __future__ import annotations

import contextlib
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

_ABANDONED_SECONDS: Final = 24 * 3600

_TEMPORARY_SUFFIX: Final = re.compile(r"([0-9a-f]{12}-[0-9]*-[0-9]+)\.[0-9a-f]{8}")
"""What stands behind the name of a file that is being written: ``process_mark``, and digits of chance."""


@contextlib.contextmanager
def atomic_write(path: Path, *, private: bool, durable: bool = True) -> Iterator[BufferedWriter]:
    """Yield an empty file that takes the place of another, or of none, when the block ends; not when the block fails.

    Args:
        path: Of the file. A link is replaced, not followed.
        private: No other user may read it; else those whom the umask allows.
        durable: A power failure leaves the old file or the new one, whole; else it may leave an empty one.

    Raises:
        OSError: It cannot be written.
    """
    with _temporary_file(path, private=private, durable=durable) as file:
        yield file
        _flush(file, durable=durable)
        os.replace(file.name, path)


def is_being_written(name: str) -> bool:
    """Return whether this is the name of a file that ``atomic_write`` writes, or that its killed writer has left."""
    return name.startswith(".") and _TEMPORARY_SUFFIX.fullmatch(".".join(name.rsplit(".", 2)[1:])) is not None


def read_private(path: Path) -> bytes | None:
    """Return what is in a file that only this user may read; None when there is none.

    Raises:
        CredentialsError: Others may read or write it, or it is no file.
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
    """The file holds these bytes, whole or not at all, also after a power failure; no other user may read it."""
    with atomic_write(path, private=True) as file:
        file.write(data)


def write_durably(path: Path, parts: Iterable[Buffer]) -> None:
    """The same of several parts, one after the other, readable as the umask allows."""
    with atomic_write(path, private=False) as file:
        file.writelines(parts)


def publish_private(path: Path, data: bytes) -> bool:
    """The same of a file that is not there; False when it is, and nothing was changed. Of all who do so one succeeds."""
    with _temporary_file(path, private=True, durable=True) as file:
        file.write(data)
        _flush(file, durable=True)
        try:
            os.link(file.name, path)
        except FileExistsError:
            return (
                os.stat(file.name).st_nlink == 2
            )  # an answer of the file server was lost, and the name is this file's
        except OSError:  # a file system without links
            if path.exists():
                return False
            os.replace(file.name, path)
    return True


@contextlib.contextmanager
def _temporary_file(path: Path, *, private: bool, durable: bool) -> Iterator[BufferedWriter]:
    """Yield a file beside another that it is to become; afterwards its own name is gone."""
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
        os.fsync(file.fileno())  # its name must not outlive its content


def _remove_leftovers(path: Path) -> None:
    """Remove what processes had written when they were killed; of other nodes', what is a day old. Names of another form are not ours."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.*"):
        ours = _TEMPORARY_SUFFIX.fullmatch(left.name.removeprefix(f".{path.name}."))
        with contextlib.suppress(OSError):  # somebody else's, or gone
            if ours and (has_ended(ours[1]) or time.time() - left.stat().st_mtime > _ABANDONED_SECONDS):
                left.unlink()


def make_private(directory: Path) -> None:
    """The directory is there, and those above it; what had to be made is this user's alone."""
    for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)


def open_in_private(path: Path) -> BufferedWriter:
    """Return a new file, open for writing, that this user alone can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def sync(path: Path) -> None:
    """What a file holds, or the names in a directory, survive a power failure.

    Raises:
        OSError: They may not: the disk is full, or broken.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return what this user may still write to the file system of a path.

    Raises:
        OSError: It cannot be told.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
