"""Directories and files for this user alone, and on the disk: what a home holds says which files the user has."""

from __future__ import annotations

import contextlib
import os
import stat
from io import BufferedWriter
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077


def make_private(directory: Path) -> None:
    """The directory is there, and those above it; what had to be made is this user's alone."""
    for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)


def close_to_others(directory: Path) -> None:
    """Nobody else can enter the directory or read what is in it, whatever mode it was made with; links are not followed.

    What belongs to somebody else, or is not there, stays as it is. One that is closed already is not looked through.
    """
    if not _is_open(directory):
        return
    for below, directories, files in os.walk(directory):
        for name in (*directories, *files):
            _close(Path(below, name))
    _close(directory)


def _is_open(path: Path) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISLNK(mode) and bool(mode & _OTHERS)


def _close(path: Path) -> None:
    if _is_open(path):
        with contextlib.suppress(OSError):
            os.chmod(path, stat.S_IMODE(os.lstat(path).st_mode) & ~_OTHERS)


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
