"""A directory in key order: what it lists, asked for in threads a little ahead, for on network storage each answer waits."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from prefeed.errors import AccessDeniedError, ObjectNotFoundError, TransientSourceError
from prefeed.jobs.listed import Listed, key_of

WORK_NAME: Final = ".prefeed-sync"
"""Directory in a destination where files are made; never listed, copied or removed as if it were data."""

_THREADS: Final = 16
_CHUNK: Final = 32
_CHUNKS_AHEAD: Final = 8

_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""What asking says of a name that is gone, and of a link that leads nowhere or to itself."""

_Chain = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Name:
    """An entry of a directory: its path, and whether it is a directory that is gone into."""

    path: str
    is_directory: bool


@dataclass(slots=True)
class _Chunk:
    """Entries that follow one another, with what was asked for them."""

    names: list[_Name]
    found: Future[list[Listed | None]]
    scans: dict[str, Future[list[_Name]]] = field(default_factory=dict)


class Tree:
    """The files below a directory, in key order.

    What vanishes meanwhile is left out. Memory: the names of the directories on the way to where it is, and of some
    ahead of it.

    Args:
        root: Absolute path of the directory.
        follow: Links are what they lead to, and broken ones are left out; if not, they are listed as no files.
        never: Device and inode of directories that are not gone into.
        enters: Says of a directory's path whether to go into it.
        on_directory: Told the path of each directory below the root, in order.
        on_broken: Told the path of each link that is left out for it leads nowhere. **Threads**: any.
    """

    def __init__(
        self,
        root: str,
        *,
        follow: bool,
        never: frozenset[tuple[int, int]] = frozenset(),
        enters: Callable[[str], bool] = lambda _: True,
        on_directory: Callable[[str], None] = lambda _: None,
        on_broken: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._root, self._prefix = root, root.rstrip("/") + "/"
        self._follow, self._enters, self._on_directory = follow, enters, on_directory
        self._never, self._on_broken = never, on_broken

    def __iter__(self) -> Iterator[Listed]:
        """Yield all files.

        Raises:
            ObjectNotFoundError: The root is not there, or is no directory.
            SourceError: Something in it cannot be listed, or the root is another directory in the end: what was mounted
                there is gone, and what seems to have vanished may be there still.
        """
        try:
            status = os.stat(self._root)
        except OSError as err:
            raise _translated(err, self._root) from err
        if not stat.S_ISDIR(status.st_mode):
            raise ObjectNotFoundError(f"{self._root} is no directory; name the one that holds the files")
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="prefeed-tree") as pool:
            chain = self._never | {(status.st_dev, status.st_ino)}
            try:
                yield from self._walk(pool, self._scan("", chain), chain)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        if self._identity("") != (status.st_dev, status.st_ino):
            raise TransientSourceError(f"{self._root} was unmounted or replaced while it was listed", path=self._root)

    def _walk(self, pool: ThreadPoolExecutor, names: list[_Name], chain: _Chain) -> Iterator[Listed]:
        rest = iter(names)
        ahead: deque[_Chunk] = deque()
        while True:
            while len(ahead) < _CHUNKS_AHEAD and (chunk := list(islice(rest, _CHUNK))):
                ahead.append(self._asked(pool, chunk, chain))
            if not ahead:
                return
            done = ahead.popleft()
            for name, listed in zip(done.names, done.found.result(), strict=True):
                if name.is_directory:
                    yield from self._below(pool, name.path, done.scans[name.path], chain)
                elif listed is not None:
                    yield listed

    def _below(self, pool: ThreadPoolExecutor, path: str, scan: Future[list[_Name]], chain: _Chain) -> Iterator[Listed]:
        identity = self._identity(path)
        if identity is not None and identity not in chain:
            self._on_directory(path)
            yield from self._walk(pool, scan.result(), chain | {identity})

    def _asked(self, pool: ThreadPoolExecutor, names: list[_Name], chain: _Chain) -> _Chunk:
        chunk = _Chunk(names, pool.submit(self._statuses, names))
        for name in names:
            if name.is_directory:
                chunk.scans[name.path] = pool.submit(self._scan, name.path + "/", chain)
        return chunk

    def _scan(self, relative: str, chain: _Chain) -> list[_Name]:
        """Return the entries of a directory in key order; nothing for one that is gone, or leads back to its parents."""
        if relative and self._identity(relative) in chain:
            return []
        found: list[tuple[bytes, _Name]] = []
        try:
            with os.scandir(self._prefix + relative) as entries:
                for entry in entries:
                    path, is_directory = relative + entry.name, _is_directory(entry, follow=self._follow)
                    if entry.name != WORK_NAME and (not is_directory or self._enters(path)):
                        key = key_of(entry.name + "/" if is_directory else entry.name)
                        found.append((key, _Name(path, is_directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as err:
            raise _translated(err, self._prefix + relative) from err
        return [name for _, name in sorted(found, key=lambda pair: pair[0])]

    def _statuses(self, names: list[_Name]) -> list[Listed | None]:
        return [None if name.is_directory else self._status(name.path) for name in names]

    def _status(self, path: str) -> Listed | None:
        try:
            status = os.stat(self._prefix + path, follow_symlinks=self._follow)
        except OSError as err:
            if err.errno not in _NOTHING_THERE:
                raise _translated(err, self._prefix + path) from err
            if self._follow and os.path.islink(self._prefix + path):
                self._on_broken(path)
            return None
        is_file = stat.S_ISREG(status.st_mode)
        if not is_file and self._follow:
            return None
        return Listed(path, status.st_size, status.st_mtime_ns, "", is_file)

    def _identity(self, path: str) -> tuple[int, int] | None:
        try:
            status = os.stat(self._prefix + path, follow_symlinks=self._follow)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _is_directory(entry: os.DirEntry[str], *, follow: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow)
    except OSError as err:
        if err.errno not in _NOTHING_THERE:
            raise
        return False


def _translated(err: OSError, path: str) -> Exception:
    if isinstance(err, FileNotFoundError):
        return ObjectNotFoundError(f"{path} does not exist; check the path, and that the storage is mounted", path=path)
    if isinstance(err, PermissionError):
        return AccessDeniedError(f"{path} may not be read by user {os.geteuid()}; change its mode", path=path)
    return TransientSourceError(f"{path}: {err.strerror or err}", path=path, errno=err.errno)
