"""The room of stage caches in memory, and that on disk: where they lie, and who may take how much of it beside the objects.

What is on the file systems is the truth, and start-up reads it::

    <root>/sessions/<session>/<cache>/   cache.json   what the cache is, written when all else is there
                                         store claims reads    its readers and writers make these
           .gone-<random>/               dropped, and not removed yet
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from prefeed.core.shares import Shares
from prefeed.errors import StoreError
from prefeed.store.directory import allocated_bytes, is_private, require_private, require_trusted
from prefeed.store.read_counts import counted_reads
from prefeed.store.shared import SharedTier
from prefeed.store.shared_files import Holders, has_store, is_open, try_trim
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
        return has_store(self.path(key))

    def holds_session(self, session: int) -> bool:
        """Return True when the session is here."""
        return self.session_path(session).is_dir()

    def remove_cache(self, key: CacheKey) -> None:
        """Remove the cache: nothing finds it any more; open handles and views keep working."""
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
            "PREFEED_MEMORY_DIR or PREFEED_DISK=SIZE:DIRECTORY",
            path=os.fspath(directory),
        ) from err


class Room:
    """One budget, its division, and the directories that it pays for.

    Args:
        root: Directory below which the sessions lie.
        budget_bytes: The most that objects and caches may take together.
        floor_bytes: What the file system must keep free.
        on_disk: Values have checksums.

    **Threads**: the loop's.
    **Invariants**: what the objects may take, all limits, and what dropped caches still hold stay within the budget.
    """

    def __init__(self, root: Path, budget_bytes: int, *, floor_bytes: int = 0, on_disk: bool = False) -> None:
        self.directory = root
        self.damage: list[str] = []
        self._on_disk = on_disk
        self.floor_bytes = floor_bytes
        self.files: SessionFiles = SessionFiles(root)
        self.shares: Shares = Shares(budget_bytes)
        self._objects_bytes: Callable[[], int] = lambda: 0
        self._resize_objects: Callable[[int], int] = lambda budget_bytes: budget_bytes
        self._dropped: dict[str, Holders] = {}
        self._num_dropped = 0

    def bind(self, *, objects_bytes: Callable[[], int], resize_objects: Callable[[int], int]) -> None:
        """Divide the room with the objects from now on.

        Args:
            objects_bytes: Returns what they take of the file system, which does not come back.
            resize_objects: Lets them take that many bytes at most; returns what they may take, more when they have it.
        """
        self._objects_bytes, self._resize_objects = objects_bytes, resize_objects
        self._resize_objects(self.shares.objects_limit_bytes)

    def find(self, key: CacheKey, limit_bytes: int) -> None:
        """A cache of an earlier life is here; who has it open may still write up to its limit."""
        trimmed = try_trim(self.files.path(key), on_disk=self._on_disk)
        if trimmed.num_lost:
            lost = "all" if trimmed.num_lost < 0 else str(trimmed.num_lost)
            self.damage.append(f"the cache in {self.files.path(key)} was damaged: {lost} of its samples are recomputed")
        if trimmed.is_done:
            self._set(key, self.files.taken_bytes(key))
        else:
            self._set(key, max(self.files.taken_bytes(key), limit_bytes))

    def free_bytes(self, key: CacheKey) -> int:
        """Return what could be added to the limit of a cache."""
        return self.shares.free_bytes(key, objects_bytes=self._objects_bytes())

    def limit_of(self, key: CacheKey) -> int:
        """Return the most that a cache may take here."""
        return self.shares.limit_of(key)

    def raise_limit(self, key: CacheKey, limit_bytes: int) -> int:
        """Let a cache take that much, or as much as there is; returns its limit, which is never lowered by this."""
        before = self.shares.limit_of(key)
        limit = self.shares.grant(key, limit_bytes, objects_bytes=self._objects_bytes())
        if limit > before and self._resize_objects(self.shares.objects_limit_bytes) > self.shares.objects_limit_bytes:
            self._set(key, before)  # the objects could not give it back
        return self.shares.limit_of(key)

    def contents_of(self, key: CacheKey, *, on_disk: bool = False) -> tuple[int, int]:
        """Return entries of a cache and their bytes."""
        statistics = SharedTier(self.files.path(key), limit_bytes=self.limit_of(key), on_disk=on_disk).statistics()
        return statistics.entries, statistics.value_bytes

    def reads_of(self, key: CacheKey) -> tuple[int, int]:
        """Return hits and misses that its processes have counted there."""
        return counted_reads(self.files.path(key))

    def is_in_use(self, key: CacheKey) -> bool:
        """Return True while some process has the cache open."""
        return is_open(self.files.path(key))

    def settle(self, key: CacheKey) -> bool:
        """Lower the limit of an unused cache to what its files take. False when some process has it open."""
        trimmed = self._try_trim(key)
        self._resize_objects(self.shares.objects_limit_bytes)
        return trimmed

    def drop(self, keys: Iterable[CacheKey]) -> None:
        """The caches are about to be removed; what processes have open of them counts until they let go."""
        for key in keys:
            holders = Holders.of(self.files.path(key))
            limit = self.shares.limit_of(key)
            self.shares.forget(key)
            if holders is not None and holders.are_there():
                self._num_dropped += 1
                name = f"dropped-{self._num_dropped}"
                self._dropped[name] = holders
                self.shares.set(name, limit)
            elif holders is not None:
                holders.close()

    def reclaim(self) -> None:
        """Count no more what dropped caches held, where everybody has let go."""
        for name, holders in list(self._dropped.items()):
            if not holders.are_there():
                holders.close()
                del self._dropped[name]
                self.shares.forget(name)
        self._resize_objects(self.shares.objects_limit_bytes)

    @property
    def waits_for_others(self) -> bool:
        """True while processes hold what was dropped."""
        return bool(self._dropped)

    def close(self) -> None:
        """Let go of everything; what lies in the directories stays."""
        for holders in self._dropped.values():
            holders.close()
        self._dropped.clear()

    def _try_trim(self, key: CacheKey) -> bool:
        if not try_trim(self.files.path(key), on_disk=self._on_disk).is_done:
            return False
        self._set(key, self.files.taken_bytes(key))
        return True

    def _set(self, key: CacheKey, limit_bytes: int) -> None:
        if limit_bytes:
            self.shares.set(key, limit_bytes)
        else:
            self.shares.forget(key)
