"""What interception asks for bytes."""

from __future__ import annotations

from typing import Protocol

from prefeed.types import Buffer


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

    def read_file(self, path: str) -> Buffer | None:
        """Return all bytes of the file, or None: the caller opens it.

        Never raises on account of the file: None lets the caller meet the error in Python's own words.

        Args:
            path: Absolute and without ``.``, ``..`` or doubled slashes; symbolic links are as the caller named them.
        """
        ...
