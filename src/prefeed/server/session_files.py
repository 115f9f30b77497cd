"""Where sessions and caches lie: what is on the file systems is the truth, and start-up reads it.

<root>/sessions/<session>/<cache>/   cache.json   what the cache is, written when all else is there
                                     data.mdb lock.mdb claims reads   its readers and writers make these
       .gone-<random>/               dropped, and not removed yet
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from prefeed.errors import StoreError
from prefeed.store.directory import allocated_bytes, is_private, require_private, require_trusted
from prefeed.store.layout import data_path
from prefeed.system.removing import remove_tree

_RECORD: Final = "cache.json"
_GONE: Final = ".gone-"

CacheKey = tuple[int, int]
"""Session and cache."""


class Record(msgspec.Struct, kw_only=True):
    """What ``cache.json`` holds.

    Attributes:
        description: The stage, for people.
        size_bytes: Most bytes in memory; 0 = what there is.
        spilling: What does not fit into memory goes to disk.
        instance: Another for each cache that was ever made.
        limit_bytes: What the store in this directory may take: processes write there without asking again.
    """

    description: str
    size_bytes: int
    spilling: bool
    instance: str
    limit_bytes: int = 0


class SessionFiles:
    """The sessions below one root, in memory or on disk.

    **Ownership**: the server makes and removes directories and records; other files are their readers' and writers'.
    **Threads**: the loop's.
    **Invariants**: all directories below the root are this user's alone: what is read from an entry may be code.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sessions = root / "sessions"

    def path(self, key: CacheKey) -> Path:
        """Return the directory of a cache."""
        return self.session_path(key[0]) / str(key[1])

    def session_path(self, session: int) -> Path:
        """Return the directory of a session."""
        return self._sessions / str(session)

    def scan(self) -> Iterator[int]:
        """Yield the sessions; remove what is left of dropped ones, and what others may have put there.

        Raises:
            StoreError: The directory of the sessions is somebody else's, or could be replaced by somebody else.
        """
        self._require_private_root()
        for entry in _entries(self._sessions):
            if entry.name.isdecimal() and is_private(entry):
                yield int(entry.name)
            else:
                _remove(entry)

    def scan_caches(self, session: int) -> Iterator[tuple[int, Record, int]]:
        """Yield cache, record and time of last use in ns; remove what was never finished, or is damaged."""
        for entry in _entries(self.session_path(session)):
            try:
                if not is_private(entry):
                    raise PermissionError(f"{entry} is open to others")
                record = msgspec.json.decode((entry / _RECORD).read_bytes(), type=Record)
                yield int(entry.name), record, (entry / _RECORD).stat().st_mtime_ns
            except (OSError, ValueError, msgspec.DecodeError):
                _remove(entry)

    def make_session(self, session: int) -> None:
        """The session exists from now on.

        Raises:
            StoreError: It cannot be made.
        """
        with _said_of(self.session_path(session)):
            self._make_private(self.session_path(session))

    def write(self, key: CacheKey, record: Record) -> None:
        """The cache exists from now on, with this record, whole after any crash.

        Raises:
            StoreError: It cannot be written.
        """
        directory = self.path(key)
        temporary = directory / f"{_RECORD}.new"
        with _said_of(directory):
            self._make_private(directory)
            temporary.write_bytes(msgspec.json.encode(record))
            temporary.replace(directory / _RECORD)

    def taken_bytes(self, key: CacheKey) -> int:
        """Return what a cache takes of the file system."""
        return allocated_bytes(self.path(key))

    def touch(self, key: CacheKey) -> None:
        """The cache is used now."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key) / _RECORD)

    def has_store(self, key: CacheKey) -> bool:
        """Return True when something was ever written to the cache."""
        return data_path(self.path(key)).exists()

    def holds_session(self, session: int) -> bool:
        """Return True when the session is here."""
        return self.session_path(session).is_dir()

    def remove_cache(self, key: CacheKey) -> None:
        """The cache is gone, at once for everybody who looks for it; open handles and views go on working."""
        self._remove_at_once(self.path(key))

    def remove_session(self, session: int) -> None:
        """The session is gone with all its caches, at once."""
        self._remove_at_once(self.session_path(session))

    def remove_all(self) -> None:
        """No session is left."""
        _remove(self._sessions)

    def _require_private_root(self) -> None:
        with _said_of(self._root), contextlib.suppress(FileNotFoundError):
            require_trusted(self._root)
            require_private(self._sessions)

    def _make_private(self, directory: Path) -> None:
        """Make a directory of a session or cache, and those above it that are missing, all for this user alone."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_private_root()
        ours = directory.relative_to(self._root).parts
        for count in range(1, len(ours) + 1):
            path = self._root.joinpath(*ours[:count])
            path.mkdir(mode=0o700, exist_ok=True)
            require_private(path)

    def _remove_at_once(self, path: Path) -> None:
        gone = self._sessions / f"{_GONE}{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            path.rename(gone)
        _remove(gone)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def _said_of(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise StoreError(
            f"cannot make the cache in {directory}: {err.strerror}; free space there, or name another directory with "
            "PREFEED_MEMORY_DIR or PREFEED_DISK_DIR",
            path=os.fspath(directory),
        ) from err
