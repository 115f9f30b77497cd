"""Which files a sample opens while it is being made, and which version of each it got."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from prefeed.interception import FileReader
from prefeed.interception.asking import Answer
from prefeed.stage.identity.installed import is_below_packages
from prefeed.stage.library_state import threads_now
from prefeed.stage.notes import Note, is_being_written, key_now
from prefeed.types import ENTRY_KEY_BYTES


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
        is_complete: False when a version was not to be had, a file was being written, or nobody can tell which file was
            opened: nothing may then be kept of the sample.
        ways: By which calls files were opened, and which.
        served: What the reader in charge gave.

    **Threads**: files that a sample opens in threads of its own are not seen.
    """

    def __init__(
        self,
        reader: FileReader | None,
        way: Callable[[], int | None] | None = None,
        again: Mapping[str, Answer] | None = None,
    ) -> None:
        """Note who is in charge.

        Args:
            reader: That one; None: nobody.
            way: Tells by which calls a file is opened now, None of one that is no part of the sample; without it that does
                not matter.
            again: Bytes that the reader gave before, for a sample that is made of the same once more.
        """
        self.is_complete = True
        self.ways: dict[int, list[str]] = {}
        self.served: dict[str, Answer] = {}
        self._again = again or {}
        self._reader = reader
        self._way = way
        self._seen: dict[str, bytes] = {}

    def may_have(self, path: str) -> bool:
        """Return what the reader in charge says; note the file otherwise."""
        if path in self._again or (self._reader is not None and self._reader.may_have(path)):
            return True
        self._note(path)
        return False

    def read_file(self, path: str) -> Answer | None:
        """Return what the reader in charge has, and note which version it is."""
        if path in self._again:
            self._note(path)
            return self._again[path]
        data = None if self._reader is None else self._reader.read_file(path)
        if data is not None:
            self.served[path] = data
        if data is None:
            self._note(path)
        elif path not in self._seen:
            key = self.served_key(path)
            if key is None:
                self.is_complete = False
            else:
                self._keep(path, key)
        return data

    def served_key(self, path: str) -> bytes | None:
        """Return what the reader in charge says of its bytes."""
        reader: Any = self._reader
        return reader.served_key(path) if isinstance(reader, KnowsVersions) else None

    def saw(self, path: str) -> None:
        """A file is opened that nobody was asked for; see ``interception.Witness``."""
        if not is_below_packages(path):
            self._note(path)
            if isinstance(self._reader, FilesSeen):
                self._reader.saw(path)

    def saw_unknown(self) -> None:
        """Nobody can tell which file is opened."""
        self.is_complete = False
        if isinstance(self._reader, FilesSeen):
            self._reader.saw_unknown()

    def add(self, note: Note) -> None:
        """Something was used that was made of these files before: the entry of a stage below."""
        for path, key in note.files():
            self._seen.setdefault(os.fsdecode(path), key)
        above: Any = self._reader
        if isinstance(above, FilesSeen):
            above.add(note)

    def tie(self, files: Mapping[str, bytes]) -> None:
        """The sample depends on these, in these versions, whether it opened them or not."""
        for path, key in files.items():
            if self._seen.setdefault(path, key) != key:
                self.is_complete = False  # it has read two versions of it
        if isinstance(self._reader, FilesSeen):
            self._reader.tie(files)

    def has_seen(self, path: str) -> bool:
        """Return whether a file was opened."""
        return path in self._seen

    def key(self, path: str) -> bytes:
        """Return the version of a file that was opened."""
        return self._seen[path]

    def note(self, version: bytes, seconds: float = 0.0) -> Note:
        """Return what was seen, for a sample that took so long."""
        paths = sorted(self._seen)
        keys = b"".join(self._seen[path] for path in paths)
        assert len(keys) == len(paths) * ENTRY_KEY_BYTES
        return Note(version, [os.fsencode(path) for path in paths], keys, int(seconds * 1e6), threads_now())

    def have_changed(self, later: FilesSeen) -> bool:
        """Return whether a file that was opened both times was another one, or of another version, the second time."""
        return any(later._seen.get(path, key) != key for path, key in self._seen.items())

    def _note(self, path: str) -> None:
        if path not in self._seen and not path.startswith(_NO_FILES):
            self._keep(path, None)

    def _keep(self, path: str, key: bytes | None) -> None:
        """Note a file, and by which calls it was opened; without a key it is asked for its version."""
        way = 0 if self._way is None else self._way()
        if way is not None:
            self._seen[path] = key_now(path) if key is None else key
            if key is None and is_being_written(path):
                self.is_complete = False
            if not is_below_packages(path):
                self.ways.setdefault(way, []).append(path)


_NO_FILES = ("/proc/", "/sys/")
"""What the kernel says, anew each time it is asked."""
