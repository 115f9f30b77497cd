"""The names of all files below a directory, in order, as columns: no object and no text per file."""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from prefeed.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PassedThroughError,
    SourceError,
    TransientSourceError,
)
from prefeed.sources.listing import LeftOut
from prefeed.sources.views import View
from prefeed.types import ListingProgress

_UNREADABLE: Final = frozenset({
    errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.ENOTDIR,
    errno.ENAMETOOLONG, errno.EINVAL, errno.EUCLEAN, errno.EBADMSG, errno.EREMOTEIO, errno.ENOKEY,
})  # fmt: skip
"""Errors that concern one directory or file. Others, such as too many open files, fail the listing."""

_ENTRIES: Final = 1000
"""Of a directory that are looked at before it counts that something was found."""

Chain = frozenset[tuple[int, int]]
"""Device and inode of a directory and of all its parents: those that are not entered again."""


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """A directory as it was just before it was read; ``path`` is relative to the root, ``""`` the root itself."""

    path: bytes
    device: int
    inode: int
    changed_ns: int
    inode_changed_ns: int


@dataclass(frozen=True, slots=True)
class FileNames:
    """What is below a directory: regular files, and links to such.

    Attributes:
        blob: Paths relative to the root, one after the other; they ascend strictly, byte by byte.
        offsets: Where each begins, and the end, shape (num_files + 1,).
        directories: What was read.
        is_whole: False when something was left out that may become a file without a change of its directory.
        left_out: Directories and files that could not be read.
    """

    blob: bytes
    offsets: NDArray[np.uint64]
    directories: list[Directory]
    is_whole: bool
    left_out: LeftOut

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.offsets) - 1


def list_names(
    root: str,
    view: View | None = None,
    *,
    progress: ListingProgress | None = None,
    avoid: Chain = frozenset(),
) -> FileNames:
    """Return the names of all files below a directory; links are followed, but not back to their own parents.

    Sockets, devices, broken links, and files that vanish during the listing are left out. Directories that cannot be read are left
    out and counted.

    Args:
        root: Directory, an absolute path.
        view: Of the process that the path is from; None: this one's.
        progress: Told how many were found, and 0 bytes.
        avoid: Directories that are not entered, as device and inode.

    Raises:
        SourceError: The root cannot be read, or the storage does not answer.
    """
    return _TreeWalk(root, view).names(progress, avoid)


