"""The files of a tier on disk: an index and a segment, in a directory of the tier's own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from prefeed.store.directory import remove_unless_file
from prefeed.store.index import IndexReader

_NAMES: Final = ("index", "segment-0")


def stored_keys(directory: Path) -> bytes:
    """Return the keys that the index of a tier on disk names, one after the other; none if there is no tier.

    Raises:
        OSError: The index cannot be read.
    """
    try:
        descriptor = os.open(directory / _NAMES[0], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return IndexReader(descriptor).keys()
    finally:
        os.close(descriptor)


class TierFiles:
    """The open files of a tier on disk, made if they are missing.

    A file that is of another kind than a regular file is removed first; a link is not followed.

    **Ownership.** ``close`` closes the descriptors; readers must have ended.

    Raises:
        OSError: The files cannot be opened or made.
    """

    def __init__(self, directory: Path) -> None:
        self._paths = [directory / name for name in _NAMES]
        self._descriptors: list[int] = []
        try:
            for path in self._paths:
                remove_unless_file(path)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptors.append(os.open(path, flags, 0o600))
        except OSError:
            self.close()
            raise

    @property
    def index(self) -> int:
        """The descriptor of the index."""
        return self._descriptors[0]

    @property
    def segments(self) -> list[int]:
        """The descriptors of the segments."""
        return self._descriptors[1:]

    def are_in_place(self) -> bool:
        """Return whether the files at their paths are still these."""
        try:
            return all(
                os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
                for path, descriptor in zip(self._paths, self._descriptors, strict=True)
            )
        except OSError:
            return False

    def close(self) -> None:
        """Close the files. Their entries stay."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors = []
