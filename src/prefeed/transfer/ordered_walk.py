"""Lists a directory tree in key order.

Threads scan directories and stat files a little ahead of the position, because on network storage each request takes a round trip. Start with
``OrderedWalk``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from prefeed.errors import AccessDeniedError, ObjectNotFoundError, PrefeedError, TransientSourceError
from prefeed.system.machine import mount_number
from prefeed.system.trust import beneath
from prefeed.transfer.entries import Entry, key_of

_THREADS: Final = 16
_CHUNK: Final = 32
_CHUNKS_AHEAD: Final = 8

_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Error codes for a removed name, and for a link that leads nowhere or to itself."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_Identity = tuple[int, int, int | None]
"""Device, inode and mount of a directory."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A path that could not be read, so that its content is unknown."""

    path: str
    error: PrefeedError


@dataclass(frozen=True, slots=True)
class _Directory:
    """An open directory of the walk, with all directories above it.

    Attributes:
        path: Ends in a slash; empty for the root.
        identity: Identity when it was opened.
        above: Directory from which it was entered; None for the root.
        chain: Device and inode of the directory and of all above it.
    """

    path: str
    identity: _Identity
    above: _Directory | None
    chain: frozenset[tuple[int, int]]


class _Child(NamedTuple):
    """A name in a directory: its path, whether to enter it as a directory, and whether it is a link to one."""

    path: str
    is_directory: bool
    is_link: bool


