"""The files of a store that processes share, and what its server does with them: see ``shared``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from prefeed.store.log import LogWriter
from prefeed.system.locks import try_flock
from prefeed.system.removing import remove_tree
from prefeed.system.trust import beneath, open_protected

STORE_NAME: Final = "store"
_NAMES: Final = ("index", "segment")
_ASIDE: Final = ".new-", ".gone-"
_TOTALS: Final = struct.Struct("<QQQQQ")
_TOTALS_AT: Final = 64
"""In the header page of the index."""


class Totals(NamedTuple):
    """What the header page of the index has beside the header.

    Attributes:
        end: Of the segment: later places were never taken. 0: not known, they begin at the end of the file.
        holes: Bytes before it that were given back.
        entries: Values that are held.
        value_bytes: Sizes of these values.
        corrupt: Values found wrong on disk and removed.
    """

    end: int = 0
    holes: int = 0
    entries: int = 0
    value_bytes: int = 0
    corrupt: int = 0


class Holders:
    """Processes with a store open, also after its files were removed.

    **Ownership.** ``close`` closes the file.
    """

    def __init__(self, segment: int) -> None:
        self._segment = segment

    @classmethod
    def of(cls, directory: Path) -> Holders | None:
        """Return the holders of the store in a directory, None if there is no store."""
        try:
            return cls(os.open(directory / STORE_NAME / _NAMES[1], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            return None

    def are_there(self) -> bool:
        """Return True while a process has the store open."""
        if not try_flock(self._segment):
            return True
        fcntl.flock(self._segment, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Close the file."""
        os.close(self._segment)


def has_store(directory: Path) -> bool:
    """Return whether a store was made in a directory."""
    return (directory / STORE_NAME).exists()


def is_open(directory: Path) -> bool:
    """Return whether a process has the store in a directory open."""
    holders = Holders.of(directory)
    if holders is None:
        return False
    with contextlib.closing(holders):
        return holders.are_there()


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Result of ``try_trim``.

    Attributes:
        is_done: False: a process has the store open, and nothing was done.
        num_lost: Values that damage has cost; -1 if all are lost.
    """

    is_done: bool
    num_lost: int = 0


def try_trim(directory: Path, *, on_disk: bool) -> Trimmed:
    """Give back the space of replaced values and unfinished puts, if no process has the store open. Does not wait."""
    for prefix in _ASIDE:
        for left in directory.glob(f"{prefix}*"):  # by a process that was killed
            remove_tree(left, ignore_errors=True)
    if not has_store(directory):
        return Trimmed(is_done=True)
    try:
        _, index, segment = open_files(directory)
    except OSError:
        set_aside(directory)  # the next writer would do so
        return Trimmed(is_done=True, num_lost=-1)
    try:
        if not try_flock(segment):
            return Trimmed(is_done=False)
        corrupt = read_totals(index).corrupt
        writer = LogWriter(index, [segment], budget_bytes=0, sums=on_disk)
        found = os.fstat(segment)
        holes = max(0, found.st_size - found.st_blocks * 512)
        write_totals(index, Totals(found.st_size, holes, writer.num_entries, writer.value_bytes, corrupt))
        return Trimmed(is_done=True, num_lost=-1 if writer.was_damaged else writer.num_impossible)
    except OSError:
        return Trimmed(is_done=False)
    finally:
        os.close(index)
        os.close(segment)


def make_files(directory: Path) -> None:
    """Make the files of a store, and name them by one rename: an index is never found with another's segment.

    Raises:
        OSError: They cannot be made, another process removes them, or others may write to the directory.
    """
    os.close(open_protected(directory))
    new = Path(tempfile.mkdtemp(prefix=_ASIDE[0], dir=directory))
    try:
        for name in _NAMES:
            os.close(os.open(new / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            new.rename(directory / STORE_NAME)
            return
        except OSError:
            pass  # something is there
        try:
            _, *opened = open_files(directory)
        except OSError:
            set_aside(directory)
            new.rename(directory / STORE_NAME)
        else:  # another process was quicker
            for descriptor in opened:
                os.close(descriptor)
    finally:
        remove_tree(new, ignore_errors=True)


def set_aside(directory: Path) -> None:
    """Remove the store from a directory; processes with open files keep using them."""
    gone = directory / f"{_ASIDE[1]}{secrets.token_hex(8)}"
    try:
        (directory / STORE_NAME).rename(gone)
    except OSError:
        return
    if gone.is_dir() and not gone.is_symlink():
        remove_tree(gone, ignore_errors=True)
    else:
        gone.unlink(missing_ok=True)


def open_files(directory: Path) -> tuple[tuple[int, int], int, int]:
    """Open a store; return what identifies it, its index and its segment.

    Raises:
        OSError: It is not there, or others may write to it or to its directory.
    """
    parent = open_protected(directory)
    try:
        held = open_protected(Path(beneath(parent, STORE_NAME)))
    finally:
        os.close(parent)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        found = os.fstat(held)
        index = os.open(_NAMES[0], flags, dir_fd=held)
        try:
            return (found.st_dev, found.st_ino), index, os.open(_NAMES[1], flags, dir_fd=held)
        except OSError:
            os.close(index)
            raise
    finally:
        os.close(held)


def read_totals(index: int) -> Totals:
    """Return the totals of a store; zeros where it has none."""
    return Totals._make(_TOTALS.unpack(os.pread(index, _TOTALS.size, _TOTALS_AT).ljust(_TOTALS.size, b"\0")))


def write_totals(index: int, totals: Totals) -> None:
    """Write the totals of a store."""
    os.pwrite(index, _TOTALS.pack(*totals), _TOTALS_AT)
