"""How a copy in a directory remembers what it is a copy of: in the time of its last change. Pure.

A file keeps the time that it has at the origin. An object of a store has an etag and no time that matters: the copy's
time is a hash of that etag, the same whenever and wherever it is copied. So nothing has to be recorded beside the
copies, which would have to be right after a kill at any instant: a file that is there is whole, and says what it is.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from prefeed.sources.file_versions import changed_ns_of
from prefeed.types import ObjectInfo

_TIME_AND_SIZE: Final = re.compile(r"(\d{1,19})-\d+")
_LEAST_NANOSECONDS: Final = 10**12
"""Smaller numbers are seconds: stores without etags tell those."""

_NANOSECONDS: Final = 10**9
_MOST_NANOSECONDS: Final = 1 << 62
_MOST_SECONDS: Final = 10**9
"""Hashes become whole seconds below this, which every file system can hold, and none is in the future."""

TIME_STEPS: Final = (1, 100, 1000, 10**6, 10**9)
"""Differences in time, in nanoseconds, that file systems may be able to keep, smallest first."""

COARSEST_STEP: Final = 2 * 10**9


def time_of(version: str) -> int:
    """Return the time in nanoseconds that a copy of this version has."""
    changed_ns = changed_ns_of(version)
    if changed_ns is not None and changed_ns >= 0:
        return min(changed_ns, _MOST_NANOSECONDS)
    match = _TIME_AND_SIZE.fullmatch(version)
    if match is None:
        return xxh3_64_intdigest(version.encode("utf-8", "surrogateescape")) % _MOST_SECONDS * _NANOSECONDS
    number = int(match[1])
    return min(number if number >= _LEAST_NANOSECONDS else number * _NANOSECONDS, _MOST_NANOSECONDS)


class FoundFile(NamedTuple):
    """What lies under a name of a copy: size and time in bytes and nanoseconds, and whether it is a file or a link."""

    size_bytes: int
    modified_ns: int
    is_file: bool

    @classmethod
    def of(cls, status: os.stat_result) -> FoundFile:
        """Return it from what ``lstat`` says."""
        return cls(status.st_size, status.st_mtime_ns, stat.S_ISREG(status.st_mode))


def is_copy_of(info: ObjectInfo, found: FoundFile, *, step_ns: int) -> bool:
    """Return whether a file is a copy of the object as it was listed.

    Args:
        info: The object.
        found: What lies under its name.
        step_ns: The smallest difference in time that its file system keeps.
    """
    if not found.is_file or info.size_bytes not in (-1, found.size_bytes):
        return False
    return not info.version or found.modified_ns // step_ns == time_of(info.version) // step_ns
