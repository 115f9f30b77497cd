"""What makes the next listing of a local directory cheap: the times of its directories, and of its files.

Names come and go with a change of their directory's time, so where all directories are as they were the names are those of
the last manifest, and only the files' sizes and times are asked for. Both its times count: who unpacks a second archive into
it sets one of them back, and nobody the other (``ctime``). Two files beside a generation say what was found; without
them all is listed::

    times         int64 (2,n) nanoseconds of each file's last change, and its inode
    directories   msgpack     when the listing began; path, device, inode and both times of every directory

A directory that changed within two seconds before a listing is not trusted by the next one: a second change may have left
the same time. File systems are those whose directories are known to keep such times, and only this process's own view of them:
of another's nothing is noted, so that all of it is listed whenever it is asked for.
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

INODE_BITS: Final = 2**63 - 1
"""As many of an inode's bits are noted."""

Times = NDArray[np.int64]

Stamps = NDArray[np.int64]
"""Time of the last change and inode of each file, shape (2, num_objects)."""


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """A directory as it was just before it was read; ``path`` is relative to the root, ``""`` the root itself."""

    path: bytes
    device: int
    inode: int
    changed_ns: int
    inode_changed_ns: int


class _Known(msgspec.Struct, frozen=True):
    began_at_ns: int
    directories: list[Directory]


def note_directories(manifest: Manifest, directories: list[Directory], stamps: Stamps, *, began_at: float) -> None:
    """The next listing knows what this one found; where that cannot be written it lists all."""
    if _is_trusted(manifest.url) and len({directory.device for directory in directories}) == 1:
        _write(manifest.directory, _Known(int(began_at * 1e9), directories), stamps)


def note_stamps(manifest: Manifest, stamps: Stamps, *, like: Manifest) -> None:
    """What is known of one manifest's directories is known of another with the same paths, which has these stamps."""
    known = _read_known(like.directory)
    if known is not None:
        _write(manifest.directory, known, stamps)


def _is_trusted(root: str) -> bool:
    return mount_type(os.path.realpath(root)) in _TRUSTED_TYPES


def _write(generation: Path, known: _Known, stamps: Stamps) -> None:
    for name, data in ((_TIMES, stamps.tobytes()), (_DIRECTORIES, msgspec.msgpack.encode(known))):
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
        is_same = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns) == (
            directory.device, directory.inode, directory.changed_ns, directory.inode_changed_ns,
        )  # fmt: skip
        if not is_same or directory.changed_ns > known.began_at_ns - _SETTLED_NS:
            return None
    return known.directories


def known_stamps(manifest: Manifest) -> Stamps | None:
    """Return time and inode of each file as it was listed; None when they are not known."""
    try:
        stamps = np.fromfile(manifest.directory / _TIMES, np.int64)
    except OSError:
        return None
    return stamps.reshape(2, -1) if len(stamps) == 2 * manifest.num_objects else None


def stamps_now(manifest: Manifest) -> tuple[Times, Stamps]:
    """Return size of every file of a manifest, shape (num_objects,), -1 of what is no file, and their stamps.

    A file on another file system than its directory, to which a link leads, has inode -1: which file it is says more than that.

    **Blocking**: one question a file.
    """
    sizes, stamps = np.full(manifest.num_objects, -1, np.int64), np.zeros((2, manifest.num_objects), np.int64)
    root = os.fsencode(manifest.url.rstrip("/")) + b"/"
    at, ask, is_file = 0, os.stat, stat.S_IFREG
    for directory, paths in groupby(manifest.all_paths(), key=lambda path: path[: path.rfind(b"/") + 1]):
        found: list[tuple[int, int, int]] = []
        skip = len(directory)
        try:
            descriptor = os.open(root + directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            at += sum(1 for _ in paths)
            continue
        try:
            device = os.fstat(descriptor).st_dev
            for path in paths:
                try:
                    status = ask(path[skip:], dir_fd=descriptor)
                except OSError:
                    found.append((-1, 0, 0))
                    continue
                if stat.S_IFMT(status.st_mode) == is_file:
                    inode = status.st_ino & INODE_BITS if status.st_dev == device else -1
                    found.append((status.st_size, status.st_mtime_ns, inode))
                else:
                    found.append((-1, 0, 0))
        finally:
            os.close(descriptor)
        table = np.array(found, np.int64)  # table: (num_files, 3)
        sizes[at : at + len(found)], stamps[:, at : at + len(found)] = table[:, 0], table[:, 1:].T
        at += len(found)
    return sizes, stamps


def _read_known(generation: Path) -> _Known | None:
    try:
        return msgspec.msgpack.decode((generation / _DIRECTORIES).read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return None
