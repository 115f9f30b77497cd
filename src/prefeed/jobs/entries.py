"""What a listing in key order says of each object, and two such listings side by side. Pure.

Key order is the order of the paths' bytes, as object stores list. Two listings in it are compared as they come: nothing
of them has to be in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from prefeed.copying.versions import time_of
from prefeed.types import ObjectInfo

_MD5: Final = re.compile(r"[0-9a-f]{32}")
_SECOND: Final = 10**9


class Listed(NamedTuple):
    """One object.

    Attributes:
        path: Relative to the root.
        size_bytes: -1 when the listing does not say.
        mtime_ns: When it was changed; 0 when the listing does not say.
        etag: What a store calls this version; empty for files.
        is_file: False for links and the like, which are listed at a destination alone.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""
    is_file: bool = True

    @property
    def info(self) -> ObjectInfo:
        """The same as sources list it."""
        version = self.etag or (f"{self.mtime_ns}-{self.size_bytes}" if self.mtime_ns else "")
        return ObjectInfo(path=self.path, size_bytes=self.size_bytes, version=version)


def key_of(path: str) -> bytes:
    """Return what listings are in the order of."""
    return path.encode("utf-8", "surrogateescape")


def side_by_side(
    source: Iterable[Listed], target: Iterable[Listed]
) -> Iterator[tuple[Listed | None, Listed | None]]:  # fmt: skip
    """Yield what each of two places has under a path, in key order; both are in it, each path once."""
    ours, theirs = iter(source), iter(target)
    our, their = next(ours, None), next(theirs, None)
    while our is not None or their is not None:
        if their is None or (our is not None and key_of(our.path) < key_of(their.path)):
            yield our, None
            our = next(ours, None)
        elif our is None or our.path != their.path:
            yield None, their
            their = next(theirs, None)
        else:
            yield our, their
            our, their = next(ours, None), next(theirs, None)


def stamp_of(listed: Listed) -> int | None:
    """Return the time in nanoseconds that a file has which is a copy of this; None when nothing is known of it.

    Of an object of a store it is the object's time to the second, and behind that a hash of its etag: so a copy says of
    what it is one, though nothing is recorded beside it.
    """
    if not listed.etag:
        return listed.mtime_ns or None
    if not listed.mtime_ns:
        return time_of(listed.etag)
    return listed.mtime_ns // _SECOND * _SECOND + xxh3_64_intdigest(key_of(listed.etag)) % _SECOND


def is_same_in_directory(source: Listed, found: Listed, *, step_ns: int) -> bool:
    """Return whether a file is a copy of what the source has.

    Args:
        source: What is to be there.
        found: What is there.
        step_ns: The smallest difference in time that the file system keeps.
    """
    if not found.is_file or source.size_bytes != found.size_bytes:
        return False
    stamp = stamp_of(source)
    return stamp is None or stamp // step_ns == found.mtime_ns // step_ns


def is_same_in_store(source: Listed, found: Listed) -> bool:
    """Return whether an object of a store is a copy: by digests where both places tell them, else it is not older."""
    if source.size_bytes != found.size_bytes:
        return False
    ours, theirs = md5_of(source.etag), md5_of(found.etag)
    if ours and theirs:
        return ours == theirs
    return source.mtime_ns <= found.mtime_ns


def is_newer(source: Listed, found: Listed) -> bool:
    """Return whether the source was changed later, by whole seconds: stores tell no more."""
    return source.mtime_ns // _SECOND > found.mtime_ns // _SECOND


def md5_of(etag: str) -> str:
    """Return the digest that an etag is, in hex; empty for etags that look like something else."""
    bare = etag.strip('"').lower()
    return bare if _MD5.fullmatch(bare) else ""
