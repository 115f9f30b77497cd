"""Files below a directory: local disks, NFS, FUSE mounts."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PassedThroughError,
    SourceError,
    TransientSourceError,
    TruncatedBodyError,
)
from prefeed.sources.filesystems import OWN, FileSystems
from prefeed.sources.known_directories import INODE_BITS, Directory
from prefeed.sources.steadiness import (
    MOST_READS,
    REST_SECONDS,
    is_left_alone,
    is_old,
    is_open_for_writing,
    is_young,
    seconds_to_rest,
)
from prefeed.sources.views import View
from prefeed.types import FetchedObject, ObjectInfo

LISTING_THREADS: Final = 32
_LIST_BATCH: Final = 1000
_STAT_BATCH: Final = 100
_PATIENCE_SECONDS: Final = 0.005
"""A listing in which nothing is found for so long waits for its storage: twice as many threads ask."""

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer must not hold a thread

_PERMANENT: Final = frozenset(
    {errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP}
)
"""What asking a second time does not change; whoever opens the file is told in the system's own words."""

Chain = frozenset[tuple[int, int]]
"""Device and inode of a directory and of all its parents."""

_Todo = tuple[str, Chain | list[str]]
"""A directory to be read, with its chain; or files of one to be asked for size and time, with their names."""


def version_of(status: os.stat_result, where: str | int, file_systems: FileSystems = OWN) -> str:
    """Return the version of a file: nanoseconds of its last change, size, and which file it is.

    Args:
        status: Of the file.
        where: Path or descriptor that leads to it.
        file_systems: Of the view that it was asked in.
    """
    return f"{status.st_mtime_ns}-{status.st_size}-{file_systems.identify(status, where)}"


def stamp_of(version: str) -> tuple[int, int]:
    """Return the time of the last change and the inode, 0 where it means nothing, that the version of a file tells."""
    changed_ns, _, inode = version.partition("-")[0], *version.rpartition("#")[1:]
    return int(changed_ns) if changed_ns.isdigit() else 0, int(inode) & INODE_BITS if inode.isdigit() else 0


def identity_of(status: os.stat_result) -> int:
    """Return 64 bits that all names of one file have in common, and two files hardly ever; never 0."""
    return ((status.st_dev * 0x9E3779B97F4A7C15) ^ status.st_ino) & 0xFFFFFFFFFFFFFFFF or 1


def stat_paths(
    paths: Sequence[str], *, threads: int = LISTING_THREADS, batch: int = _LIST_BATCH
) -> tuple[NDArray[np.int64], list[str]]:
    """Return sizes, shape (num_paths,), and versions of files given by absolute path, in the given order.

    A path that does not exist or cannot be asked for has size -1 and version ``""``: reading it will say why.
    """
    starts = range(0, len(paths), batch)
    with ThreadPoolExecutor(max(1, min(threads, len(starts)))) as pool:
        batches = list(pool.map(lambda start: stat_files(paths[start : start + batch]), starts))
    sizes = np.fromiter((size for sizes, _ in batches for size in sizes), np.int64, len(paths))
    return sizes, [version for _, versions in batches for version in versions]


