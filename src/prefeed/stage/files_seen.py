"""Which files a sample opens while it is being made, and which version of each it got."""

from __future__ import annotations

import os
from typing import Any, Protocol, runtime_checkable

from prefeed.interception import FileReader
from prefeed.stage.notes import Note, key_now
from prefeed.types import ENTRY_KEY_BYTES, Buffer


@runtime_checkable
class KnowsVersions(Protocol):
    """A file reader that can say which version it gave."""

    def served_key(self, path: str) -> bytes | None:
        """Return the entry key of the bytes that ``read_file`` gave last; None when that is not known."""
        ...


class FilesSeen:
    """Notes files; an ``interception.FileReader`` between the sample and the reader that is in charge, if any.

    A file that the reader gives has the version that the reader knows. Any other is asked for its version before it
    is opened: if it changes meanwhile, the note is out of date at once, and the entry is made anew.

    Attributes:
        is_complete: False when a version was not to be had: nothing may then be kept of the sample.

    **Threads**: files that a sample opens in threads of its own are not seen.
    """

    def __init__(self, reader: FileReader | None) -> None:
        self.is_complete = True
        self._reader = reader
        self._seen: dict[str, bytes] = {}

    def may_have(self, path: str) -> bool:
        """Return what the reader in charge says; note the file otherwise."""
        if self._reader is not None and self._reader.may_have(path):
            return True
        self._note(path)
        return False

    def read_file(self, path: str) -> Buffer | None:
        """Return what the reader in charge has, and note which version it is."""
        data = None if self._reader is None else self._reader.read_file(path)
        if data is None:
            self._note(path)
        elif path not in self._seen:
            key = self.served_key(path)
            if key is None:
                self.is_complete = False
            else:
                self._seen[path] = key
        return data

    def served_key(self, path: str) -> bytes | None:
        """Return what the reader in charge says of its bytes."""
        reader: Any = self._reader
        return reader.served_key(path) if isinstance(reader, KnowsVersions) else None

    def add(self, note: Note) -> None:
        """Something was used that was made of these files before: the entry of a stage below."""
        for path, key in note.files():
            self._seen.setdefault(os.fsdecode(path), key)
        above: Any = self._reader
        if isinstance(above, FilesSeen):
            above.add(note)

    def note(self, version: bytes) -> Note:
        """Return what was seen."""
        paths = sorted(self._seen)
        keys = b"".join(self._seen[path] for path in paths)
        assert len(keys) == len(paths) * ENTRY_KEY_BYTES
        return Note(version, [os.fsencode(path) for path in paths], keys)

    def _note(self, path: str) -> None:
        if path not in self._seen:
            self._seen[path] = key_now(path)
