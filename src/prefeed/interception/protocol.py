"""What interception asks for bytes."""

from __future__ import annotations

from typing import Protocol

from prefeed.types import Buffer


class LentFile(Protocol):
    """Bytes of a file that stay where they are: what is read of them is copied then, and costs what it is long.

    **Threads and processes.** Any thread, and a forked child. Lives as long as somebody has it.
    """

    def __len__(self) -> int:
        """Return the size in bytes."""
        ...

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at the end; None: they are there no more."""
        ...

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at the end; None: they are there no more."""
        ...

    def are_of(self, descriptor: int) -> bool:
        """Return True when an open file has the very bytes."""
        ...


Answer = Buffer | LentFile
"""All bytes of a file, or where they are."""


class FileReader(Protocol):
    """Has the bytes of some files.

    **Threads and processes.** Called in the thread that entered ``reads_from`` with it, and in a fork of that
    thread. While it is being asked, files that it opens itself are not answered by it.
    """

    def may_have(self, path: str) -> bool:
        """Return False when ``read_file`` would return None: at once, for it is asked for every file that is opened.

        Args:
            path: As for ``read_file``.
        """
        ...

    def read_file(self, path: str) -> Answer | None:
        """Return all bytes of the file, or what lends them, or None: the caller opens it.

        Never raises on account of the file: None lets the caller meet the error in Python's own words.

        Args:
            path: Absolute and without ``.``, ``..`` or doubled slashes; symbolic links are as the caller named them.
        """
        ...
