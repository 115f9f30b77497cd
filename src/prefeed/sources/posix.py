"""Files below a directory: local disks, NFS, FUSE mounts."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
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
from prefeed.sources.views import View
from prefeed.types import FetchedObject, ObjectInfo

LISTING_THREADS: Final = 32
_STAT_BATCH: Final = 1000
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer must not hold a thread

_PERMANENT: Final = frozenset(
    {errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP}
)
"""What asking a second time does not change; whoever opens the file is told in the system's own words."""

# What one task of a listing gives: files found (still to be asked for size and time), directories found, objects done.
_Chain = frozenset[tuple[int, int]]
_Found = tuple[list[str], list[tuple[str, _Chain]], list[ObjectInfo]]


def version_of(status: os.stat_result, where: str | int, file_systems: FileSystems = OWN) -> str:
    """Return the version of a file: nanoseconds of its last change, size, and which file it is.

    Args:
        status: Of the file.
        where: Path or descriptor that leads to it.
        file_systems: Of the view that it was asked in.
    """
    return f"{status.st_mtime_ns}-{status.st_size}-{file_systems.identify(status, where)}"


def stat_paths(
    paths: Sequence[str], *, threads: int = LISTING_THREADS, batch: int = _STAT_BATCH
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

    def locate(self, path: str) -> str:
        """Return the absolute path of an object."""
        return path if path.startswith("/") else self._prefix + path

    def fetch(self, path: str) -> FetchedObject:
        """Return the whole file as it was at one moment; see ``Source.fetch``.

        Raises:
            TruncatedBodyError: The file changed while it was read; the next try may succeed.
        """
        try:
            descriptor = self._open(path if path[:1] == "/" else self._prefix + path, _FLAGS)
            try:
                return self._read(descriptor, path)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as err:
            _raise_translated(err, self.locate(path))

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """Return a part of the file; see ``RangeSource.fetch_range``."""
        where = self.locate(path)
        try:
            descriptor = self._open(where, _FLAGS)
            try:
                version = ""
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    self._refuse(status, path)
                # Asked for first: sizes may come from an index that anybody wrote, and are allocated before they are read.
                data = _pread(descriptor, offset, size_bytes) if offset + size_bytes <= status.st_size else b""
                version = version_of(status, descriptor, self._file_systems)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as err:
            _raise_translated(err, where)
        if len(data) != size_bytes:
            raise TruncatedBodyError(
                f"{where} ends early: {size_bytes} bytes wanted from {offset}, and it has {status.st_size} bytes",
                path=where,
            )
        return FetchedObject(data=data, version=version)

    def versions(self, paths: Sequence[str]) -> tuple[list[int], list[str]]:
        """Return sizes and versions of these files, given by absolute path; see ``stat_paths``."""
        return stat_files(paths, self._stat, self._file_systems)

    def _read(self, descriptor: int, path: str) -> FetchedObject:
        before = os.fstat(descriptor)
        size = before.st_size
        if not stat.S_ISREG(before.st_mode) or size > self._max_bytes:
            self._refuse(before, path)
        data = os.read(descriptor, size or 1)
        if len(data) > size:  # files that the kernel makes up say that they are empty
            raise PassedThroughError(f"{self.locate(path)} says that it is empty, and is not", path=self.locate(path))
        if len(data) != size:
            data = _read_rest(descriptor, data, size)
        after = os.fstat(descriptor)
        if len(data) != size or after.st_size != size or after.st_mtime_ns != before.st_mtime_ns:
            raise TruncatedBodyError(
                f"{self.locate(path)} changed while it was read: {size} bytes at the start, {len(data)} read, "
                f"{after.st_size} at the end; do not write to training data during a run",
                path=self.locate(path),
            )
        return FetchedObject(data=data, version=version_of(before, descriptor, self._file_systems))

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

        Directories are read and files asked for their size in 32 threads, for on network storage each
        question waits for a server. What vanishes meanwhile, broken links, sockets and devices are left out;
        a link that leads back to one of its own parents is not followed.
        """
        try:
            root = self._stat(self.url)
            if not stat.S_ISDIR(root.st_mode):
                raise NotADirectoryError
        except OSError as err:
            _raise_translated(err, self.url, listing=True)
        with ThreadPoolExecutor(LISTING_THREADS, thread_name_prefix="prefeed-list") as pool:
            pending: set[Future[_Found]] = {pool.submit(self._scan, "", frozenset({(root.st_dev, root.st_ino)}))}
            try:
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        files, directories, objects = future.result()
                        pending.update(pool.submit(self._scan, *directory) for directory in directories)
                        pending.update(pool.submit(self._stat_files, part) for part in _parts(files))
                        if objects:
                            yield objects
            finally:
                for future in pending:
                    future.cancel()

    def close(self) -> None:
        """Do nothing: no handle is held."""

    def _scan(self, relative: str, chain: _Chain) -> _Found:
        """Read one directory. ``chain``: device and inode of it and of all its parents."""
        files: list[str] = []
        directories: list[tuple[str, _Chain]] = []
        try:
            with self._scandir(self._prefix + relative) as entries:
                for entry in entries:
                    path = relative + entry.name
                    if self._is_directory(entry, path):
                        status = self._stat(self._prefix + path)
                        identity = (status.st_dev, status.st_ino)
                        if identity not in chain:
                            directories.append((path + "/", chain | {identity}))
                    else:
                        files.append(path)
        except FileNotFoundError:
            pass  # Removed while the listing was under way.
        except OSError as err:
            _raise_translated(err, self._prefix + relative, listing=True)
        return files, directories, []

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

    def _is_directory(self, entry: os.DirEntry[str], path: str) -> bool:
        if self._view is None or not entry.is_symlink():
            return entry.is_dir()
        try:
            return stat.S_ISDIR(self._view.stat(self._prefix + path).st_mode)
        except OSError:
            return False

    def _stat_files(self, paths: list[str]) -> _Found:
        objects: list[ObjectInfo] = []
        for path in paths:
            try:
                status = self._stat(self._prefix + path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as err:
                _raise_translated(err, self._prefix + path, listing=True)
            if stat.S_ISREG(status.st_mode):
                version = version_of(status, self._prefix + path, self._file_systems)
                objects.append(ObjectInfo(path=path, size_bytes=status.st_size, version=version))
        return [], [], objects


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


def _parts(files: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(files), _STAT_BATCH):
        yield files[start : start + _STAT_BATCH]


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