class _TreeWalk:
    """One walk through a tree, in several threads where the storage is slow."""

    def __init__(self, root: str, view: View | None) -> None:
        self._root = root
        self._prefix = os.fsencode(root.rstrip("/") + "/")
        self._view = view
        self._stat: Any = os.stat if view is None else view.stat
        self._todo: deque[tuple[bytes, Chain]] = deque()
        # Of each directory: runs of its files, as (paths, lengths), and between them the directories below it.
        self._tree: dict[bytes, list[bytes | tuple[bytes, NDArray[np.int64]]]] = {}
        self._directories: list[Directory] = []
        self._is_whole = True
        self._num_found = 0
        self._left_out = LeftOut()

    def names(self, progress: ListingProgress | None, avoid: Chain) -> FileNames:
        try:
            status = self._stat(self._root)
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError
        except OSError as err:
            raise_translated(err, self._root, listing=True)
        self._directories.append(_seen(b"", status))
        self._todo.append((b"", avoid | {(status.st_dev, status.st_ino)}))

        def report() -> None:
            if progress is not None:
                progress(self._num_found, 0)

        work_off(self._todo, self._read, found=lambda: self._num_found, report=report)
        runs = list(self._runs())
        lengths = np.concatenate([np.zeros(1, np.int64), *(run[1] for run in runs)])
        blob = b"".join([run[0] for run in runs])
        return FileNames(blob, np.cumsum(lengths).astype(np.uint64), self._directories, self._is_whole, self._left_out)

    def _runs(self) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """Yield what was found, directory by directory, in the order of the paths."""
        above = [iter(self._tree.get(b"", []))]
        while above:
            for part in above[-1]:
                if isinstance(part, bytes):
                    above.append(iter(self._tree.get(part, [])))
                    break
                yield part
            else:
                above.pop()

    def _read(self, task: tuple[bytes, Chain]) -> None:
        """Note the files of one directory; the directories in it are to be read."""
        relative, chain = task
        names: list[bytes] = []
        below: list[bytes] = []
        try:
            with self._scandir(relative) as entries:
                if self._view is None and not os.access(self._prefix + relative, os.X_OK, effective_ids=True):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # it lists names, and opens none
                while batch := list(islice(entries, _ENTRIES)):
                    files = [entry.name for entry in batch if entry.is_file(follow_symlinks=False)]
                    names += files
                    if len(files) != len(batch):
                        for entry in batch:
                            if not entry.is_file(follow_symlinks=False):
                                self._take_other(entry, relative, chain, names, below)
                    self._num_found += len(batch)
        except FileNotFoundError:
            self._is_whole = False  # removed while the listing was under way
        except OSError as err:
            self._leave_out(err, relative)
        if self._view is not None:
            names = [os.fsencode(name) for name in names]
        names.sort()
        below.sort()
        self._tree[relative] = list(_between(relative, names, below))

    def _take_other(
        self, entry: os.DirEntry[Any], relative: bytes, chain: Chain, names: list[bytes], below: list[bytes]
    ) -> None:
        """Note what is not a regular file: a directory, or a link to one or to a file."""
        name = os.fsencode(entry.name)
        try:
            kind = self._kind(entry, relative + name)
            if kind == stat.S_IFREG:
                names.append(entry.name)
            elif kind == stat.S_IFDIR:
                status = self._stat(self._prefix + relative + name)
                identity = status.st_dev, status.st_ino
                if identity not in chain:
                    self._directories.append(_seen(relative + name, status))
                    self._todo.append((relative + name + b"/", chain | {identity}))
                    below.append(name + b"/")
            else:
                self._is_whole = False
        except FileNotFoundError:
            self._is_whole = False
        except OSError as err:
            if err.errno != errno.ELOOP:  # such a link leads nowhere
                self._leave_out(err, relative + name)
            self._is_whole = False

    def _leave_out(self, err: OSError, relative: bytes) -> None:
        """Count a directory or file that cannot be read. Raise errors of the root, and those of the whole storage."""
        if not relative or not leave_out(err, os.fsdecode(relative), self._left_out):
            raise_translated(err, os.fsdecode(self._prefix + relative), listing=True)
        self._is_whole = False

    def _kind(self, entry: os.DirEntry[Any], path: bytes) -> int:
        """Return what it is, or what the link leads to: the type's bits; 0: nothing that can be read or entered."""
        if self._view is not None and entry.is_symlink():  # it leads where the view's process would find it
            try:
                return stat.S_IFMT(self._view.stat(os.fsdecode(self._prefix + path)).st_mode)
            except OSError:
                return 0
        if entry.is_dir():
            return stat.S_IFDIR
        return stat.S_IFREG if entry.is_file() else 0

    @contextmanager
    def _scandir(self, relative: bytes) -> Iterator[Iterator[os.DirEntry[Any]]]:
        """Open a directory; through a view the names in it are text."""
        path = self._prefix + relative
        if self._view is None:
            with os.scandir(path) as entries:
                yield entries
            return
        descriptor = self._view.open(os.fsdecode(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(descriptor) as entries:
                yield entries
        finally:
            os.close(descriptor)


def _between(
    prefix: bytes, names: list[bytes], below: list[bytes]
) -> Iterator[bytes | tuple[bytes, NDArray[np.int64]]]:
    """Yield the paths of files and directories of one directory in order: runs of files, and each directory."""
    start = 0
    for directory in below:
        end = bisect_left(names, directory, start)
        if end > start:
            yield _joined(prefix, names[start:end])
        yield prefix + directory
        start = end
    if start < len(names):
        yield _joined(prefix, names[start:])


def _joined(prefix: bytes, names: list[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    return prefix + prefix.join(names), np.fromiter(map(len, names), np.int64, len(names)) + len(prefix)


def _seen(path: bytes, status: os.stat_result) -> Directory:
    return Directory(path, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


LISTING_THREADS: Final = 32
_PATIENCE_SECONDS: Final = 0.005
"""A listing in which nothing is found for so long waits for its storage: twice as many threads ask."""

Task = TypeVar("Task")


def work_off(
    todo: deque[Task], step: Callable[[Task], None], *, found: Callable[[], int], report: Callable[[], None]
) -> None:
    """Do every task; a step may add others.

    While the storage answers at once one thread does all: more would only wait for each other. Where questions wait for a
    server, as on network storage, there are soon 32.

    Args:
        todo: Tasks; the last one is done first.
        step: Does one.
        found: Grows during a step.
        report: Called from time to time, and at the end.

    Raises:
        Exception: What a step raised; the others are dropped.
    """

    def work() -> None:
        while True:
            try:
                task = todo.pop()
            except IndexError:
                return
            step(task)

    with ThreadPoolExecutor(LISTING_THREADS, thread_name_prefix="prefeed-list") as pool:
        pending: set[Future[None]] = set()
        threads, before = 1, found()
        try:
            while todo or pending:
                for _ in range(min(len(todo), threads - len(pending))):
                    pending.add(pool.submit(work))
                done, pending = wait(pending, _PATIENCE_SECONDS, FIRST_COMPLETED)
                for future in done:
                    future.result()
                if not done and found() == before:
                    threads = min(2 * threads, LISTING_THREADS)
                before = found()
                report()
        finally:
            todo.clear()


_PERMANENT: Final = frozenset(
    {errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP}
)
"""What asking a second time does not change; the reader gets the system's own error."""


def leave_out(err: OSError, path: str, left_out: LeftOut) -> bool:
    """Count a directory or file that cannot be read; return False if the error may concern the whole storage."""
    if err.errno not in _UNREADABLE:
        return False
    is_denied = isinstance(err, PermissionError)
    reason = f"may not be read by user {os.geteuid()}" if is_denied else err.strerror
    left_out.add(path, reason or str(err), is_denied=is_denied)
    return True


def raise_translated(err: OSError | ValueError, path: str, *, listing: bool = False) -> NoReturn:
    """Raise the error of the tree that stands for one of the operating system's.

    Args:
        err: What the system said.
        path: What was asked for.
        listing: It was asked for by a listing, not by who reads it.
    """
    if isinstance(err, SourceError):
        try:
            raise err
        finally:
            del err  # its traceback refers to this frame
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