class PosixSource:
    """Reads the files below one directory; symbolic links are followed, hidden files are objects too.

    Paths are relative to the directory. An absolute path is taken as it is, so that a manifest made from a
    dataset's own list of files may reach outside its root.

    Attributes:
        listed_directories: What the last listing read, as it was just before that.
        is_listed_wholly: False when that listing left out what may become a file without a change of its directory, or is
            of another process's view.

    **Threads and processes.** Holds no handle between calls: any thread and any forked child may use it.
    """

    mark = ""

    def __init__(self, root: str, *, max_bytes: int | None = None, view: View | None = None) -> None:
        """Read below ``root``, an absolute path without a trailing slash.

        Args:
            root: Directory.
            max_bytes: Files larger than this are refused; None: of any size are read.
            view: Of the process that the paths are from; None: this one's.
        """
        self.url = root
        self._view = view
        self._open = os.open if view is None else view.open
        self._stat = os.stat if view is None else view.stat
        self._file_systems = OWN if view is None else view.file_systems
        self._max_bytes = sys.maxsize if max_bytes is None else max_bytes
        self._prefix = root.rstrip("/") + "/"
        self.listed_directories: list[Directory] = []
        self.is_listed_wholly = True

    def locate(self, path: str) -> str:
        """Return the absolute path of an object."""
        return path if path.startswith("/") else self._prefix + path

    def fetch(self, path: str) -> FetchedObject:
        """Return the whole file as it was at one moment; see ``Source.fetch``.

        Raises:
            TruncatedBodyError: Somebody writes to the file all the time; the next try may succeed.
        """
        return self._read_at_rest(path, self._read_whole)

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """Return a part of the file; see ``RangeSource.fetch_range``."""
        return self._read_at_rest(path, partial(self._read_part, offset=offset, size_bytes=size_bytes))

    def versions(self, paths: Sequence[str]) -> tuple[list[int], list[str]]:
        """Return sizes and versions of these files, given by absolute path; see ``stat_paths``."""
        return stat_files(paths, self._stat, self._file_systems)

    def identity(self, path: str) -> int:
        """Return which file this is, given by absolute path, as ``identity_of`` says; 0 where that cannot be told."""
        try:
            return identity_of(self._stat(path))
        except (OSError, ValueError):
            return 0

    def _read_at_rest(self, path: str, read: Callable[[int, os.stat_result, str], bytes | None]) -> FetchedObject:
        """Return what is read of a file that nobody writes to meanwhile; one that changes is read a few times.

        **Blocking**: a file that was changed just now is waited for, ``REST_SECONDS`` at a time.
        """
        where = path if path[:1] == "/" else self._prefix + path
        earlier: bytes | None = None
        sizes = ""
        try:
            for reads_left in range(MOST_READS - 1, -1, -1):
                now_ns = time.time_ns()
                descriptor = self._open(where, _FLAGS)
                try:
                    before = os.fstat(descriptor)
                    data = read(descriptor, before, path)
                    if data is not None and self._is_whole(where, descriptor, before, now_ns, data == earlier):
                        version = version_of(before, descriptor, self._file_systems)
                        return FetchedObject(data=data, version=version, inode=identity_of(before))
                    earlier, after = data, os.fstat(descriptor)
                    sizes = f"{before.st_size} bytes at the last start, {after.st_size} at the end"
                finally:
                    os.close(descriptor)
                if reads_left:
                    time.sleep(seconds_to_rest(after, time.time_ns()) or REST_SECONDS)
        except (OSError, ValueError) as err:
            _raise_translated(err, where)
        raise TruncatedBodyError(
            f"{where} changed while it was read, {MOST_READS} times: {sizes}; do not write to training data during a run",
            path=where,
        )

    def _is_whole(self, where: str, descriptor: int, before: os.stat_result, now_ns: int, is_as_before: bool) -> bool:
        """Return whether what was read is the file as it was at one moment.

        Where the times of an inode change by themselves, two reads that are alike say it.
        """
        try:
            after = self._stat(where)
        except OSError:  # it was removed, or may not be asked for: the open file tells
            after = os.fstat(descriptor)
            return (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        if is_young(before, now_ns) and (seconds_to_rest(before, now_ns) or is_open_for_writing(descriptor)):
            return is_as_before and is_left_alone(before, after, but_for_inode=True) and is_old(before, now_ns)
        return is_left_alone(before, after, but_for_inode=is_as_before)

    def _read_whole(self, descriptor: int, status: os.stat_result, path: str) -> bytes | None:
        """Return all bytes; None when there are fewer than the file has."""
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size > self._max_bytes:
            self._refuse(status, path)
        data = os.read(descriptor, size or 1)
        if len(data) > size:  # files that the kernel makes up say that they are empty
            if os.fstat(descriptor).st_size == size:
                raise PassedThroughError(
                    f"{self.locate(path)} says that it is empty, and is not", path=self.locate(path)
                )
            return None
        if len(data) != size:
            data = _read_rest(descriptor, data, size)
        return data if len(data) == size else None

    def _read_part(
        self, descriptor: int, status: os.stat_result, path: str, *, offset: int, size_bytes: int
    ) -> bytes | None:
        """Return a part; None when there are fewer bytes than the file has."""
        if not stat.S_ISREG(status.st_mode):
            self._refuse(status, path)
        # Asked for first: sizes may come from an index that anybody wrote, and are allocated before they are read.
        if offset + size_bytes > status.st_size:
            raise TruncatedBodyError(
                f"{self.locate(path)} ends early: {size_bytes} bytes wanted from {offset}, and it has "
                f"{status.st_size} bytes",
                path=self.locate(path),
            )
        data = _pread(descriptor, offset, size_bytes)
        return data if len(data) == size_bytes else None

    def _refuse(self, status: os.stat_result, path: str) -> NoReturn:
        where = self.locate(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):
            raise PassedThroughError(f"{where} is no regular file", path=where)
        raise PassedThroughError(
            f"{where} has {status.st_size} bytes, more than max_object ({self._max_bytes}), and is read past the cache",
            path=where,
        )

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every file below the directory; see ``Source.list_objects``.

        While the storage answers at once one thread reads directories and asks files for their size: more would only wait
        for each other. Where questions wait for a server, as on network storage, there are soon 32. What vanishes meanwhile, broken links, sockets and devices are left out;
        a link that leads back to one of its own parents is not followed.
        """
        try:
            root = self._stat(self.url)
            if not stat.S_ISDIR(root.st_mode):
                raise NotADirectoryError
        except OSError as err:
            _raise_translated(err, self.url, listing=True)
        self.listed_directories, self.is_listed_wholly = [_seen("", root)], self._view is None
        todo: deque[_Todo] = deque([("", frozenset({(root.st_dev, root.st_ino)}))])
        with ThreadPoolExecutor(LISTING_THREADS, thread_name_prefix="prefeed-list") as pool:
            pending: set[Future[list[ObjectInfo]]] = set()
            threads = 1
            try:
                while todo or pending:
                    for _ in range(min(len(todo), threads - len(pending))):
                        pending.add(pool.submit(self._work, todo))
                    done, pending = wait(pending, _PATIENCE_SECONDS, FIRST_COMPLETED)
                    if not done:
                        threads = min(2 * threads, LISTING_THREADS)
                    for future in done:
                        if objects := future.result():
                            yield objects
            finally:
                todo.clear()

    def close(self) -> None:
        """Do nothing: no handle is held."""

    def _work(self, todo: deque[_Todo]) -> list[ObjectInfo]:
        """Read directories and ask files until a thousand were found, or nothing is left to do at present."""
        objects: list[ObjectInfo] = []
        while len(objects) < _LIST_BATCH:
            try:
                relative, task = todo.pop()
            except IndexError:
                break
            if isinstance(task, list):
                self._stat_files(relative, task, objects)
                continue
            names, directories = self._scan(relative, task)
            todo.extend(directories)
            todo.extend((relative, names[start : start + _STAT_BATCH]) for start in range(0, len(names), _STAT_BATCH))
        return objects

    def _scan(self, relative: str, chain: Chain) -> tuple[list[str], list[tuple[str, Chain]]]:
        """Return the names in one directory that are none, and the directories. ``chain``: it and all its parents."""
        names: list[str] = []
        directories: list[tuple[str, Chain]] = []
        try:
            with self._scandir(self._prefix + relative) as entries:
                for entry in entries:
                    if self._is_directory(entry, relative):
                        path = relative + entry.name
                        status = self._stat(self._prefix + path)
                        identity = (status.st_dev, status.st_ino)
                        if identity not in chain:
                            self.listed_directories.append(_seen(path, status))
                            directories.append((path + "/", chain | {identity}))
                    else:
                        names.append(entry.name)
        except FileNotFoundError:
            self.is_listed_wholly = False  # Removed while the listing was under way.
        except OSError as err:
            _raise_translated(err, self._prefix + relative, listing=True)
        return names, directories

    def _stat_files(self, relative: str, names: list[str], objects: list[ObjectInfo]) -> None:
        ask, prefix, identify = self._ask_below, self._prefix + relative, self._file_systems.identify
        try:
            directory = self._open(prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.is_listed_wholly = False
            return
        except OSError as err:
            _raise_translated(err, self._prefix + relative, listing=True)
        try:
            for name in names:
                try:
                    status = ask(name, directory, prefix)
                except (FileNotFoundError, NotADirectoryError):
                    self.is_listed_wholly = False
                    continue
                except OSError as err:
                    _raise_translated(err, self._prefix + relative + name, listing=True)
                if stat.S_ISREG(status.st_mode):
                    size = status.st_size
                    version = f"{status.st_mtime_ns}-{size}-{identify(status, prefix + name)}"
                    objects.append(ObjectInfo(path=relative + name, size_bytes=size, version=version))
                else:
                    self.is_listed_wholly = False
        finally:
            os.close(directory)

    @contextmanager
    def _scandir(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        if self._view is None:
            with os.scandir(path) as entries:
                yield entries
            return
        descriptor = self._view.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(descriptor) as entries:
                yield entries
        finally:
            os.close(descriptor)

    def _is_directory(self, entry: os.DirEntry[str], relative: str) -> bool:
        if self._view is None or not entry.is_symlink():
            return entry.is_dir()
        try:
            return stat.S_ISDIR(self._view.stat(self._prefix + relative + entry.name).st_mode)
        except OSError:
            return False

    def _ask_below(self, name: str, directory: int, prefix: str) -> os.stat_result:
        """Return what a name in an open directory is; links lead where the view's process would find them."""
        if self._view is None:
            return os.stat(name, dir_fd=directory)
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return self._view.stat(prefix + name) if stat.S_ISLNK(status.st_mode) else status


def _seen(path: str, status: os.stat_result) -> Directory:
    return Directory(os.fsencode(path), status.st_dev, status.st_ino, status.st_mtime_ns)


def _read_rest(descriptor: int, first: bytes, size: int) -> bytes:
    """Read on until ``size`` bytes are there or the file ends: one read gives at most 2 GiB."""
    chunks = [first]
    missing = size - len(first)
    while missing > 0:
        chunk = os.read(descriptor, missing)
        if not chunk:
            break
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    """Return that many bytes from there on, fewer where the file ends."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def stat_files(
    paths: Sequence[str], ask: Callable[[str], os.stat_result] = os.stat, file_systems: FileSystems = OWN
) -> tuple[list[int], list[str]]:
    """Return sizes and versions of these files, one after the other; see ``stat_paths``."""
    sizes: list[int] = []
    versions: list[str] = []
    for path in paths:
        try:
            status = ask(path)
        except (OSError, ValueError):
            sizes.append(-1)
            versions.append("")
        else:
            sizes.append(status.st_size)
            versions.append(version_of(status, path, file_systems))
    return sizes, versions


def _raise_translated(err: OSError | ValueError, path: str, *, listing: bool = False) -> NoReturn:
    """Raise the error of the tree that stands for one of the operating system's."""
    if isinstance(err, SourceError):
        raise err
    if isinstance(err, FileNotFoundError):
        advice = "check the path, and that the storage is mounted on this node" if listing else "was it removed?"
        raise ObjectNotFoundError(f"{path} does not exist; {advice}", path=path) from err
    if isinstance(err, NotADirectoryError | IsADirectoryError):
        wanted = "directory; pass the directory that holds the files" if listing else "file"
        raise ObjectNotFoundError(f"{path} is not a {wanted}", path=path) from err
    if isinstance(err, PermissionError):
        raise AccessDeniedError(f"{path} may not be read by user {os.geteuid()}; change its mode", path=path) from err
    if isinstance(err, OSError) and err.errno in _PERMANENT and not listing:
        raise PassedThroughError(f"{path}: {err.strerror}", path=path) from err
    if isinstance(err, ValueError):
        raise ObjectNotFoundError(f"{path!r} cannot be the name of a file: {err}", path=path) from err
    raise TransientSourceError(f"{path}: {err.strerror or err}", path=path, errno=err.errno) from err
