"""What makes the next listing of a local directory cheap: the times of its directories, and of its files.

Names come and go with a change of their directory's time, so where all directories are as they were the names are those of
the last manifest, and only the files' sizes and times are asked for, and compared with the manifest's ``stamps``. Both times of a
directory count: unpacking a second archive into it can set one of them back, and never the other (``ctime``). A file beside
the columns of a generation says what was found; without it all is listed::

    directories   8 bytes     xxh3-64 of the rest
                  msgpack     when the listing began; path, device, inode and both times of every directory

A directory that changed within two seconds before a listing is not trusted by the next one: a second change may have left
the same time. File systems are those whose directories are known to keep such times, and only this process's own view of them:
of another's nothing is noted, so that all of it is listed whenever it is asked for.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest

from prefeed.sources.file_names import Directory
from prefeed.sources.file_versions import FileTable, ask_files
from prefeed.sources.manifest import Manifest
from prefeed.sources.mounts import mount_type
from prefeed.system.files import atomic_write

_DIRECTORIES: Final = "directories"
_SUM_BYTES: Final = 8
_SETTLED_NS: Final = 2 * 10**9
_TRUSTED_TYPES: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})

_INODE_BITS: Final = 2**63 - 1
"""As many of an inode's bits are noted."""

Stamps = NDArray[np.int64]
"""Time of the last change and inode of each file, shape (2, num_objects)."""


class _Known(msgspec.Struct, frozen=True):
    began_at_ns: int
    directories: list[Directory]


def note_directories(manifest: Manifest, directories: list[Directory], *, began_at: float) -> None:
    """The next listing knows what this one found; where that cannot be written it lists all."""
    if is_trusted(manifest.url) and len({directory.device for directory in directories}) == 1:
        _write(manifest.directory, msgspec.msgpack.encode(_Known(int(began_at * 1e9), directories)))


def copy_directories(manifest: Manifest, other: Manifest) -> None:
    """What is known of one manifest's directories is known of another with the same paths."""
    known = _read_known(manifest.directory)
    if known is not None:
        _write(other.directory, msgspec.msgpack.encode(known))


def is_trusted(root: str) -> bool:
    """Return whether times of directories say when names in them changed: see above."""
    return mount_type(os.path.realpath(root)) in _TRUSTED_TYPES


def _write(generation: Path, data: bytes) -> None:
    with (
        contextlib.suppress(OSError),
        atomic_write(generation / _DIRECTORIES, private=True, durable=False) as file,
    ):
        file.write(xxh3_64_digest(data) + data)


def directories_if_unchanged(manifest: Manifest) -> list[Directory] | None:
    """Return the directories of a manifest's root when all are as they were when it was listed; None: list it.

    **Blocking**: one question a directory.
    """
    known = _read_known(manifest.directory)
    if known is None or not is_trusted(manifest.url):
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


def files_now(manifest: Manifest) -> FileTable:
    """Return what each file of a manifest is now; see ``ask_files``.

    Where nothing but names is known, a file that cannot be asked is an error, as in any listing; else it stays as it was listed.
    """
    return ask_files(manifest.url, manifest.all_paths(), strict=not manifest.is_settled)


def stamps_of(table: FileTable) -> Stamps:
    """Return when each file last changed, and its inode."""
    return np.stack([table.changed_ns, (table.inodes & np.uint64(_INODE_BITS)).astype(np.int64)])


def _read_known(generation: Path) -> _Known | None:
    try:
        data = (generation / _DIRECTORIES).read_bytes()
        if data[:_SUM_BYTES] != xxh3_64_digest(data[_SUM_BYTES:]):
            return None
        return msgspec.msgpack.decode(data[_SUM_BYTES:], type=_Known)
    except (OSError, msgspec.DecodeError):
        return None
