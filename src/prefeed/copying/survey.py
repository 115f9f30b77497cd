"""What an origin has and what a copy has: the two listings that a run compares."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from prefeed.copying.versions import FoundFile
from prefeed.errors import CopyError, EmptyListingError
from prefeed.sources.file_names import FileNames, list_names
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.system.machine import mount_number
from prefeed.system.removing import Boundary
from prefeed.types import ListingProgress, ObjectInfo


class PosixTree(PosixSource):
    """A directory whose listing also notes the directories: empty ones are classes of an ImageFolder too.

    Args:
        root: Directory.
        target: Where the copy goes; a link of the data set that leads there is not followed, or each copy would have
            the one before it in it.
    """

    def __init__(self, root: str, target: Path) -> None:
        super().__init__(root)
        self.directories: list[str] = []
        status = target.stat()
        self._target = (status.st_dev, status.st_ino)

    def list_names(self, *, progress: ListingProgress | None = None) -> FileNames:
        """Return the names of every file, and note the directories."""
        names = list_names(self.url, progress=progress, avoid=frozenset({self._target}))
        self.directories = [os.fsdecode(directory.path) for directory in names.directories if directory.path]
        return names


def list_all(source: Source, progress: ListingProgress) -> list[ObjectInfo]:
    """Return every object of the origin; about 300 bytes of memory each.

    Raises:
        EmptyListingError: There are none: a storage that is not mounted must not empty its copy.
        SourceError: The listing failed.
    """
    items: list[ObjectInfo] = []
    listed_bytes = 0
    for batch in source.list_objects():
        items.extend(batch)
        listed_bytes += sum(max(0, info.size_bytes) for info in batch)
        progress(len(items), listed_bytes)
    if not items:
        raise EmptyListingError(f"{source.url} has no objects below it; check the path, and that it is mounted")
    return items


def scan_copy(data: Path) -> tuple[dict[str, FoundFile], list[str]]:
    """Return all files and links of a copy by relative path, and its directories, those above before those below.

    Raises:
        CopyError: Something is mounted in it, which is not prefeed's to write over and to remove.
    """
    files: dict[str, FoundFile] = {}
    directories: list[str] = []
    for path, status in _walk(os.fspath(data), ""):
        if stat.S_ISDIR(status.st_mode):
            directories.append(path)
        else:
            files[path] = FoundFile.of(status)
    return files, directories


def _walk(root: str, relative: str) -> Iterator[tuple[str, os.stat_result]]:
    waiting = [relative]
    own = Boundary(mount_number(root), os.stat(root).st_dev)
    while waiting:
        prefix = waiting.pop()
        with os.scandir(f"{root}/{prefix}") as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                yield prefix + entry.name, status
                if stat.S_ISDIR(status.st_mode):
                    if Boundary(mount_number(entry.path), status.st_dev) != own:
                        raise CopyError(
                            f"{entry.path} is a mount, in a copy: unmount it, and stage again", path=entry.path
                        )
                    waiting.append(f"{prefix}{entry.name}/")
