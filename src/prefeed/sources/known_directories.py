"""What makes the next listing of a local directory cheap: the times of its directories, and of its files.

Names come and go with a change of their directory's time, so where all directories are as they were the names are those of
the last manifest, and only the files' sizes and times are asked for. Two files beside a generation say what was found; without
them all is listed::

    times         int64 (n,)  nanoseconds of each file's last change
    directories   msgpack     when the listing began; path, device, inode and time of every directory

A directory that changed within two seconds before a listing is not trusted by the next one: a second change may have left
the same time. File systems are those whose directories are known to keep such times.
"""

from __future__ import annotations

import os
import stat
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prefeed.sources.manifest import Manifest
from prefeed.sources.mounts import mount_type

_TIMES: Final = "times"
_DIRECTORIES: Final = "directories"
_SETTLED_NS: Final = 2 * 10**9
_TRUSTED_TYPES: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})

Times = NDArray[np.int64]


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """A directory as it was just before it was read; ``path`` is relative to the root, ``""`` the root itself."""

    path: bytes
    device: int
    inode: int
    changed_ns: int


class _Known(msgspec.Struct, frozen=True):
    began_at_ns: int
    directories: list[Directory]


def note_directories(manifest: Manifest, directories: list[Directory], times: Times, *, began_at: float) -> None:
    """The next listing knows what this one found; where that cannot be written it lists all."""
    if _is_trusted(manifest.url) and len({directory.device for directory in directories}) == 1:
        _write(manifest.directory, _Known(int(began_at * 1e9), directories), times)


def note_times(manifest: Manifest, times: Times, *, like: Manifest) -> None:
    """What is known of one manifest's directories is known of another with the same paths, which has these times."""
    known = _read_known(like.directory)
    if known is not None:
        _write(manifest.directory, known, times)


def _is_trusted(root: str) -> bool:
    return mount_type(os.path.realpath(root)) in _TRUSTED_TYPES


def _write(generation: Path, known: _Known, times: Times) -> None:
    for name, data in ((_TIMES, times.tobytes()), (_DIRECTORIES, msgspec.msgpack.encode(known))):
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=generation)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, generation / name)
        except OSError:
            return


def directories_if_unchanged(manifest: Manifest) -> list[Directory] | None:
    """Return the directories of a manifest's root when all are as they were when it was listed; None: list it.

    **Blocking**: one question a directory.
    """
    known = _read_known(manifest.directory)
    if known is None or not _is_trusted(manifest.url):
        return None
    root = os.fsencode(manifest.url.rstrip("/")) + b"/"
    for directory in known.directories:
        try:
            status = os.stat(root + directory.path)
        except OSError:
            return None
        is_same = (status.st_dev, status.st_ino, status.st_mtime_ns) == (
            directory.device, directory.inode, directory.changed_ns,
        )  # fmt: skip
        if not is_same or directory.changed_ns > known.began_at_ns - _SETTLED_NS:
            return None
    return known.directories


def known_times(manifest: Manifest) -> Times | None:
    """Return the time of each file's last change as it was listed, shape (num_objects,); None when it is not known."""
    try:
        times = np.fromfile(manifest.directory / _TIMES, np.int64)
    except OSError:
        return None
    return times if len(times) == manifest.num_objects else None


def times_now(manifest: Manifest) -> tuple[Times, Times]:
    """Return size and time of the last change of every file of a manifest, shape (num_objects,); -1 of what is no file.

    **Blocking**: one question a file.
    """
    sizes, times = np.full(manifest.num_objects, -1, np.int64), np.zeros(manifest.num_objects, np.int64)
    root = os.fsencode(manifest.url.rstrip("/")) + b"/"
    at, ask, is_file = 0, os.stat, stat.S_IFREG
    for directory, paths in groupby(manifest.all_paths(), key=lambda path: path[: path.rfind(b"/") + 1]):
        found: list[tuple[int, int]] = []
        skip = len(directory)
        try:
            descriptor = os.open(root + directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            at += sum(1 for _ in paths)
            continue
        try:
            for path in paths:
                try:
                    status = ask(path[skip:], dir_fd=descriptor)
                except OSError:
                    found.append((-1, 0))
                    continue
                if stat.S_IFMT(status.st_mode) == is_file:
                    found.append((status.st_size, status.st_mtime_ns))
                else:
                    found.append((-1, 0))
        finally:
            os.close(descriptor)
        table = np.array(found, np.int64)  # table: (num_files, 2)
        sizes[at : at + len(found)], times[at : at + len(found)] = table[:, 0], table[:, 1]
        at += len(found)
    return sizes, times


def _read_known(generation: Path) -> _Known | None:
    try:
        return msgspec.msgpack.decode((generation / _DIRECTORIES).read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return None
