"""What an origin has and what a copy has: the two listings that a run compares."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from prefeed.copying.versions import FoundFile
from prefeed.errors import CopyError, EmptyListingError
from prefeed.machine import mount_number
from prefeed.removing import Boundary
from prefeed.sources.posix import Chain, PosixSource
from prefeed.sources.protocol import Source
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

    def _scan(self, relative: str, chain: Chain) -> tuple[list[str], list[tuple[str, Chain]]]:
        if relative:
            self.directories.append(relative.rstrip("/"))  # from several threads: append needs no lock
        return super()._scan(relative, chain | {self._target})


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
