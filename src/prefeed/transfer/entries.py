"""Compares listed objects with their copies, and checks paths. Pure.

Key order is the order of the paths' bytes, in which object stores list. Two listings in key order are merged as streams, so that neither is
in memory as a whole.

A file records its original in its modification time, the **stamp**. A copy of a file has the time of the original. A copy of a store's object
has the object's time in seconds, and a hash of its etag as nanoseconds. No further record is needed that a killed process could leave
wrong, and copies by other programs that keep times are recognized, too.
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
"""Smaller numbers are seconds, as used by stores without etags."""

_MAX_NANOSECONDS: Final = 1 << 62
_MAX_SECONDS: Final = 10**9
"""Upper bound of seconds derived from a hash: every file system can store such a time, and none is in the future."""

_MAX_NAME_BYTES: Final = 255


class Entry(NamedTuple):
    """An object of a listing.

    Attributes:
        path: Relative to the root.
        size_bytes: Size in bytes; -1 if the listing does not include it.
        mtime_ns: Time of the last change in nanoseconds; None if unknown.
        etag: Version of an object in a store; empty for files.
        is_file: False for links and special files, which only listings of a destination include.
    """

    path: str
    size_bytes: int
    mtime_ns: int | None = None
    etag: str = ""
    is_file: bool = True

    @classmethod
    def of(cls, info: ObjectInfo) -> Entry:
        """Convert an object that a source listed."""
        changed_ns = changed_ns_of(info.version)
        if changed_ns is not None:
            return cls(info.path, info.size_bytes, changed_ns)
        return cls(info.path, info.size_bytes, info.modified_seconds * _SECOND or None, info.version)

    @property
    def version(self) -> str:
        """Version that changes with the bytes; empty if unknown."""
        return self.etag or (f"{self.mtime_ns}-{self.size_bytes}" if self.mtime_ns is not None else "")


def key_of(path: str) -> bytes:
    """Return the sort key of a path in listings."""
    return path.encode("utf-8", "surrogateescape")


def merge_listings(
    source: Iterable[Entry], target: Iterable[Entry]
) -> Iterator[tuple[Entry | None, Entry | None]]:  # fmt: skip
    """Merge two listings in key order. Yield the entries of each path; None if a listing lacks it."""
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


# ---------------------------------------------------------------- copies and originals


def stamp_of(entry: Entry, read_version: str = "") -> int | None:
    """Return the modification time in nanoseconds for a copy of this object; None if unknown.

    Args:
        entry: The object as listed.
        read_version: Version of the bytes that were read, because a file may have changed since the listing.
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
    """Return whether a file in a directory is a copy of the source's object.

    If the source reports no size, its version decides. Without either, the result is False.

    Args:
        source: The original.
        found: The existing file.
        step_ns: Resolution of the file system's times, in nanoseconds.
    """
    if not found.is_file or source.size_bytes not in (-1, found.size_bytes):
        return False
    stamp = stamp_of(source)
    if stamp is None or found.mtime_ns is None:
        return source.size_bytes >= 0
    return stamp // step_ns == found.mtime_ns // step_ns


def is_same_in_store(source: Entry, found: Entry) -> bool:
    """Return whether an object in a store is a copy: equal digests, or without digests the same size and not older."""
    if source.size_bytes != found.size_bytes:
        return False
    ours, theirs = md5_of(source.etag), md5_of(found.etag)
    if ours and theirs:
        return ours == theirs
    return (source.mtime_ns or 0) <= (found.mtime_ns or 0)


def is_newer(source: Entry, found: Entry) -> bool:
    """Return whether the source was changed later, in whole seconds, which is the resolution of stores."""
    return (source.mtime_ns or 0) // _SECOND > (found.mtime_ns or 0) // _SECOND


def md5_of(etag: str) -> str:
    """Return the MD5 digest in an etag, in hex; empty if the etag has another format."""
    bare = etag.strip('"').lower()
    return bare if _MD5.fullmatch(bare) else ""


# ---------------------------------------------------------------- valid paths


def why_unsafe(path: str) -> str | None:
    """Return why a path is not allowed for a file; None if it is allowed.

    A store's key is any text, and one with ``..`` would lead out of the directory.
    """
    if not path or path.startswith("/"):
        return "is empty or absolute"
    if "\0" in path:
        return "contains a zero byte"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"has {part!r} as a file name, which is not allowed"
        if len(part) > _MAX_NAME_BYTES // 4 and len(os.fsencode(part)) > _MAX_NAME_BYTES:
            return f"contains a name of more than {_MAX_NAME_BYTES} bytes"
    return None


def parents_of(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first and the root, ``""``, last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def directories_of(paths: Iterable[str]) -> set[str]:
    """Return all directories above these files, without the root."""
    found: set[str] = {""}
    for path in paths:
        for parent in parents_of(path):
            if parent in found:
                break
            found.add(parent)
    return found - {""}


def split_storable(entries: Sequence[Entry], *, folds_case: bool) -> tuple[list[Entry], dict[str, str]]:
    """Return the objects that can be stored together in a directory, by path, and the reasons for the others.

    Args:
        entries: A listing; of equal paths the last entry counts.
        folds_case: True if the file system treats ``A`` and ``a`` as the same name.
    """
    refused = {entry.path: reason for entry in entries if (reason := why_unsafe(entry.path))}
    safe = {entry.path: entry for entry in entries if entry.path not in refused}
    directories = directories_of(safe)
    seen: set[str] = {directory.casefold() for directory in directories} if folds_case else set()
    kept = []
    for path in sorted(safe):  # sorted, so that all nodes keep the same objects
        if path in directories:
            refused[path] = "is a file and a directory at the origin"
        elif folds_case and path.casefold() in seen:
            refused[path] = "differs from another name in upper and lower case only, which is the same name there"
        else:
            kept.append(safe[path])
            if folds_case:
                seen.add(path.casefold())
    return kept, refused