@dataclass(frozen=True, slots=True)
class _Scan:
    """Content of a directory in key order. ``directory`` is None if the directory is not entered."""

    directory: _Directory | None
    names: list[_Child] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class _Chunk:
    """Consecutive names, with the requests for their statuses and directories."""

    names: list[_Child]
    found: Future[list[Entry | Problem | None]]
    scans: dict[str, Future[_Scan]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkEvents:
    """Callbacks of a walk, called in the thread that iterates, except ``broken``.

    Attributes:
        directory: Receives the path of each directory below the root, in order.
        broken: Receives the path of each broken link, which is left out. **Threads**: any.
        problem: Receives each path that could not be read, before the paths after it in key order.
        link: Receives the path of each link to a directory that is followed, before its content.
        mount: Receives the path of each directory on another mount or file system than its parent, and its mount number, the root
            first. Returns whether to enter the directory.
    """

    directory: Callable[[str], None] = lambda _: None
    broken: Callable[[str], None] = lambda _: None
    problem: Callable[[Problem], None] = lambda _: None
    link: Callable[[str], None] = lambda _: None
    mount: Callable[[str, int | None], bool] = lambda _path, _number: True


class OrderedWalk:
    """Files below a directory, in key order.

    A file that is removed during the walk is left out, if its directory is still the same and no longer contains the name. An unreadable path is
    reported as a problem, and the walk continues. The names of the directories on the way to the position, and of some ahead, are in memory.

    Args:
        root: Absolute path of the directory.
        descriptor: Open descriptor of the root, so that this directory is listed even if its name is given to another one.
        follow: True to follow links and leave out broken ones; False to list links as entries that are no files.
        never: Device and inode of directories that are not entered.
        enters: Returns whether to enter the directory of a path.
        events: Callbacks.
    """

    def __init__(
        self,
        root: str,
        *,
        follow: bool,
        descriptor: int | None = None,
        never: frozenset[tuple[int, int]] = frozenset(),
        enters: Callable[[str], bool] = lambda _: True,
        events: WalkEvents | None = None,
    ) -> None:
        self._shown = root.rstrip("/") + "/"
        self._root = root if descriptor is None else beneath(descriptor)
        self._prefix = self._root.rstrip("/") + "/"
        self._follow, self._enters, self._never = follow, enters, never
        self._events = events or WalkEvents()

    def __iter__(self) -> Iterator[Entry]:
        """Yield all files.

        Raises:
            ObjectNotFoundError: The root does not exist or is not a directory.
            SourceError: The root is unreadable, or was replaced during the walk, for example by an unmount. Missing files may still exist.
        """
        try:
            scan = self._scan_open("", None)
        except NotADirectoryError as err:
            raise ObjectNotFoundError(
                f"{self._shown[:-1]} is not a directory; name the directory that holds the files"
            ) from err
        except OSError as err:
            raise _translate(err, self._shown[:-1] or "/") from err
        assert scan.directory is not None, "never has no directory that is the root"
        root = scan.directory
        self._events.mount("", root.identity[2])
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="prefeed-tree") as pool:
            try:
                yield from self._walk(pool, scan)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        if self._identity("") != root.identity:
            raise TransientSourceError(
                f"{self._shown[:-1]} was unmounted or replaced while it was listed", path=self._shown[:-1]
            )

    def _walk(self, pool: ThreadPoolExecutor, scan: _Scan) -> Iterator[Entry]:
        assert scan.directory is not None, "it was gone into"
        for problem in scan.problems:
            self._events.problem(problem)
        rest = iter(scan.names)
        ahead: deque[_Chunk] = deque()
        while True:
            while len(ahead) < _CHUNKS_AHEAD and (chunk := list(islice(rest, _CHUNK))):
                ahead.append(self._submit_chunk(pool, chunk, scan.directory))
            if not ahead:
                return
            done = ahead.popleft()
            for name, found in zip(done.names, done.found.result(), strict=True):
                if name.is_directory:
                    yield from self._enter(pool, name, done.scans[name.path].result(), scan.directory)
                elif isinstance(found, Entry):
                    yield found
                elif found is not None:
                    self._events.problem(found)

    def _enter(self, pool: ThreadPoolExecutor, name: _Child, scan: _Scan, above: _Directory) -> Iterator[Entry]:
        if scan.directory is None:
            for problem in scan.problems:
                self._events.problem(problem)
            return
        if name.is_link:
            self._events.link(name.path)
        (device, _, number), entered_from = scan.directory.identity, above.identity
        is_same = (device, number) == (entered_from[0], entered_from[2])
        goes_on = is_same or self._events.mount(name.path, number)
        self._events.directory(name.path)
        if goes_on:
            yield from self._walk(pool, scan)

    def _submit_chunk(self, pool: ThreadPoolExecutor, names: list[_Child], above: _Directory) -> _Chunk:
        chunk = _Chunk(names, pool.submit(self._statuses, names, above))
        for name in names:
            if name.is_directory:
                chunk.scans[name.path] = pool.submit(self._scan, name.path, above)
        return chunk

    def _scan(self, path: str, above: _Directory) -> _Scan:
        """Scan a directory. The result is empty if the directory was removed or leads back to a parent."""
        try:
            return self._scan_open(path, above)
        except OSError as err:
            gone = self._check_missing(path, above) if err.errno in _MISSING else _problem_from(err, self._shown, path)
            return _Scan(None, problems=[gone] if gone is not None else [])

    def _scan_open(self, path: str, above: _Directory | None) -> _Scan:
        descriptor = self._open(path)
        try:
            identity = _identity_of(descriptor)
            chain = self._never if above is None else above.chain
            if above is not None and identity[:2] in chain:
                return _Scan(None)
            relative = path and path + "/"
            scan = _Scan(_Directory(relative, identity, above, chain | {identity[:2]}))
            found: list[tuple[bytes, _Child]] = []
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        name = entry.name
                        try:
                            is_directory = entry.is_dir(follow_symlinks=self._follow)
                        except OSError as err:
                            if err.errno not in _MISSING:
                                scan.problems.append(_problem_from(err, self._shown, relative + name))
                                continue
                            is_directory = False  # the later stat reports the reason
                        if not is_directory:
                            found.append((key_of(name), _Child(relative + name, False, False)))
                        elif self._enters(relative + name):
                            found.append((key_of(name + "/"), _Child(relative + name, True, entry.is_symlink())))
            except OSError as err:
                if above is None:
                    raise
                scan.problems.append(_problem_from(err, self._shown, path))
            scan.names.extend(name for _, name in sorted(found, key=lambda pair: pair[0]))
            return scan
        finally:
            os.close(descriptor)

    def _open(self, path: str) -> int:
        no_link = 0 if self._follow or not path else os.O_NOFOLLOW
        return os.open(self._prefix + path if path else self._root, _DIRECTORY | no_link)

    def _statuses(self, names: list[_Child], above: _Directory) -> list[Entry | Problem | None]:
        return [None if name.is_directory else self._status(name.path, above) for name in names]

    def _status(self, path: str, above: _Directory) -> Entry | Problem | None:
        try:
            status = os.stat(self._prefix + path, follow_symlinks=self._follow)
        except OSError as err:
            if err.errno not in _MISSING:
                return _problem_from(err, self._shown, path)
            if self._follow and os.path.islink(self._prefix + path):
                self._events.broken(path)
                return None
            return self._check_missing(path, above)
        is_file = stat.S_ISREG(status.st_mode)
        if not is_file and self._follow:
            return None
        return Entry(path, status.st_size, status.st_mtime_ns, "", is_file)

    def _check_missing(self, path: str, above: _Directory | None) -> Problem | None:
        """Return None if a missing name was removed: its directory is unchanged and no longer contains it.

        Otherwise return a problem, because a directory may have been unmounted or mounted over, or its file system may list names that it
        does not find.
        """
        while above is not None:
            try:
                descriptor = self._open(above.path.rstrip("/"))
            except OSError as err:
                if err.errno not in _MISSING or above.above is None:
                    return _problem_from(err, self._shown, above.path.rstrip("/"))
                path, above = above.path.rstrip("/"), above.above  # perhaps removed together with its directory
                continue
            try:
                if _identity_of(descriptor) != above.identity:
                    return _changed_problem(self._shown, above.path.rstrip("/"))
                if os.path.basename(path) in os.listdir(descriptor):
                    return _changed_problem(self._shown, path)
                return None
            except OSError as err:
                return _problem_from(err, self._shown, above.path.rstrip("/"))
            finally:
                os.close(descriptor)
        return None

    def _identity(self, path: str) -> _Identity | None:
        try:
            descriptor = self._open(path)
        except OSError:
            return None
        try:
            return _identity_of(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _identity_of(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, mount_number(descriptor)


def _problem_from(err: OSError, prefix: str, path: str) -> Problem:
    return Problem(path, _translate(err, prefix + path))


def _changed_problem(prefix: str, path: str) -> Problem:
    where = prefix + path
    said = f"{where} was unmounted, mounted over or replaced while it was listed, or is listed and cannot be found"
    return Problem(path, TransientSourceError(said, path=where))


def _translate(err: OSError, path: str) -> PrefeedError:
    if isinstance(err, FileNotFoundError):
        return ObjectNotFoundError(f"{path} does not exist; check the path, and that the storage is mounted", path=path)
    if isinstance(err, PermissionError):
        return AccessDeniedError(f"{path} may not be read by user {os.geteuid()}; change its mode", path=path)
    return TransientSourceError(f"{path}: {err.strerror or err}", path=path, errno=err.errno)
