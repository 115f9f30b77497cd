"""Whether a file was left alone while it was read. What decides is pure.

A file that is overwritten in place can be read half old and half new. Size and times are compared before and after, and they
do not tell all: a ``write`` sets the time when it begins and copies its bytes afterwards, and two writes within one tick of
the file system's clock leave the same time. So a file also has to have rested before it is read.

    write begins: time is set ─── bytes are copied ───┤
             read ├──────────┤                           nothing has changed, and it is a mixture: the time is too young
                                                read ├──────────┤   rested, and nothing has changed

A writer that the machine holds up between two pieces still has the file open: of a file that was changed just now, that is asked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from typing import Final

MOST_READS: Final = 3
"""So often a file is read that somebody writes to."""

REST_SECONDS: Final = 0.05
"""A file that was changed within this time is read once more. Longer than a tick (10 ms at most) and than one ``write`` takes."""

YOUNG_SECONDS: Final = 2.0
"""The same where the file system keeps whole seconds, and for a file that somebody has open for writing."""


def seconds_to_rest(status: os.stat_result, now_ns: int) -> float:
    """Return how long to wait until a file has rested; 0 when it has.

    The time of the last change of the inode decides: no program can set it. One that lies in the future says nothing, as where a
    file server's clock is ahead.

    Args:
        status: Of the file.
        now_ns: The clock, in nanoseconds since 1970, before the file was read.
    """
    age = (now_ns - status.st_ctime_ns) / 1e9
    if not is_young(status, now_ns):
        return 0.0
    rest = REST_SECONDS if status.st_ctime_ns % 1_000_000_000 else YOUNG_SECONDS
    return max(0.0, rest - age) if age > -rest else 0.0


def is_young(status: os.stat_result, now_ns: int) -> bool:
    """Return whether a file was changed so lately that its writer may not be done."""
    return now_ns - status.st_ctime_ns < YOUNG_SECONDS * 1e9


def is_open_for_writing(descriptor: int) -> bool:
    """Return whether any process of this machine has the file open for writing; False where that is not to be had.

    The kernel gives a read lease to the owner of a file that no process writes to. It is given back at once; a process that opens the file
    for writing in between waits these microseconds, and the signal that tells of it is one that is ignored.

    Args:
        descriptor: Of the file, open for reading alone.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as err:
        return err.errno == errno.EAGAIN
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def is_old(status: os.stat_result, now_ns: int) -> bool:
    """Return whether the bytes of a file were last written long ago, as its owner has it."""
    return now_ns - status.st_mtime_ns >= YOUNG_SECONDS * 1e9


def is_left_alone(before: os.stat_result, after: os.stat_result, *, but_for_inode: bool = False) -> bool:
    """Return whether nothing was written to a file between two looks.

    Another inode with the same size and time is the same file: some network file systems give new numbers at each look.

    Args:
        before: Of the open file.
        after: Of what its path leads to.
        but_for_inode: Mode, names and owner may have changed; some file systems tell another time of that at each look.
    """
    if before.st_size != after.st_size or before.st_mtime_ns != after.st_mtime_ns:
        return False
    return but_for_inode or before.st_ctime_ns == after.st_ctime_ns or before.st_ino != after.st_ino
