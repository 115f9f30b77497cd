"""Catalogues in the hands of their server: it appends, says what is known of each file, and publishes keys."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from prefeed.errors import PrefeedError, StoreFormatError
from prefeed.sources.catalogue import DIRECTORY, Catalogue, CatalogueHeader
from prefeed.sources.listing import ENCODING, UNKNOWN_SIZE, allocate, as_numbers, key_at
from prefeed.sources.manifest import HEADER, entry_key, version_hash
from prefeed.sources.posix import stat_paths
from prefeed.system.removing import remove_tree
from prefeed.types import ENTRY_KEY_BYTES, EntryKey

_CHUNK: Final = 1 << 16
_SMALLEST_CAPACITY: Final = 1024
_SMALLEST_PATHS: Final = 1 << 16
_ITEM_BYTES: Final = {"offsets": 8, "known": 16, "sizes": 8, "versions": 8, "inodes": 8, "keys": 16, "hashes": 8}
_NO_KEY: Final = bytes(ENTRY_KEY_BYTES)
_SLASH: Final = ord("/")


class CatalogueWriter(Catalogue):
    """A catalogue in the hands of its server: it appends, says what is known of each file, and publishes keys.

    Crash-only: it may be killed between any two steps. The next one to open it finds a whole beginning of what was
    appended, and nothing published.

    **Threads and processes.** One process has it open for writing, and uses it from one thread; only ``path`` may be
    called from any. The directory that it lies in is that process's alone; if another one opens it for writing all the
    same, it is that one's from then on: who had it before appends and publishes nothing more.
    """

    __slots__ = ("_appended", "_checked", "_hashes", "_index", "_inode", "_keys", "_known", "_versions", "_writer")

    _WRITABLE = True

    def __init__(self, directory: Path, header: CatalogueHeader, files: int) -> None:
        """Map the files for writing and withdraw everything; use ``open_or_create``."""
        self._appended = -1
        super().__init__(directory, header, files)
        self._index: PathIndex | None = None
        self._checked = bytearray()  # 1: the known key was made from a version by this process, or compared with it
        self.validate()
        self._writer, self._appended = secrets.randbits(64), self.num_objects
        self._count[1] = self._writer
        self._inode = os.stat("count", dir_fd=files).st_ino
        self.withdraw(None)
        self.release_pages()

    @classmethod
    def open_or_create(
        cls, directory: str | os.PathLike[str], declared: Sequence[str] | None = None
    ) -> CatalogueWriter:
        """Return the catalogue in ``directory``, with nothing published.

        Args:
            directory: Its parent exists.
            declared: Absolute paths with the ids 0 to n - 1 in this order, repeated ones included. The caller names the
                directory after them. Where there is no catalogue with that many, or a damaged one, it is made again. None:
                take what is there and make nothing, for one who holds ids of it already.

        Raises:
            StoreFormatError: ``declared`` is None, and there is no catalogue, or a damaged one.
            TierFullError: The file system has no room.
            ValueError: A path is not absolute.
        """
        path = Path(directory)
        try:
            found = cls.open(path)
            if declared is None or found.num_declared == len(declared):
                return found
        except StoreFormatError:
            if declared is None:
                raise
        return cls._create(path, declared)

    @classmethod
    def _create(cls, directory: Path, declared: Sequence[str]) -> CatalogueWriter:
        building, replaced = (directory.parent / f".{word}-{directory.name}" for word in ("building", "replaced"))
        _remove(building)
        _remove(replaced)
        building.mkdir(mode=0o700)
        try:
            header = CatalogueHeader(uid=secrets.token_hex(8), num_declared=len(declared))
            (building / HEADER).write_bytes(msgspec.json.encode(header))
            allocate(building / "count", 16)
            allocate(building / "paths", _SMALLEST_PATHS)
            for name, item in _ITEM_BYTES.items():
                allocate(building / name, (max(_SMALLEST_CAPACITY, len(declared)) + 1) * item)
            made = cls._open_once(building)
            made.append(declared)
            if os.path.lexists(directory):
                directory.rename(replaced)
            building.rename(directory)
        except BaseException:
            _remove(building)
            raise
        _remove(replaced)
        made.directory = directory
        return made

    @property
    def num_objects(self) -> int:
        """Number of objects by now; those that another process may have appended are not among them."""
        return super().num_objects if self._appended < 0 else self._appended

    def append(self, paths: Iterable[str]) -> range:
        """Add unknown objects; return their ids.

        Raises:
            TierFullError: The file system has no room; objects added so far stay.
            StoreFormatError: Another process has it open for writing by now, or has written to it; nothing was changed.
            ValueError: A path is not absolute.
        """
        first = self.num_objects
        iterator = iter(paths)
        while chunk := [path.encode(*ENCODING) for path in islice(iterator, _CHUNK)]:
            self._append_chunk(chunk)
        return range(first, self.num_objects)

    def _append_chunk(self, paths: list[bytes]) -> None:
        blob = b"".join(paths)
        if b"\0" in blob or not all(path.startswith(b"/") for path in paths):
            wrong = next(path for path in paths if b"\0" in path or not path.startswith(b"/"))
            raise ValueError(f"{wrong[:200]!r} is not an absolute path")
        if not self.is_own:
            raise self._taken()
        first, last = self._appended, self._appended + len(paths)
        start = int(self.offsets[first])
        self._make_room(last, start + len(blob))
        lengths = np.fromiter(map(len, paths), np.uint64, len(paths))
        self.path_blob[start : start + len(blob)] = blob
        self.offsets[first + 1 : last + 1] = np.uint64(start) + np.cumsum(lengths, dtype=np.uint64)
        self._sizes[first:last] = UNKNOWN_SIZE
        self._versions[first:last] = 0
        self._inodes[first:last] = 0
        self._hashes[first:last] = np.fromiter(map(xxh3_64_intdigest, paths), np.uint64, len(paths))
        self._known[first * ENTRY_KEY_BYTES : last * ENTRY_KEY_BYTES] = bytes(ENTRY_KEY_BYTES * len(paths))
        self.keys[first * ENTRY_KEY_BYTES : last * ENTRY_KEY_BYTES] = bytes(ENTRY_KEY_BYTES * len(paths))
        self._count[0] = self._appended = last
        if self._index is not None:
            self._index.add(paths, first)

    def _make_room(self, num_objects: int, path_bytes: int) -> None:
        fits = num_objects <= self.capacity
        if fits and path_bytes <= len(self.path_blob):
            return
        if not self._is_in_place():
            raise self._taken()
        if path_bytes > len(self.path_blob):
            allocate(self.directory / "paths", max(path_bytes, 2 * len(self.path_blob)))
        if not fits:
            capacity = max(num_objects, 2 * self.capacity)
            for name, item in _ITEM_BYTES.items():
                allocate(self.directory / name, (capacity + 1) * item)
        files = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._map_all(files)
        finally:
            os.close(files)

    @property
    def is_own(self) -> bool:
        """False when another process has opened it for writing since, or has appended to it."""
        return int(self._count[1]) == self._writer and int(self._count[0]) == self._appended

    def _is_in_place(self) -> bool:
        """Return whether its files are still those that have their names: they are about to be made longer by these."""
        try:
            return os.stat(self.directory / "count").st_ino == self._inode and self.is_own
        except OSError:
            return False

    def _taken(self) -> StoreFormatError:
        return StoreFormatError(
            f"{self.directory} was changed by another process than its server, so new files are not added to it. Two servers "
            "have one directory, or it was copied while in use; end one of them, or give each its own PREFEED_HOME"
        )

    def index_of(self, path: str) -> int | None:
        """Return the id of a path, the lowest if it was declared twice; None if it has none.

        The first call sorts the hashes of all paths, about 0.1 µs each.
        """
        return self._indexed().find(path.encode(*ENCODING))

    def ids_at(self, path: bytes) -> list[int]:
        """Return the ids of a path, ascending; none if it has none. The first call costs what that of ``index_of`` does."""
        return self._indexed().find_all(path)

    @property
    def has_repeats(self) -> bool:
        """Whether paths that it was made with may have several ids; as ``ids_at``."""
        return self._indexed().has_repeats

    def find_files(self, other: CatalogueWriter, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of these objects of another catalogue are files of this one, as their hashes say, and their ids here.

        Those without a known version are left out.
        """
        ids = ids[other._versions[ids] != 0]
        found = self._indexed().find_hashes(other._hashes[ids])
        return ids[found >= 0], found[found >= 0]

    def take_over(self, ids: NDArray[np.int64], other: CatalogueWriter, other_ids: NDArray[np.int64]) -> None:
        """Take what another catalogue knows of these files; it is compared with what they are now before anybody reads them."""
        known, others = (as_numbers(view).reshape(-1, 2) for view in (self._known, other._known))
        known[ids] = 0  # A kill here: never seen. Never an old key with a new version.
        self._versions[ids] = other._versions[other_ids]
        self._sizes[ids] = other._sizes[other_ids]
        self._inodes[ids] = other._inodes[other_ids]
        known[ids] = others[other_ids]
        for index in ids[ids < len(self._checked)].tolist():
            self._checked[index] = 0

    def _indexed(self) -> PathIndex:
        if self._index is None:
            self._index = PathIndex(self._hashes[: self.num_objects], self.path_bytes)
        return self._index

    def ids_of(self, paths: Iterable[str], inodes: Iterable[int]) -> NDArray[np.int64]:
        """Return the objects that have one of these paths, or were last seen to be one of these files, and a few others."""
        hashes = [xxh3_64_intdigest(path.encode(*ENCODING)) for path in paths]
        count = self.num_objects
        found = np.isin(self._hashes[:count], np.array(hashes, np.uint64))
        found |= np.isin(self._inodes[:count], np.array(list(inodes), np.uint64))
        return np.flatnonzero(found)

    def observe(self, index: int, version: str, size_bytes: int, inode: int = 0) -> EntryKey:
        """Take note of the bytes that a file has now; return their key, which is the known one from now on."""
        self._inodes[index] = inode
        key = entry_key(self.url, self.path(index), version, size_bytes)
        self._note_checked(index)
        if key != key_at(self._known, index):
            _set_key(self._known, index, _NO_KEY)  # A kill here: never seen. Never an old key with a new version.
            self._versions[index] = version_hash(version)
            self._sizes[index] = size_bytes if size_bytes >= 0 else UNKNOWN_SIZE
            _set_key(self._known, index, key)
        return key

    def known_key(self, index: int) -> EntryKey:
        """Return the key of the bytes last seen; zeros if the file was never seen."""
        self._reach(index)
        return key_at(self._known, index)

    def known_keys(self) -> memoryview:
        """Return the keys of the bytes last seen, 16 bytes an object, as a live view of all objects by now."""
        return self._known[: self.num_objects * ENTRY_KEY_BYTES].toreadonly()

    def version_hash(self, index: int) -> int:
        """Return the hash of the version last seen; 0 where not known."""
        self._reach(index)
        return int(self._versions[index])

    def is_as_seen(self, index: int, version: str) -> bool:
        """Return whether the known key is that of the bytes that a file has now, as its version tells.

        Key and version lie in two files, and a power failure may leave one of them older: hence the key is made once from what is
        seen now.
        """
        if not version or version_hash(version) != self.version_hash(index):
            return False
        if index >= len(self._checked) or not self._checked[index]:
            if entry_key(self.url, self.path(index), version) != self.known_key(index):
                return False
            self._note_checked(index)
        return True

    def _note_checked(self, index: int) -> None:
        if index >= len(self._checked):
            self._checked.extend(bytes(max(index, self.capacity) + 1 - len(self._checked)))
        self._checked[index] = 1

    def publish(self, index: int) -> None:
        """Let readers take the known key without asking. A reader that sees half of it finds nothing under it."""
        self._reach(index)
        if self.is_own:
            _set_key(self.keys, index, key_at(self._known, index))

    def withdraw(self, ids: NDArray[np.integer[Any]] | None) -> None:
        """Let readers ask again for these objects; for all with None."""
        if ids is not None:
            self._keys[: self.num_objects][ids] = 0
            return
        for start in range(0, len(self._keys), _CHUNK):
            chunk = self._keys[start : start + _CHUNK]
            if chunk.any():  # A page that is only read stays clean.
                chunk[:] = 0

    def is_published(self, index: int) -> bool:
        """Return whether readers can take the object's key without asking."""
        return self.key(index) != _NO_KEY

    def close(self) -> None:
        """Let go of the files; views that others hold stay valid. It is as good as empty afterwards."""
        nothing = np.zeros(1, np.uint64)
        self._count, self.offsets = np.zeros(2, np.uint64), nothing
        self._writer = self._appended = 0
        self._sizes = self._versions = self._inodes = self._hashes = nothing[:0]
        self.keys = self._known = self.path_blob = memoryview(b"")
        self._keys = np.zeros((0, 2), np.uint64)
        self._index = None

    def _map_all(self, files: int) -> None:
        super()._map_all(files)
        known = self._map(files, "known")
        versions, hashes = (as_numbers(self._map(files, name)) for name in ("versions", "hashes"))
        if self.num_objects > min(len(known) // ENTRY_KEY_BYTES, len(versions), len(hashes)):
            raise StoreFormatError(
                f"{self.directory} is damaged: its files are too short for {self.num_objects} objects"
            )
        self._known, self._versions, self._hashes = known, versions, hashes
        # keys: (capacity, 2)
        self._keys = as_numbers(self.keys).reshape(-1, 2)

    @property
    def capacity(self) -> int:
        """Number of objects that fit what is mapped."""
        return min(super().capacity, len(self._known) // ENTRY_KEY_BYTES, len(self._versions), len(self._hashes))

    def validate(self) -> None:
        """Check that paths are whole: a power failure leaves pages of zeros in files that have their length.

        Raises:
            StoreFormatError: Offsets do not ascend, or a path does not begin with a slash.
        """
        blob = np.frombuffer(self.path_blob, np.uint8)
        count = self.num_objects
        for start in range(0, count, _CHUNK):
            offsets = self.offsets[start : min(count, start + _CHUNK) + 1]
            if (
                bool((offsets[1:] <= offsets[:-1]).any())
                or offsets[-1] > len(blob)
                or bool((blob[offsets[:-1]] != _SLASH).any())
            ):
                raise StoreFormatError(f"{self.directory} is damaged: paths are missing after object {start}")


def _set_key(keys: memoryview, index: int, key: bytes) -> None:
    keys[index * ENTRY_KEY_BYTES : (index + 1) * ENTRY_KEY_BYTES] = key


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


_MOST_RECENT_AT_FIRST: Final = 1024


class PathIndex:
    """Hashes of all paths in order with their ids, 12 bytes a path, and the newest paths in a dict.

    Args:
        hashes: ``xxh3_64`` of each path, shape (num_paths,).
        path_bytes: Returns a path by its id: equal hashes are told apart by their paths.

    Invariants: the dict holds at most an eighth of the paths, or 1024. Of equal hashes lower ids come first.
    """

    def __init__(self, hashes: NDArray[np.uint64], path_bytes: Callable[[int], bytes]) -> None:
        """Sort the hashes; about 0.1 µs each."""
        order = np.argsort(hashes, kind="stable")
        self._path_bytes = path_bytes
        self._hashes = hashes[order]
        self._ids = order.astype(np.uint32)
        self._recent: dict[bytes, int] = {}
        self._has_repeats = bool((self._hashes[1:] == self._hashes[:-1]).any())

    @property
    def has_repeats(self) -> bool:
        """Whether a path may have several ids; those that are added later do not count."""
        return self._has_repeats

    def find(self, path: bytes) -> int | None:
        """Return the lowest id of a path; None if it has none."""
        return next(self._found(path), None)

    def find_all(self, path: bytes) -> list[int]:
        """Return the ids of a path, ascending."""
        return list(self._found(path))

    def find_hashes(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the lowest id of a path with each of these hashes, -1 where there is none; about 0.1 µs each."""
        self._merge()
        if not len(self._hashes):
            return np.full(len(hashes), -1, np.int64)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[places] == hashes, self._ids[places].astype(np.int64), -1)

    def _found(self, path: bytes) -> Iterator[int]:
        wanted = np.uint64(xxh3_64_intdigest(path))
        for rank in range(int(np.searchsorted(self._hashes, wanted)), len(self._hashes)):
            if self._hashes[rank] != wanted:
                break
            index = int(self._ids[rank])
            if self._path_bytes(index) == path:
                yield index
        if (recent := self._recent.get(path)) is not None:
            yield recent

    def add(self, paths: list[bytes], first: int) -> None:
        """Take note of paths that were appended with ids from ``first`` on."""
        for index, path in enumerate(paths, first):
            self._recent.setdefault(path, index)
        if len(self._recent) > max(_MOST_RECENT_AT_FIRST, len(self._ids) // 8):
            self._merge()

    def _merge(self) -> None:
        if not self._recent:
            return
        hashes = np.fromiter(map(xxh3_64_intdigest, self._recent), np.uint64, len(self._recent))
        order = np.argsort(hashes, kind="stable")
        ids = np.fromiter(self._recent.values(), np.uint32, len(hashes))[order]
        places = np.searchsorted(self._hashes, hashes[order], side="right")
        self._hashes = np.insert(self._hashes, places, hashes[order])
        self._ids = np.insert(self._ids, places, ids)
        self._recent = {}


_NAME: Final = re.compile(r"(files|learned)-[0-9a-f]{8,64}")
_OURS: Final = re.compile(rf"(\.(building|replaced)-)?{_NAME.pattern}(-[0-9a-f]{{8,24}})?")
_UNUSED_SECONDS: Final = 30 * 24 * 3600
_SAMPLED: Final = 256
"""Files that are asked for their size when a catalogue is new: their mean stands for all until they are read."""


def directory_of(own: Path, name: str, mark: str = "") -> Path:
    """Return where a catalogue lies, in the directory that is its server's own; ``mark`` is that of the view of its paths.

    Raises:
        PrefeedError: That is no name of a catalogue.
    """
    if _NAME.fullmatch(name) is None:
        raise PrefeedError(f"{name[:60]!r} is not the name of a catalogue")
    return own / DIRECTORY / (f"{name}-{mark}" if mark else name)


def is_catalogue(own: Path, directory: Path) -> bool:
    """Return True when the directory is that of one of the server's catalogues, not of a manifest."""
    return directory.parent == own / DIRECTORY


def open_catalogue(directory: Path, paths: Sequence[str] | None) -> tuple[CatalogueWriter, int | None]:
    """Return a catalogue for writing, and about how many bytes one of its files has; None when nothing tells.

    Args:
        directory: Of the catalogue.
        paths: Files that it begins with; none for one that is learned, None for one that is there already.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    catalogue = CatalogueWriter.open_or_create(directory, paths)
    os.utime(directory)  # in use: see ``remove_unused``
    catalogue.index_of("")  # the first look-up takes 0.2 s a million paths: here, not in the server's loop
    if not paths or any(catalogue.known_key(0)):
        return catalogue, None
    sizes, _ = stat_paths(paths[:: max(1, len(paths) // _SAMPLED)], batch=8)
    sizes = sizes[sizes >= 0]
    return catalogue, int(np.mean(sizes)) if len(sizes) else None


def _files_of(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries]


def remove_unused(own: Path) -> None:
    """Remove the catalogues that no process has opened or written to for 30 days: a million files take some 120 MB."""
    with contextlib.suppress(OSError), os.scandir(own / DIRECTORY) as entries:
        for entry in list(entries):
            if _OURS.fullmatch(entry.name) is None or not entry.is_dir(follow_symlinks=False):
                continue  # a home may be a directory in which its user has things of his own
            used = max(os.stat(path).st_mtime for path in (entry.path, *_files_of(entry.path)))
            if time.time() - used > _UNUSED_SECONDS:
                remove_tree(entry.path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    (own / DIRECTORY).rmdir()  # if that was all
