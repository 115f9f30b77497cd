"""Files below a directory: local disks, NFS, FUSE mounts."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import PassedThroughError, TruncatedBodyError
from prefeed.sources.file_names import LISTING_THREADS, FileNames, list_names, raise_translated
from prefeed.sources.file_versions import FileTable, ask_files, version_of
from prefeed.sources.filesystems import OWN, FileSystems
from prefeed.sources.listing import LeftOut, split_paths
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
from prefeed.types import FetchedObject, ListingProgress, ObjectInfo

_LIST_BATCH: Final = 1000
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer must not hold a thread


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
        self.left_out: LeftOut = LeftOut()

    @property
    def is_own_view(self) -> bool:
        """Whether paths mean what they mean to this process."""
        return self._view is None

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

    def info(self, path: str) -> ObjectInfo:
        """Return size and version of a file; see ``BrowsableSource.info``."""
        where = self.locate(path)
        try:
            status = self._stat(where)
        except (OSError, ValueError) as err:
            raise_translated(err, where)
        if not stat.S_ISREG(status.st_mode):
            self._refuse(status, path)
        return ObjectInfo(path=path, size_bytes=status.st_size, version=version_of(status, where, self._file_systems))

    def list_level(self, path: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return the files and directories right below a directory; see ``BrowsableSource.list_level``."""
        where = self.locate(path) if path else self.url
        files: list[ObjectInfo] = []
        directories: list[str] = []
        try:
            descriptor = self._open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                names = os.listdir(descriptor)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        except (OSError, ValueError) as err:
            raise_translated(err, where)
        for name in sorted(names):
            below = f"{path.rstrip('/')}/{name}" if path else name
            with contextlib.suppress(OSError, ValueError):  # a link that leads nowhere is no object
                status = self._stat(self.locate(below))
                if stat.S_ISDIR(status.st_mode):
                    directories.append(below)
                elif stat.S_ISREG(status.st_mode):
                    version = version_of(status, self.locate(below), self._file_systems)
                    files.append(ObjectInfo(path=below, size_bytes=status.st_size, version=version))
        return files, directories

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
        """Return what is read of a file that no process writes to meanwhile; one that changes is read a few times.

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
            raise_translated(err, where)
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
                    f"{self.locate(path)} reports a size of 0, and is not empty", path=self.locate(path)
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
            raise PassedThroughError(f"{where} is not a regular file", path=where)
        raise PassedThroughError(
            f"{where} has {status.st_size} bytes, more than {self._max_bytes}, and is not cached whole",
            path=where,
        )

    def list_names(self, *, progress: ListingProgress | None = None) -> FileNames:
        """Return the names of every file below the directory; see ``file_names.list_names``."""
        return list_names(self.url, self._view, progress=progress)

    def ask(
        self, paths: Sequence[bytes], *, progress: ListingProgress | None = None, left_out: LeftOut | None = None
    ) -> FileTable:
        """Return what these files are now, as a listing asks for them; see ``file_versions.ask_files``."""
        return ask_files(self.url, paths, self._view, strict=True, progress=progress, left_out=left_out)

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every file below the directory; see ``Source.list_objects``. Manifests are made of columns instead."""
        names = self.list_names()
        paths = split_paths(names.blob, names.offsets)
        table = self.ask(paths, left_out=names.left_out)
        self.left_out = names.left_out
        self.left_out.warn(self.url)
        files = zip(paths, table.sizes.tolist(), table.versions(), strict=True)
        infos = (
            ObjectInfo(path=os.fsdecode(path), size_bytes=size, version=version.decode("ascii"))
            for path, size, version in files
            if size >= 0
        )
        while batch := list(islice(infos, _LIST_BATCH)):
            yield batch

    def close(self) -> None:
        """Do nothing: no handle is held."""


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
