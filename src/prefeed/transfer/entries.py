"""What a listing says of each object, which file is a copy of it, and which paths can be files. Pure.

Key order is the order of the paths' bytes, as object stores list. Two listings in it are compared as they come: nothing
of them has to be in memory.

A copy in a directory remembers what it is a copy of in the time of its last change, its **stamp**. A file keeps the time that
it has at the origin. An object of a store has its time to the second, and behind that a hash of its etag. So nothing has to be
recorded beside the copies, which would have to be right after a kill at any instant: a file that is there is whole, and says
what it is, whichever program made it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from prefeed.sources.file_versions import changed_ns_of
from prefeed.types import ObjectInfo

_MD5: Final = re.compile(r"[0-9a-f]{32}")
_TIME_AND_SIZE: Final = re.compile(r"(\d{1,19})-\d+")
_SECOND: Final = 10**9
_MIN_NANOSECONDS: Final = 10**12
"""Smaller numbers are seconds: stores without etags tell those."""

_MAX_NANOSECONDS: Final = 1 << 62
_MAX_SECONDS: Final = 10**9
"""Hashes become whole seconds below this, which every file system can hold, and none is in the future."""

_MAX_NAME_BYTES: Final = 255


class Entry(NamedTuple):
    """One object of a listing.

    Attributes:
        path: Relative to the root.
        size_bytes: -1 when the listing does not say.
        mtime_ns: When it was changed; None when the listing does not say.
        etag: What a store calls this version; empty for files.
        is_file: False for links and the like, which are listed at a destination alone.
    """

    path: str
    size_bytes: int
    mtime_ns: int | None = None
    etag: str = ""
    is_file: bool = True

    @classmethod
    def of(cls, info: ObjectInfo) -> Entry:
        """Return what a source lists."""
        changed_ns = changed_ns_of(info.version)
        if changed_ns is not None:
            return cls(info.path, info.size_bytes, changed_ns)
        return cls(info.path, info.size_bytes, info.modified_seconds * _SECOND or None, info.version)

    @property
    def version(self) -> str:
        """Changes whenever the bytes do; empty when nothing is known."""
        return self.etag or (f"{self.mtime_ns}-{self.size_bytes}" if self.mtime_ns is not None else "")


def key_of(path: str) -> bytes:
    """Return what listings are in the order of."""
    return path.encode("utf-8", "surrogateescape")


def merge_listings(
    source: Iterable[Entry], target: Iterable[Entry]
) -> Iterator[tuple[Entry | None, Entry | None]]:  # fmt: skip
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


# ---------------------------------------------------------------- what is a copy of what


def stamp_of(entry: Entry, read_version: str = "") -> int | None:
    """Return the time in nanoseconds that a file has which is a copy of this; None when nothing is known of it.

    Args:
        entry: As it was listed.
        read_version: Of what was read; a file may have changed since it was listed.
    """
    changed_ns = changed_ns_of(read_version) if read_version else None
    if changed_ns is not None or not entry.etag:
        told = entry.mtime_ns if changed_ns is None else changed_ns
        return None if told is None else min(told, _MAX_NANOSECONDS)
    if entry.mtime_ns is None:
        return _stamp_of_version(entry.etag)
    return entry.mtime_ns // _SECOND * _SECOND + xxh3_64_intdigest(key_of(entry.etag)) % _SECOND


def _stamp_of_version(version: str) -> int:
    match = _TIME_AND_SIZE.fullmatch(version)
    if match is None:
        return xxh3_64_intdigest(key_of(version)) % _MAX_SECONDS * _SECOND
    number = int(match[1])
    return min(number if number >= _MIN_NANOSECONDS else number * _SECOND, _MAX_NANOSECONDS)


def is_copy(source: Entry, found: Entry, *, step_ns: int) -> bool:
    """Return whether a file of a directory is a copy of what the source has.

    Where the source tells no size, its version has to tell; where it tells neither, nothing is known to be a copy.

    Args:
        source: What is to be there.
        found: What is there.
        step_ns: The smallest difference in time that the file system keeps.
    """
    if not found.is_file or source.size_bytes not in (-1, found.size_bytes):
        return False
    stamp = stamp_of(source)
    if stamp is None or found.mtime_ns is None:
        return source.size_bytes >= 0
    return stamp // step_ns == found.mtime_ns // step_ns


def is_same_in_store(source: Entry, found: Entry) -> bool:
    """Return whether an object of a store is a copy: by digests where both places tell them, else it is not older."""
    if source.size_bytes != found.size_bytes:
        return False
    ours, theirs = md5_of(source.etag), md5_of(found.etag)
    if ours and theirs:
        return ours == theirs
    return (source.mtime_ns or 0) <= (found.mtime_ns or 0)


def is_newer(source: Entry, found: Entry) -> bool:
    """Return whether the source was changed later, by whole seconds: stores tell no more."""
    return (source.mtime_ns or 0) // _SECOND > (found.mtime_ns or 0) // _SECOND


def md5_of(etag: str) -> str:
    """Return the digest that an etag is, in hex; empty for etags that look like something else."""
    bare = etag.strip('"').lower()
    return bare if _MD5.fullmatch(bare) else ""


# ---------------------------------------------------------------- which paths can be files


def why_unsafe(path: str) -> str | None:
    """Return why no file of a copy may have this path; None when it may.

    A store's key is any text: one with ``..`` in it would leave the directory.
    """
    if not path or path.startswith("/"):
        return "is empty or absolute"
    if "\0" in path:
        return "has a zero byte in it"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"has {part!r} between two slashes, which is no name of a file"
        if len(part) > _MAX_NAME_BYTES // 4 and len(os.fsencode(part)) > _MAX_NAME_BYTES:
            return f"has a name of more than {_MAX_NAME_BYTES} bytes in it"
    return None


def parents_of(path: str) -> Iterator[str]:
    """Yield the directories that a path lies in, the nearest first, the root, ``""``, last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def directories_of(paths: Iterable[str]) -> set[str]:
    """Return every directory that these files lie in, without the root."""
    found: set[str] = {""}
    for path in paths:
        for parent in parents_of(path):
            if parent in found:
                break
            found.add(parent)
    return found - {""}


def split_storable(entries: Sequence[Entry], *, folds_case: bool) -> tuple[list[Entry], dict[str, str]]:
    """Return the objects that can lie side by side in a directory, by path, and for the other paths why they cannot.

    Args:
        entries: A listing; of a path that it has twice the last one counts.
        folds_case: Whether the directory's file system takes ``A`` and ``a`` for the same name.
    """
    refused = {entry.path: reason for entry in entries if (reason := why_unsafe(entry.path))}
    safe = {entry.path: entry for entry in entries if entry.path not in refused}
    directories = directories_of(safe)
    seen: set[str] = {directory.casefold() for directory in directories} if folds_case else set()
    kept = []
    for path in sorted(safe):  # sources list in any order; what fits is to be the same on every node
        if path in directories:
            refused[path] = "is a file and a directory at the origin"
        elif folds_case and path.casefold() in seen:
            refused[path] = "differs from another name in upper and lower case only, which is the same name there"
        else:
            kept.append(safe[path])
            if folds_case:
                seen.add(path.casefold())
    return kept, refused
